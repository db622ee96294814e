"""What ``fedfw deploy demo`` prints of a run: what ran, its rounds, its bytes and seconds, and what
the words mean.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from fedfw.deployment.records import DeployedRecord
from fedfw.options import options_of
from fedfw.report.tables import fitted, human_bytes
from fedfw.rounds.folders import HISTORY
from fedfw.rounds.wire import digest
from fedfw.simulation import Run

WHY_SO_LONG = (
    "A round takes three seconds or more, however small the model is: Flower's server and its nodes look for messages "
    "every three seconds, and each message has a process of its own on its node."
)
TOTALS_HEADER = (
    *("", "payload up", "down", "evidence up", "down", "by Flower's count up", "down"),
    *("seconds a round", "of them ours", "bits of the simulator", "bytes of the simulator"),
)
_ROUNDS_HEADER = (
    "round",
    "counted",
    "refused",
    "test loss",
    "accuracy",
    "simulated",
    "up",
    "down",
    "seconds",
    "drift",
)
_LEGEND = (
    ("counted", "answers that went into the model, of the clients that were invited to the round"),
    ("refused", "answers that did not pass the server's checks; history.jsonl says why"),
    (
        "test loss, accuracy",
        "of the server's model on the test data; 'simulated' is the accuracy in the simulator",
    ),
    (
        "up, down",
        "payload from and to all clients: atoms (or models), and what is new in the model",
    ),
    ("drift", "how far the model is from the mean of the clients' points: nothing but rounding"),
    (
        "evidence",
        "bytes by which server and clients check each other: digests, and losses where they are told",
    ),
    (
        "by Flower's count",
        "what went over Flower's connections, with its own framing, checks and questions",
    ),
    (
        "seconds",
        "that the round took; 'of them ours' are those of the server and of the slowest client",
    ),
    (
        "bits, bytes of the simulator",
        "whether the model, and the payload of each round, are exactly the simulator's",
    ),
)


def title(run: Run) -> str:
    """Which algorithm runs on which set, and how large it all is."""
    algorithm, plan = run.algorithm, run.plan
    numbers = {name: getattr(algorithm, name) for name in options_of(type(algorithm))}
    numbers |= {
        name: value for name, value in (("penalty", plan.lam_0), ("lr", plan.lr)) if name in numbers
    }
    shown = {name: value for name, value in numbers.items() if type(value) in (int, float)}
    chosen = [f"{name.replace('_', '-')} {value:.3g}" for name, value in shown.items()]
    with_ = f" with {', '.join(chosen)}" if chosen else ""
    size = f"{run.x.numel():,} parameters, {plan.n} clients, {len(run.history)} rounds"
    return f"{algorithm.title}{with_} on the set {algorithm.constraint!r}: {size}"


def legend() -> str:
    """What the words of the tables mean."""
    return "What the words mean:\n" + fitted([(f"  {word}", meaning) for word, meaning in _LEGEND])


def read_records(out: Path) -> list[DeployedRecord]:
    """The rounds that a server has recorded so far."""
    path = out / HISTORY
    return (
        [DeployedRecord(**json.loads(line)) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


def line_of(record: DeployedRecord) -> str:
    """A round in a few words, for the progress."""
    parts = [f"{record.participants} of {record.invited} counted"]
    parts += [] if record.accuracy is None else [f"accuracy {record.accuracy:.3f}"]
    return "  ".join([*parts, f"{human_bytes(record.bytes_up)} up", f"{_whole(record):.1f} s"])


def reasons(records: Sequence[DeployedRecord]) -> str:
    """Why answers were refused, as the rest of a sentence."""
    refused: Counter[str] = Counter()
    for record in records:
        refused.update(record.refused)
    return "".join(f"; refused {count} times: {reason}" for reason, count in refused.items())


def rounds_table(records: Sequence[DeployedRecord], simulated: Run) -> str:
    """A line a round, deployed beside simulated."""
    rows = [_ROUNDS_HEADER]
    for record, other in zip(records, simulated.history, strict=False):
        rows.append(
            (
                str(record.round),
                f"{record.participants} of {record.invited}",
                str(sum(record.refused.values())),
                "-" if record.test_loss is None else f"{record.test_loss:.4f}",
                "-" if record.accuracy is None else f"{record.accuracy:.3f}",
                "-" if other.accuracy is None else f"{other.accuracy:.3f}",
                human_bytes(record.bytes_up),
                human_bytes(record.bytes_down),
                f"{_whole(record):.1f}",
                f"{record.drift:.0e}",
            )
        )
    return fitted(rows)


def totals_row(
    name: str,
    records: Sequence[DeployedRecord],
    simulated: Run,
    traffic: Mapping[str, int],
    state: Path,
) -> tuple[str, ...]:
    """Bytes and seconds of a whole run; ``traffic`` is Flower's account, ``state`` the clients'
    folder of the run.
    """
    ways = ("bytes_up", "bytes_down", "evidence_up", "evidence_down")
    totals = [int(sum(getattr(record, way) for record in records)) for way in ways]
    counts = (*totals, traffic["inbound-bytes"], traffic["outbound-bytes"])
    took, ours = _seconds(records, state)
    payload = [
        [(record.bytes_up, record.bytes_down) for record in history]
        for history in (records, simulated.history)
    ]
    same = (records[-1].digest == digest(simulated.x).hex(), payload[0] == payload[1])
    agree = ("yes" if one_way else "no" for one_way in same)
    return (name, *(f"{count:,}" for count in counts), f"{took:.2f}", f"{ours:.3f}", *agree)


def _whole(record: DeployedRecord) -> float:
    return sum((record.seconds or {}).values())


def _seconds(records: Sequence[DeployedRecord], state: Path) -> tuple[float, float]:
    """Medians over the rounds after the first: the whole, and the server's part with the slowest
    client's.
    """
    clients: dict[int, float] = {}
    for log in state.glob("*.log.jsonl"):
        for event in map(json.loads, log.read_text().splitlines()):
            clients[event["round"]] = max(event["seconds"], clients.get(event["round"], 0.0))
    later = [record for record in records if record.seconds][1:] or records
    whole = median(_whole(record) for record in later)
    return whole, median(
        (r.seconds or {}).get("server", 0.0) + clients.get(r.round, 0.0) for r in later
    )
