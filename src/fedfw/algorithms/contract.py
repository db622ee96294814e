"""What every algorithm is made of: a client step and a server step, over tensors with a leading
client axis.

Nothing here knows of devices, files, networks or how many clients run at once. The simulator calls
the steps with all clients stacked; a deployed client calls the same functions with a stack of one.

One round, in the order in which its parts are called:

1. `Algorithm.broadcast` (server): what goes down to the clients that take part.
2. `Algorithm.receive` (both ends): what the server knows of a client's memory, after the message.
3. `Algorithm.local_update` (clients): what they send, and what only they know; the only function
   that sees data.
4. `Algorithm.apply` (both ends): what the server knows of a client's memory, after what was sent.
5. `Algorithm.server_step` (server): the server's new memory, from the sum of what was sent.

The server's copy of a client thus goes through the client's own functions, and has its bits.

The server sees the sum of what was sent and nothing else (`Aggregate`), so a sum that was masked by
the clients, a sum over several processes, and a sum over a single arrival all do. `GathersSums` is
for algorithms that exchange one more sum before some rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from fedfw.algorithms.aggregate import Aggregate, Evidence, Upload
from fedfw.algorithms.plan import Plan, Rates
from fedfw.algorithms.setting import Setting, scaled
from fedfw.atoms import Atom
from fedfw.compression import Compressor, make_compressor, refuse_useless
from fedfw.options import check_options
from fedfw.sets.registry import as_set

__all__ = [
    "Aggregate",
    "Algorithm",
    "Contract",
    "Evidence",
    "Gradient",
    "Kept",
    "Lmo",
    "Message",
    "Payload",
    "Plan",
    "Rates",
    "Reveals",
    "Server",
    "Setting",
    "State",
    "Up",
    "Upload",
    "scaled",
]

State = dict[str, Tensor]
"""A stack of clients' memory by name, each (m, ...); ``x`` is always there, (m, p), or (m, 0) if it
is never used.
"""


Lmo = Callable[[Tensor], Atom]
"""(m, p) -> a stack of m atoms."""


Payload = dict[str, Atom | Tensor]
"""What m clients send, by name: stacks of atoms, or vectors (m, p).

The first entry is ``atom`` or ``vector``, as `Contract.up` says; the others are those of
`Algorithm.sends`, in order.
"""


class Gradient(Protocol):
    """w_i f_i (m,) and w_i grad f_i (m, p) at x (m, p), in the precision of the data; without the
    w_i where ``plain``.

    ``times`` is one more factor: with n it gives n w_i grad f_i = grad h_i.

    They are worked out on a minibatch, or on all samples (``full``), or on all samples and in
    float64 (``exact``), which is what certificates are made from.
    """

    def __call__(
        self,
        x: Tensor,
        full: bool = False,
        exact: bool = False,
        plain: bool = False,
        times: float = 1.0,
    ) -> tuple[Tensor, Tensor]: ...


class Up(Enum):
    """What a client sends in a round."""

    ATOM = "an atom of the set, or the mixture of atoms that several local steps amount to"
    VECTOR = "a dense vector: a model, a gradient, or the change of one"


class Reveals(Enum):
    """What the server sees of a client's data beside the sum that it needs: the order is from
    little to much.
    """

    ATOMS = "atoms alone"
    MODELS = "local models, or how they change"
    GRADIENTS = "gradients, or sums of gradients"


class Kept(Enum):
    """Where a part of a client's memory comes from, and so what happens when the client loses it."""

    REBUILT = "the server rebuilds it from what was sent, and can hand it back"
    OWN = "it comes from the client's data, and a client that lost it begins it anew without harm"
    VITAL = "it comes from the client's data and the server's memory relies on it, so it must not be lost"


@dataclass(frozen=True)
class Contract:
    """What goes up, what goes down and what is remembered: all that code around an algorithm has to
    know of it.

    Parameters
    ----------
    up : Up
        What a client sends in a round.
    down : tuple of str
        The vectors (p,) that go down, by name; ``xbar`` is the model.
    remembers : mapping of str to Kept
        The parts of a client's memory, by name.
    points : bool
        Whether clients have points of their own between rounds, whose mean is xbar.
    sums : bool
        Whether exact sums of gradients are exchanged before some rounds (`GathersSums`).
    proves : bool
        Whether every round proves a lower bound on the optimum of convex losses.
    reveals : Reveals
        What the server sees.
    shares : str
        What the server learns beside atoms, in words; empty where atoms are all that is sent.
    weighted : bool
        Whether means over clients have the weights w_i, and local steps are on f_i itself; else
        means are plain, and the weights are in the losses, n w_i f_i (docs/algorithms.md, "Weights
        of clients").
    """

    up: Up = Up.ATOM
    down: tuple[str, ...] = ("xbar",)
    remembers: Mapping[str, Kept] = field(default_factory=lambda: {"x": Kept.REBUILT})
    points: bool = False
    sums: bool = False
    proves: bool = False
    reveals: Reveals = Reveals.ATOMS
    shares: str = ""
    weighted: bool = False

    @property
    def answers_only(self) -> bool:
        """Whether all that clients send are their oracles' answers to their gradient plus what
        everybody knows.
        """
        return self.up is Up.ATOM and self.reveals is Reveals.ATOMS

    @property
    def may_relax(self) -> bool:
        """Whether single clients may use a larger set: they need points of their own that nobody
        else overwrites.
        """
        return self.points and not self.sums

    @property
    def restorable(self) -> bool:
        """Whether a client that lost its memory can go on, as deployed clients must be able to."""
        return Kept.VITAL not in self.remembers.values()

    def rebuilt(self, state: State) -> State:
        """The part of a memory that the server knows, too."""
        return {
            name: value for name, value in state.items() if self.remembers.get(name) is Kept.REBUILT
        }


@dataclass(frozen=True, eq=False)
class Message:
    """What the server sends to the clients of round t.

    Parameters
    ----------
    t : int
        The round.
    xbar : Tensor
        The model, (p,).
    vectors : dict of str to Tensor
        Further vectors (p,) for the clients, such as ybar; one that is left out is zero.
    wants_evidence : bool
        Whether clients are asked for their part of the certificate.
    """

    t: int
    xbar: Tensor
    vectors: dict[str, Tensor] = field(default_factory=dict)
    wants_evidence: bool = False

    def to(self, dtype: torch.dtype) -> Message:
        """The message with its vectors in the precision of a run, in which they travel."""
        vectors = {name: vector.to(dtype) for name, vector in self.vectors.items()}
        return replace(self, xbar=self.xbar.to(dtype), vectors=vectors)


@dataclass(frozen=True, eq=False)
class Server:
    """The server's memory: the mean of all x_i, and further vectors (p,) by name."""

    xbar: Tensor
    vectors: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Algorithm(ABC):
    """A federated algorithm with its constraint set: what the simulator and a deployment call.

    `OracleAlgorithm` is the base of those that take Frank-Wolfe steps, `ProjectedAlgorithm` of
    those that take gradient steps and project. A new algorithm is a frozen dataclass in a file of
    its own. Its further fields, declared with `fedfw.options.option`, are its options: from Python,
    on the command line, in TOML files and deployed.

    Parameters
    ----------
    constraint : ConstraintSet, Product or str
        The set D; a text such as ``"l1:10"`` is read by `fedfw.parse_set`.

    Attributes
    ----------
    name : str
        On the command line.
    title : str
        In tables.
    contract : Contract
        What goes up, what goes down and what is remembered.
    usual_batch : int or None
        Samples of a gradient where a configuration does not say; None for all.
    coordinatewise : bool
        Whether `broadcast`, `receive`, `apply`, `public_direction` and `regroup` treat every
        coordinate alone and leave it zero where points, atoms and vectors are zero; a deployed
        server then keeps those that somebody touched. A class says so for itself: its subclasses,
        which may change these functions, do not inherit it.
    revision : int
        Of its equations and memories: runs that an earlier version of fedfw began with another one
        are not continued.

    Examples
    --------
    Gradient descent on the mean model, inside a set that is small enough to project on by hand:

    >>> from dataclasses import dataclass, replace
    >>> import fedfw
    >>> from fedfw.algorithms.contract import Contract, Up
    >>> from fedfw.algorithms.plan import Plan, Rates
    >>> @dataclass(frozen=True)
    ... class Descent(fedfw.Algorithm):
    ...     name, title, contract = "descent", "Gradient descent", Contract(up=Up.VECTOR)
    ...     def plan(self, setting):
    ...         return Plan(setting.n, setting.constraint, lr=0.5)
    ...     def local_update(self, plan, state, message, gradient, lmo):
    ...         return {}, {"vector": gradient(message.xbar.expand_as(state["x"]))[1]}
    ...     def server_step(self, plan, server, aggregate, t):
    ...         return replace(server, xbar=plan.project(server.xbar - plan.lr * aggregate.total))
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), Descent(fedfw.Box(-1.0, 1.0)), rounds=20)
    >>> float(run.x)
    1.0
    """

    constraint: Any

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    contract: ClassVar[Contract] = Contract()
    usual_batch: ClassVar[int | None] = None
    coordinatewise: ClassVar[bool] = False
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraint", as_set(self.constraint))
        check_options(self)

    # --- before the first round ---

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        """What `fedfw.tune` tries where no grid is given: values of options by name, at most twelve
        points.
        """
        return {}

    def resolved(self, setting: Setting) -> Self:
        """The algorithm with those defaults filled in that depend on the problem; a useless
        compressor is refused.
        """
        refuse_useless(
            getattr(self, "compress", "none"), setting.constraint, setting.shape, setting.shapes
        )
        return self

    @abstractmethod
    def plan(self, setting: Setting) -> Plan:
        """Everything that is fixed before the first round; the algorithm must be `resolved`."""

    @property
    def exact(self) -> bool:
        """Whether steps use the gradient itself, not an average of past ones."""
        return True

    @property
    def states_public_terms(self) -> bool:
        """Whether `public_terms` is known to hold of this very class."""
        return False

    def public_terms(self, plan: Plan, state: State, message: Message) -> list[Tensor]:
        """Return all vectors, (m, p) or (1, p), that clients add to gradients before their oracle
        in a round.

        A private run needs them where its noise is added to directions: beside a vector that is too
        large noise would be lost in rounding. They are worked out without data, from what the
        server sent and what it could hand over. Each vector is an entry of its own, because large
        vectors that cancel take along what was added in between.
        """
        raise NotImplementedError

    @property
    def is_coordinatewise(self) -> bool:
        """Whether this very class says that it is ``coordinatewise``."""
        return bool(vars(type(self)).get("coordinatewise", False))

    def passes(self, local_steps: int, share: float) -> float:
        """Gradients of all of its samples that a client computes a round, when a step looks at a
        ``share`` of them.
        """
        return local_steps * share

    @property
    def down(self) -> tuple[str, ...]:
        """The vectors (p,) that go down, by name."""
        return self.contract.down

    def sends(self, t: int, p: int) -> dict[str, int]:
        """The dense vectors that clients send in round t beside what the contract says, by name,
        and their lengths.
        """
        return {}

    @property
    def tells(self) -> bool:
        """Whether clients tell numbers of their data beside atoms, and are sent the step size in
        return.
        """
        return False

    def next_eta(
        self, plan: Plan, curvature: float, aggregate: Aggregate, t: int
    ) -> tuple[float, float]:
        """The step size of the round after t and the average curvature, where `tells`."""
        raise NotImplementedError

    def eta_taken(self, server: Server) -> float | None:
        """The step size of the last round, where the server chose it in its step; else None."""
        return None

    @property
    def compressor(self) -> Compressor | None:
        """What the option ``compress`` does to vectors that clients send; None where they travel as
        they are.
        """
        return make_compressor(getattr(self, "compress", "none"))

    def predicted(
        self, plan: Plan, state: State, message: Message, name: str, sent: Mapping[str, Atom]
    ) -> Tensor | float:
        """Return what both ends expect of a vector (m, p) of the payload: where it is compressed
        the rest travels.

        ``sent`` are the entries before it, as they travel. It is what error feedback holds
        (`channels`), or zero.
        """
        return state.get("h", 0.0)

    def start_clients(self, x: Tensor) -> State:
        """Memory of m clients that begin at x (m, p)."""
        return {"x": x}

    def start_server(self, x: Tensor) -> Server:
        """The server's memory when every client begins at x (p,)."""
        return Server(x.clone())

    # --- a round ---

    def broadcast(
        self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int
    ) -> tuple[Server, Message]:
        """What goes down to the clients ``who`` (m,), whose points the server knows to be x (m, p).

        Where several ranks share a run, x has the points of those of them that this rank keeps.
        """
        vectors = {name: server.vectors[name] for name in self.down if name in server.vectors}
        return server, Message(t, server.xbar, vectors)

    def receive(self, plan: Plan, shared: State, message: Message) -> State:
        """The rebuilt part of the memory of a stack of clients after a message: both ends call it."""
        return shared

    @abstractmethod
    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        """What a stack of clients works out from its data: changes of what only it knows, and what
        it sends.

        This is the only function that sees data. ``state`` is the whole memory after `receive`.
        """

    def apply(
        self, plan: Plan, shared: State, message: Message, payload: Mapping[str, Atom]
    ) -> State:
        """The rebuilt part of the memory after `receive` and what was sent, as it is decoded: both
        ends call it.
        """
        return shared

    @abstractmethod
    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        """The server's new memory, from the sum of what was sent."""

    def repeatable(self, plan: Plan, aggregate: Aggregate, t: int) -> tuple[float, float] | None:
        """(keep, scale) where the step was xbar <- keep xbar + scale total, so that clients can
        repeat it; or None.
        """
        return None

    # --- what the server knows of clients ---

    def public_direction(self, plan: Plan, shared: State, message: Message) -> Tensor:
        """What the clients' first direction adds to their gradients, (m, p), from what both ends
        know after `receive`.

        Algorithms whose contract says that they prove bounds have it.
        """
        raise NotImplementedError

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        """The server's memory when clients have come or gone, from what it knows of those that are
        there.

        ``weights`` (n,) are their n w_i; None where these are all 1.
        """
        return replace(server, xbar=clients["x"].mean(0)) if self.contract.points else server
