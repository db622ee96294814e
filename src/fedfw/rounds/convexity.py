"""Compare a loss with its own tangents, above which it lies if it is convex.

    f(u) >= f(x) + <grad f(x), u - x>    for all x and u.

A suspicion that arises in a run's own numbers is confirmed in float64, and counts only if rounding
does not explain it. What rounding explains:

- 1e-9 of the numbers compared (1e-5 in float32), which is what certificates allow themselves;
- products of vectors, up to 16 times the precision times the lengths of the factors;
- what rounding does inside of the losses, which no formula can know: a loss may subtract large
  numbers, or work in float32 on the way. It is measured. f is worked out again on both sides of x,
  a little away from it; f(x + d) + f(x - d) - 2 f(x) is then almost zero for a smooth f, and what
  is left of it is rounding. The same holds for gradients. What rounds alike on both sides, such
  as large terms that cancel in a gradient, is seen in f(x + d) - f(x - d) - 2 <grad f(x), d>.
  16 times the most that is seen counts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw.errors import ContradictionError
from fedfw.problems.oracles import Gradient

ALLOWED = {torch.float32: 1e-5, torch.float64: 1e-9}
"""Differences relative to the numbers compared that are never a contradiction."""
_SAFETY = 16
_STEPS = {
    torch.float32: (2.0**-21, 2.0**-16, 2.0**-11),
    torch.float64: (2.0**-50, 2.0**-40, 2.0**-22),
}
"""Lengths of d, relative to x, at which rounding is measured; one for losses that round to less."""
_SLOPE_STEP = {torch.float32: 2.0**-7, torch.float64: 2.0**-17}
"""Length of d, relative to x, at which slopes are compared with gradients."""

Evaluate = Callable[[Tensor], tuple[float, Tensor]]
"""A point (p,) -> a loss and its gradient there."""


@dataclass(frozen=True)
class Evaluated:
    """A loss and its gradient (p,) at a point x (p,)."""

    x: Tensor
    loss: float
    gradient: Tensor

    def tangent_at(self, u: Tensor) -> float:
        """Return the value at u (p,) of the tangent at x."""
        return self.loss + float(self.gradient @ (u - self.x))


def lies_below_tangent(at_u: Evaluated, at_x: Evaluated, tolerance: float) -> bool:
    """Return whether the loss at u is below the tangent at x by more than ``tolerance``, relative
    to the numbers that are compared.
    """
    lengths = float(at_u.x.norm() + at_x.x.norm())
    size = abs(at_u.loss) + abs(at_x.loss) + float(at_x.gradient.norm()) * lengths
    return at_x.tangent_at(at_u.x) - at_u.loss > tolerance * size


def measure_rounding(evaluate: Evaluate, at_x: Evaluated, reach: float, towards: Tensor) -> float:
    """Return how far rounding may change f(x) + <grad f(x), u - x> for points u within ``reach``.

    Slopes are looked at in the direction ``towards`` (p,), which is that of u. Where f is not
    finite near x nothing can be said, and the result is infinite.
    """
    x = at_x.x
    precision = torch.finfo(x.dtype)
    length = max(float(x.norm()), reach)
    draw = torch.randn(len(x), generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    direction = (draw / draw.norm()).to(x.device)
    in_values = 0.0
    in_tangent = 0.0
    for step in _STEPS[x.dtype]:
        value_ahead, gradient_ahead = evaluate(x + step * length * direction)
        value_behind, gradient_behind = evaluate(x - step * length * direction)
        # Second differences, almost zero for a smooth f, are rounding alone.
        of_value = abs(value_ahead + value_behind - 2 * at_x.loss)
        of_gradient = float((gradient_ahead + gradient_behind - 2 * at_x.gradient).norm())
        in_values = max(in_values, of_value)
        in_tangent = max(in_tangent, of_value + reach * of_gradient)
        # Without finite values nothing is excluded.
        if not math.isfinite(in_tangent):
            return math.inf
    slope_step = _SLOPE_STEP[x.dtype] * length * towards / towards.norm().clamp(min=precision.tiny)
    # The step that floating point takes; zero where x is zero and F has no slope.
    slope_step = (x + slope_step) - (x - slope_step)
    value_rise = evaluate(x + slope_step / 2)[0] - evaluate(x - slope_step / 2)[0]
    in_slope = abs(value_rise - float(at_x.gradient @ slope_step))
    if not math.isfinite(in_slope):
        return math.inf
    step_length = max(float(slope_step.norm()), precision.tiny)
    in_slope = max(0.0, in_slope - _SAFETY * in_values) / step_length
    in_products = precision.eps * float(at_x.gradient.norm()) * (length + reach)
    return _SAFETY * (in_tangent + reach * in_slope + in_products)


def refuse_if_not_convex(evaluate: Evaluate, u: Tensor, x: Tensor, what: str, where: str) -> None:
    """Raise `ContradictionError` where a loss at u (p,) is below its tangent at x (p,), in the
    precision of these points, by more than rounding explains.

    Rounding is measured only where the loss is below its tangent, which takes 16 evaluations.
    ``what`` and ``where`` say which loss this is and when it was found, for the message.
    """
    at_u = Evaluated(u, *evaluate(u))
    at_x = Evaluated(x, *evaluate(x))
    tangent = at_x.tangent_at(u)
    slack = ALLOWED[x.dtype] * (abs(at_u.loss) + abs(at_x.loss))
    if tangent - at_u.loss > slack:
        slack += measure_rounding(evaluate, at_x, float((u - x).norm()), u - x)
        slack += measure_rounding(evaluate, at_u, 0.0, u - x)
    if tangent - at_u.loss > slack:
        raise ContradictionError(
            f"{where}: {what} is {at_u.loss:.9g}, below {tangent:.9g}, the value of one of its "
            f"own tangents; rounding explains {slack:.2g}. So the loss is not convex, and no "
            "lower bound on the optimum is reported. Likely cause: convex=True is stated for a "
            "loss that is not convex. State convex=False: the run then goes without a certificate"
        )


class ClientTangents:
    """A `fedfw.problems.oracles.Gradient` of one client that keeps the first and the last point at
    which it returned float64, with loss and gradient.

    Parameters
    ----------
    gradient : Gradient
        Of a stack of one.
    """

    def __init__(self, gradient: Gradient) -> None:
        self._gradient = gradient
        self._seen: list[Evaluated] = []  # the first and the last

    def __call__(
        self,
        x: Tensor,
        full: bool = False,
        exact: bool = False,
        plain: bool = False,
        times: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted losses (1,) and gradients (1, p) at x (1, p), and keep those in
        float64.
        """
        values, gradients = self._gradient(x, full=full, exact=exact, plain=plain, times=times)
        if gradients.dtype is torch.float64 and not plain and times == 1.0:
            # Gradients are given away, and may be overwritten.
            evaluated = Evaluated(x[0].double().clone(), float(values[0]), gradients[0].clone())
            # The first stays, and the newest takes the place of the last.
            self._seen = [*self._seen[:1], evaluated]
        return values, gradients

    def suspicious_pair(self) -> tuple[Tensor, Tensor] | None:
        """Return points u and x (p,), if the loss at u is below its tangent at x."""
        for at_u in self._seen:
            for at_x in self._seen:
                if lies_below_tangent(at_u, at_x, ALLOWED[torch.float64]):
                    return at_u.x, at_x.x
        return None
