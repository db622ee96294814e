"""Step-size rules: where the rates of a message come from. Methods read rates and do not ask
why.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedfw.schedules import Schedule

State = dict[str, Tensor]


class Rates(NamedTuple):
    """The numbers of one local step."""

    eta: float
    """The step size."""
    lam: float = 0.0
    """The penalty."""
    rho: float = 1.0
    """The weight of a fresh gradient in an average."""
    decay: float = 1.0
    """The step size as a share of the first round's."""


def net_step(rates: Sequence[Rates]) -> tuple[float, list[float]]:
    """Return the weight of the net atom of several local steps, and the share of each step.

    After K steps x is (1 - sum a_k) x + sum a_k s_k with a_k = eta_k prod_{j > k} (1 - eta_j).
    """
    if len(rates) == 1:
        return rates[0].eta, [1.0]
    etas = [rate.eta for rate in rates]
    amounts = []
    for k, eta in enumerate(etas):
        amounts.append(eta * math.prod(1 - later for later in etas[k + 1 :]))
    total = math.fsum(amounts)
    return total, [amount / total for amount in amounts]


class StepRule:
    """Where rates come from. The functions are pure; the server keeps the state.

    A client of a deployment has the rule, too, and is sent what it cannot work out itself
    (`to_send`).
    """

    reports_curvature: ClassVar[bool] = False
    """Clients measure the curvature along their steps and send the measurements up."""
    least_tol: float = 1e-6
    """The best accuracy asked of oracles that iterate."""
    uses_oracles: ClassVar[bool] = False
    """The rates are those of Frank-Wolfe steps."""

    def init(self) -> State:
        """Return the server's state."""
        return {}

    def rates(self, state: State, t: int) -> tuple[Rates, ...]:
        """Return the rates of the local steps of round t."""
        raise NotImplementedError

    def net_step(self, rates: Sequence[Rates]) -> tuple[float, list[float]]:
        """Return the weight of the net atom of the local steps, and the share of each step."""
        return net_step(rates)

    def to_send(self, state: State) -> float | None:
        """Return the number from which clients work out the rates, or None if they need none."""
        return None

    def from_sent(self, number: float | None) -> State:
        """Return a state that has the rates of the one from which a number was sent."""
        return self.init()

    def update(self, state: State, reported: Tensor, t: int) -> State:
        """Return the server's state after round t, from the sum of the reports."""
        return state

    def oracle_tol(self, rates: Sequence[Rates]) -> float:
        """Return the relative accuracy asked of oracles that iterate.

        Frank-Wolfe keeps its rate when the oracle's error falls like the step size.
        """
        return max(self.least_tol, min(1e-2, 0.1 * rates[0].eta))


@dataclass(frozen=True)
class FrankWolfeSteps(StepRule):
    """Rates from a schedule whose clock counts local steps, or rounds.

    Parameters
    ----------
    schedule : Schedule
        Step size, growth of the penalty and averaging weight by the clock.
    local_steps : int
        Steps of a client a round.
    lam_0 : float
        The initial penalty.
    by_round : bool
        Whether the clock counts rounds; a local step is then the round's divided by their number.
    least_tol : float
        The best accuracy asked of oracles that iterate.
    """

    schedule: Schedule
    local_steps: int = 1
    lam_0: float = 0.0
    by_round: bool = False
    least_tol: float = 1e-6

    uses_oracles: ClassVar[bool] = True

    def rates(self, state: State, t: int) -> tuple[Rates, ...]:
        return self.rates_below(1.0, t)

    def rates_below(self, most: float, t: int) -> tuple[Rates, ...]:
        """Return the rates of the K local steps of round t with eta of at most ``most``; a schedule
        of rounds gives eta of a round, of which each local step has 1/K.
        """
        all_rates = []
        for k in range(self.local_steps):
            tick = t if self.by_round else (t - 1) * self.local_steps + k + 1
            eta = self.schedule.eta(tick)
            if not 0 < eta <= 1:
                raise ValueError(
                    f"the schedule gives eta={eta} at t={tick}, expected a number above 0 and at "
                    "most 1"
                )
            eta = min(eta, most)
            if self.by_round:
                eta = eta / self.local_steps
            lam = self.lam_0 * self.schedule.growth(tick)
            all_rates.append(Rates(eta, lam, min(1.0, self.schedule.rho(tick))))
        return tuple(all_rates)


@dataclass(frozen=True)
class GradientSteps(StepRule):
    """A step size that stays, or falls linearly to zero over ``horizon`` rounds."""

    lr: float
    local_steps: int = 1
    horizon: int = 0

    def rates(self, state: State, t: int) -> tuple[Rates, ...]:
        decay = 1.0
        if self.horizon:
            decay = 1 - (t - 1) / self.horizon
        return (Rates(self.lr * decay, decay=decay),) * self.local_steps

    def net_step(self, rates: Sequence[Rates]) -> tuple[float, list[float]]:
        """Return zero and nothing: gradient steps, which may be of any size, have no atoms."""
        return 0.0, []


def scalar(value: float) -> Tensor:
    """Return a number of a server's state, () in float64."""
    return torch.tensor(value, dtype=torch.float64)
