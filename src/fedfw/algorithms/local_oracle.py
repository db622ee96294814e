"""What the methods of Muon's kind share: K oracle steps of every participant from xbar, and the
mean of where they end.

    x <- xbar;   K times:  x <- (1 - eta_t/K) x + (eta_t/K) lmo_D(direction)
    xbar <- mean of the x  =  (1 - a_t) xbar + a_t (mean of the net atoms),    a_t = 1 - (1 - eta_t/K)^K

Means are over those present, with the weights w_i. Published methods of this kind take x <- x + eta
lmo(direction) without a set. A step inside of D is theirs with decoupled weight decay, x <- x - eta
x + eta lmo(direction), whose radius is that of D; it keeps every x and xbar in D.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

from torch import Tensor

from fedfw.algorithms.contract import Aggregate, Lmo, Message, Plan, Server, Setting, State
from fedfw.algorithms.oracle_steps import move_mean
from fedfw.algorithms.scheduled import NETWORK_MOMENTUM, Beta, Momentum, StepSizes
from fedfw.atoms import Atom
from fedfw.atoms.mixture import mix
from fedfw.schedules import AUTO, Schedule, make_schedule

SCHEDULE = "linear-decay:0.1"
NETWORK_TOL = 1e-3
"""How accurate oracles are for networks: minibatches are much less so."""


@dataclass(frozen=True)
class LocalOracleSteps(Momentum):
    """Clients take oracle steps from the shared model; the schedule's clock counts rounds.

    Parameters
    ----------
    momentum : float or "auto"
        beta, the weight of the past in averaged gradients; "auto" is 0.9.
    schedule : str, Schedule or callable
        Step sizes eta_t of rounds (not of local steps, which are K times shorter); see `Scheduled`.
    """

    _: KW_ONLY
    momentum: Beta = NETWORK_MOMENTUM
    schedule: StepSizes = SCHEDULE

    # --- before the first round ---

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        if setting.network:
            return {
                "schedule": ("linear-decay:0.2", "linear-decay:0.1", "linear-decay:0.05"),
                "momentum": (0.9, 0.95),
            }
        steps = ("convex", "linear-decay:0.2", "linear-decay:0.1", "linear-decay:0.05")
        return {"schedule": steps, "momentum": (0.0, 0.9, 0.97)}

    def resolved(self, setting: Setting) -> Self:
        schedule = SCHEDULE if self.schedule is None or self.schedule == AUTO else self.schedule
        return replace(
            self,
            momentum=NETWORK_MOMENTUM if self.momentum == "auto" else self.momentum,
            schedule=schedule,
        )

    def plan(self, setting: Setting) -> Plan:
        tol = NETWORK_TOL if setting.network else 1e-6
        return replace(super().plan(setting), by_round=True, least_tol=tol)

    def make_schedule(self, setting: Setting) -> Schedule:
        """By rounds, and as if everybody took part: no client has a clock of its own."""
        return make_schedule(
            SCHEDULE if self.schedule is None else self.schedule, 1.0, setting.rounds
        )

    def start_clients(self, x: Tensor) -> State:
        return {"x": x[:, :0]}  # clients begin every round at xbar

    # --- a round ---

    def walk(
        self, plan: Plan, message: Message, m: int, direction: Callable[[Tensor], Tensor], lmo: Lmo
    ) -> Atom:
        """The local steps of m clients from xbar along the direction (m, p) at each x (m, p): their
        net atoms.
        """
        x, atoms = message.xbar.expand(m, -1), list[Atom]()
        for _ in range(plan.local_steps):
            atoms.append(lmo(direction(x)))
            x = self.move(plan, message, x, atoms[-1])
        return mix(atoms, plan.mixing(message.t)[1])

    def move(self, plan: Plan, message: Message, x: Tensor, atom: Atom) -> Tensor:
        """One local step from x (m, p) to a stack of m atoms."""
        return atom.step(x.clone(), plan.rates(message.t).eta)

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        return replace(
            server, xbar=move_mean(server.xbar, *to_the_mean(plan, aggregate, t), aggregate.total)
        )

    def repeatable(self, plan: Plan, aggregate: Aggregate, t: int) -> tuple[float, float] | None:
        return to_the_mean(plan, aggregate, t)


def to_the_mean(plan: Plan, aggregate: Aggregate, t: int) -> tuple[float, float]:
    """(keep, scale) of xbar <- keep xbar + scale total, with which xbar becomes the mean of the
    clients' points.
    """
    amount, _ = plan.mixing(t)
    return 1 - amount, amount / aggregate.weight
