"""The end of ``fedfw run`` and ``fedfw resume``: the rounds, the closing table, and the optimum
that a run is measured against.
"""

import json
import math
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nnf

from fedfw.algorithms.optin import has_points
from fedfw.config import RunConfig, build_algorithm, build_problem, run_options
from fedfw.data import Data
from fedfw.problems import Problem
from fedfw.ranks import Ranks
from fedfw.report.tables import fitted, human_bytes
from fedfw.rounds.files import write_atomically
from fedfw.rounds.folders import PLOTS, RunFolder
from fedfw.simulation import Run, Simulation
from fedfw.simulation.callbacks import Progress
from fedfw.simulation.threads import fitting_threads
from fedfw.solving import Optimum, solve
from fedfw.terminal import shortened

CONFIG = "config.toml"
"""The configuration in a run folder."""
OPTIMUM = "optimum.json"
"""The optimum of a run's problem, in its folder."""
_SECONDS = 5.0
"""The longest search, on a busy machine; small problems take a tenth of a second."""
_TOL = 0.001
_LARGEST_UNCERTAINTY = 0.05
"""How well F* must be known, as a part of F(x^1) - F*."""
_KEPT = ("value", "lower_bound", "start_value")
_FEW = 10  # owners of test data that are listed one by one
_TOTALS = ("bytes_up", "bytes_down", "evidence_up", "evidence_down", "bytes_dense")


def make_simulation(
    config: RunConfig, data: Data, kept: RunFolder | None, ranks: Ranks
) -> Simulation:
    """Return the simulation of a completed configuration; options that do not fit together are
    refused here, before the first round.
    """
    problem = build_problem(config, data, ranks=ranks)
    with fitting_threads(problem):
        return Simulation(
            problem,
            build_algorithm(config),
            run_options(config),
            folder=kept,
            callbacks=[Progress()],
        )


def run_to_the_end(
    simulation: Simulation, config: RunConfig, folder: Path, *, as_json: bool
) -> int:
    """Take the rounds that are left and print the results; return the exit status, 130 for an
    interrupt.
    """
    begin = time.monotonic()
    try:
        with fitting_threads(simulation.problem):
            run = simulation.run()
    except KeyboardInterrupt:
        print(f"\ninterrupted; continue with: fedfw resume {folder}", file=sys.stderr)
        return 130
    except OSError as error:  # a full disk, or the end of another rank
        raise OSError(f"{error}. Mend that, and continue with: fedfw resume {folder}") from None
    if not run.problem.ranks.first:  # the first process prints for all
        return 0
    seconds = time.monotonic() - begin
    optimum = _optimum(run, folder)
    rows = _closing_rows(run, config, seconds, optimum)
    print("\n" + fitted([(label, text) for label, text in rows.items() if text]))
    print(f"\nRun folder: {folder}")
    print(f"Look at {folder / PLOTS}; compare runs with:  fedfw compare {folder} OTHER_RUN")
    if as_json:
        print(json.dumps(summary(run, folder, optimum)))
    return 0


def _optimum(run: Run, folder: Path) -> Optimum | None:
    """Return the optimum that the run is measured against, if it is known or quickly found; it is
    kept in the run's folder.
    """
    if run.privacy is not None or run.history.last("loss") is None:
        return None
    optimum = kept_optimum(folder)
    if optimum is None and run.problem.ranks.size == 1:
        # An interrupt ends the search alone: the run itself is done.
        with suppress(KeyboardInterrupt), fitting_threads(run.problem):
            optimum = quick_optimum(run.problem, run.algorithm.constraint)
    if optimum is not None:
        values = {name: getattr(optimum, name) for name in _KEPT}
        write_atomically(folder / OPTIMUM, (json.dumps(values) + "\n").encode())
    return optimum


def quick_optimum(problem: Problem, constraint: Any) -> Optimum | None:
    """Return the optimum of a convex problem, if a central solver that sees all the data finds it
    in a few seconds.
    """
    if problem.convex is not True or not problem.losses.countable:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run has said already where it began
        optimum = solve(problem, constraint, tol=_TOL, max_seconds=_SECONDS)
    return optimum if optimum.uncertainty <= _LARGEST_UNCERTAINTY else None


def kept_optimum(folder: Path) -> Optimum | None:
    """Return the optimum that a run's folder has, without the point; None where it has none."""
    path = folder / OPTIMUM
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text())
        value, lower_bound, start_value = (float(values[name]) for name in _KEPT)
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{path} is damaged, expected the numbers {', '.join(_KEPT)}: remove it"
        ) from None
    # Neither the point nor the number of the solver's steps is in the file.
    return Optimum(
        torch.empty(0), value, lower_bound, start_value, steps=0, method="kept in a run folder"
    )


def summary(run: Run, folder: Path, optimum: Optimum | None = None) -> dict[str, Any]:
    """Return what ``--json`` prints: the last record's keys, the totals, the residual if it is
    known, and the folder.
    """
    last = run.history.last
    facts = asdict(run.history[-1])
    # The last record may have none of these: the last values of the run take their place.
    facts |= {name: last(name) for name in ("loss", "accuracy", "concordance", "gap")}
    facts |= {f"total_{name}": run.history.total(name) for name in _TOTALS}
    if optimum is not None:
        facts |= {"optimum": optimum.value, "residual": optimum.residual(last("loss"))}
    return facts | {
        "rounds": len(run.history),
        "stopped": run.stopped,
        "run_folder": str(folder),
    }


def _residual_in_words(loss: float, optimum: Optimum) -> str:
    """Return how far a loss is above the optimum, with as many digits as the optimum is known."""
    where = "on this set, found with all data in one place"
    left = optimum.residual(loss)
    if left > optimum.uncertainty:
        return (
            f"{left:.3g}: the loss is {left:.2%} of the initial gap above the optimum, "
            f"{optimum.value:.4g} {where}; the loss began at {optimum.start_value:.4g}"
        )
    most = max(0.0, left) + optimum.uncertainty
    return (
        f"at most {most:.1g}: the optimum {where}, is only known to lie between "
        f"{optimum.lower_bound:.4g} and {min(loss, optimum.value):.4g}; the loss began at "
        f"{optimum.start_value:.4g}"
    )


def _closing_rows(
    run: Run, config: RunConfig, seconds: float, optimum: Optimum | None
) -> dict[str, str]:
    """Return the lines of the closing table; those without a text are left out."""
    history = run.history
    algorithm = run.algorithm
    total = {name: human_bytes(history.total(name)) for name in _TOTALS}
    residual = ""
    if optimum is not None:
        residual = _residual_in_words(history.last("loss"), optimum)
    shares = algorithm.shares
    if shares and run.dense_sums:
        shares = f"{shares} ({run.dense_sums} dense sums)"
    return {
        "algorithm": f"{algorithm.name}, {config.constraint}, {config.clients} clients, "
        f"{config.partition}",
        "inputs": shortened(run.problem.columns),
        "ended after": f"{len(history)} rounds ({run.stopped}), {seconds:.1f} s",
        "loss": "" if run.privacy else _number(history.last("loss")),
        "residual": residual,
        **_test_rows(run),
        "certified": _certified(run),
        "polished": "" if run.polishing is None else str(run.polishing),
        **_proof_rows(run),
        **_chosen_rows(run),
        "sent up": total["bytes_up"],
        "sent down": total["bytes_down"],
        "evidence": f"{total['evidence_up']} up, {total['evidence_down']} down: digests, losses "
        "and the certificate's numbers",
        "dense exchange": f"{total['bytes_dense']} for the same rounds",
        "server learnt": shares,
    }


def _test_rows(run: Run) -> dict[str, str]:
    """Return how the model does on the test data."""
    last = run.history.last
    concordance = last("concordance")
    loss = last("test_loss")
    if concordance is not None:
        concordances = last("concordances") or {}
        shown = ", ".join(f"{owner}: {value:.3f}" for owner, value in concordances.items())
        listed = f" ({shown})" if 1 < len(concordances) <= _FEW else ""
        return {"test concordance": _number(concordance) + listed}
    if last("accuracy") is not None or loss is None:
        return {"test accuracy": _number(last("accuracy"))}
    if run.problem.loss is nnf.mse_loss:
        return {"test RMSE": _number(math.sqrt(loss))}
    return {"test loss": _number(loss)}


def _certified(run: Run) -> str:
    """Return the shares of test samples that are certified, by radius."""
    shares = run.history.last("certified")
    if shares is None:
        return ""
    listed = ", ".join(f"{radius}: {share:.1%}" for radius, share in shares.items())
    # Four digits are shown, which round by less than 1/2000: the shown number is an upper bound.
    constant = run.history.last("lipschitz") * 1.0005
    return f"at l2 radius {listed} (Lipschitz constant at most {constant:.4g})"


def _proof_rows(run: Run) -> dict[str, str]:
    """Return the gap, and what the clients' messages prove of the optimum where that says
    something; or what privacy costs.
    """
    last = run.history.last
    if run.privacy is not None:
        return {"privacy": str(run.privacy), "epsilon spent": _number(last("epsilon"))}
    loss = last("loss")
    bound = run.lower_bound
    rows = {"Frank-Wolfe gap": "" if last("gap") is None else _number(last("gap"))}
    # Where the bound is the floor, it only says that no such loss is below the floor.
    if run.certificate.proves and None not in (loss, bound) and bound != run.problem.floor:
        within = f"(so the loss is proven to be within {loss - bound:.3g} of it)"
        rows["optimum at least"] = f"{_number(bound)} {within}"
    if not run.certificate.proves or "optimum at least" in rows:
        rows["certificate"] = str(run.certificate)
    return rows


def _chosen_rows(run: Run) -> dict[str, str]:
    """Return the algorithm's numbers, and how far local models are apart."""
    algorithm = run.algorithm
    values = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    chosen = [f"{name} {values[name]:.3g}" for name in ("lr", "penalty") if name in values]
    for name, value in values.items():
        if name not in ("constraint", "penalty", "schedule", "lr"):
            chosen.append(f"{name.replace('_', '-')} {_shown(value)}")
    rows = {"chosen": ", ".join(chosen)}
    distance = run.history.last("consensus")
    norm = float(run.x.norm())
    if has_points(algorithm) and distance is not None and norm:
        # The distance is the root of the sum over n clients; the share is
        # sqrt(sum ||x_i - xbar||^2 / n) / ||x||.
        share = float(distance / run.problem.n**0.5 / norm)
        rows["local models"] = f"differ from their mean by {share:.2%} of its norm"
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _shown(value: Any) -> str:
    """Return an option's value as a person would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
