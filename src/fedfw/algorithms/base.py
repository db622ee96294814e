"""What every algorithm is made of: a client step and a server step, over tensors with a leading client axis.

Nothing here knows of devices, files, networks or how many clients run at once. The simulator calls the steps with all
clients stacked; a deployed client calls the same functions with a stack of one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from fedfw.atoms import Atom
from fedfw.atoms.mixture import mix
from fedfw.schedules import Rate, Schedule, make_schedule
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
class Plan:
    """What an algorithm needs to know of a run: filled in once, before the first round.

    Parameters
    ----------
    n
        Number of clients.
    constraint
        The set on the flat vector of parameters.
    lam_0
        The penalty.
    schedule
        Its clock advances ``local_steps`` times a round.
    """

    n: int
    constraint: ConstraintSet
    lam_0: float
    schedule: Schedule
    local_steps: int = 1

    def rates(self, t: int, k: int = 0) -> Rates:
        """Rates of local step k of round t = 1, 2, ..."""
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
    """Options that all algorithms share, and their common shape.

    Parameters
    ----------
    constraint
        The set D: a constraint set, or a `Product` of them by parameter name.
    penalty
        lam_0, or "auto": zeta / (2 n diameter), where zeta is how much the clients' gradients differ at the start;
        "auto:3" is three times that.
    schedule
        A name of `fedfw.schedules`, a `Schedule`, a callable t -> eta, or None for the default.
    momentum
        beta in [0, 1): the weight of the past in the running average of gradients.
    """

    constraint: Any
    _: KW_ONLY
    penalty: float | str = "auto"
    schedule: str | Schedule | Rate | None = None
    momentum: float = 0.0

    name: ClassVar[str] = ""
    shares_gradients: ClassVar[bool] = False
    has_certificate: ClassVar[bool] = True
    keeps_points: ClassVar[bool] = True
    """Whether clients have points of their own between rounds."""
    may_relax: ClassVar[bool] = True
    may_step_locally: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not hasattr(self.constraint, "bind"):
            raise TypeError(f"constraint={self.constraint!r}, expected a constraint set or a Product")
        self.resolve_penalty(1.0)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}, expected a number from 0 up to but not 1")

    def resolve_penalty(self, automatic: float) -> float:
        """lam_0, given what "auto" stands for in this run."""
        factor = self.penalty
        if isinstance(factor, str):
            name, _, multiple = factor.partition(":")
            try:
                factor = automatic * float(multiple or 1) if name == "auto" else math.nan
            except ValueError:
                factor = math.nan
        if not (math.isfinite(factor) and factor >= 0):
            raise ValueError(f'penalty={self.penalty!r}, expected a number of at least 0, "auto" or "auto:MULTIPLE"')
        return factor

    def make_schedule(self, convex: bool | None, p: float, horizon: int) -> Schedule:
        """The schedule of a run: the one asked for, else the one for the problem's kind."""
        wanted = self.schedule if self.schedule is not None else self.default_schedule(convex)
        return make_schedule(wanted, p, horizon)

    def default_schedule(self, convex: bool | None) -> str:
        return "nonconvex" if convex is False else "convex"

    @property
    def exact(self) -> bool:
        """Whether directions use the gradient itself, not an average of past ones."""
        return self.momentum == 0

    # --- the algorithm ---

    def start_clients(self, x: Tensor) -> State:
        """Memory of m clients that begin at x (m, p)."""
        state = {"x": x}
        if not self.exact:
            state |= {"d": torch.zeros_like(x), "seen": torch.zeros(len(x), 1, dtype=torch.bool, device=x.device)}
        return state

    def start_server(self, x: Tensor) -> Server:
        """The server's memory when every client begins at x (p,)."""
        return Server(x.clone())

    def anchor(
        self, plan: Plan, server: Server, states: Sequence[State], gradients: Sequence[Gradient], t: int
    ) -> tuple[Server, list[State], Anchor] | None:
        """An exchange of dense sums before round t, for algorithms that have one: new memories, what was learnt."""
        return None

    def broadcast(self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int) -> tuple[Server, Message]:
        """What goes down to the clients ``who`` (m,), whose points the server knows to be x (m, p)."""
        return server, Message(t, server.xbar)

    def begin_round(self, plan: Plan, state: State, message: Message, gradient: Gradient) -> State:
        """What a client does once a round, before its first local step."""
        return state

    @abstractmethod
    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        """The direction g (m, p) for the oracle, from a = w_i grad f_i(x_i) (m, p)."""

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        """One round of a stack of clients: K local Frank-Wolfe steps, xbar held fixed, one (net) atom up."""
        state = self.begin_round(plan, state, message, gradient)
        begin, atoms, evidence = state["x"], [], None
        for k in range(plan.local_steps):
            rates = plan.rates(message.t, k)
            x = state["x"]
            loss, a = gradient(x)
            state, g = self.direction(plan, state, message, a, rates)
            proves = k == 0 and message.wants_evidence and self.exact and self.has_certificate
            base = loss.double() - (a * x).sum(1, dtype=torch.float64) if proves else None
            q = g - a if proves else None
            del a  # the largest tensors here are n x p: not one more than needed while the oracle runs
            atom = lmo(g)
            if base is not None and q is not None:
                evidence = Evidence(base + (atom.dot(g) if atom.bound is None else atom.bound), q)
            del g
            atoms.append(atom)
            if plan.local_steps > 1:
                state = state | {"x": atom.step(x.clone(), rates.eta)}
        eta, shares = plan.mixing(message.t)
        net = mix(atoms, shares)
        # From the net atom, as the server will: both ends then hold the same bits.
        return state | {"x": net.step(begin.clone(), eta)}, net, evidence

    def server_step(self, plan: Plan, server: Server, uploads: Sequence[Upload], t: int) -> Server:
        """Keep xbar the mean of all x_i, present or not: xbar += (eta / n) sum over the present of (s_i - x_i)."""
        eta, _ = plan.mixing(t)
        everyone = sum(len(upload.who) for upload in uploads) == plan.n
        total = torch.zeros_like(server.xbar)
        for upload in uploads:
            upload.atoms.add_sum_to(total)
            if not everyone:
                total -= upload.x.sum(0)
        keep = 1 - eta if everyone else 1.0  # with everyone present sum x_i = n xbar
        return replace(server, xbar=move_mean(server.xbar, keep, eta / plan.n, total))


def move_mean(xbar: Tensor, keep: float, scale: float, total: Tensor) -> Tensor:
    """keep * xbar + scale * total: the server's step, and what a client does that is sent ``total`` (p,)."""
    return (xbar * keep).add_(total, alpha=scale)


def pulled(a: Tensor, x: Tensor, xbar: Tensor, lam: float) -> Tensor:
    """a + lam (x - xbar), (m, p), with one new tensor."""
    return (x - xbar).mul_(lam).add_(a)


def running_average(state: State, a: Tensor, rho: float) -> State:
    """d <- (1 - rho) d + rho a; a client's first d is its first a."""
    weight = torch.where(state["seen"], rho, 1.0).to(a.dtype)
    return state | {"d": torch.lerp(state["d"], a, weight), "seen": torch.ones_like(state["seen"])}
