"""The optimum F* by a central solver that sees all the data: residuals are measured against it.

Where the set has a projection: accelerated projected gradient (Nesterov's momentum with restarts,
step sizes by backtracking). Elsewhere: Frank-Wolfe with backtracking steps. Either way the
Frank-Wolfe gap says how far the answer can be trusted: F(x) - gap(x) <= F* <= F(x).

At a kink, as of |x| at 0, steps along gradients make no progress, so losses with kinks may not
reach the tolerance.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedfw.certificates import frank_wolfe_gap, validate_gap
from fedfw.problems.problem import Problem
from fedfw.report.bars import shown
from fedfw.rounds.contradictions import ContradictionCheck
from fedfw.rounds.feasibility import final_model
from fedfw.rounds.projected_gradient import accelerated_steps, backtrack
from fedfw.rounds.setup import feasible_start
from fedfw.sets.base import ConstraintSet

_LOOK_EVERY = (
    10  # steps between two looks at the gap, each of which costs a gradient and an oracle call
)
_GAVE_UP = "solve gave up"


@dataclass(frozen=True)
class Optimum:
    """The result of `solve`.

    Parameters
    ----------
    x
        The best point, (p,); in the parameter's shape where the model is one matrix.
    value, lower_bound
        lower_bound <= F* <= value, up to the rounding of the problem's precision.
    start_value
        F where runs begin.
    steps
        How many gradient steps it took.
    method
        Which solver.
    stopped
        Why F* is not known to the tolerance that was asked for; None where it is.

    Examples
    --------
    >>> import torch
    >>> optimum = Optimum(
    ...     torch.ones(1), value=4.0, lower_bound=3.9, start_value=5.0, steps=10, method="by hand"
    ... )
    >>> optimum.residual(4.5)
    0.5
    """

    x: Tensor = field(repr=False)
    value: float
    lower_bound: float
    start_value: float
    steps: int
    method: str
    stopped: str | None = None

    def residual(self, loss: float) -> float:
        """Return (F - F*) / (F(x^1) - F*), with the best value for F*."""
        return (loss - self.value) / max(self.start_value - self.value, 1e-300)

    @property
    def uncertainty(self) -> float:
        """Return how far F* can be below ``value``, on the scale of `residual`."""
        return (self.value - self.lower_bound) / max(self.start_value - self.lower_bound, 1e-300)


def solve(
    problem: Problem,
    constraint: Any,
    *,
    tol: float = 1e-3,
    max_steps: int = 5000,
    max_seconds: float = math.inf,
    progress: bool | Callable[[int, float, float], Any] = False,
) -> Optimum:
    """Minimise F over the constraint with all the data in one place.

    Parameters
    ----------
    problem
        With convex losses: only then does the gap bound F*. Losses with kinks, such as
        `nn.L1Loss`, may not reach the tolerance.
    constraint
        A constraint set, a `Product`, or a text such as ``"l1:10"``.
    tol
        Stop when F* is known to this fraction of F(x^1) - F*. The gap is a cautious measure: the
        value itself is usually far closer to F* than that.
    max_steps
        Give up after so many steps, with a warning; `Optimum.uncertainty` says what was reached.
    max_seconds
        Give up after about so many seconds.
    progress
        True for a bar; a function is called now and then with (steps, value, lower bound).

    Returns
    -------
    Optimum

    Raises
    ------
    ContradictionError
        If the losses that the solver sees refute that they are convex.

    Examples
    --------
    >>> import fedfw
    >>> optimum = fedfw.solve(fedfw.testing.two_quadratics(), fedfw.Box(-1.0, 1.0))
    >>> optimum.value, float(optimum.x)
    (4.0, 1.0)
    """
    if problem.convex is not True:
        raise ValueError(
            "solve needs losses that are known to be convex (Problem(..., convex=True) says so)"
        )
    if not tol > 0 or max_steps < 1:
        raise ValueError(f"tol={tol}, max_steps={max_steps}, expected positive numbers")
    if not max_seconds > 0:
        raise ValueError(f"max_seconds={max_seconds}, expected a positive number")
    end = time.monotonic() + max_seconds
    D = problem.bind(constraint)
    x = feasible_start(D, problem.start)
    if D.has_projection:
        method = "accelerated projected gradient"
        steps = accelerated_steps(problem, D.project, x)
    else:
        method = "Frank-Wolfe"
        steps = _frank_wolfe(problem, D, x)
    # Rounding errors of float32 would make the bound false.
    exact = problem.works_in_float64()

    check = ContradictionCheck(problem, D, exact=exact, unit="step")

    def look(count: int, x: Tensor) -> tuple[float, float]:
        """Return F at x (p,) after so many steps, and a lower bound on the optimum."""
        value, gradient = problem.value_and_gradient(x, exact=exact)
        point = x.to(gradient.dtype)
        gap = frank_wolfe_gap(D, point, gradient)
        validate_gap(D, point, gradient, gap, f"step {count}")
        bound = value - gap
        if problem.floor is not None:
            bound = max(bound, problem.floor)
        # A loss below the bound, or below a tangent seen before, refutes that F is convex: the
        # comparison raises ContradictionError.
        check.add_model(count, point, value, gradient)
        if D.contains(point):  # outside of the set F may be less than the optimum
            check.add_loss(count, point, value)
        check.compare(count, bound)
        return value, bound

    start_value, bound = look(0, x)
    best = Optimum(x, start_value, min(bound, start_value), start_value, 0, method)
    with shown(progress, max_steps, "step", _between) as show:
        for count in range(1, max_steps + 1):
            x = next(steps)
            # The first rank's clock decides for all ranks, so that they stop together.
            late = bool(problem.ranks.numbers(time.monotonic() > end)[0][0])
            if count % _LOOK_EVERY and count < max_steps and not late:
                continue
            value, bound = look(count, x)
            bound = max(best.lower_bound, bound)
            check.compare(count, bound)
            # Of ties the later point is kept.
            point, value = (x, value) if value <= best.value else (best.x, best.value)
            bound = min(bound, value)  # at the optimum itself the two differ by rounding
            best = Optimum(point, value, bound, start_value, count, method)
            show(count, count, value, bound)
            if best.uncertainty <= tol or late:
                break
    if best.uncertainty > tol:
        best = replace(best, stopped=_shortfall(best, tol))
        warnings.warn(f"{_GAVE_UP} {best.stopped}", stacklevel=2)
    return replace(best, x=problem.shaped(final_model(D, best.x)))


def _shortfall(best: Optimum, tol: float) -> str:
    """Return why the tolerance was not reached, and what a caller can do."""
    return (
        f"after {best.steps} steps: F* is known to {best.uncertainty:.2g} of F(x^1) - F*, expected "
        f"tol={tol:g}: allow more steps or seconds, or use the interval from lower_bound to value. "
        "Losses with kinks, such as |x|, stall"
    )


def _between(steps: int, value: float, bound: float) -> str:
    return f"F* is between {bound:.6f} and {value:.6f}"


def _frank_wolfe(problem: Problem, constraint: ConstraintSet, x: Tensor) -> Iterator[Tensor]:
    """Yield the points (p,) of Frank-Wolfe steps from x, endlessly; the size of a step is that of
    the least quadratic bound with the curvature L along it, and backtracking adapts L.
    """
    L = 1.0
    while True:
        value, g = problem.value_and_gradient(x)
        d = constraint.lmo(g).dense(x.dtype) - x
        slope = -float((g.double() * d.double()).sum())
        length = float(d.double().square().sum())
        if slope > 0 and length > 0:
            x, _, L = backtrack(problem, x, value, g, L, _short_step(x, d, slope / length))
        yield x


def _short_step(x: Tensor, d: Tensor, longest: float) -> Callable[[float], Tensor]:
    return lambda L: x + min(1.0, longest / L) * d
