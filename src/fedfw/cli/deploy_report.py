"""The output of ``fedfw deploy demo``: what ran, its rounds, its bytes and seconds, and what
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
    "A round takes three seconds or more, however small the model is: Flower's server and its "
    "nodes look for messages every three seconds, and each message has a process of its own on "
    "its node."
)
TOTALS_HEADER = (
    *("", "payload up", "payload down", "evidence up", "evidence down"),
    *("up by Flower's count", "down by Flower's count"),
    *("seconds a round", "bits of the simulator", "bytes of the simulator"),
)
_ROUNDS_HEADER = (
    *("round", "counted", "refused", "test loss", "accuracy", "simulated", "up", "down"),
    *("seconds", "drift"),
)
LEGEND = (
    (
        "  counted",
        "answers that went into the model, of the clients that were invited to the round",
    ),
    ("  refused", "answers that did not pass the server's checks; history.jsonl says why"),
    (
        "  test loss, accuracy",
        "of the server's model on the test data; 'simulated' is the accuracy in the simulator",
    ),
    (
        "  up, down",
        "payload from and to all clients: atoms (or models), and what is new in the model",
    ),
    ("  drift", "how far the model is from the mean of the clients' points: nothing but rounding"),
    (
        "  evidence",
        "bytes by which server and clients check each other: digests, and losses where reported",
    ),
    (
        "  by Flower's count",
        "what went over Flower's connections, with its own framing, checks and questions",
    ),
    (
        "  seconds",
        "that the round took; the median of all but the first",
    ),
    (
        "  bits, bytes of the simulator",
        "whether the model, and the payload of each round, are exactly the simulator's",
    ),
)
"""The words of the tables, and what they mean."""


def title(run: Run) -> str:
    """Return the algorithm with its numbers, its set, and how large it all is."""
    algorithm = run.algorithm
    values = {name: getattr(algorithm, name) for name in options_of(type(algorithm))}
    chosen = ", ".join(
        f"{name.replace('_', '-')} {value:.3g}"
        for name, value in values.items()
        if type(value) in (int, float)
    )
    with_ = f" with {chosen}" if chosen else ""
    size = f"{run.x.numel():,} parameters, {run.problem.n} clients, {len(run.history)} rounds"
    return f"{algorithm.title}{with_} on the set {algorithm.constraint!r}: {size}"


def read_records(out: Path) -> list[DeployedRecord]:
    """Return the rounds that a server has recorded so far."""
    if not (out / HISTORY).exists():
        return []
    lines = (out / HISTORY).read_text().splitlines()
    return [DeployedRecord(**json.loads(line)) for line in lines]


def line_of(record: DeployedRecord) -> str:
    """Return a round in a few words, for the progress."""
    accuracy = "" if record.accuracy is None else f"  accuracy {record.accuracy:.3f}"
    answers = f"{record.participants} of {record.invited} counted{accuracy}"
    return f"{answers}  {human_bytes(record.bytes_up)} up  {_duration(record):.1f} s"


def reasons(records: Sequence[DeployedRecord]) -> str:
    """Return why answers were refused, as the rest of a sentence."""
    refused = sum((Counter(record.refused) for record in records), Counter())
    return "".join(f"; refused {count} times: {reason}" for reason, count in refused.items())


def rounds_table(records: Sequence[DeployedRecord], simulated: Run) -> str:
    """Return a line a round, deployed beside simulated."""
    rows = [
        (
            str(record.round),
            f"{record.participants} of {record.invited}",
            str(sum(record.refused.values())),
            "-" if record.test_loss is None else f"{record.test_loss:.4f}",
            "-" if record.accuracy is None else f"{record.accuracy:.3f}",
            "-" if other.accuracy is None else f"{other.accuracy:.3f}",
            human_bytes(record.bytes_up),
            human_bytes(record.bytes_down),
            f"{_duration(record):.1f}",
            f"{record.drift:.0e}",
        )
        # A deployment that ended early has fewer rounds than the simulation.
        for record, other in zip(records, simulated.history, strict=False)
    ]
    return fitted([_ROUNDS_HEADER, *rows])


def totals_row(
    records: Sequence[DeployedRecord], simulated: Run, traffic: Mapping[str, int]
) -> tuple[str, ...]:
    """Return bytes and seconds of a whole run; ``traffic`` is Flower's account."""
    ways = ("bytes_up", "bytes_down", "evidence_up", "evidence_down")
    totals = [int(sum(getattr(record, way) for record in records)) for way in ways]
    counts = (*totals, traffic["inbound-bytes"], traffic["outbound-bytes"])
    # The first round is left out: imports and the loading of data make it longer than the others.
    seconds = median(map(_duration, records[1:] or records))
    payload, simulated_payload = (
        [(record.bytes_up, record.bytes_down) for record in history]
        for history in (records, simulated.history)
    )
    same = (records[-1].digest == digest(simulated.x).hex(), payload == simulated_payload)
    return (
        simulated.algorithm.name,
        *(f"{count:,}" for count in counts),
        f"{seconds:.2f}",
        *("yes" if equal else "no" for equal in same),
    )


def _duration(record: DeployedRecord) -> float:
    """Return how many seconds a round took: the sum of its parts."""
    return sum((record.seconds or {}).values())
