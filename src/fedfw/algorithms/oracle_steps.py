"""What the Frank-Wolfe algorithms share: K oracle steps on each client, one (net) atom up, xbar the
mean of all.

Precision. Points, duals and their mean are sums of thousands of small terms, so they are kept in
float64 whatever the precision of the data; gradients, oracles and messages work in the precision of
the data. In a float32 run the model that goes down, xbar, is the mean of the points rounded to
float32, and the server remembers the difference (``rest``). Only where clients repeat the server's
step from a sum of sparse atoms is xbar itself in float64 on both sides.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms import pacing
from fedfw.algorithms.contract import (
    Aggregate,
    Contract,
    Gradient,
    Kept,
    Lmo,
    Message,
    Payload,
    Plan,
    Rates,
    Server,
    Setting,
    State,
    scaled,
)
from fedfw.algorithms.penalties import GRID, usual_multiple
from fedfw.algorithms.scheduled import Scheduled
from fedfw.atoms import Atom
from fedfw.atoms.mixture import mix
from fedfw.options import option

Penalty = Annotated[
    float | str,
    option(
        "initial penalty lam_0: a number, auto (what works, by kind of set), theory, or a multiple such as auto:3",
        expected='a number of at least 0, "auto", "theory", or a multiple of these such as "auto:3"',
    ),
]
"""The option ``penalty`` of every algorithm that has one."""


@dataclass(frozen=True)
class OracleSteps(Scheduled):
    """Clients take Frank-Wolfe steps and send atoms."""

    def start_clients(self, x: Tensor) -> State:
        return (
            {"x": x} | ({} if self.exact else _no_past(x)) | (pacing.begin(x) if self.paced else {})
        )

    @property
    def tells(self) -> bool:
        return self.paced

    def sends(self, t: int, p: int) -> dict[str, int]:
        return {"told": pacing.TOLD} if self.tells else {}

    def next_eta(
        self, plan: Plan, curvature: float, aggregate: Aggregate, t: int
    ) -> tuple[float, float]:
        told, beta = aggregate.beside["told"].double().cpu(), getattr(self, "beta", 0.0)
        q = pacing.averaged(torch.tensor(curvature, dtype=torch.float64), told, beta)
        cap, before = replace(plan, eta=None).rates(t + 1).eta, plan.rates(t).eta
        eta = pacing.step_size(q, told, cap, plan.pace, before)
        return float(eta), float(q)

    def looks_at(self, state: State, message: Message) -> Tensor:
        """The points (m, p) of a round's first gradients; those of later local steps have moved
        with the clients.
        """
        return state["x"]

    @abstractmethod
    def direction(
        self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates
    ) -> tuple[State, Tensor]:
        """The direction g (m, p) for the oracle, from the gradients a (m, p), times w_i, where the
        client looks.
        """

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        """K local Frank-Wolfe steps, xbar held fixed; the (net) atom is sent."""
        begin = state["x"]
        at = self.looks_at(state, message)
        elsewhere = at is not begin
        atoms: list[Atom] = []
        for k in range(plan.local_steps):
            rates = plan.rates(message.t, k)
            _, a = gradient(at)
            state, g = self.direction(plan, state, message, a, rates)
            g = g if g.dtype is a.dtype else g.to(a.dtype)
            del (
                a
            )  # the largest tensors here are n x p: not one more than needed while the oracle runs
            atoms.append(lmo(g))
            del g
            if plan.local_steps > 1:
                state = state | {"x": atoms[-1].stepped(state["x"], rates.eta)}
                at = atoms[-1].stepped(at, rates.eta) if elsewhere else state["x"]
        private = {
            name: value
            for name, value in state.items()
            if self.contract.remembers.get(name) is Kept.OWN
        }
        return private, {"atom": mix(atoms, plan.mixing(message.t)[1])}

    def apply(
        self, plan: Plan, shared: State, message: Message, payload: Mapping[str, Atom]
    ) -> State:
        eta, _ = plan.mixing(message.t)
        return shared | {"x": payload["atom"].stepped(shared["x"], eta)}

    def public_direction(self, plan: Plan, shared: State, message: Message, k: int = 0) -> Tensor:
        """What direction k of a round is where all gradients are zero, (m, p) in float64."""
        x = shared["x"]
        nothing = torch.zeros_like(x, dtype=torch.float64)
        return self.direction(
            plan, shared | _no_past(x), message, nothing, plan.rates(message.t, k)
        )[1]

    @property
    def states_public_terms(self) -> bool:
        return type(self).local_update is OracleSteps.local_update  # another step may add anything

    def public_terms(self, plan: Plan, state: State, message: Message) -> list[Tensor]:
        begun = self.receive(plan, self.contract.rebuilt(state), message)
        terms = [self.public_direction(plan, begun, message)]
        if plan.local_steps > 1:
            # Later steps begin at points that are chosen on the way. No coordinate of theirs is
            # farther from xbar than the set is wide, and what a direction adds grows with that
            # distance and with the penalty.
            reach = 2 * plan.constraint.diameter(tuple(message.xbar.shape))
            strongest = max(range(plan.local_steps), key=lambda k: plan.rates(message.t, k).lam)
            for far in (-reach, reach):
                points = (message.xbar.double() + far).expand(state["x"].shape)
                terms.append(self.public_direction(plan, begun | {"x": points}, message, strongest))
        remembered = [
            name
            for name, kept in self.contract.remembers.items()
            if kept is Kept.REBUILT and name != "x"
        ]
        terms += [begun[name] for name in remembered if name in begun]
        terms += [vector[None] for vector in message.vectors.values()]
        return terms

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        """Move xbar by what its clients moved."""
        return move_server(server, *self.repeatable(plan, aggregate, t), aggregate)

    @abstractmethod
    def repeatable(self, plan: Plan, aggregate: Aggregate, t: int) -> tuple[float, float]: ...


def _no_past(x: Tensor) -> State:
    """The averages of clients at x (m, p) that have not seen a gradient yet."""
    return {
        "d": torch.zeros_like(x),
        "seen": torch.zeros(len(x), 1, dtype=torch.bool, device=x.device),
    }


@dataclass(frozen=True)
class OracleAlgorithm(OracleSteps):
    """Clients keep points of their own, which a penalty holds together; xbar is the mean of all
    points.

    Parameters
    ----------
    penalty : float or str
        lam_0. "auto" is what works, by the kind of set (docs/algorithms.md has the table), and
        "auto:3" is three times that. "theory" is zeta / (2 n diameter), where zeta is how much the
        clients' gradients differ at the start.
    constraint : ConstraintSet or Product
        The set D.
    schedule : str, Schedule, callable or None
        Step sizes; see `Scheduled`.

    Examples
    --------
    An algorithm of one's own says which direction goes to the oracle; this one is FedFW again.

    >>> from dataclasses import dataclass
    >>> import fedfw
    >>> @dataclass(frozen=True)
    ... class Again(fedfw.OracleAlgorithm):
    ...     name, title = "again", "FedFW again"
    ...     def direction(self, plan, state, message, a, rates):
    ...         return state, a + rates.lam * (state["x"] - message.xbar)
    >>> fedfw.testing.check_algorithm(Again(fedfw.L2Ball(1.0), penalty=0.1))
    """

    _: KW_ONLY
    penalty: Penalty = "auto"

    contract: ClassVar[Contract] = Contract(
        remembers={"x": Kept.REBUILT, **dict.fromkeys(("d", "seen", "move", "past"), Kept.OWN)},
        points=True,
        proves=True,
    )

    def start_clients(self, x: Tensor) -> State:
        return super().start_clients(x) | {"x": x.double()}

    def start_server(self, x: Tensor) -> Server:
        return exact_server(x)

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        return with_mean(server, clients["x"].mean(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        scaled("penalty", self.penalty, {"auto": lambda: 1.0, "theory": lambda: 1.0})

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"penalty": GRID}

    def first_penalty(self, setting: Setting) -> float:
        def usual() -> float | None:
            unit = setting.per_diameter(setting.steepness())
            return None if unit is None else usual_multiple(self, setting) * unit

        def theory() -> float | None:
            return setting.per_diameter(setting.heterogeneity())

        return scaled("penalty", self.penalty, {"auto": usual, "theory": theory})

    def repeatable(self, plan: Plan, aggregate: Aggregate, t: int) -> tuple[float, float]:
        """Keep xbar the mean of all x_i, present or not: xbar += (eta / n) sum over the present of
        (s_i - x_i).
        """
        eta, _ = plan.mixing(t)
        keep = 1 - eta if aggregate.everyone else 1.0  # with everyone present sum x_i = n xbar
        return keep, eta / plan.n


def exact_server(x: Tensor) -> Server:
    """The memory of a server that keeps the mean of points in float64 and begins at x (p,)."""
    rest = {} if x.dtype is torch.float64 else {"rest": torch.zeros_like(x)}
    return Server(x.to(torch.float64, copy=True), rest)


def move_server(server: Server, keep: float, scale: float, aggregate: Aggregate) -> Server:
    """The server's memory after xbar <- keep xbar + scale total."""
    moved, rest = move_mean(server.xbar, keep, scale, aggregate.total), server.vectors.get("rest")
    if rest is None:
        return replace(server, xbar=moved)
    if aggregate.sparse:  # clients repeat this step, and the rest is no part of it
        return Server(moved, server.vectors | {"rest": rest * keep})
    return with_mean(server, moved + keep * rest)


def with_mean(server: Server, mean: Tensor) -> Server:
    """The server's memory when the mean of all points is ``mean`` (p,).

    In a float32 run xbar is rounded. What all xbar so far fell short of their means, ``owed``, is
    made up for where an algorithm keeps account of it: the errors then never add up.
    """
    rest = server.vectors.get("rest")
    if rest is None:
        return replace(server, xbar=mean)
    owed = server.vectors.get("owed")
    xbar = sent_down(server, mean if owed is None else mean + owed)
    return replace(
        server, xbar=xbar, vectors=server.vectors | {"rest": (mean - xbar).to(rest.dtype)}
    )


def sent_down(server: Server, vector: Tensor) -> Tensor:
    """A vector (p,) as a message carries it: with the run's precision."""
    rest = server.vectors.get("rest")
    return vector if rest is None else vector.to(rest.dtype).to(vector.dtype)


def mean_of(server: Server) -> Tensor:
    """The mean of all points, (p,) in float64."""
    return server.xbar + server.vectors["rest"] if "rest" in server.vectors else server.xbar


def move_mean(xbar: Tensor, keep: float | Tensor, scale: float | Tensor, total: Tensor) -> Tensor:
    """keep * xbar + scale * total: the server's step, and what a client does that is sent ``total``
    (p,).
    """
    if isinstance(scale, Tensor):
        return (xbar * keep).addcmul_(total, scale.to(xbar.dtype))
    return (xbar * keep).add_(total, alpha=scale)
