"""Averages of gradients over rounds, as optax writes its transforms: init and update, and no more.

With momentum, d <- beta d + (1 - beta) a. With the weights rho_t of a schedule, for minibatches,
d <- (1 - rho_t) d + rho_t a. A client's first d is its first a.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedfw.algorithms.contract import State
from fedfw.algorithms.penalty import is_sparse
from fedfw.algorithms.rules import Rates
from fedfw.algorithms.setting import Setting
from fedfw.options import limits, option

DEFAULT_MOMENTUM = 0.9

MomentumOption = Annotated[
    Annotated[float, limits(ge=0, lt=1)] | Literal["auto"],
    option(
        f"weight of past gradients, or auto ({DEFAULT_MOMENTUM}, or 0 where that is better)",
        expected="a number of at least 0 and below 1, or auto",
    ),
]
"""The option ``momentum``."""


def choose_momentum(wanted: float | str, setting: Setting, anchored: bool = False) -> float:
    """Return the weight of past gradients.

    "auto" averages, but not in private runs with sparse atoms, nor beside anchors of different ages
    where losses are convex: docs/defaults.md has what was measured.
    """
    if wanted != "auto":
        return float(wanted)
    noisy = setting.private and is_sparse(setting)
    outdated = anchored and setting.p < 1 and not setting.network
    return 0.0 if noisy or outdated else DEFAULT_MOMENTUM


@dataclass(frozen=True)
class Averaging:
    """Replace a gradient by an average of the gradients so far.

    Parameters
    ----------
    beta : float or None
        The weight of the past; None for the weights rho_t of the schedule.
    """

    beta: float | None = 0.0

    @property
    def averages(self) -> bool:
        """Return whether the result differs from the gradient itself."""
        return self.beta is None or self.beta > 0

    def init(self, x: Tensor) -> State:
        """Return the private state of m clients at x (m, p) that have not seen a gradient yet."""
        if not self.averages:
            return {}
        seen = torch.zeros(len(x), 1, dtype=torch.bool, device=x.device)
        return {"d": torch.zeros_like(x), "seen": seen}

    def update(self, state: State, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        """Return the state and the average d <- (1 - rho) d + rho a (m, p), in the precision of a,
        after one more gradient a (m, p); a client's first average is its first gradient.
        """
        if not self.averages:
            return state, a
        rho = rates.rho if self.beta is None else 1 - self.beta
        weight = torch.where(state["seen"], rho, 1.0).to(a.dtype)
        d = torch.lerp(state["d"].to(a.dtype), a, weight)
        after = {"d": d.to(state["d"].dtype), "seen": torch.ones_like(state["seen"])}
        return state | after, d


def momentum_average(momentum: float | str) -> Averaging:
    """Return the average of an option ``momentum``, as the user gave it or configured."""
    return Averaging(DEFAULT_MOMENTUM if momentum == "auto" else float(momentum))
