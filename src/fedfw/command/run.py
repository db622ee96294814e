"""``fedfw run`` and ``fedfw resume``: simulate, show, store."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from fedfw.algorithms import FedFWAnchored
from fedfw.command.build import build_algorithm, build_problem, resolved
from fedfw.command.config import RunConfig, merge, read_config
from fedfw.command.progress import ProgressLine, human_bytes
from fedfw.simulation.engine import Run, simulate
from fedfw.simulation.files import write_atomically


def start_run(file: str | None, flags: dict[str, Any], as_json: bool) -> int:
    """A new run from a TOML file and flags (by their names), flags winning."""
    config = RunConfig() if file is None else read_config(Path(file))
    config = merge(config, flags, "command line")
    given = "algorithm" in flags or (file is not None and "algorithm" in Path(file).read_text())
    config = resolved(config, given)
    folder = Path(config.out) if config.out else _new_folder(config)
    if (folder / "config.toml").exists():
        raise ValueError(f"{folder} already holds a run: give another --out, or 'fedfw resume {folder}'")
    config = replace(config, out=None)  # a run folder may be moved
    build_algorithm(config)  # refuse bad values before anything is written
    write_atomically(folder / "config.toml", config.to_toml().encode())
    return _simulate(config, folder, as_json, resume=False)


def resume_run(folder: Path, as_json: bool) -> int:
    """Go on with an interrupted run."""
    if not (folder / "config.toml").exists():
        raise ValueError(f"{folder} is no run folder: it has no config.toml")
    return _simulate(read_config(folder / "config.toml"), folder, as_json, resume=True)


def _new_folder(config: RunConfig) -> Path:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.algorithm.replace('+', 'plus')}-{config.dataset}"
    return next(
        path
        for number in count(1)
        if not (path := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists()
    )


def _simulate(config: RunConfig, folder: Path, as_json: bool, resume: bool) -> int:
    problem, algorithm = build_problem(config), build_algorithm(config)
    begin = time.monotonic()
    try:
        run = simulate(
            problem,
            algorithm,
            rounds=config.rounds,
            participation=config.participation,
            local_steps=config.local_steps,
            batch_size=config.batch_size,
            tol=config.tol,
            eval_every=config.eval_every,
            seed=config.seed,
            device=config.device,
            callbacks=[ProgressLine()],
            out=folder,
            resume=resume,
        )
    except KeyboardInterrupt:
        print(f"\ninterrupted; go on with: fedfw resume {folder}", file=sys.stderr)
        return 130
    print(_closing_table(run, config, time.monotonic() - begin))
    print(f"\nRun folder: {folder}")
    print(_next_steps(run, config, folder))
    if as_json:
        print(json.dumps(summary(run, folder)))
    return 0


def summary(run: Run, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints: the last record's keys, the totals and the folder."""
    last = asdict(run.history[-1]) | {name: run.history.last(name) for name in ("loss", "accuracy", "gap")}
    totals = {f"total_{name}": int(run.history.total(name)) for name in ("bytes_up", "bytes_down", "bytes_dense")}
    return last | totals | {"rounds": len(run.history), "stopped": run.stopped, "run_folder": str(folder)}


def _closing_table(run: Run, config: RunConfig, seconds: float) -> str:
    history = run.history
    loss, bound, gap = history.last("loss"), run.lower_bound, history.last("gap")
    rows = [
        ("algorithm", f"{run.algorithm.name}, {config.constraint}, {config.clients} clients, {config.partition}"),
        ("ended after", f"{len(history)} rounds ({run.stopped}), {seconds:.1f} s"),
        ("loss", _number(loss)),
        ("test accuracy", _number(history.last("accuracy"))),
        ("Frank-Wolfe gap", _number(gap)),
        ("optimum at least", _number(bound) + (f" (so the loss is within {loss - bound:.3g} of it)" if bound else "")),
        ("certificate", run.certificate),
        ("penalty lam_0", f"{run.plan.lam_0:.3g}"),
        ("clients apart", _number(_relative_consensus(run)) + " of the model's norm"),
        ("sent up", f"{human_bytes(history.total('bytes_up'))}"),
        ("sent down", f"{human_bytes(history.total('bytes_down'))}"),
        ("dense exchange", f"{human_bytes(history.total('bytes_dense'))} for the same rounds"),
    ]
    if run.algorithm.shares_gradients:
        rows.append(("gradients shared", _what_the_server_learnt(run)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(["", *(f"{name.ljust(width)}  {value}" for name, value in rows)])


def _what_the_server_learnt(run: Run) -> str:
    if isinstance(run.algorithm, FedFWAnchored):
        anchors = sum(run.algorithm.is_anchor(r.round) and r.participants > 0 for r in run.history)
        return f"{anchors} dense sums of the clients' gradients: the server learnt grad F at {anchors} models"
    return f"every client's whole gradient in each of {len(run.history)} rounds"


def _relative_consensus(run: Run) -> float | None:
    apart, norm = run.history.last("consensus"), float(run.x.norm())
    return None if apart is None or norm == 0 else float(apart / run.plan.n**0.5 / norm)


def _next_steps(run: Run, config: RunConfig, folder: Path) -> str:
    apart = _relative_consensus(run)
    lines = []
    if run.plan.constraint.is_polytope and not run.algorithm.shares_gradients and apart is not None and apart > 0.1:
        lines.append(
            "The clients ended far apart, as they do on polytopes when their data differ. If the server may see\n"
            "sums of gradients now and then:  fedfw run --algorithm fedfw-anchored --momentum 0.9"
        )
    lines.append(f"Look at {folder / 'plots.png'}; compare runs with:  fedfw compare {folder} OTHER_RUN")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
