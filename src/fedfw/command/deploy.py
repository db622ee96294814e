"""``fedfw deploy``: a Flower app folder, and a whole federation on this machine to see it run."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import fedfw.flower
from fedfw.algorithms.base import Plan
from fedfw.command.build import build_algorithm, build_problem, load, options_of, rooted
from fedfw.command.config import DEMO_DEFAULTS, RunConfig, merge
from fedfw.command.defaults import resolved
from fedfw.command.progress import human_bytes
from fedfw.flower.client import digest
from fedfw.flower.records import DeployedRecord
from fedfw.report.tables import aligned
from fedfw.simulation import History, Simulation

_LOOK = 0.5  # seconds between looks at a run


def init_app(folder: Path) -> int:
    """Write a complete Flower app, to be changed."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    copy_app(folder)
    print(f"{folder} is a Flower app: state your model, data and set in {folder / 'federation' / 'task.py'}.")
    print("docs/deployment.md has the commands of every host; 'fedfw deploy demo' runs it on this machine.")
    return 0


def copy_app(folder: Path) -> None:
    """The app that comes with fedfw, to ``folder``."""
    template = Path(fedfw.flower.__file__).parent / "template"
    shutil.copytree(template, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


@dataclass(frozen=True)
class Demo:
    """One run of the demonstration, and what it would be as a simulation."""

    config: RunConfig
    plan: Plan
    simulated: History
    simulated_digest: str

    @classmethod
    def of(cls, config: RunConfig, algorithm_was_given: bool) -> Demo:
        """Simulates it: numbers for "auto" come from it, which a deployment could not work out."""
        data = load(config)
        config = resolved(config, data, algorithm_was_given)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the clients have: the order of sums depends on it
        try:
            simulation = Simulation(build_problem(config, data), build_algorithm(config), options_of(config))
            run = simulation.run()
        finally:
            torch.set_num_threads(threads)
        return cls(config, run.plan, run.history, digest(run.x).hex())

    def run_config(self, out: Path, deployed: dict[str, Any]) -> dict[str, Any]:
        """For Flower: the keys of the app's pyproject.toml."""
        c = self.config
        task = {
            "dataset": c.dataset,
            "data-dir": c.data_dir or "",
            "partition": c.partition,
            "model": c.model,
            "constraint": c.constraint,
            "per-parameter": c.per_parameter,
            "algorithm": c.algorithm,
            "schedule": c.schedule or "",
            "penalty": self.plan.lam_0,
            "momentum": c.momentum or 0.0,
            "lr": self.plan.lr or 1.0,
        }
        how = {
            "rounds": c.rounds,
            "clients": c.clients,
            "participation": c.participation,
            "local-steps": c.local_steps,
            "batch-size": c.batch_size or 0,
            "privacy": c.privacy or "",
            "seed": c.seed,
            "out": str(out.absolute()),
        }
        return task | how | deployed


def demo(flags: dict[str, Any], out: Path | None, deployed: dict[str, Any], compare: bool, simulated: bool) -> int:
    """Start a federation on this machine, run, show, and end everything that was started."""
    try:
        from fedfw.flower.local import FederationError, LocalFederation
    except ModuleNotFoundError as error:
        raise ValueError(f"this needs Flower: pip install 'fedfw[flower]' ({error})") from None

    config = rooted(merge(replace(RunConfig(), **DEMO_DEFAULTS), flags, "command line"))
    if config.constraint is None and config.dataset == "digits":
        config = replace(config, constraint="ksparse:k=65,r=10")  # learns in a few rounds, from short messages
    demos = {config.algorithm: Demo.of(config, "algorithm" in flags)}
    if compare:
        demos.setdefault("fedavg", Demo.of(_as_fedavg(config), True))
    folder = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-deployed"
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: give another --out")
    copy_app(folder / "app")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us must not leave processes behind
    try:
        nodes = "Flower's simulation" if simulated else f"{config.clients} SuperNodes with keys"
        print(f"starting a SuperLink on 127.0.0.1 with TLS, and {nodes} ...", file=sys.stderr)
        with LocalFederation(folder / "federation", config.clients, simulated) as federation:
            rows = [_deploy(federation, folder, name, one, deployed) for name, one in demos.items()]
            print("stopping everything ...", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started has ended", file=sys.stderr)
        return 130
    except FederationError as error:
        print(f"fedfw deploy: {error}\nthe logs are in {folder / 'federation'}", file=sys.stderr)
        return 1
    heads = (
        "",
        "bytes up",
        "down",
        "by Flower's count",
        "down",
        "seconds a round",
        "of them ours",
        "bits of the simulator",
    )
    print(aligned([heads, *rows]))
    print(f"\nFolder: {folder} (the app, the server's history, model and checkpoints, all logs)")
    return 0


def _as_fedavg(config: RunConfig) -> RunConfig:
    own = {"algorithm": "fedavg", "penalty": None, "momentum": None, "schedule": None}
    return replace(config, **own)  # type: ignore[arg-type]


def _deploy(federation: Any, folder: Path, name: str, one: Demo, deployed: dict[str, Any]) -> tuple[str, ...]:
    """One run: its table, and its row of the table of bytes."""
    from fedfw.flower.local import FederationError

    out = folder / name.replace("+", "plus")
    process = federation.submit(folder / "app", one.run_config(out, deployed), f"run-{out.name}")
    shown = 0
    while True:
        running = federation.running(process)
        records = _records(out)
        for record in records[shown:]:
            print(f"{name} {_line(record, one.config.rounds)}", file=sys.stderr)
        shown = len(records)
        if not running:
            break
        time.sleep(_LOOK)
    if not (out / "done.json").exists():
        raise FederationError(f"the run ended early:\n{federation.log(process)}\n{federation.log('superlink', 5)}")
    print(_table(records, one.simulated))
    traffic = federation.traffic()[0]["network-traffic"]
    totals = [int(sum(getattr(r, way) for r in records)) for way in ("bytes_up", "bytes_down")]
    same = "yes" if records[-1].digest == one.simulated_digest else "no"
    flowers = [traffic["inbound-bytes"], traffic["outbound-bytes"]]
    took, ours = _seconds(records, federation.folder / "state" / json.loads((out / "done.json").read_text())["run"])
    return (name, *(f"{count:,}" for count in (*totals, *flowers)), f"{took:.2f}", f"{ours:.3f}", same)


def _seconds(records: list[DeployedRecord], state: Path) -> tuple[float, float]:
    """Medians over the rounds after the first: the whole, and the server's part with the slowest client's."""
    clients: dict[int, float] = {}
    for log in state.glob("*.log.jsonl"):
        for event in map(json.loads, log.read_text().splitlines()):
            clients[event["round"]] = max(event["seconds"], clients.get(event["round"], 0.0))
    later = [record for record in records if record.seconds][1:] or records
    whole = median(sum((record.seconds or {}).values()) for record in later)
    return whole, median((r.seconds or {}).get("server", 0.0) + clients.get(r.round, 0.0) for r in later)


def _records(out: Path) -> list[DeployedRecord]:
    path = out / "history.jsonl"
    return [DeployedRecord(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _line(record: DeployedRecord, rounds: int) -> str:
    parts = [f"round {record.round}/{rounds}", f"{record.participants} of {record.invited} counted"]
    parts += [] if record.accuracy is None else [f"accuracy {record.accuracy:.3f}"]
    parts += [f"{human_bytes(record.bytes_up)} up", f"{sum((record.seconds or {}).values()):.1f} s"]
    return "  ".join(parts)


def _table(records: list[DeployedRecord], simulated: History) -> str:
    rows = [("round", "counted", "refused", "test loss", "accuracy", "simulated", "up", "down", "seconds", "drift")]
    for record, other in zip(records, simulated, strict=False):
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
                f"{sum((record.seconds or {}).values()):.1f}",
                f"{record.drift:.0e}",
            )
        )
    return "\n" + aligned(rows) + "\n"
