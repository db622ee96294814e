"""The privacy budget: counts every client's rounds, and ends a run before somebody would spend more than promised."""

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

    def __init__(self, plan: PrivacyPlan, n: int) -> None:
        self._plan = plan
        self._attended = torch.zeros(n, dtype=torch.int64)

    def spent_by(self, participants: Tensor) -> bool:
        """Whether one of the participants (m,) of a round has no budget left for it."""
        return bool((self._attended[participants] >= self._plan.most_rounds).any())

    def before_round(self, simulation: Simulation) -> bool | None:
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
