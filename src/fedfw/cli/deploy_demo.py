"""``fedfw deploy demo``: a whole Flower federation on this machine, for one run, beside its simulation."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from fedfw.algorithms import FedAvg
from fedfw.cli.bars import progress_bar
from fedfw.cli.deploy_init import copy_app
from fedfw.cli.flags import add_flags, flags_given
from fedfw.config import RunConfig, build_algorithm, build_problem, completed, load, merge, rooted, run_options
from fedfw.config.app import app_options
from fedfw.deployment.records import DeployedRecord
from fedfw.deployment.server import DeployedServer
from fedfw.deployment.settings import Deployment
from fedfw.options import options_of
from fedfw.report.tables import aligned, human_bytes
from fedfw.rounds.folders import HISTORY
from fedfw.rounds.wire import digest
from fedfw.simulation import Run, Simulation
from fedfw.simulation.callbacks import Progress

if TYPE_CHECKING:
    from fedfw.deployment.flower.local import LocalFederation

DESCRIPTION = (
    "Simulate a run, then start a SuperLink and SuperNodes on 127.0.0.1 with throw-away certificates and keys, closed "
    "to strangers as docs/deployment.md closes three hosts, run the same there, print both in one table, and end "
    "everything that was started."
)
DEFAULTS: dict[str, Any] = {"clients": 3, "rounds": 5, "partition": "iid"}
FIRST_CHOICE: dict[str, Any] = {"algorithm": "fedfw", "momentum": 0.9}
"""What runs where no algorithm is named."""
_NOT_HERE = ("tol", "device", "eval_every", "weights")
_DEPLOYED = ("round_timeout", "tell_loss", "share_gradients")
_LOOK = 0.5  # seconds between looks at a run
_HEADER = (
    *("", "payload up", "down", "evidence up", "down", "by Flower's count up", "down"),
    *("seconds a round", "of them ours", "bits of the simulator", "bytes of the simulator"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is run and how it is deployed, the folder, and what it is compared to."""
    shown = DEFAULTS | {"algorithm": "here fedfw with momentum 0.9"}
    add_flags(parser, without=_NOT_HERE, defaults=shown)
    add_flags(parser, _DEPLOYED, declared=options_of(Deployment))
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="a new folder (one under runs/)")
    parser.add_argument("--compare", action="store_true", help="run FedAvg with projection, too, and compare the bytes")
    parser.add_argument(
        "--simulated", action="store_true", help="let Flower simulate the nodes (pip install 'flwr[simulation]')"
    )


def execute(options: argparse.Namespace) -> int:
    """Simulate, start a federation, run there, show both, and end everything that was started."""
    from fedfw.deployment.flower.local import FederationError, LocalFederation

    config = _configured(flags_given(options))
    deployed = _deployment(flags_given(options, options_of(Deployment)))
    folder = options.out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-deployed"
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: give another --out")
    print("simulating ...", file=sys.stderr)
    demos = {str(config.algorithm): Demo.of(config)}
    if options.compare:
        demos.setdefault(FedAvg.name, Demo.of(_as_fedavg(config)))
    for one in demos.values():
        one.refuse_what_cannot_be_deployed(deployed)
    copy_app(folder / "app")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us must not leave processes behind
    try:
        nodes = f"a proxy with TLS before it and {config.clients} SuperNodes with keys"
        more = "Flower's simulation" if options.simulated else nodes
        print(f"starting a SuperLink on 127.0.0.1, {more} ...", file=sys.stderr)
        with LocalFederation(folder / "federation", config.clients, options.simulated) as federation:
            rows = [_deploy(federation, folder, name, one, deployed) for name, one in demos.items()]
            print("stopping everything ...", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started has ended", file=sys.stderr)
        return 130
    except FederationError as error:
        print(f"fedfw deploy: {error}\nthe logs are in {folder / 'federation'}", file=sys.stderr)
        return 1
    print(aligned([_HEADER, *rows]))
    print(f"\nFolder: {folder} (the app, the server's history, model and checkpoints, all logs)")
    return 0


def _configured(flags: Mapping[str, str]) -> RunConfig:
    first = {} if "algorithm" in flags else FIRST_CHOICE
    config = rooted(merge(RunConfig.of(**DEFAULTS, **first), flags, "command line"))
    if config.constraint is None and config.dataset == "digits":
        return replace(config, constraint="ksparse:k=65,r=10")  # learns in a few rounds, from short messages
    return config


def _deployment(flags: Mapping[str, str]) -> dict[str, Any]:
    """The options of the deployment that were given, checked, by their keys."""
    declared = {option.key: option for option in options_of(Deployment).values()}
    return {key: declared[key].parse(text, "command line") for key, text in flags.items()}


def _as_fedavg(config: RunConfig) -> RunConfig:
    own = tuple((name, value) for name, value in config.own if name in options_of(FedAvg))
    return replace(config, algorithm=FedAvg.name, own=own)


@dataclass(frozen=True)
class Demo:
    """One run of the demonstration, and what it is as a simulation."""

    config: RunConfig
    simulated: Run

    @classmethod
    def of(cls, config: RunConfig) -> Demo:
        """Simulate a configuration."""
        data = load(config)
        config = completed(config, data)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the clients have: the order of sums depends on it
        try:
            problem, algorithm = build_problem(config, data), build_algorithm(config)
            run = Simulation(problem, algorithm, run_options(config), callbacks=[Progress()]).run()
        finally:
            torch.set_num_threads(threads)
        return cls(config, run)

    @property
    def digest(self) -> str:
        """Stands for the bits of the simulated model."""
        return digest(self.simulated.x).hex()

    def refuse_what_cannot_be_deployed(self, deployed: Mapping[str, Any]) -> None:
        """Make the app's server here, so that what it refuses is refused before any process is started."""
        from fedfw.deployment.flower.apps import deployment_of

        app = import_module("fedfw.deployment.flower.template.federation.task")
        config = self.run_config(Path(), deployed) | {"out": ""}
        DeployedServer(app.make_task(config), deployment_of(config))

    def run_config(self, out: Path, deployed: Mapping[str, Any]) -> dict[str, Any]:
        """For Flower: every key of the app's pyproject.toml that says what is trained, and how it is deployed.

        A penalty or a step size that is open is the number that the simulation worked out, so that no client has to
        send a number for it.
        """
        plan, given = self.simulated.plan, self.config.items()
        numbers = {"penalty": plan.lam_0, "lr": plan.lr}
        own = options_of(type(self.simulated.algorithm))
        given |= {name: value for name, value in numbers.items() if name in own}
        keys = [option.key for option in app_options().values()]
        return {key: given.get(key, "") for key in keys} | {"out": str(out.absolute()), **deployed}


def _deploy(
    federation: LocalFederation, folder: Path, name: str, one: Demo, deployed: Mapping[str, Any]
) -> tuple[str, ...]:
    """One run over Flower: prints its table, and returns its row of the table of bytes."""
    from fedfw.deployment.flower.local import FederationError

    out = folder / name.replace("+", "plus")
    process = federation.submit(folder / "app", one.run_config(out, deployed), f"run-{out.name}")
    records = _watch(federation, process, out, name, one.config.rounds)
    if not (out / "done.json").exists():
        raise FederationError(f"the run ended early:\n{federation.log(process)}\n{federation.log('superlink', 5)}")
    if not any(record.participants for record in records):
        raise FederationError(f"no answer of a client was ever counted{_reasons(records)}")
    simulated = list(one.simulated.history)
    print(f"\n{_table(records, one.simulated)}\n")
    ways = ("bytes_up", "bytes_down", "evidence_up", "evidence_down")
    totals = [int(sum(getattr(record, way) for record in records)) for way in ways]
    traffic = federation.traffic()[0]["network-traffic"]
    counts = (*totals, traffic["inbound-bytes"], traffic["outbound-bytes"])
    took, ours = _seconds(records, federation.folder / "state" / json.loads((out / "done.json").read_text())["run"])
    payload = [[(record.bytes_up, record.bytes_down) for record in history] for history in (records, simulated)]
    same = (records[-1].digest == one.digest, payload[0] == payload[1])
    agree = ("yes" if one_way else "no" for one_way in same)
    return (name, *(f"{count:,}" for count in counts), f"{took:.2f}", f"{ours:.3f}", *agree)


def _watch(federation: LocalFederation, process: str, out: Path, name: str, rounds: int) -> list[DeployedRecord]:
    """Show the rounds of a run as they are recorded; returns all records when it has ended."""
    with progress_bar(rounds, f"{name} round") as bar:
        while True:
            running = federation.running(process)
            records = _records(out)
            if records:
                bar.set_postfix_str(_line(records[-1]), refresh=False)
                bar.update(len(records) - bar.n)
            if not running:
                return records
            time.sleep(_LOOK)


def _records(out: Path) -> list[DeployedRecord]:
    path = out / HISTORY
    return [DeployedRecord(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _line(record: DeployedRecord) -> str:
    parts = [f"{record.participants} of {record.invited} counted"]
    parts += [] if record.accuracy is None else [f"accuracy {record.accuracy:.3f}"]
    return "  ".join([*parts, f"{human_bytes(record.bytes_up)} up", f"{_whole(record):.1f} s"])


def _reasons(records: list[DeployedRecord]) -> str:
    refused: Counter[str] = Counter()
    for record in records:
        refused.update(record.refused)
    return "".join(f"; refused {count} times: {reason}" for reason, count in refused.items())


def _whole(record: DeployedRecord) -> float:
    return sum((record.seconds or {}).values())


def _seconds(records: list[DeployedRecord], state: Path) -> tuple[float, float]:
    """Medians over the rounds after the first: the whole, and the server's part with the slowest client's."""
    clients: dict[int, float] = {}
    for log in state.glob("*.log.jsonl"):
        for event in map(json.loads, log.read_text().splitlines()):
            clients[event["round"]] = max(event["seconds"], clients.get(event["round"], 0.0))
    later = [record for record in records if record.seconds][1:] or records
    whole = median(_whole(record) for record in later)
    return whole, median((r.seconds or {}).get("server", 0.0) + clients.get(r.round, 0.0) for r in later)


def _table(records: list[DeployedRecord], simulated: Run) -> str:
    rows = [("round", "counted", "refused", "test loss", "accuracy", "simulated", "up", "down", "seconds", "drift")]
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
    return aligned(rows)
