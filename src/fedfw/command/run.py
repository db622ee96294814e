"""``fedfw run`` and ``fedfw resume``: simulate, show, store."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from dataclasses import asdict, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch.nn.functional as nnf

from fedfw.algorithms import ALGORITHMS, Algorithm
from fedfw.command.build import build_algorithm, build_problem, load, options_of, rooted
from fedfw.command.config import RunConfig, merge, read_config, read_table
from fedfw.command.defaults import ALGORITHM_OPTIONS, resolved
from fedfw.command.progress import ProgressLine, human_bytes
from fedfw.problems import Problem
from fedfw.simulation.engine import Simulation
from fedfw.simulation.files import write_atomically
from fedfw.simulation.result import Run
from fedfw.simulation.storage import RunFolder


def start_run(file: str | None, flags: dict[str, Any], as_json: bool) -> int:
    """A new run from a TOML file and flags (by their names), flags winning."""
    config, table = configure(file, flags)
    data = load(config)
    config = resolved(config, data, algorithm_was_given="algorithm" in table or "algorithm" in flags)
    folder = Path(config.out) if config.out else _new_folder(config)
    if (folder / "config.toml").exists():
        raise ValueError(f"{folder} already holds a run: give another --out, or 'fedfw resume {folder}'")
    config = replace(rooted(config), out=None)  # a run folder may be moved
    problem, algorithm = build_problem(config, data), build_algorithm(config)
    del data  # the problem has what it needs of it
    Simulation(problem, algorithm, options_of(config))  # refuses what makes no sense before anything is written
    write_atomically(folder / "config.toml", config.to_toml().encode())
    return _simulate(problem, algorithm, config, folder, as_json, resume=False)


def configure(file: str | None, flags: dict[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration of a TOML file and flags, flags winning; and what the file says that still counts."""
    table = {} if file is None else read_table(Path(file))
    wanted = flags.get("algorithm")
    if wanted in ALGORITHMS and table.get("algorithm", wanted) != wanted:
        # What the file says was said, or worked out, for its own algorithm.
        own = {name.replace("_", "-") for name in (*ALGORITHM_OPTIONS, "batch_size")}
        dropped = ", ".join(key for key in table if key in own)
        if dropped:
            print(f"{file} was for {table['algorithm']}: not taken over to {wanted}: {dropped}", file=sys.stderr)
        table = {key: value for key, value in table.items() if key not in own}
    return merge(merge(RunConfig(), table, file or ""), flags, "command line"), table


def resume_run(folder: Path, as_json: bool) -> int:
    """Go on with an interrupted run."""
    if not (folder / "config.toml").exists():
        raise ValueError(
            f"{folder} is no run folder of 'fedfw run': it has no config.toml "
            "(a run from Python goes on with simulate(..., resume=True))"
        )
    config = read_config(folder / "config.toml")
    problem = build_problem(config, load(config))
    return _simulate(problem, build_algorithm(config), config, folder, as_json, resume=True)


def _new_folder(config: RunConfig) -> Path:
    dataset = re.sub("[^a-z0-9.,-]+", "-", config.dataset.rpartition("/")[2].lower())
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.algorithm.replace('+', 'plus')}-{dataset}"
    return next(
        path
        for number in count(1)
        if not (path := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists()
    )


def _simulate(
    problem: Problem, algorithm: Algorithm, config: RunConfig, folder: Path, as_json: bool, resume: bool
) -> int:
    begin = time.monotonic()
    try:
        simulation = Simulation(problem, algorithm, options_of(config), RunFolder(folder, resume))
        if resume:
            found = f"going on after round {simulation.t}" if simulation.t else "no checkpoint yet: from the start"
            print(f"{found}, {config.rounds} rounds in all", file=sys.stderr)
        run = simulation.run([ProgressLine()])
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
        *([] if run.privacy else [("loss", _number(loss))]),
        *_on_test_data(run),
        *(_proof(run, loss, gap, bound) if run.privacy is None else _promise(run)),
        *_what_was_chosen(run),
        ("sent up", f"{human_bytes(history.total('bytes_up'))}"),
        ("sent down", f"{human_bytes(history.total('bytes_down'))}"),
        ("dense exchange", f"{human_bytes(history.total('bytes_dense'))} for the same rounds"),
    ]
    if run.algorithm.shares:
        rows.append(("server learnt", run.algorithm.shares + _how_often(run)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(["", *(f"{name.ljust(width)}  {value}" for name, value in rows)])


def _proof(run: Run, loss: float | None, gap: float | None, bound: float | None) -> list[tuple[str, str]]:
    return [
        ("Frank-Wolfe gap", _number(gap)),
        ("optimum at least", _number(bound) + _within(loss, bound)),
        ("certificate", run.certificate),
    ]


def _promise(run: Run) -> list[tuple[str, str]]:
    return [("privacy", str(run.privacy)), ("epsilon spent", _number(run.history.last("epsilon")))]


def _within(loss: float | None, bound: float | None) -> str:
    return "" if loss is None or bound is None else f" (so the loss is within {loss - bound:.3g} of it)"


def _on_test_data(run: Run) -> list[tuple[str, str]]:
    accuracy, loss = run.history.last("accuracy"), run.history.last("test_loss")
    if accuracy is not None or loss is None:
        return [("test accuracy", _number(accuracy))]
    squared = run.problem.loss is nnf.mse_loss
    return [("test RMSE", _number(math.sqrt(loss)))] if squared else [("test loss", _number(loss))]


def _what_was_chosen(run: Run) -> list[tuple[str, str]]:
    algorithm, plan = run.algorithm, run.plan
    own = [f.name for f in fields(algorithm) if f.name not in ("constraint", "penalty", "schedule", "lr")]
    rest = [f"{name.replace('_', '-')} {getattr(algorithm, name):g}" for name in own]
    if plan.schedule is None:
        return [("chosen", ", ".join([f"lr {plan.lr:.3g}", *rest]))]
    chosen = ("chosen", ", ".join([f"penalty {plan.lam_0:.3g}", *rest]))
    return [chosen, ("clients apart", _number(_relative_consensus(run)) + " of the model's norm")]


def _how_often(run: Run) -> str:
    return f" ({run.dense_sums} dense sums)" if run.dense_sums else ""


def _relative_consensus(run: Run) -> float | None:
    apart, norm = run.history.last("consensus"), float(run.x.norm())
    return None if apart is None or norm == 0 else float(apart / run.plan.n**0.5 / norm)


def _next_steps(run: Run, config: RunConfig, folder: Path) -> str:
    apart = _relative_consensus(run)
    lines = []
    unproven = run.problem.convex and config.tol is None and run.privacy is None
    if unproven and run.plan.constraint.is_polytope and not run.algorithm.shares and apart is not None and apart > 0.1:
        lines.append(
            "The clients ended far apart, as they do on polytopes when their data differ. If the server may see\n"
            "sums of gradients now and then:\n"
            f"  fedfw run {folder / 'config.toml'} --algorithm fedfw-anchored --momentum 0.9 --penalty 0"
        )
    lines.append(f"Look at {folder / 'plots.png'}; compare runs with:  fedfw compare {folder} OTHER_RUN")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
