"""What the Frank-Wolfe algorithms share: K oracle steps on each client, one (net) atom up, xbar the mean of all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import (
    Algorithm,
    Evidence,
    Gradient,
    Lmo,
    Message,
    Plan,
    Rates,
    Server,
    Setting,
    State,
    Upload,
    scaled,
)
from fedfw.atoms import Atom
from fedfw.atoms.mixture import mix
from fedfw.schedules import Rate, Schedule, make_schedule


@dataclass(frozen=True)
class OracleAlgorithm(Algorithm):
    """Clients take Frank-Wolfe steps and send atoms.

    Parameters
    ----------
    penalty
        lam_0, or "auto": zeta / (2 n diameter), where zeta is how much the clients' gradients differ at the start;
        "auto:3" is three times that.
    schedule
        A name of `fedfw.schedules`, a `Schedule`, a callable t -> eta, or None for the default.
    momentum
        beta in [0, 1): the weight of the past in the running average of gradients.
    """

    _: KW_ONLY
    penalty: float | str = "auto"
    schedule: str | Schedule | Rate | None = None
    momentum: float = 0.0

    has_certificate: ClassVar[bool] = True
    keeps_points: ClassVar[bool] = True
    private: ClassVar[tuple[str, ...]] = ("d", "seen")
    sends_answers: ClassVar[bool] = True
    may_relax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        scaled("penalty", self.penalty, 1.0)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}, expected a number from 0 up to but not 1")

    def plan(self, setting: Setting) -> Plan:
        lam_0 = scaled("penalty", self.penalty, setting.automatic_penalty() if isinstance(self.penalty, str) else None)
        schedule = self.make_schedule(setting.convex, setting.p, setting.rounds * setting.local_steps)
        return Plan(setting.n, setting.constraint, setting.local_steps, lam_0, schedule)

    def make_schedule(self, convex: bool | None, p: float, horizon: int) -> Schedule:
        """The schedule of a run: the one asked for, else the one for the problem's kind."""
        wanted = self.schedule if self.schedule is not None else self.default_schedule(convex)
        return make_schedule(wanted, p, horizon)

    def default_schedule(self, convex: bool | None) -> str:
        return "nonconvex" if convex is False else "convex"

    @property
    def exact(self) -> bool:
        return self.momentum == 0

    def start_clients(self, x: Tensor) -> State:
        """Memory of m clients that begin at x (m, p)."""
        state = {"x": x}
        if not self.exact:
            state |= {"d": torch.zeros_like(x), "seen": torch.zeros(len(x), 1, dtype=torch.bool, device=x.device)}
        return state

    def begin_round(self, plan: Plan, state: State, message: Message) -> State:
        """What a client does once a round, before its first local step."""
        return state

    @abstractmethod
    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        """The direction g (m, p) for the oracle, from a = w_i grad f_i(x_i) (m, p)."""

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        """One round of a stack of clients: K local Frank-Wolfe steps, xbar held fixed, one (net) atom up."""
        state = self.begin_round(plan, state, message)
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

    def follow(self, plan: Plan, state: State, message: Message, atoms: Atom) -> State:
        state = self.begin_round(plan, state, message)
        eta, _ = plan.mixing(message.t)
        return state | {"x": atoms.step(state["x"].clone(), eta)}

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


def move_mean(xbar: Tensor, keep: float | Tensor, scale: float | Tensor, total: Tensor) -> Tensor:
    """keep * xbar + scale * total: the server's step, and what a client does that is sent ``total`` (p,)."""
    if isinstance(scale, Tensor):
        return (xbar * keep).addcmul_(total, scale.to(xbar.dtype))
    return (xbar * keep).add_(total, alpha=scale)


def pulled(a: Tensor, x: Tensor, xbar: Tensor, lam: float) -> Tensor:
    """a + lam (x - xbar), (m, p), with one new tensor."""
    return (x - xbar).mul_(lam).add_(a)


def running_average(state: State, a: Tensor, rho: float) -> State:
    """d <- (1 - rho) d + rho a; a client's first d is its first a."""
    weight = torch.where(state["seen"], rho, 1.0).to(a.dtype)
    return state | {"d": torch.lerp(state["d"], a, weight), "seen": torch.ones_like(state["seen"])}
