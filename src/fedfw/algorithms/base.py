"""What every algorithm is made of: a client step and a server step, over tensors with a leading client axis.

Nothing here knows of devices, files, networks or how many clients run at once. The simulator calls the steps with all
clients stacked; a deployed client calls the same functions with a stack of one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from torch import Tensor

from fedfw.atoms import Atom
from fedfw.schedules import Schedule
from fedfw.sets.base import ConstraintSet

State = dict[str, Tensor]
"""A stack of clients' memory by name, each (m, ...); ``x`` (m, p) is always there."""

Lmo = Callable[[Tensor], Atom]
"""(m, p) -> a stack of m atoms."""


class Gradient(Protocol):
    """w_i f_i (m,) and w_i grad f_i (m, p) at x (m, p), on a minibatch or (``full``) on everything."""

    def __call__(self, x: Tensor, full: bool = False) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Rates:
    """eta, lam and rho at one tick of the clock."""

    eta: float
    lam: float
    rho: float


@dataclass(frozen=True)
class Setting:
    """What is known of a run before it begins, from which an algorithm makes its plan.

    Parameters
    ----------
    n
        Number of clients.
    constraint
        The set on the flat vector of parameters.
    convex
        Whether the losses are; None if nobody knows.
    p
        The least probability that a client takes part.
    rounds, local_steps
        How many there will be.
    automatic_penalty
        zeta / (2 n diameter), where zeta is how much the clients' gradients differ at the start.
    smoothness
        L' = n max w_i L_i, or None where it is not known.
    """

    n: int
    constraint: ConstraintSet
    convex: bool | None
    p: float
    rounds: int
    local_steps: int
    automatic_penalty: Callable[[], float]
    smoothness: Callable[[], float | None]


@dataclass(frozen=True)
class Plan:
    """What an algorithm needs to know of a run: filled in once, before the first round.

    Parameters
    ----------
    n
        Number of clients.
    constraint
        The set on the flat vector of parameters.
    local_steps
        Steps of a client a round.
    lam_0, schedule
        The penalty and the rates of algorithms that take Frank-Wolfe steps; the schedule's clock advances
        ``local_steps`` times a round.
    lr
        The step size of algorithms that take gradient steps.
    watch
        Lets the simulator time a part of a step: (name of the part, function) -> function.
    """

    n: int
    constraint: ConstraintSet
    local_steps: int = 1
    lam_0: float = 0.0
    schedule: Schedule | None = None
    lr: float = 0.0
    watch: Callable[[str, Callable[..., Any]], Callable[..., Any]] = lambda part, function: function

    def oracle_tol(self, t: int) -> float:
        """Relative accuracy asked in round t of oracles that iterate.

        Frank-Wolfe keeps its rate when the oracle's error falls like the step size.
        """
        return max(1e-6, min(1e-2, 0.1 * self.rates(t).eta))

    def lmo(self, g: Tensor, t: int) -> Atom:
        """The oracle of the constraint at one direction g (p,) of round t."""
        atom: Atom = self.watch("oracle", self.constraint.lmo)(g, tol=self.oracle_tol(t))
        return atom

    def project(self, x: Tensor) -> Tensor:
        """The projection of one point (p,) or of a stack (m, p) on the constraint."""
        nearest: Tensor = self.watch("projection", self.constraint.project)(x, batch=x.ndim == 2)
        return nearest

    def rates(self, t: int, k: int = 0) -> Rates:
        """Rates of local step k of round t = 1, 2, ..."""
        assert self.schedule is not None
        tick = (t - 1) * self.local_steps + k + 1
        eta = self.schedule.eta(tick)
        if not 0 < eta <= 1:
            raise ValueError(f"the schedule gives eta={eta} at t={tick}, expected a number above 0 and at most 1")
        return Rates(eta, self.lam_0 * self.schedule.growth(tick), min(1.0, self.schedule.rho(tick)))

    def mixing(self, t: int) -> tuple[float, list[float]]:
        """Effective step of round t and each local step's share in it.

        x after K steps is (1 - sum a_k) x + sum a_k s_k with a_k = eta_k prod_{j > k} (1 - eta_j).
        """
        if self.local_steps == 1:
            return self.rates(t).eta, [1.0]
        etas = [self.rates(t, k).eta for k in range(self.local_steps)]
        amounts = [eta * math.prod(1 - later for later in etas[k + 1 :]) for k, eta in enumerate(etas)]
        total = math.fsum(amounts)
        return total, [amount / total for amount in amounts]


@dataclass(frozen=True)
class Message:
    """What the server sends to the clients of round t."""

    t: int
    xbar: Tensor
    vectors: dict[str, Tensor] = field(default_factory=dict)
    """Further vectors (p,) that go down dense: ybar, the anchor's mean gradient ..."""
    wants_evidence: bool = False
    """Whether clients are asked for their part of the certificate."""


@dataclass(frozen=True)
class Evidence:
    """What the first local step tells of the optimum (see certificates): from exact gradients only.

    ``number`` (m,) is w_i f_i(x_i) - <w_i grad f_i(x_i), x_i> + m_i and ``q`` (m, p) the rest of the direction.
    """

    number: Tensor
    q: Tensor


@dataclass(frozen=True)
class Anchor:
    """What the server learns at an anchor: F (with everyone present) and its gradient (p,) at xbar."""

    loss: float
    gradient: Tensor


@dataclass(frozen=True)
class Upload:
    """What the clients ``who`` (m,) hand to the server.

    ``x`` (m, p) are their points before the round. They are not sent: the server rebuilds them from the atoms it was
    sent before (the simulator, where both are the same bits, passes the clients' own).
    """

    who: Tensor
    atoms: Atom
    x: Tensor
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Server:
    """The server's memory: the mean of all x_i, and further vectors (p,) by name."""

    xbar: Tensor
    vectors: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Algorithm(ABC):
    """What the simulator and a deployment call.

    `OracleAlgorithm` is the base of those that take Frank-Wolfe steps, `ProjectedAlgorithm` of those that take gradient
    steps and project.

    Parameters
    ----------
    constraint
        The set D: a constraint set, or a `Product` of them by parameter name.
    """

    constraint: Any

    name: ClassVar[str] = ""
    shares: ClassVar[str] = ""
    """What the server learns beside atoms, in words; empty where atoms are all that is sent."""
    has_certificate: ClassVar[bool] = False
    """Whether rounds prove lower bounds on the optimum (evaluations always do, for convex losses)."""
    keeps_points: ClassVar[bool] = False
    """Whether clients have points of their own between rounds, whose mean is xbar."""
    sends_model: ClassVar[bool] = True
    """Whether xbar itself goes down to the clients."""
    private: ClassVar[tuple[str, ...]] = ()
    """What of a client's memory comes from its data, so that nobody else can know it."""
    needs_projection: ClassVar[bool] = False
    sends_answers: ClassVar[bool] = False
    """Whether all that clients send are their oracles' answers to their gradient plus what everybody knows."""
    sends_exact_sums: ClassVar[bool] = False
    """Whether exact sums of gradients are exchanged now and then."""
    may_relax: ClassVar[bool] = False
    may_step_locally: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not hasattr(self.constraint, "bind"):
            raise TypeError(f"constraint={self.constraint!r}, expected a constraint set or a Product")

    @property
    def exact(self) -> bool:
        """Whether steps use the gradient itself, not an average of past ones."""
        return True

    def passes(self, local_steps: int, share: float) -> float:
        """Gradients of all of its samples that a client computes a round, when a step looks at a ``share`` of them."""
        return local_steps * share

    @abstractmethod
    def plan(self, setting: Setting) -> Plan:
        """Everything that is fixed before the first round."""

    def start_clients(self, x: Tensor) -> State:
        """Memory of m clients that begin at x (m, p)."""
        return {"x": x}

    def start_server(self, x: Tensor) -> Server:
        """The server's memory when every client begins at x (p,)."""
        return Server(x.clone())

    def is_anchor(self, t: int) -> bool:
        """Whether round t begins with an exchange of dense sums."""
        return False

    def anchor(
        self, plan: Plan, server: Server, states: Sequence[State], gradients: Sequence[Gradient], t: int
    ) -> tuple[Server, list[State], Anchor] | None:
        """An exchange of dense sums before round t, for algorithms that have one: new memories, what was learnt."""
        return None

    def broadcast(self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int) -> tuple[Server, Message]:
        """What goes down to the clients ``who`` (m,), whose points the server knows to be x (m, p)."""
        return server, Message(t, server.xbar)

    @abstractmethod
    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        """One round of a stack of clients: their new memory and what they send."""

    def follow(self, plan: Plan, state: State, message: Message, atoms: Atom) -> State:
        """What somebody who sees the messages and the atoms of a stack of clients, not their data, knows of them."""
        return state

    def regroup(self, server: Server, clients: State) -> Server:
        """The server's memory when clients have come or gone, from what it knows of those that are there."""
        return replace(server, xbar=clients["x"].mean(0)) if self.keeps_points else server

    @abstractmethod
    def server_step(self, plan: Plan, server: Server, uploads: Sequence[Upload], t: int) -> Server:
        """What the server makes of the uploads."""


def scaled(name: str, value: float | str, automatic: float | None) -> float:
    """A number as it is; "auto" and "auto:MULTIPLE" in units of what "auto" stands for in this run."""
    factor: float = math.nan
    if not isinstance(value, str):
        factor = value
    elif value.partition(":")[0] == "auto":
        if automatic is None:
            raise ValueError(f"{name}={value!r}: nothing is known here that it could be worked out from; give a number")
        try:
            factor = automatic * float(value.partition(":")[2] or 1)
        except ValueError:
            factor = math.nan
    if not (math.isfinite(factor) and factor >= 0):
        raise ValueError(f'{name}={value!r}, expected a number of at least 0, "auto" or "auto:MULTIPLE"')
    return factor
