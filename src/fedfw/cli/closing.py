"""What ``fedfw run`` and ``fedfw resume`` share: the rounds, the closing table, and what to do
next.
"""

import json
import math
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch.nn.functional as nnf

from fedfw.advice import advise, compared
from fedfw.cli.residual import keep_optimum, kept_optimum, quick_optimum
from fedfw.config import RunConfig
from fedfw.errors import RankLostError
from fedfw.report.tables import fitted, human_bytes
from fedfw.rounds.folders import PLOTS
from fedfw.rounds.setup import feasible_start
from fedfw.simulation import Run, Simulation
from fedfw.solving import Optimum

CONFIG = "config.toml"
"""The configuration in a run folder."""
_HELD_UP = 0.25  # share of the start's loss from which on the set itself keeps the loss up
_FEW = 10  # owners of test data that are listed one by one
_TOTALS = ("bytes_up", "bytes_down", "evidence_up", "evidence_down", "bytes_dense")


def run_to_the_end(
    simulation: Simulation, config: RunConfig, folder: Path, *, as_json: bool
) -> int:
    """Take the rounds that are left and print what came out; returns the exit status."""
    begin = time.monotonic()
    try:
        run = simulation.run()
    except KeyboardInterrupt:
        print(f"\ninterrupted; continue with: fedfw resume {folder}", file=sys.stderr)
        return 130
    except RankLostError as error:
        raise RankLostError(f"{error}. Continue with: fedfw resume {folder}") from None
    except OSError as error:  # a disk that is full, for example
        raise OSError(f"{error}. Mend that, and continue with: fedfw resume {folder}") from None
    if not run.problem.ranks.first:
        return 0
    seconds, optimum = time.monotonic() - begin, _optimum(run, folder)
    print("\n" + fitted(_closing_rows(run, config, seconds, optimum)))
    print(f"\nRun folder: {folder}")
    print(_next_steps(run, config, folder))
    if as_json:
        print(json.dumps(summary(run, folder, optimum)))
    return 0


def _optimum(run: Run, folder: Path) -> Optimum | None:
    """The optimum that the run is measured against, if it is known or quickly found."""
    if run.privacy is not None or run.history.last("loss") is None:
        return None
    try:
        optimum = kept_optimum(folder)
        if optimum is None and run.problem.ranks.size == 1:
            optimum = quick_optimum(run.problem, run.algorithm.constraint)
    except KeyboardInterrupt:  # somebody does not want to wait for it: the run itself is done
        return None
    if optimum is not None:
        from fedfw.report.plots import plot_runs, save_figure  # matplotlib is slow to import

        keep_optimum(optimum, folder)
        save_figure(
            plot_runs({run.algorithm.name: run.history}, {run.algorithm.name: optimum.residual}),
            folder / PLOTS,
        )
    return optimum


def summary(run: Run, folder: Path, optimum: Optimum | None = None) -> dict[str, Any]:
    """What ``--json`` prints: the last record's keys, the totals, the residual if it is known, and
    the folder.
    """
    last = asdict(run.history[-1]) | {
        name: run.history.last(name) for name in ("loss", "accuracy", "concordance", "gap")
    }
    totals = {f"total_{name}": run.history.total(name) for name in _TOTALS}
    if optimum is not None:
        totals |= {"optimum": optimum.value, "residual": optimum.residual(last["loss"])}
    return (
        last
        | totals
        | {"rounds": len(run.history), "stopped": run.stopped, "run_folder": str(folder)}
    )


def _closing_rows(
    run: Run, config: RunConfig, seconds: float, optimum: Optimum | None = None
) -> list[tuple[str, str]]:
    history = run.history
    bytes_of = {name: human_bytes(history.total(name)) for name in _TOTALS}
    evidence = f"{bytes_of['evidence_up']} up, {bytes_of['evidence_down']} down"
    rows = [
        (
            "algorithm",
            f"{run.algorithm.name}, {config.constraint}, {config.clients} clients, {config.partition}",
        ),
        ("ended after", f"{len(history)} rounds ({run.stopped}), {seconds:.1f} s"),
        *([] if run.privacy else [("loss", _number(history.last("loss")))]),
        *([] if optimum is None else [("residual", _residual(run, optimum))]),
        *_on_test_data(run),
        *_certified(run),
        *_proof(run),
        *_what_was_chosen(run),
        ("sent up", bytes_of["bytes_up"]),
        ("sent down", bytes_of["bytes_down"]),
        ("evidence", f"{evidence}: digests, losses and the certificate's numbers"),
        ("dense exchange", f"{bytes_of['bytes_dense']} for the same rounds"),
    ]
    shares = run.algorithm.contract.shares
    if shares:
        sums = f" ({run.dense_sums} dense sums)" if run.dense_sums else ""
        rows.append(("server learnt", shares + sums))
    return rows


def _on_test_data(run: Run) -> list[tuple[str, str]]:
    accuracy, loss = run.history.last("accuracy"), run.history.last("test_loss")
    if (concordance := run.history.last("concordance")) is not None:
        each = run.history.last("concordances") or {}
        shown = ", ".join(f"{owner}: {value:.3f}" for owner, value in each.items())
        return [
            (
                "test concordance",
                _number(concordance) + (f" ({shown})" if 1 < len(each) <= _FEW else ""),
            )
        ]
    if accuracy is not None or loss is None:
        return [("test accuracy", _number(accuracy))]
    squared = run.problem.loss is nnf.mse_loss
    return [("test RMSE", _number(math.sqrt(loss)))] if squared else [("test loss", _number(loss))]


def _certified(run: Run) -> list[tuple[str, str]]:
    shares, constant = run.history.last("certified"), run.history.last("lipschitz")
    if shares is None:
        return []
    each = ", ".join(f"{radius}: {share:.1%}" for radius, share in shares.items())
    return [
        ("certified", f"at l2 radius {each} (Lipschitz constant at most {constant * 1.0005:.4g})")
    ]  # rounded up


def _residual(run: Run, optimum: Optimum) -> str:
    """How far the run came, in words."""
    left = max(0.0, optimum.residual(run.history.last("loss")))
    return (
        f"{left:.3g} of the way is left: the loss began at {optimum.start_value:.4g}, and the least on this set is "
        f"{optimum.value:.4g} (found with all data in one place)"
    )


def _proof(run: Run) -> list[tuple[str, str]]:
    """The gap, and what the clients' messages prove of the optimum where that says something; or
    what privacy costs.
    """
    if run.privacy is not None:
        return [
            ("privacy", str(run.privacy)),
            ("epsilon spent", _number(run.history.last("epsilon"))),
        ]
    loss, bound, floor = run.history.last("loss"), run.lower_bound, run.problem.floor
    gap = run.history.last("gap")
    rows = [] if gap is None else [("Frank-Wolfe gap", _number(gap))]
    if not run.certificate.proves:
        return [*rows, ("certificate", str(run.certificate))]
    if loss is None or bound is None or bound == floor:
        return rows  # all that is known of the optimum is that such a loss is never below the floor
    proven = f"{_number(bound)} (so the loss is proven to be within {loss - bound:.3g} of it)"
    return [*rows, ("optimum at least", proven), ("certificate", str(run.certificate))]


def _what_was_chosen(run: Run) -> list[tuple[str, str]]:
    algorithm, plan = run.algorithm, run.plan
    own = [
        f.name
        for f in fields(algorithm)
        if f.name not in ("constraint", "penalty", "schedule", "lr")
    ]
    rest = [f"{name.replace('_', '-')} {_shown(getattr(algorithm, name))}" for name in own]
    if plan.schedule is None:
        return [("chosen", ", ".join([f"lr {plan.lr:.3g}", *rest]))]
    if not algorithm.contract.points:
        return [("chosen", ", ".join(rest))] if rest else []
    chosen = ("chosen", ", ".join([f"penalty {plan.lam_0:.3g}", *rest]))
    apart, norm = run.history.last("consensus"), float(run.x.norm())
    relative = None if apart is None or norm == 0 else float(apart / run.plan.n**0.5 / norm)
    return [chosen, ("clients apart", f"{_number(relative)} of the model's norm")]


def _next_steps(run: Run, config: RunConfig, folder: Path) -> str:
    last = f"Look at {folder / PLOTS}; compare runs with:  fedfw compare {folder} OTHER_RUN"
    alone = run.problem.ranks.size == 1  # other ranks would have to help with the loss at the start
    if alone and run.problem.convex and config.tol is None and not run.algorithm.contract.shares:
        return "\n".join([*_where_drift_costs(run, config, folder), last])
    return last


def _where_drift_costs(run: Run, config: RunConfig, folder: Path) -> list[str]:
    """What to try where the clients' own points are good for them alone: sums of gradients, if they
    help.

    Distances say little: on a polytope points of clients with the same data lie far apart, too, and
    their mean is none the worse for it. What disagreement costs is F(xbar) - sum w_i f_i(x_i),
    which is about zero where the data are alike and many. It is told where it is more than training
    has gained, and a measured row says that sums lower the loss.
    """
    cost = cost_of_disagreement(run)
    if cost is None or config.constraint is None:
        return []
    loss = run.history.last("loss")
    start = run.problem.value(feasible_start(run.plan.constraint, run.problem.start))
    if cost <= max(start - loss, 0.0):
        return []
    partial = run.history.total("participants") < run.plan.n * len(run.history)
    advice = advise(config.constraint, differ="much", sees="sums", partial=partial)
    atoms = advise(config.constraint, differ="much", sees="atoms", partial=partial)
    if advice.method.sees != "sums" or advice.point.residual >= atoms.point.residual:
        return []
    lines = [
        f"The clients disagree: at their own points their losses are {cost:.3g} lower than at the model, and training",
        f"gained {start - loss:.3g}. If the server may see sums of gradients now and then, the loss can fall further:",
        f"  fedfw run {folder / CONFIG} {advice.flags}",
        compared(advice, atoms),
    ]
    bound = run.lower_bound
    if run.history.last("accuracy") is not None and bound is not None and bound > _HELD_UP * start:
        lines.append(
            f"That is about the loss. Test accuracy may fall: no model in {config.constraint} has a loss below "
            f"{bound:.3g},\nand in so small a set the least loss is seldom the best accuracy."
        )
    return lines


def cost_of_disagreement(run: Run) -> float | None:
    """F(xbar) - sum w_i f_i(x_i) at the last evaluation; None where it is not known.

    Near zero or below it where the clients' data are alike and many, however far apart their points
    are. Clients with few samples learn them by heart, and then disagree although the samples are
    drawn alike.
    """
    last = next((r for r in reversed(run.history) if r.surrogate is not None), None)
    if last is None or last.loss is None or last.consensus is None or last.lam is None:
        return None
    assert last.surrogate is not None
    return float(last.loss - (last.surrogate - last.lam / 2 * last.consensus**2))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
