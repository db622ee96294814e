"""Compare what a run proves with what it has seen: losses with bounds, losses with tangents.

A lower bound on the optimum rests on statements that the run is given: the losses are convex, their
floor is a floor, the set's oracle finds the minimum. A run can refute them. Every recorded loss
F(x) is a value at a point of the set, so it lies above every lower bound; and convex losses lie
above their tangents (`fedfw.rounds.convexity`, which says what rounding explains).

Both are looked at where losses were worked out anyway, in evaluated rounds. A suspicion that arises
in the run's own numbers is confirmed in float64, and only then raises `ContradictionError`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedfw.errors import ContradictionError
from fedfw.problems.problem import Problem
from fedfw.rounds.convexity import (
    ALLOWED,
    Evaluated,
    lies_below_tangent,
    measure_rounding,
    refuse_if_not_convex,
)
from fedfw.sets.base import ConstraintSet

_BLOCK = 2**18
"""Numbers in the gradients of those clients whose losses are looked at in one evaluation."""
_INSIDE = 1e-6
"""How far outside of a set, relative to its size, a point may be that counts as inside."""


def _name_of(t: int, unit: str) -> str:
    return f"{unit} {t}" if t else "the start"


def below_bound(
    seen_at: str, loss: float, where: str, bound: float, slack: float, floor: float | None
) -> ContradictionError:
    """Return the error for a loss at the model of ``seen_at`` that is below a bound proven at
    ``where``.
    """
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
    """F at the model of round t, and each client's w_i f_i there (m,)."""

    t: int
    evaluated: Evaluated
    client_losses: Tensor | None


class ClientLosses(NamedTuple):
    """All of a rank's clients at a model x (p,): w_i f_i (m,) and w_i grad f_i (m, p)."""

    x: Tensor
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
        """Begin without losses, with tolerances for the problem's precision."""
        self._problem = problem
        self._constraint = constraint
        self._exact = exact
        self._unit = unit
        self._dtype = torch.float64 if exact else problem.start.dtype
        # A difference, relative to the numbers compared, that is confirmed in float64.
        relative_rounding = 64 * torch.finfo(problem.start.dtype).eps
        # Both grow where rounding explains a suspicion, as it would explain the next one. The first
        # is the same on all ranks, which confirm together; clients are each rank's own.
        self._suspicious = max(relative_rounding, ALLOWED[self._dtype])
        self._suspicious_of_clients = self._suspicious
        self._lowest: _Lowest | None = None
        self._last: _Model | None = None
        self._next_row = 0

    # --- losses and bounds ---

    def add_loss(self, t: int, x: Tensor, loss: float) -> None:
        """Take in F at a point x (p,) of the set: the model after round t, 0 for the start."""
        least = math.inf if self._lowest is None else self._lowest.loss
        if loss < least:
            self._lowest = _Lowest(t, loss, x.clone())

    def has_loss_of(self, t: int) -> bool:
        """Return whether F at the model after round t was taken in by this process."""
        return self._last is not None and self._last.t == t

    def compare(self, t: int, bound: float | None) -> None:
        """Raise `ContradictionError` if the lowest loss so far is below the bound of round t, by
        more than rounding explains.
        """
        lowest = self._lowest
        # `not >` is also true of a NaN.
        if bound is None or lowest is None or not bound > lowest.loss:
            return
        if not lowest.confirmed:
            lowest = self._lowest = self._confirm(lowest)
        if lowest is None:
            return
        slack = ALLOWED[self._dtype] * (abs(bound) + abs(lowest.loss))
        # Measured rounding takes evaluations: only where the allowance alone does not explain it.
        if bound - lowest.loss > slack and lowest.slack is None:
            lowest = self._lowest = replace(lowest, slack=self._rounding_at(lowest.x))
        slack += lowest.slack or 0.0
        if bound - lowest.loss > slack:
            floor = self._problem.floor
            raise below_bound(self._at(lowest.t), lowest.loss, self._at(t), bound, slack, floor)

    def _confirm(self, lowest: _Lowest) -> _Lowest | None:
        """Return the loss in float64 at the nearest point of the set; None where x lies outside and
        no projection is known.
        """
        x = lowest.x.to(self._dtype)
        if not self._constraint.contains(x, 0.0):
            if self._constraint.has_projection:
                x = self._constraint.project(x)
            elif not self._constraint.contains(x, _INSIDE):
                return None
        return replace(lowest, x=x, loss=self._evaluate(x)[0], confirmed=True)

    def _rounding_at(self, x: Tensor) -> float:
        """Return by how much rounding may change F at x (p,), and bounds from gradients near it."""
        at_x = Evaluated(x, *self._evaluate(x))
        diameter = self._constraint.diameter(tuple(x.shape))
        slack = measure_rounding(self._evaluate, at_x, diameter, at_x.gradient)
        # Without a projection x may lie outside, where F may be below the optimum by the gradient
        # times the distance.
        if not self._constraint.has_projection:
            slack += _INSIDE * math.sqrt(len(x)) * diameter * float(at_x.gradient.norm())
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
        client_losses: Tensor | None = None,
    ) -> None:
        """Take in F and its gradient (p,) at a model x (p,), and compare it with the last one.

        Each has to lie above the other's tangent. ``client_losses`` (m,) are the clients' w_i f_i.
        """
        client_losses = None if client_losses is None else client_losses.clone()
        last = self._last
        model = self._last = _Model(t, Evaluated(x.clone(), loss, gradient.clone()), client_losses)
        if last is None:
            return
        for below, tangent in ((last, model), (model, last)):
            if not lies_below_tangent(below.evaluated, tangent.evaluated, self._suspicious):
                continue
            u = below.evaluated.x.to(self._dtype)
            x_of_tangent = tangent.evaluated.x.to(self._dtype)
            what = f"the loss F at the model of {self._at(below.t)}"
            refuse_if_not_convex(self._evaluate, u, x_of_tangent, what, self._at(t))
            # Rounding explained this suspicion: only larger ones are confirmed from now on.
            self._suspicious *= 4

    def compare_clients(
        self, t: int, at_x: ClientLosses, at_own_points: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Compare clients' losses with their tangents at this model x: losses at the last model,
        and at the clients' own points, ``at_own_points``: these points (m, p), and w_i f_i (m,)
        there.

        To be called before `add_model`. Where gradients are long some of the clients are looked at,
        others the next time.
        """
        m, p = at_x.gradients.shape
        # In turn, as many rows as have _BLOCK numbers in their gradients, at least one.
        begin = self._next_row if self._next_row < m else 0
        rows = slice(begin, min(m, begin + max(1, _BLOCK // max(1, p))))
        self._next_row = rows.stop
        last = self._last
        if last is not None and last.client_losses is not None:
            points = last.evaluated.x.expand(m, -1)
            name = f"the model of {self._at(last.t)}"
            self._compare_rows(t, at_x, rows, points, last.client_losses, name)
        if at_own_points is not None:
            self._compare_rows(t, at_x, rows, *at_own_points, "its own point")

    def _compare_rows(
        self, t: int, at_x: ClientLosses, rows: slice, u: Tensor, losses_at_u: Tensor, name: str
    ) -> None:
        """Raise `ContradictionError` if a client's loss ``losses_at_u`` at its point u is below its
        own tangent at x, in these ``rows`` of losses (m,) and points (m, p); ``name`` says in the
        message which points these are.
        """
        x = at_x.x
        values = at_x.values[rows]
        gradients = at_x.gradients[rows]
        u = u[rows].to(x.dtype)
        losses_at_u = losses_at_u[rows].to(values.dtype)
        distance_below = values + (gradients * (u - x)).sum(1) - losses_at_u
        lengths = u.norm(dim=1) + x.norm()
        size = values.abs() + losses_at_u.abs() + gradients.norm(dim=1) * lengths
        # f(x) + <grad f(x), u - x> - f(u), less what is not suspicious at this size.
        excess = distance_below - self._suspicious_of_clients * size
        worst = int(excess.argmax())
        if not float(excess[worst]) > 0:
            return
        all_losses = self._problem.losses
        client = all_losses.all_clients(x.device)[rows][worst]

        def evaluate(point: Tensor) -> tuple[float, Tensor]:
            """Return f_i and its gradient (p,) in float64 at a point (p,), for the client in the
            worst row.
            """
            value, gradient = all_losses.exactly(point[None], client[None])
            return float(value[0]), gradient[0]

        what = f"the loss of client {int(client)} at {name}"
        refuse_if_not_convex(evaluate, u[worst].double(), x.double(), what, self._at(t))
        self._suspicious_of_clients *= 4

    def _at(self, t: int) -> str:
        return _name_of(t, self._unit)

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
        """Take over what `state` returned."""
        if held:
            t, loss, confirmed = held["numbers"].tolist()
            x = held["x"].to(self._problem.start.device)
            self._lowest = _Lowest(int(t), loss, x, bool(confirmed))


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
        self.allowed = ALLOWED[dtype]
        self.begin()

    def begin(self) -> None:
        """Forget all losses: the clients have changed, and F with them."""
        self._lowest: dict[str, float] | None = None
        self._largest = 0.0

    def add_loss(self, t: int, loss: float, allowed: float | None = None) -> None:
        """Take in F at the model after round t, 0 for the start, and keep it if it is surely the
        lowest so far.

        ``allowed`` is what rounding may have changed of it, relative to the largest loss.
        """
        allowed = self.allowed if allowed is None else allowed
        self._largest = max(self._largest, abs(loss))
        lowest = self._lowest
        if lowest is not None:
            smallest_upper_end = lowest["loss"] + lowest["allowed"] * self._largest
        if lowest is None or loss + allowed * self._largest < smallest_upper_end:
            self._lowest = {"round": t, "loss": loss, "allowed": allowed}

    def compare(
        self,
        t: int,
        bound: float | None,
        floor: float | None,
    ) -> ContradictionError | None:
        """Return the error for a loss below the bound of round t by more than rounding explains;
        None without a contradiction.

        ``floor`` is what the loss is taken never to be below.
        """
        lowest = self._lowest
        if bound is None or lowest is None:
            return None
        loss = lowest["loss"]
        slack = lowest["allowed"] * (self._largest + abs(bound))
        if not bound - loss > slack:
            return None
        seen_at = _name_of(int(lowest["round"]), "round")
        return below_bound(seen_at, loss, _name_of(t, "round"), bound, slack, floor)

    def state(self) -> dict[str, float]:
        """Return what a checkpoint must hold."""
        return {} if self._lowest is None else {**self._lowest, "largest": self._largest}

    def load(self, held: Mapping[str, float]) -> None:
        """Take over what `state` returned."""
        self.begin()
        if held:
            self._lowest = dict(held)
            self._largest = self._lowest.pop("largest")
