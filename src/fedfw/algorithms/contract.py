"""The contract between a federated method and the code that runs it.

A round is one exchange (rarely two). The functions of an exchange run in this order:

    server   broadcast       choose the vectors that go down beside the model
    both     receive         update a client's shared state from the message
    client   local_update    update private state from data, return a payload
    both     apply           update a client's shared state from the decoded payload
    server   server_step     update the server from sums over the participants

"both": the client calls the function on its own state and the server on its copy. These functions
see no data, so the two copies agree bit for bit, and an absent client is up to date.

The runner does the rest: compression and error feedback, rounding of what goes down, step sizes,
certificates, privacy, dropouts, sums over processes, clients that join or leave, checkpoints.
`fedfw.algorithms.optin` has what a method may offer beside this.

Client tensors have a leading client axis (m, ...): m clients in a simulation, one in a deployment.
A function treats the rows independently, and never writes to an argument or an oracle's result.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from fedfw.algorithms.rules import Rates, StepRule
from fedfw.algorithms.setting import Setting
from fedfw.atoms import Atom
from fedfw.options import check_options
from fedfw.sets.base import ConstraintSet
from fedfw.sets.registry import as_set

State = dict[str, Tensor]
Payload = dict[str, Any]
"""A client's upload, by name: a stack of atoms, or a tensor (m, p)."""


class Kind(Enum):
    """The kind of an entry of a payload, which decides how a lossy channel may send it."""

    ATOM = "points of the set, as the oracle encodes them"
    POINT = "points of the set; a dense one may be sent as its difference from the model"
    VALUE = "a vector; sent as its difference from an estimate that both ends hold"
    CHANGE = "the change of a shared vector; what a message loses is in the next change"


class Reveals(Enum):
    """How much the server sees of a client's data, from little to much."""

    ATOMS = "atoms alone"
    MODELS = "local models, or how they change"
    GRADIENTS = "gradients, or sums of gradients"


class Client(NamedTuple):
    """The state of m clients, by what the server can compute."""

    shared: State
    """Follows from messages and payloads: the server holds the same bits. Sums are in float64."""
    private: State
    """Follows from data and stays on the client, which may lose it and begin it anew."""


@dataclass(frozen=True)
class Run:
    """The constants of a run: clients, set, and the dtype of data, gradients and messages."""

    n: int
    constraint: ConstraintSet
    dtype: torch.dtype


@dataclass(frozen=True)
class Message:
    """The server's message as a client receives it: rounded, and perhaps compressed."""

    t: int
    vectors: State
    """The model "xbar" (p,) and what `Exchange.broadcast` adds."""
    rates: tuple[Rates, ...]
    """One entry a local step."""
    step: float
    """The weight of the net atom: all local steps together."""
    shares: Sequence[float]
    """The share of each local step in the net atom."""
    oracle_tol: float

    @property
    def xbar(self) -> Tensor:
        """Return the model (p,)."""
        return self.vectors["xbar"]


class Affine(NamedTuple):
    """The update ``keep * old + scale * total``; clients can repeat it if the total is sparse."""

    keep: float
    scale: float
    total: Tensor

    def apply(self, old: Tensor) -> Tensor:
        """Return the new vector; clients that repeat the update get the same bits."""
        if isinstance(self.scale, Tensor):  # on a GPU that replays the round
            return (old * self.keep).addcmul_(self.total, self.scale.to(old.dtype))
        return (old * self.keep).add_(self.total, alpha=self.scale)


class Weight(StrEnum):
    """The factor of a client's gradient; `Oracles.gradient` also takes the text of a member."""

    W_I = "w"
    """w_i, the client's share of F: all w_i grad f_i add up to grad F."""
    ONE = "1"
    """1: the gradient of f_i itself."""
    N_W_I = "nw"
    """n w_i: the mean over all clients is grad F."""


class Oracles(Protocol):
    """All access of m clients to their data; differential privacy replaces this object only."""

    m: int

    def gradient(self, x: Tensor, times: str = Weight.W_I, full: bool = False) -> Tensor:
        """Return (m, p): grad f_i times a `Weight`, by default w_i; full: no minibatch."""

    def lmo(self, g: Tensor) -> Atom:
        """Return a stack of atoms that minimise <g, s> over the set."""


class Present(Protocol):
    """The participants as the server sees them. Sums run over all processes."""

    count: int
    complete: bool  # no client is absent

    @property
    def weight(self) -> float:
        """Return the sum of their weights n w_i; `count` for a method that is not `weighted`."""

    def shared(self, name: str) -> Tensor:
        """Return the sum of a shared vector, as it was before the exchange."""


class Sums(Present, Protocol):
    """The same with their payloads."""

    def __contains__(self, name: str) -> bool:
        """Return whether the payloads have an entry."""

    def total(self, name: str) -> Tensor:
        """Return the sum of an entry over the participants, as decoded."""

    def mean(self, name: str) -> Tensor:
        """Estimate the mean over all clients: absent ones count with error feedback's estimate."""


class Exchange(ABC):
    """One way down and up. Two functions must be defined."""

    label: ClassVar[str] = "step"
    """Names the exchange in messages of a deployment."""
    downloads: ClassVar[tuple[str, ...]] = ()
    """The vectors that `broadcast` may send beside the model."""

    @property
    def uploads(self) -> Mapping[str, Kind]:
        """Return the entries of every payload in order; most methods have a class variable."""
        return {}

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        """Return the server's state and the vectors to send beside xbar, the model as delivered."""
        return server, {}

    def receive(self, run: Run, shared: State, msg: Message) -> State:
        """Return the shared state after a message."""
        return shared

    @abstractmethod
    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Return the private state and the payload. This is the only function that sees data."""

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        """Return the shared state after a payload, as decoded."""
        return shared

    @abstractmethod
    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Return the server's state; an entry may be an `Affine` update of the entry before."""


@dataclass(frozen=True)
class Algorithm(Exchange):
    """A federated method: its options (fields with `fedfw.options.option`), states and exchanges.

    >>> import fedfw
    >>> fedfw.FedFW("l1:2").constraint
    L1Ball(r=2)
    """

    constraint: Any
    """The set D: an object, or a text such as "l1:10"."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    """On the command line, and in tables."""
    reveals: ClassVar[Reveals] = Reveals.ATOMS
    shares: ClassVar[str] = ""
    """The quantities that the server learns beside atoms, in words; empty for atoms alone."""
    means: ClassVar[Mapping[str, str]] = {}
    """Server vectors that are means of a shared vector over all clients, also as these change."""
    weighted: ClassVar[bool] = False
    """Sums and means over clients have the weights n w_i."""
    projects: ClassVar[bool] = False
    """The method needs a set with a projection."""
    revision: ClassVar[int] = 1
    """Of equations and states: a run begun by another revision is not continued."""
    default_batch_size: ClassVar[int | None] = None
    """Samples of a gradient where a configuration does not say; None for all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraint", as_set(self.constraint))
        check_options(self)

    @property
    def all_exchanges(self) -> Sequence[Exchange]:
        """Return every exchange that a round may have."""
        return (self,)

    @abstractmethod
    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        """Return the method with numbers in place of "auto", and where its rates come from."""

    def init_client(self, run: Run, x: Tensor) -> Client:
        """Return the state of m clients that begin at x (m, p)."""
        return Client(shared={}, private={})

    def init_server(self, run: Run, x: Tensor) -> State:
        """Return the server's state for clients that begin at x (p,); "xbar" is the model."""
        return {"xbar": x.clone()}

    def model_to_send(self, server: State) -> Tensor:
        """Return what arrives as msg.xbar: the model, or another point to work at."""
        return server["xbar"]

    def exchanges(self, run: Run, server: State, t: int) -> Sequence[Exchange]:
        """Return the exchanges of round t, in order."""
        return (self,)
