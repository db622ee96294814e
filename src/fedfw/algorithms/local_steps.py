"""K oracle steps of every participant from xbar, and the mean of where they end.

    x <- xbar;   K times:  x <- (1 - eta_t/K) x + (eta_t/K) lmo_D(direction)
    xbar <- mean of the x  =  (1 - a_t) xbar + a_t (mean of the net atoms),
    a_t = 1 - (1 - eta_t/K)^K

Means are over those present, with the weights w_i. Published methods of this kind take x <- x + eta
lmo(direction) without a set. A step inside of D is theirs with decoupled weight decay, x <- x - eta
x + eta lmo(direction), whose radius is that of D; it keeps every x and xbar in D.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from fedfw.algorithms.averaging import DEFAULT_MOMENTUM, MomentumOption
from fedfw.algorithms.contract import (
    Affine,
    Algorithm,
    Client,
    Exchange,
    Kind,
    Message,
    Oracles,
    Payload,
    Present,
    Run,
    State,
    Sums,
)
from fedfw.algorithms.optin import Tunable
from fedfw.algorithms.rules import Rates, StepRule
from fedfw.algorithms.setting import Setting
from fedfw.algorithms.step_sizes import (
    ROUND_SCHEDULE,
    ScheduleOption,
    steps_by_round,
    validate_schedule,
)
from fedfw.atoms import Atom
from fedfw.atoms.mixture import mix

Move = Callable[[Tensor, Atom, Rates], Tensor]
"""(x (m, p), atoms, rates) -> x (m, p): a local step."""


def step_to(x: Tensor, atom: Atom, rates: Rates) -> Tensor:
    """Return the points (m, p) after a step to a stack of m atoms."""
    return atom.stepped(x.contiguous(), rates.eta)


class LocalSteps:
    """The K oracle steps of m clients in one round, from xbar.

    steps = LocalSteps(run, msg, oracles)
    for x in steps.points():
        steps.step_along(oracles.gradient(x))
    atom = steps.net_atom()
    """

    def __init__(self, run: Run, msg: Message, oracles: Oracles, move: Move = step_to) -> None:
        """Begin at xbar; ``move`` takes a step to the oracle's answer."""
        self._start = msg.xbar.to(run.dtype).expand(oracles.m, -1)
        self._msg = msg
        self._oracles = oracles
        self._move = move
        self._atoms: list[Atom] = []

    def points(self) -> Iterator[Tensor]:
        """Yield x (m, p) before each of the K steps; `step_along` is called once for each."""
        x = self._start
        for k in range(len(self._msg.rates)):
            if k:
                x = self._move(x, self._atoms[-1], self._msg.rates[k - 1])
            yield x

    def step_along(self, direction: Tensor) -> None:
        """Call the oracle at a direction (m, p): its answer is the atom of the next step."""
        self._atoms.append(self._oracles.lmo(direction))

    def net_atom(self) -> Atom:
        """Return the stack of net atoms: one step to each takes xbar to where the K steps end."""
        return mix(self._atoms, self._msg.shares)


def mean_of_ends(sums: Sums, msg: Message) -> Affine:
    """Return the update with which xbar becomes the mean of the participants' points."""
    return Affine(1 - msg.step, msg.step / sums.weight, sums.total("atom"))


@dataclass(frozen=True, kw_only=True)
class LocalOracleMethod(Algorithm, Tunable):
    """A method whose steps begin at xbar in every round; the schedule's clock counts rounds.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; for whole networks `fedfw.layer_balls` makes one.
    momentum : float or "auto"
        beta, the weight of the past; "auto" is 0.9.
    schedule : str, Schedule or callable
        Step sizes eta_t of rounds (not of local steps, which are K times shorter).
    """

    momentum: MomentumOption = DEFAULT_MOMENTUM
    schedule: ScheduleOption = ROUND_SCHEDULE

    weighted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_schedule(self.name, self.schedule, curvature=False)

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        """Return the values that `fedfw.tune` tries, by option: short steps for networks."""
        if setting.network:
            return {
                "schedule": ("linear-decay:0.2", "linear-decay:0.1", "linear-decay:0.05"),
                "momentum": (0.9, 0.95),
            }
        schedules = ("convex", "linear-decay:0.2", "linear-decay:0.1", "linear-decay:0.05")
        return {"schedule": schedules, "momentum": (0.0, 0.9, 0.97)}

    @property
    def beta(self) -> float:
        """Return the momentum as a number."""
        return DEFAULT_MOMENTUM if self.momentum == "auto" else self.momentum

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        return replace(self, momentum=self.beta), steps_by_round(self.schedule, setting)


@dataclass(frozen=True)
class AtomsAlone(Exchange):
    """An exchange of another one's kind in which nothing but atoms travels up."""

    inner: Exchange

    label: ClassVar[str] = "atoms"
    uploads: ClassVar[Mapping[str, Kind]] = {"atom": Kind.POINT}
    downloads: ClassVar[tuple[str, ...]] = ("m", "c")

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return self.inner.broadcast(run, server, xbar, present)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        private, payload = self.inner.local_update(run, client, msg, oracles)
        return private, {"atom": payload["atom"]}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        return self.inner.server_step(run, server, sums, msg)
