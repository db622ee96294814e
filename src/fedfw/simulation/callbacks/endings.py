"""Reasons to end a run early: a private run's budget that is spent, and a model that is proven to
be good enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedfw.privacy.steps import PrivacyPlan
from fedfw.simulation.callbacks.base import Callback

if TYPE_CHECKING:
    from fedfw.simulation.simulator import Simulation


class Budget(Callback):
    """Keeps a private run within its budget.

    Parameters
    ----------
    plan : PrivacyPlan
        How many rounds a client may take part in, and what they cost.
    n : int
        Number of clients.
    """

    reason = "the privacy budget is spent"
    on_all_ranks = True

    def __init__(self, plan: PrivacyPlan, n: int) -> None:
        self._plan = plan
        self._attended = torch.zeros(n, dtype=torch.int64)

    def spent_by(self, participants: Tensor) -> bool:
        """Return whether one of the participants (m,) of a round has no budget left for it."""
        return bool((self._attended[participants] >= self._plan.most_rounds).any())

    def before_round(self, simulation: Simulation) -> bool | None:
        """End the run if the next round would spend more than was promised."""
        participants = simulation.participation(simulation.t + 1)
        if self.spent_by(participants):
            return True
        self._attended[participants] += 1  # before anything is drawn: what is released is spent
        return None

    def record(self, simulation: Simulation) -> dict[str, Any]:
        return {"epsilon": self._plan.epsilon(int(self._attended.max()))}

    def state(self) -> dict[str, Tensor]:
        return {"attended": self._attended}

    def load(self, held: dict[str, Tensor]) -> None:
        self._attended = held["attended"].clone()


class EarlyStop(Callback):
    """Ends a run when the loss of the model that it would return is within ``tol`` of a proven
    lower bound.

    Parameters
    ----------
    tol : float
        How close the loss must be proven to be to the optimum.
    """

    on_all_ranks = True

    def __init__(self, tol: float) -> None:
        self._tol = tol
        self.reason = f"within tol={tol:g} of the optimum"

    def before_round(self, simulation: Simulation) -> bool | None:
        # A run that is resumed may have ended in this way before.
        is_first_round = simulation.t == simulation.resumed_at
        return is_first_round and bool(simulation.history) and self._within(simulation)

    def after_round(self, simulation: Simulation) -> bool | None:
        return self._within(simulation)

    def _within(self, simulation: Simulation) -> bool:
        """Return whether loss - bound <= tol for the model that would be returned, in float64."""
        loss = simulation.history[-1].loss
        bound = simulation.best_bound
        if loss is None or bound is None:
            return False
        # With relaxed clients the record's loss is that of a point outside of the set.
        if simulation.relaxed:
            loss = simulation.problem.value_and_gradient(simulation.feasible())[0]
        if loss - bound > self._tol:
            return False
        # A loss in float32 may be off by more than the tolerance.
        return (
            simulation.problem.value_and_gradient(simulation.feasible(), exact=True)[0] - bound
            <= self._tol
        )
