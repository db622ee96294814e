"""What the algorithms with Frank-Wolfe's step sizes share: a schedule, and the option to average
gradients.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedfw.algorithms.contract import Algorithm, Plan, Setting, State
from fedfw.algorithms.pacing import FIRST_STEP, SPARSE, factor
from fedfw.algorithms.penalties import atom_density
from fedfw.options import limits, option
from fedfw.schedules import AUTO, CURVATURE, NAMES, Schedule, make_schedule

NETWORK_MOMENTUM = 0.9
NETWORK_SCHEDULE = "linear-decay:0.05"
"""What works for networks, see docs/algorithms.md: Frank-Wolfe's first steps would destroy a
network's start.
"""


StepSizes = Annotated[
    str | Schedule | Callable[[int], float] | None,
    option(
        f"step sizes: {', '.join(NAMES)}",
        otherwise=f"by the problem; networks {NETWORK_SCHEDULE}",
        expected=f"one of {', '.join(NAMES)}, a Schedule, or a function t -> eta",
    ),
]
"""The option ``schedule`` of every algorithm that has one."""

Beta = Annotated[
    Annotated[float, limits(ge=0, lt=1)] | Literal["auto"],
    option(
        f"weight of past gradients, or auto ({NETWORK_MOMENTUM} for networks, else 0)",
        expected="a number of at least 0 and below 1, or auto",
    ),
]
"""The option ``momentum`` of every algorithm that has one."""


@dataclass(frozen=True)
class Scheduled(Algorithm):
    """An algorithm whose step sizes follow a schedule.

    Parameters
    ----------
    schedule : str, Schedule, callable or None
        A name of `fedfw.schedules`, a `Schedule`, a callable t -> eta, or None for the default of
        the problem's kind. "auto" is "curvature" where that can be used (`Scheduled.may_pace`),
        else `Scheduled.without_numbers`.

    Attributes
    ----------
    paces : bool
        Whether its steps can come from curvature (`fedfw.algorithms.pacing`).
    """

    _: KW_ONLY
    schedule: StepSizes = None

    paces: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.schedule, str):
            make_schedule(
                self.schedule, 1.0, 1
            )  # an unknown name is refused here, not when a run begins
        if self.paced and not self.paces:
            raise ValueError(
                f"schedule={CURVATURE!r}, expected another one: {self.name} takes no steps from curvature"
            )

    @classmethod
    def step_grid(cls, setting: Setting) -> tuple[str, ...]:
        """The schedules that `fedfw.tune` tries: long and short steps, and steps from curvature
        where there are any.
        """
        if setting.network:
            return ("linear-decay:0.02", "linear-decay:0.1")
        automatic = cls.paces and setting.tells and setting.whole
        return ("convex", "linear-decay:0.02", AUTO if automatic else "linear-decay:0.1")

    @property
    def paced(self) -> bool:
        """Whether steps come from curvature."""
        return self.schedule == CURVATURE

    def may_pace(self, setting: Setting) -> bool:
        """Whether steps may and can come from curvature in a run: "auto" then is that, else the
        default.
        """
        return self.paces and setting.convex is True and setting.tells and setting.whole

    def resolved(self, setting: Setting) -> Self:
        """The algorithm with a schedule of "auto" filled in."""
        chosen = super().resolved(setting)
        if chosen.paced and not chosen.may_pace(replace(setting, convex=True, tells=True)):
            raise ValueError(
                f"schedule={CURVATURE!r} compares two gradients of the same samples, one step apart: expected no "
                "minibatches, anchors more than a round apart, and everybody present where the server takes the step; "
                f"{AUTO!r} is what can be used"
            )
        if chosen.schedule != AUTO:
            return chosen
        return replace(
            chosen,
            schedule=CURVATURE if chosen.may_pace(setting) else chosen.without_numbers(setting),
        )

    def without_numbers(self, setting: Setting) -> str | None:
        """What "auto" is where steps cannot come from curvature; None for the default of the
        problem's kind.
        """
        return None

    def plan(self, setting: Setting) -> Plan:
        schedule = self.make_schedule(setting)
        lam_0, convex = self.first_penalty(setting), setting.convex is True
        eta = FIRST_STEP if self.tells else None
        pace = self.pace(setting) if self.paced else 0.0
        return Plan(
            setting.n,
            setting.constraint,
            setting.local_steps,
            lam_0,
            schedule,
            eta=eta,
            pace=pace,
            convex=convex,
            shapes=setting.shapes,
        )

    def pace(self, setting: Setting) -> float:
        """c, the factor of steps from curvature."""
        return 1.0

    def make_schedule(self, setting: Setting) -> Schedule:
        """The schedule of a run: the one asked for, else the one for the problem's kind."""
        wanted = self.schedule if self.schedule is not None else self.default_schedule(setting)
        return make_schedule(wanted, setting.p, setting.rounds * setting.local_steps)

    def default_schedule(self, setting: Setting) -> str:
        """The theory's schedule for the problem's kind."""
        return "nonconvex" if setting.network else "convex"

    def first_penalty(self, setting: Setting) -> float:
        """lam_0, for algorithms that have a penalty."""
        return 0.0


@dataclass(frozen=True)
class Momentum(Scheduled):
    """An algorithm that can replace its gradients by a running average.

    Parameters
    ----------
    momentum : float or "auto"
        beta in [0, 1): the weight of the past in d <- beta d + (1 - beta) gradient. "auto" is 0.9
        for networks and 0 for everything else.
    """

    _: KW_ONLY
    momentum: Beta = "auto"

    @property
    def beta(self) -> float:
        """The momentum as a number; 0 where it is still open."""
        return 0.0 if self.momentum == "auto" else float(self.momentum)

    @property
    def exact(self) -> bool:
        return self.beta == 0

    def pace(self, setting: Setting) -> float:
        return factor(self.beta, points=self.contract.points, sparse=_is_sparse(setting))

    def without_numbers(self, setting: Setting) -> str | None:
        """Steps that fall linearly from 2/(p T), where gradients are exact, without momentum, and
        atoms are dense.

        There 2/(t+1) is too long. With minibatches or noise, more of which it averages out, it is
        the better one.
        """
        exact = setting.convex is True and setting.whole and not self.beta
        if not (self.paces and exact) or _is_sparse(setting):
            return None
        return (
            f"linear-decay:{min(1.0, 2 / (setting.p * setting.rounds * setting.local_steps)):.3g}"
        )

    def resolved(self, setting: Setting) -> Self:
        """The algorithm with momentum and schedule filled in: networks get both, unless they were
        given.
        """
        chosen = super().resolved(setting)
        if chosen.momentum != "auto":
            return chosen
        if not setting.network:
            return replace(chosen, momentum=0.0)
        schedule = NETWORK_SCHEDULE if chosen.schedule is None else chosen.schedule
        return replace(chosen, momentum=NETWORK_MOMENTUM, schedule=schedule)


def _is_sparse(setting: Setting) -> bool:
    """Whether atoms name few coordinates."""
    return atom_density(setting.constraint, setting.shape) < SPARSE


def running_average(state: State, a: Tensor, rho: float) -> tuple[State, Tensor]:
    """d <- (1 - rho) d + rho a, for stacks (m, p); a client's first d is its first a.

    Returns the memory with the new d, and d in the precision of a.
    """
    weight = torch.where(state["seen"], rho, 1.0).to(a.dtype)
    d = torch.lerp(state["d"].to(a.dtype), a, weight)
    return state | {"d": d.to(state["d"].dtype), "seen": torch.ones_like(state["seen"])}, d
