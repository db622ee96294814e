"""What every algorithm is made of: a client step and a server step, over tensors with a leading client axis.

Nothing here knows of devices, files, networks or how many clients run at once. The simulator calls the steps with all
clients stacked; a deployed client calls the same functions with a stack of one.

One round, in the order in which its parts are called:

1. `Algorithm.broadcast` (server): what goes down to the clients that take part.
2. `Algorithm.receive` (both ends): what the server knows of a client's memory, after the message.
3. `Algorithm.local_update` (clients): what they send, and what only they know; the only function that sees data.
4. `Algorithm.apply` (both ends): what the server knows of a client's memory, after what was sent.
5. `Algorithm.server_step` (server): the server's new memory, from the sum of what was sent.

The server's copy of a client thus goes through the client's own functions, and has its bits.

The server sees the sum of what was sent and nothing else (`Aggregate`), so a sum that was masked by the clients, a sum
over several processes, and a sum over a single arrival all do. `GathersSums` is for algorithms that exchange one more
sum before some rounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from fedfw.algorithms.parcels import parcel_readers
from fedfw.atoms import Atom, TupleAtom, is_sparse
from fedfw.compression import Compressor, Readers
from fedfw.options import LARGEST, check_options
from fedfw.ranks import ALONE, Ranks
from fedfw.schedules import Schedule
from fedfw.sets.base import ConstraintSet, Shape
from fedfw.sets.registry import as_set

State = dict[str, Tensor]
"""A stack of clients' memory by name, each (m, ...); ``x`` is always there, (m, p), or (m, 0) if it is never used."""

Lmo = Callable[[Tensor], Atom]
"""(m, p) -> a stack of m atoms."""

Payload = dict[str, Atom | Tensor]
"""What m clients send, by name: stacks of atoms, or vectors (m, p).

The first entry is ``atom`` or ``vector``, as `Contract.up` says; the others are those of `Algorithm.sends`, in order.
"""


class Gradient(Protocol):
    """w_i f_i (m,) and w_i grad f_i (m, p) at x (m, p), in the precision of the data; without the w_i where ``plain``.

    ``times`` is one more factor: with n it gives n w_i grad f_i = grad h_i.

    They are worked out on a minibatch, or on all samples (``full``), or on all samples and in float64 (``exact``),
    which is what certificates are made from.
    """

    def __call__(
        self, x: Tensor, full: bool = False, exact: bool = False, plain: bool = False, times: float = 1.0
    ) -> tuple[Tensor, Tensor]: ...


# --- what an algorithm says of itself ---


class Up(Enum):
    """What a client sends in a round."""

    ATOM = "an atom of the set, or the mixture of atoms that several local steps amount to"
    VECTOR = "a dense vector: a model, a gradient, or the change of one"


class Reveals(Enum):
    """What the server sees of a client's data beside the sum that it needs: the order is from little to much."""

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
    """What goes up, what goes down and what is remembered: all that code around an algorithm has to know of it.

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
        Whether means over clients have the weights w_i, and local steps are on f_i itself; else means are plain, and
        the weights are in the losses, n w_i f_i (docs/algorithms.md, "Weights of clients").
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
        """Whether all that clients send are their oracles' answers to their gradient plus what everybody knows."""
        return self.up is Up.ATOM and self.reveals is Reveals.ATOMS

    @property
    def may_relax(self) -> bool:
        """Whether single clients may use a larger set: they need points of their own that nobody else overwrites."""
        return self.points and not self.sums

    @property
    def restorable(self) -> bool:
        """Whether a client that lost its memory can go on, as deployed clients must be able to."""
        return Kept.VITAL not in self.remembers.values()

    def rebuilt(self, state: State) -> State:
        """The part of a memory that the server knows, too."""
        return {name: value for name, value in state.items() if self.remembers.get(name) is Kept.REBUILT}


# --- what is known before the first round ---


@dataclass(frozen=True, eq=False)
class Rates:
    """Step size eta, penalty lam and averaging weight rho at one tick of the clock."""

    eta: float
    lam: float
    rho: float


def _unknown() -> float | None:
    return None


@dataclass(frozen=True)
class Setting:
    """What is known of a run before it begins, from which an algorithm fills in its defaults and makes its plan.

    Parameters
    ----------
    n : int
        Number of clients.
    constraint : ConstraintSet
        The set on the flat vector of parameters.
    shape : tuple of int
        Of that vector, (p,).
    convex : bool or None
        Whether the losses are; None if nobody knows. False stands for a network.
    classes : int or None
        Number of classes of a softmax regression; None for other models.
    p : float
        The least probability that a client takes part.
    rounds, local_steps : int
        How many there will be.
    tells : bool
        Whether clients may tell the server numbers of their data in every round: not in private runs, nor in a
        deployment, unless its task asks for it by name.
    whole : bool
        Whether gradients are of all samples; else they are of minibatches.
    heterogeneity : callable
        () -> zeta, the root mean square of ||grad h_i - mean|| over the clients at the start, where h_i = n w_i f_i;
        None where it is not known. Theory's penalty is made from it.
    steepness : callable
        () -> the root mean square of ||grad h_i|| at the start: one number of each client is enough for it.
    smoothness : callable
        () -> n max w_i L_i, or None where it is not known.
    local_smoothness : callable, optional
        () -> max L_i, or None where it is not known; left out where all weights are equal, as it is the same then.
    shapes : tuple of tuple of int
        The shapes of the parameters, one after the other in that vector; empty where they are not known.
    """

    n: int
    constraint: ConstraintSet
    shape: tuple[int, ...]
    convex: bool | None
    classes: int | None = None
    p: float = 1.0
    rounds: int = 100
    local_steps: int = 1
    tells: bool = True
    whole: bool = True
    heterogeneity: Callable[[], float | None] = _unknown
    steepness: Callable[[], float | None] = _unknown
    smoothness: Callable[[], float | None] = _unknown
    local_smoothness: Callable[[], float | None] | None = None
    shapes: tuple[Shape, ...] = ()

    @property
    def network(self) -> bool:
        """Whether the losses are known not to be convex."""
        return self.convex is False

    def per_diameter(self, scale: float | None) -> float | None:
        """scale / (2 n D): the penalty at which a pull over the diameter D balances gradients of that size."""
        return None if scale is None else scale / (2 * self.n * max(self.constraint.diameter(self.shape), 1e-300))


@dataclass(frozen=True)
class Plan:
    """What an algorithm needs to know of a run: filled in once, before the first round.

    Parameters
    ----------
    n : int
        Number of clients.
    constraint : ConstraintSet
        The set on the flat vector of parameters.
    local_steps : int
        Steps of a client a round.
    lam_0, schedule : float, Schedule
        The penalty and the rates of algorithms that take Frank-Wolfe steps; the schedule's clock advances
        ``local_steps`` times a round.
    by_round : bool
        Whether that clock counts rounds instead, and a local step is the round's step divided by ``local_steps``.
    eta : float or None
        The most that a step of the present round may be, where the server works it out (`fedfw.algorithms.pacing`);
        None where the schedule alone says it.
    pace : float
        c, the factor of step sizes from curvature.
    least_tol : float
        The best accuracy that is asked of oracles that iterate.
    lr : float
        The step size of algorithms that take gradient steps, in the first round.
    horizon : int
        Rounds over which that step size falls linearly to zero; 0 where it stays as it is.
    convex : bool
        Whether the losses are known to be convex, so that lower bounds on the optimum can be proven.
    shapes : tuple of tuple of int
        The shapes of the parameters, one after the other in a vector; empty where they are not known.
    ranks : Ranks
        The processes that share the run: a step that adds up over clients adds up over ranks, too.
    watch : callable
        Lets the simulator time a part of a step: (name of the part, function) -> function.
    """

    n: int
    constraint: ConstraintSet
    local_steps: int = 1
    lam_0: float = 0.0
    schedule: Schedule | None = None
    by_round: bool = False
    eta: float | None = None
    pace: float = 0.0
    least_tol: float = 1e-6
    lr: float = 0.0
    horizon: int = 0
    convex: bool = False
    shapes: tuple[Shape, ...] = ()
    ranks: Ranks = ALONE
    watch: Callable[[str, Callable[..., Any]], Callable[..., Any]] = lambda part, function: function

    def oracle_tol(self, t: int) -> float:
        """Relative accuracy asked in round t of oracles that iterate.

        Frank-Wolfe keeps its rate when the oracle's error falls like the step size.
        """
        return max(self.least_tol, min(1e-2, 0.1 * self.rates(t).eta))

    def lmo(self, g: Tensor, t: int) -> Atom:
        """The oracle of the constraint at one direction g (p,) of round t."""
        atom: Atom = self.watch("oracle", self.constraint.lmo)(g, tol=self.oracle_tol(t))
        return atom

    def project(self, x: Tensor) -> Tensor:
        """The projection of one point (p,) or of a stack (m, p) on the constraint."""
        nearest: Tensor = self.watch("projection", self.constraint.project)(x, batch=x.ndim == 2)
        return nearest

    def decay(self, t: int) -> float:
        """What is left in round t = 1, 2, ... of the first round's gradient steps: 1 - (t - 1) / horizon, or 1."""
        return 1 - (t - 1) / self.horizon if self.horizon else 1.0

    def lr_at(self, t: int) -> float:
        """The step size of gradient steps in round t."""
        return self.lr * self.decay(t)

    def rates(self, t: int, k: int = 0) -> Rates:
        """Rates of local step k of round t = 1, 2, ..."""
        assert self.schedule is not None
        tick = t if self.by_round else (t - 1) * self.local_steps + k + 1
        eta = self.schedule.eta(tick)
        if not 0 < eta <= 1:
            raise ValueError(f"the schedule gives eta={eta} at t={tick}, expected a number above 0 and at most 1")
        eta = eta if self.eta is None else min(eta, self.eta)
        eta = eta / self.local_steps if self.by_round else eta
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


# --- what travels in a round ---


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
class Evidence:
    """What a client's first local step proves about the optimum (see `fedfw.certificates`): from exact gradients only.

    Parameters
    ----------
    number : Tensor
        (m,), in float64: w_i f_i(x_i) - <w_i grad f_i(x_i), x_i> + m_i.
    q : Tensor or None
        (m, p), in float64: the direction less w_i grad f_i(x_i). It does not travel: None where the server has to work
        it out.
    """

    number: Tensor
    q: Tensor | None


@dataclass(frozen=True, eq=False)
class Upload:
    """What the clients ``who`` hand to the server.

    Parameters
    ----------
    who : Tensor
        (m,): the clients' numbers.
    atoms : Atom
        A stack of m atoms, or of m dense vectors; with vectors beside them what `parcel` makes.
    x : Tensor
        (m, p): the clients' points before the round. They are not sent: the server rebuilds them from the atoms it was
        sent before (the simulator, where both are the same bits, passes the clients' own).
    evidence : Evidence or None
        Where it was asked for.
    columns : Tensor or None
        (w,): x is (m, w) and has these coordinates of the points, which are zero elsewhere; None for all coordinates.
    weights : Tensor or None
        (m,): n w_i, which the server knows; None where they are all 1.
    visited : Tensor or None
        (m, 1): 1 for clients that took part before, else 0, where the server keeps account of it.
    weight : float or None
        The sum of the weights; None to have it worked out, for which a GPU has to be asked.
    """

    who: Tensor
    atoms: Atom
    x: Tensor
    evidence: Evidence | None = None
    columns: Tensor | None = None
    weights: Tensor | None = None
    visited: Tensor | None = None
    weight: float | None = None


@dataclass(frozen=True, eq=False)
class Server:
    """The server's memory: the mean of all x_i, and further vectors (p,) by name."""

    xbar: Tensor
    vectors: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Aggregate:
    """All that the server is given of a round's uploads.

    Parameters
    ----------
    count : int
        How many clients sent something.
    everyone : bool
        Whether these are all clients that there are.
    total : Tensor
        (p,): the sum of what they sent. Where clients keep points of their own and some of them are absent, it is the
        sum of what they sent less the sum of the senders' points, which is what the sum of all points gains.
    sparse : bool
        Whether everyone sent atoms that name few coordinates, so that the total is short enough to be sent down.
    beside : dict of str to Tensor
        The sums of the vectors that came beside, by name.
    weight : float
        The sum of the weights n w_i with which all this was added up; the count where every client counts the same.
    new : Tensor or None
        (1,): what of that weight belongs to clients that took part for the first time, where that is kept account of.
    """

    count: int
    everyone: bool
    total: Tensor
    sparse: bool = False
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    weight: float = 0.0
    new: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """(p,): the mean of what was sent."""
        return self.total / self.weight

    @classmethod
    def of(
        cls,
        uploads: Sequence[Upload],
        n: int,
        like: Tensor,
        points: bool,
        beside: Mapping[str, int] | None = None,
        count: int | None = None,
    ) -> Aggregate:
        """Add up uploads.

        Parameters
        ----------
        uploads : sequence of Upload
            Of different clients.
        n : int
            How many clients there are.
        like : Tensor
            A vector (p,) of the type and on the device of the sum.
        points : bool
            Whether clients keep points of their own.
        beside : mapping of str to int, optional
            The vectors that come beside, by name, and their lengths.
        count : int, optional
            How many clients sent something, where some of them sent it to other ranks.
        """
        count = sum(upload.who.shape[0] for upload in uploads) if count is None else count
        everyone, total = count == n, torch.zeros_like(like)
        sums = {name: like.new_zeros(size) for name, size in beside.items()} if beside else {}
        sparse, weight, new = everyone, 0.0, None
        for upload in uploads:
            first = upload.atoms
            if sums:
                first, *rest = first.parts if isinstance(first, TupleAtom) else (first,)
                for atoms, into in zip(rest, sums.values(), strict=True):
                    _add_up(atoms, upload.weights, into)
            _add_up(first, upload.weights, total)
            sparse = sparse and is_sparse(first)
            weight += upload.who.shape[0] if upload.weight is None else upload.weight
            if upload.visited is not None:
                came = 1 - upload.visited if upload.weights is None else (1 - upload.visited) * upload.weights[:, None]
                new = came.sum(0) if new is None else new + came.sum(0)
            if points and not everyone and upload.columns is None:
                total -= upload.x.sum(0)
            elif points and not everyone:
                total[upload.columns] -= upload.x.sum(0)
        return cls(count, everyone, total, sparse, sums, weight, new)

    def over(self, ranks: Ranks) -> Aggregate:
        """The same over all ranks, each of which has added up what its own clients sent."""
        if ranks.size == 1:
            return self
        came = 0.0 if self.new is None else float(self.new)
        mine = (self.weight, self.sparse, came, self.new is not None)
        numbers = torch.tensor(mine, dtype=torch.float64, device=self.total.device)
        total, numbers, *sums = ranks.sums(self.total, numbers, *self.beside.values())
        weight, sparse, came, counted = numbers.tolist()
        return replace(
            self,
            total=total,
            sparse=sparse == ranks.size,
            beside=dict(zip(self.beside, sums, strict=True)),
            weight=weight,
            new=total.new_tensor([came]) if counted else None,
        )


def _add_up(atoms: Atom, weights: Tensor | None, into: Tensor) -> None:
    """Add a stack of m atoms, times their weights (m,), to one tensor."""
    if weights is None:
        atoms.add_sum_to(into)
    else:
        into += (atoms.dense(into.dtype) * weights.to(into.dtype)[:, None]).sum(0)


# --- the algorithm itself ---


@dataclass(frozen=True)
class Algorithm(ABC):
    """A federated algorithm with its constraint set: what the simulator and a deployment call.

    `OracleAlgorithm` is the base of those that take Frank-Wolfe steps, `ProjectedAlgorithm` of those that take gradient
    steps and project. A new algorithm is a frozen dataclass in a file of its own. Its further fields, declared with
    `fedfw.options.option`, are its options: from Python, on the command line, in TOML files and deployed.

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
        Whether `broadcast`, `receive`, `apply`, `public_direction` and `regroup` treat every coordinate alone and leave
        it zero where points, atoms and vectors are zero; a deployed server then keeps those that somebody touched.
        A class says so for itself: its subclasses, which may change these functions, do not inherit it.
    revision : int
        Of its equations and memories: runs that an earlier version of fedfw began with another one are not continued.

    Examples
    --------
    Gradient descent on the mean model, inside a set that is small enough to project on by hand:

    >>> from dataclasses import dataclass, replace
    >>> import fedfw
    >>> from fedfw.algorithms.base import Contract, Plan, Up
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
        """What `fedfw.tune` tries where no grid is given: values of options by name, at most twelve points."""
        return {}

    def resolved(self, setting: Setting) -> Self:
        """The algorithm with those defaults filled in that depend on the problem."""
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
        """Return all vectors, (m, p) or (1, p), that clients add to gradients before their oracle in a round.

        A private run needs them where its noise is added to directions: beside a vector that is too large noise would
        be lost in rounding. They are worked out without data, from what the server sent and what it could hand over.
        Each vector is an entry of its own, because large vectors that cancel take along what was added in between.
        """
        raise NotImplementedError

    @property
    def is_coordinatewise(self) -> bool:
        """Whether this very class says that it is ``coordinatewise``."""
        return bool(vars(type(self)).get("coordinatewise", False))

    def passes(self, local_steps: int, share: float) -> float:
        """Gradients of all of its samples that a client computes a round, when a step looks at a ``share`` of them."""
        return local_steps * share

    def sends(self, t: int, p: int) -> dict[str, int]:
        """The dense vectors that clients send in round t beside what the contract says, by name, and their lengths."""
        return {}

    @property
    def tells(self) -> bool:
        """Whether clients tell numbers of their data beside atoms, and are sent the step size in return."""
        return False

    def next_eta(self, plan: Plan, curvature: float, aggregate: Aggregate, t: int) -> tuple[float, float]:
        """The step size of the round after t and the average curvature, where `tells`."""
        raise NotImplementedError

    def eta_taken(self, server: Server) -> float | None:
        """The step size of the last round, where the server chose it in its step; else None."""
        return None

    @property
    def compressor(self) -> Compressor | None:
        """What makes dense vectors shorter that clients send; None where they travel as they are."""
        return None

    def readers(self, plan: Plan, message: Message) -> Readers | None:
        """The functions that decode what a client answers to a message; None for one vector, which the wire reads."""
        p = len(message.xbar)
        beside = self.sends(message.t, p)
        if self.contract.up is Up.VECTOR:
            return parcel_readers(None, beside, p) if beside else None
        return parcel_readers(plan.constraint.net_readers((p,), plan.mixing(message.t)[1]), beside, p)

    def start_clients(self, x: Tensor) -> State:
        """Memory of m clients that begin at x (m, p)."""
        return {"x": x}

    def start_server(self, x: Tensor) -> Server:
        """The server's memory when every client begins at x (p,)."""
        return Server(x.clone())

    # --- a round ---

    def broadcast(self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int) -> tuple[Server, Message]:
        """What goes down to the clients ``who`` (m,), whose points the server knows to be x (m, p).

        Where several ranks share a run, x has the points of those of them that this rank keeps.
        """
        vectors = {name: server.vectors[name] for name in self.contract.down if name in server.vectors}
        return server, Message(t, server.xbar, vectors)

    def receive(self, plan: Plan, shared: State, message: Message) -> State:
        """The rebuilt part of the memory of a stack of clients after a message: both ends call it."""
        return shared

    @abstractmethod
    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        """What a stack of clients works out from its data: changes of what only it knows, and what it sends.

        This is the only function that sees data. ``state`` is the whole memory after `receive`.
        """

    def apply(self, plan: Plan, shared: State, message: Message, payload: Mapping[str, Atom]) -> State:
        """The rebuilt part of the memory after `receive` and what was sent, as it is decoded: both ends call it."""
        return shared

    @abstractmethod
    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        """The server's new memory, from the sum of what was sent."""

    def repeatable(self, plan: Plan, aggregate: Aggregate, t: int) -> tuple[float, float] | None:
        """(keep, scale) where the step was xbar <- keep xbar + scale total, so that clients can repeat it; or None."""
        return None

    # --- what the server knows of clients ---

    def public_direction(self, plan: Plan, shared: State, message: Message) -> Tensor:
        """What the clients' first direction adds to their gradients, (m, p), from what both ends know after `receive`.

        Algorithms whose contract says that they prove bounds have it.
        """
        raise NotImplementedError

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        """The server's memory when clients have come or gone, from what it knows of those that are there.

        ``weights`` (n,) are their n w_i; None where these are all 1.
        """
        return replace(server, xbar=clients["x"].mean(0)) if self.contract.points else server


@dataclass(frozen=True)
class Contributed:
    """What a stack of clients adds to a gathered sum.

    Parameters
    ----------
    loss : Tensor
        (m,): w_i f_i at xbar, less what the rounding of the vector can hide (see `FedFWAnchored.contribute`).
    vector : Tensor
        (m, p): w_i grad f_i at xbar, or what an algorithm gathers in its place.
    sent : Atom or None
        What travels, where it is not the vector itself: the vector is what both sides make of it.
    """

    loss: Tensor
    vector: Tensor
    sent: Atom | None = None


@dataclass(frozen=True)
class Gathered:
    """What the server learns from a gathered sum.

    Parameters
    ----------
    loss : float
        F(xbar), if everyone contributed.
    gradient : Tensor or None
        (p,): the gradient of F at xbar, if everyone contributed gradients.
    """

    loss: float
    gradient: Tensor | None


class GathersSums(ABC):
    """An algorithm that exchanges one dense sum before some rounds, beside what every algorithm does.

    What the server makes of the sum goes down with the round's message (`Algorithm.broadcast`).
    """

    @abstractmethod
    def gathers(self, server: Server, t: int) -> bool:
        """Whether round t begins with a sum. The server decides it, also once more behind the sum of that round."""

    @abstractmethod
    def contribute(self, plan: Plan, state: State, xbar: Tensor, gradient: Gradient, t: int) -> Contributed:
        """What a stack of clients adds to the sum of round t, when the server's model is xbar (p,)."""

    @abstractmethod
    def gather(
        self, plan: Plan, server: Server, states: Sequence[State], sent: Sequence[Contributed], t: int
    ) -> tuple[Server, Gathered]:
        """The server's new memory and what it learns in round t, from the contributions of stacks of clients.

        It must hold for the memories that `take_up` gives these clients, whether or not their steps arrive.
        ``states`` is what the server knows of these clients: their sums are used and nothing else. Where several ranks
        share a run, these are the clients of this rank, and ``plan.ranks`` adds up over all of them.
        """

    def sum_readers(self, plan: Plan, p: int, t: int) -> Readers | None:
        """The functions that decode a contribution to the sum of round t; None for a vector, which the wire reads."""
        return None

    def received(self, plan: Plan, state: State, sent: Atom) -> Tensor:
        """The vectors (m, p) of contributions that travelled as atoms, from what the server knows of the clients."""
        return sent.dense()

    @abstractmethod
    def take_up(self, state: State, xbar: Tensor, sent: Contributed) -> State:
        """The memory of a stack of clients whose contribution arrived, before the round's step."""


def scaled(name: str, value: float | str, units: Mapping[str, Callable[[], float | None]]) -> float:
    """A number as it is; "auto", "theory" and their multiples, such as "auto:3", in units of what they stand for.

    Parameters
    ----------
    name : str
        Of the option, for the refusal.
    value : float or str
        As the user gave it.
    units : mapping of str to callable
        () -> the number that each word stands for in this run, or None where it cannot be worked out.

    Raises
    ------
    ValueError
        For anything else, and where the number cannot be worked out.
    """
    factor: float = math.nan
    if not isinstance(value, str):
        factor = value
    elif (word := value.partition(":")[0]) in units:
        unit = units[word]()
        if unit is None:
            raise ValueError(f"{name}={value!r}: nothing is known here that it could be worked out from; give a number")
        try:
            factor = unit * float(value.partition(":")[2] or 1)
        except ValueError:
            factor = math.nan
    if not 0 <= factor <= LARGEST:
        words = " or ".join(f'"{word}" (or a multiple such as "{word}:3")' for word in units)
        raise ValueError(f"{name}={value!r}, expected a number of at least 0, {words}; at most {LARGEST:g}")
    return factor
