"""Compare what a run proves with what it has seen: losses with bounds, losses with tangents.

A lower bound on the optimum rests on statements that the run is given: the losses are convex, their
floor is a floor, the set's oracle finds the minimum. A run can refute them. Every recorded loss
F(x) is a value at a point of the set, so it lies above every lower bound; and a convex f_i lies
above its tangents,

    f_i(u) >= f_i(x) + <grad f_i(x), u - x>    for all x and u.

Both are looked at where losses were worked out anyway, in evaluated rounds. A difference that
rounding explains is no contradiction, so a suspicion that arises in the run's own numbers is
confirmed in float64, and only then raises `ContradictionError`. What rounding explains:

- 1e-9 of the numbers compared (1e-5 in float32), which is what certificates allow themselves;
- products of vectors, up to 16 times the precision times the lengths of the factors;
- what rounding does inside of the losses, which no formula can know: a loss may subtract large
  numbers, or work in float32 on the way. It is measured. F is worked out again on both sides of x,
  a little away from it; F(x + d) + F(x - d) - 2 F(x) is then almost zero for a smooth F, and what
  is left of it is rounding. The same holds for gradients. What rounds alike on both sides, such
  as large terms that cancel in a gradient, is seen in F(x + d) - F(x - d) - 2 <grad F(x), d>.
  16 times the most that is seen counts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfw.errors import ContradictionError
from fedfw.problems.oracles import Gradient
from fedfw.problems.problem import Problem
from fedfw.sets.base import ConstraintSet

_SAFETY = 16
_ALLOWED = {torch.float32: 1e-5, torch.float64: 1e-9}
"""Differences relative to the numbers compared that are never a contradiction."""
_STEPS = {
    torch.float32: (2.0**-21, 2.0**-16, 2.0**-11),
    torch.float64: (2.0**-50, 2.0**-40, 2.0**-22),
}
"""Lengths of d, relative to x, at which rounding is measured; one for losses that round to less."""
_SLOPE_STEP = {torch.float32: 2.0**-7, torch.float64: 2.0**-17}
"""Length of d, relative to x, at which slopes are compared with gradients."""
_BLOCK = 2**18
"""Numbers in the gradients of those clients whose losses are looked at in one evaluation."""
_INSIDE = 1e-6
"""How far outside of a set, relative to its size, a point may be that counts as inside."""

Evaluate = Callable[[Tensor], tuple[float, Tensor]]
"""A point (p,) -> a loss and its gradient there."""


def _where(t: int, unit: str) -> str:
    return f"{unit} {t}" if t else "the start"


def measured_rounding(
    evaluate: Evaluate,
    x: Tensor,
    value: float,
    gradient: Tensor,
    reach: float,
    towards: Tensor | None = None,
) -> float:
    """Return how far rounding may change F(x) + <grad F(x), u - x> for points u within ``reach``.

    ``value`` and ``gradient`` (p,) are what ``evaluate`` gave at x (p,). Slopes are looked at in
    the direction ``towards`` (p,) of u, or of the gradient. Where F is not finite near x nothing
    can be said, and the result is infinite.
    """
    length = max(float(x.norm()), reach)
    direction = torch.randn(len(x), generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    direction = (direction / direction.norm()).to(x.device)
    in_values, seen = 0.0, 0.0
    for step in _STEPS[x.dtype]:
        above, rising = evaluate(x + step * length * direction)
        below, falling = evaluate(x - step * length * direction)
        bend = float((rising + falling - 2 * gradient).norm())
        in_values = max(in_values, abs(above + below - 2 * value))
        seen = max(seen, abs(above + below - 2 * value) + reach * bend)
        if not math.isfinite(seen):
            return math.inf
    if reach > 0:
        slope = _slope_error(
            evaluate,
            x,
            gradient,
            _SLOPE_STEP[x.dtype] * length,
            gradient if towards is None else towards,
            _SAFETY * in_values,
        )
        seen += reach * slope
    products = torch.finfo(x.dtype).eps * float(gradient.norm()) * (length + reach)
    return _SAFETY * (seen + products)


def _slope_error(
    evaluate: Evaluate,
    x: Tensor,
    gradient: Tensor,
    step: float,
    towards: Tensor,
    in_values: float,
) -> float:
    """Return how far the slope of F at x (p,) in a direction is from what its gradient says.

    Differences that rounding ``in_values`` explains do not count. Infinite where F is not finite.
    """
    way = step * towards / towards.norm().clamp(min=torch.finfo(x.dtype).tiny)
    above, below = x + way, x - way
    length = float((above - below).norm())
    if not length > 0:
        return 0.0
    rise = evaluate(above)[0] - evaluate(below)[0]
    error = abs(rise - float(gradient @ (above - below)))
    if not math.isfinite(error):
        return math.inf
    return max(0.0, error - in_values) / length


@dataclass(frozen=True)
class Tangent:
    """A loss at u that is compared with a tangent at x.

    Parameters
    ----------
    value : float
        The loss at u.
    tangent : float
        The value of the tangent at x, at u.
    slack : float
        What rounding explains.
    """

    value: float
    tangent: float
    slack: float

    @property
    def refuted(self) -> bool:
        """Return whether the loss is below its tangent by more than rounding explains."""
        return self.tangent - self.value > self.slack


def compare_with_tangent(evaluate: Evaluate, u: Tensor, x: Tensor) -> Tangent:
    """Compare a loss at u (p,) with its tangent at x (p,), both in the precision of these points.

    Rounding is measured only where the loss is below its tangent, which takes 14 evaluations.
    """
    value, slope_at_u = evaluate(u)
    at_x, gradient = evaluate(x)
    tangent = at_x + float(gradient @ (u - x))
    slack = _ALLOWED[x.dtype] * (abs(value) + abs(at_x))
    if tangent - value > slack:
        slack += measured_rounding(evaluate, x, at_x, gradient, float((u - x).norm()), u - x)
        slack += measured_rounding(evaluate, u, value, slope_at_u, 0.0)
    return Tangent(value, tangent, slack)


def not_convex(what: str, where: str, found: Tangent) -> ContradictionError:
    """Return the error for a loss below its tangent; ``what`` and ``where`` say which and when."""
    return ContradictionError(
        f"{where}: {what} is {found.value:.9g}, below {found.tangent:.9g}, the value of one of its "
        f"own tangents; rounding explains {found.slack:.2g}. So the loss is not convex, and no "
        "lower bound on the optimum is reported. Likely cause: convex=True is stated for a loss "
        "that is not convex. State convex=False: the run then goes without a certificate"
    )


def below_bound(
    seen_at: str, loss: float, where: str, bound: float, slack: float, floor: float | None
) -> ContradictionError:
    """Return the error for a loss, seen at one time, below a bound that was proven at another."""
    cause = "convex=True is stated for losses that are not convex"
    if bound == floor:
        cause = f"the loss is taken never to be below {floor:g}, its floor, and it is"
    return ContradictionError(
        f"{where}: the loss F = {loss:.9g} at the model of {seen_at} is below {bound:.9g}, which "
        f"was proven to be a lower bound on the optimum; rounding explains {slack:.2g}. So it is "
        f"no bound, and none is reported. Likely cause: {cause}. State convex=False: the run then "
        "goes without a certificate"
    )


@dataclass(frozen=True)
class _Lowest:
    """The lowest loss so far: F at x (p,), of round t.

    ``slack`` is what rounding explains, where that was measured; a loss that is ``confirmed`` was
    worked out in float64 at a point of the set.
    """

    t: int
    loss: float
    x: Tensor
    confirmed: bool = False
    slack: float | None = None


@dataclass(frozen=True)
class _Model:
    """A model x (p,) of round t with F and its gradient (p,), and each client's loss there (m,)."""

    t: int
    x: Tensor
    loss: float
    gradient: Tensor
    each: Tensor | None = None


@dataclass(frozen=True)
class Sample:
    """Some clients' losses and gradients at a model, for a comparison with their own points.

    Parameters
    ----------
    t : int
        The round.
    x : Tensor
        The model, (p,).
    rows : slice
        Which of the clients that this rank keeps.
    values, gradients : Tensor
        w_i f_i (b,) and w_i grad f_i (b, p) at x.
    """

    t: int
    x: Tensor
    rows: slice
    values: Tensor
    gradients: Tensor


class ContradictionCheck:
    """Compares the losses of a run with its bounds and with their tangents; for a caller with data.

    Parameters
    ----------
    problem : Problem
        The losses.
    constraint : ConstraintSet
        The set D on the flat vector, for whose points bounds are proven.
    exact : bool
        Whether the losses can be worked out in float64 (`Problem.works_in_float64`).
    unit : str
        What the numbers of models count, for messages.
    """

    def __init__(
        self,
        problem: Problem,
        constraint: ConstraintSet,
        *,
        exact: bool = True,
        unit: str = "round",
    ) -> None:
        self._problem = problem
        self._constraint = constraint
        self._exact = exact
        self._unit = unit
        self._dtype = torch.float64 if exact else problem.start.dtype
        self._lowest: _Lowest | None = None
        self._last: _Model | None = None
        self._next_row = 0
        # These grow when rounding has explained a suspicion: it would explain the next one, too.
        # The first is the same on all ranks, which confirm together; clients are each rank's own.
        self._tolerance = 1.0
        self._client_tolerance = 1.0

    # --- losses and bounds ---

    def add_loss(self, t: int, x: Tensor, loss: float) -> None:
        """Take in F at a point x (p,) of the set: the model after round t, 0 for the start."""
        if math.isnan(loss):
            return
        if self._lowest is None or loss < self._lowest.loss:
            self._lowest = _Lowest(t, loss, x.clone())

    def has_loss_of(self, t: int) -> bool:
        """Return whether F at the model after round t was taken in by this process."""
        return self._last is not None and self._last.t == t

    def compare(self, t: int, bound: float | None) -> None:
        """Raise `ContradictionError` if a loss so far is below a bound that is held in round t."""
        lowest = self._lowest
        if bound is None or lowest is None or not bound > lowest.loss:
            return
        if not lowest.confirmed:
            lowest = self._lowest = self._confirmed(lowest)
        if lowest is None:
            return
        allowed = _ALLOWED[self._dtype] * (abs(bound) + abs(lowest.loss))
        if not bound - lowest.loss > allowed:
            return
        if lowest.slack is None:
            lowest = self._lowest = replace(lowest, slack=self._rounding(lowest.x))
        slack = allowed + (lowest.slack or 0.0)
        if bound - lowest.loss > slack:
            seen_at = _where(lowest.t, self._unit)
            where = _where(t, self._unit)
            raise below_bound(seen_at, lowest.loss, where, bound, slack, self._problem.floor)

    def _confirmed(self, lowest: _Lowest) -> _Lowest | None:
        """Return the loss in float64 at the nearest point of the set; None where there is none."""
        x = lowest.x.to(self._dtype)
        if not self._constraint.contains(x, 0.0):
            if self._constraint.has_projection:
                x = self._constraint.project(x)
            elif not self._constraint.contains(x, _INSIDE):
                return None
        return replace(lowest, x=x, loss=self._evaluate(x)[0], confirmed=True)

    def _rounding(self, x: Tensor) -> float:
        """Return what rounding may change in F, and in bounds from gradients near x (p,)."""
        value, gradient = self._evaluate(x)
        diameter = self._constraint.diameter(tuple(x.shape))
        slack = measured_rounding(self._evaluate, x, value, gradient, diameter)
        if not self._constraint.has_projection:  # x may be outside, and F there below the optimum
            slack += _INSIDE * math.sqrt(len(x)) * diameter * float(gradient.norm())
        return slack

    def _evaluate(self, x: Tensor) -> tuple[float, Tensor]:
        return self._problem.value_and_gradient(x, exact=self._exact)

    # --- losses and tangents ---

    def start_at(self, x: Tensor) -> None:
        """Take in the start x (p,)."""
        # A loss that is not finite there is the first round's to refuse, with its number.
        values, gradients = self._problem.each_value_and_gradient(x, 1)
        loss, gradient = self._problem.total(values, gradients, 1)
        self.add_loss(0, x, loss)
        self.add_model(0, x, loss, gradient, values)

    def add_model(
        self,
        t: int,
        x: Tensor,
        loss: float,
        gradient: Tensor,
        each: Tensor | None = None,
    ) -> None:
        """Take in F and its gradient (p,) at a model x (p,), and compare it with the last one.

        Each has to lie above the other's tangent. ``each`` (m,) are the clients' w_i f_i.
        """
        each = None if each is None else each.clone()
        model, last = _Model(t, x.clone(), loss, gradient.clone(), each), self._last
        self._last = model
        if last is not None:
            self._compare_models(last, model)

    def sample_clients(self, t: int, x: Tensor, values: Tensor, gradients: Tensor) -> Sample:
        """Compare clients' losses at the last model with their tangents at this one, x (p,).

        To be called before `add_model`. ``values`` (m,) and ``gradients`` (m, p) are the w_i f_i
        and w_i grad f_i of all clients that this rank keeps. Where gradients are long some of the
        clients are looked at, others the next time. What is returned is for `compare_own_points`;
        it holds copies, so that ``gradients`` can be given up.
        """
        last, count = self._last, len(values)
        begin = self._next_row if self._next_row < count else 0
        rows = slice(begin, min(count, begin + max(1, _BLOCK // max(1, len(x)))))
        self._next_row = rows.stop
        some = Sample(t, x, rows, values[rows].clone(), gradients[rows].clone())
        if last is not None and last.each is not None:
            points = last.x.to(x.dtype).expand(len(some.values), -1)
            self._compare_points(some, points, last.each[rows], f"the model of {self._at(last.t)}")
        return some

    def compare_own_points(self, some: Sample, points: Tensor, values: Tensor) -> None:
        """Compare clients' losses w_i f_i (m,) at points of their own (m, p) with tangents at x."""
        self._compare_points(some, points[some.rows], values[some.rows], "its own point")

    def _compare_points(self, some: Sample, u: Tensor, at_u: Tensor, name: str) -> None:
        """Compare losses (b,) at points u (b, p) with the tangents at x of the same clients."""
        away = u - some.x
        at_u = at_u.to(some.values.dtype)
        lack = some.values + (some.gradients * away).sum(1) - at_u
        steep = some.gradients.norm(dim=1)
        size = some.values.abs() + at_u.abs() + steep * (u.norm(dim=1) + some.x.norm())
        excess = lack - self._suspicious(some.x.dtype, self._client_tolerance) * size
        worst = int(excess.argmax())
        if not float(excess[worst]) > 0:
            return
        who = self._clients(some.x)[some.rows][worst : worst + 1]

        def evaluate(x: Tensor) -> tuple[float, Tensor]:
            if self._exact:
                value, gradient = self._problem.losses.exactly(x[None], who)
            else:
                value, gradient = self._problem.losses.value_and_gradient(x[None], who, None)
            return float(value[0]), gradient[0]

        found = compare_with_tangent(evaluate, u[worst].to(self._dtype), some.x.to(self._dtype))
        if found.refuted:
            what = f"the loss of client {int(who[0])} at {name}"
            raise not_convex(what, self._at(some.t), found)
        self._client_tolerance *= 4

    def _compare_models(self, last: _Model, model: _Model) -> None:
        """Compare F at each of two models with its tangent at the other one."""
        dtype = model.x.dtype
        away, lengths = model.x - last.x, last.x.norm() + model.x.norm()
        # One look at a GPU's numbers, for both.
        products = (last.gradient * away).sum(), -(model.gradient * away).sum()
        steep = last.gradient.norm() * lengths, model.gradient.norm() * lengths
        numbers = torch.stack([*products, *steep]).tolist()
        for x, u, rise, size in (
            (last, model, numbers[0], numbers[2]),
            (model, last, numbers[1], numbers[3]),
        ):
            size += abs(x.loss) + abs(u.loss)
            if not x.loss + rise - u.loss > self._suspicious(dtype, self._tolerance) * size:
                continue
            found = compare_with_tangent(self._evaluate, u.x.to(self._dtype), x.x.to(self._dtype))
            if found.refuted:
                what = f"the loss F at the model of {self._at(u.t)}"
                raise not_convex(what, self._at(model.t), found)
            self._tolerance *= 4

    def _suspicious(self, dtype: torch.dtype, tolerance: float) -> float:
        """Return which difference of numbers is to be confirmed, relative to their sizes."""
        return tolerance * max(64 * torch.finfo(dtype).eps, _ALLOWED[self._dtype])

    def _clients(self, x: Tensor) -> Tensor:
        return self._problem.losses.all_clients(x.device)

    def _at(self, t: int) -> str:
        return _where(t, self._unit)

    # --- checkpoints ---

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold.

        The last model is not part of it: the first one after a resumption has none before it.
        """
        lowest = self._lowest
        if lowest is None:
            return {}
        numbers = torch.tensor([lowest.t, lowest.loss, lowest.confirmed], dtype=torch.float64)
        return {"x": lowest.x, "numbers": numbers}

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned; a checkpoint of an earlier version has nothing."""
        if "numbers" in held:
            t, loss, confirmed = held["numbers"].tolist()
            x = held["x"].to(self._problem.start.device)
            self._lowest = _Lowest(int(t), loss, x, bool(confirmed))


class Tangents:
    """A `fedfw.problems.oracles.Gradient` that keeps what it returned in float64; of one client.

    The first and the last of its points are kept, each with its loss and gradient.

    Parameters
    ----------
    gradient : Gradient
        Of a stack of one.
    """

    def __init__(self, gradient: Gradient) -> None:
        self._gradient = gradient
        self._first: _Model | None = None
        self._last: _Model | None = None

    def __call__(
        self,
        x: Tensor,
        full: bool = False,
        exact: bool = False,
        plain: bool = False,
        times: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted losses and gradients at x (1, p)."""
        values, gradients = self._gradient(x, full=full, exact=exact, plain=plain, times=times)
        if gradients.dtype is torch.float64 and not plain and times == 1.0:
            # Gradients are given away, and may be overwritten.
            seen = _Model(0, x[0].double().clone(), float(values[0]), gradients[0].clone())
            self._last = seen
            if self._first is None:
                self._first = seen
        return values, gradients

    def suspicious_pair(self) -> tuple[Tensor, Tensor] | None:
        """Return points u and x (p,), if the loss at u is below its tangent at x."""
        if self._first is None or self._last is None:
            return None
        for u, x in ((self._first, self._last), (self._last, self._first)):
            tangent = x.loss + float(x.gradient @ (u.x - x.x))
            steep = float(x.gradient.norm()) * float(u.x.norm() + x.x.norm())
            size = abs(u.loss) + abs(x.loss) + steep
            if tangent - u.loss > _ALLOWED[torch.float64] * size:
                return u.x, x.x
        return None


class ReportedLosses:
    """Compares reported losses with bounds; for a server, which cannot evaluate them again.

    It is therefore more cautious: rounding is taken to change a loss by 1e-9 (float64) or 1e-5
    (float32, where the model itself is rounded and may be outside of the set by as much) of the
    largest loss so far, which says how steep F is within the set.

    Parameters
    ----------
    dtype : torch.dtype
        The precision of the run.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.allowed = _ALLOWED[dtype]
        self.begin()

    def begin(self) -> None:
        """Forget all losses: the clients have changed, and F with them."""
        self._lowest: tuple[int, float, float] | None = None
        self._largest = 0.0

    def add_loss(self, t: int, loss: float, allowed: float | None = None) -> None:
        """Take in F at the model after round t; 0 stands for the start.

        ``allowed`` is what rounding may have changed of it, relative to the largest loss.
        """
        allowed = self.allowed if allowed is None else allowed
        self._largest = max(self._largest, abs(loss))
        largest = loss + allowed * self._largest
        if self._lowest is None or largest < self._lowest[1] + self._lowest[2] * self._largest:
            self._lowest = t, loss, allowed

    def compare(
        self,
        t: int,
        bound: float | None,
        floor: float | None,
    ) -> ContradictionError | None:
        """Return the error for a loss below the bound that is held in round t, if there is one.

        ``floor`` is what the loss is taken never to be below.
        """
        if bound is None or self._lowest is None:
            return None
        seen_at, loss, allowed = self._lowest
        slack = allowed * (self._largest + abs(bound))
        if not bound - loss > slack:
            return None
        return below_bound(_where(seen_at, "round"), loss, _where(t, "round"), bound, slack, floor)

    def state(self) -> dict[str, float]:
        """Return what a checkpoint must hold."""
        if self._lowest is None:
            return {}
        t, loss, allowed = self._lowest
        return {"round": t, "loss": loss, "allowed": allowed, "largest": self._largest}

    def load(self, held: Mapping[str, float]) -> None:
        """Take over what `state` returned."""
        self.begin()
        if held:
            self._lowest = int(held["round"]), float(held["loss"]), float(held["allowed"])
            self._largest = float(held["largest"])
