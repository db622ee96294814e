"""Optional interfaces of a method, beside the contract. The runner asks with isinstance."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from fedfw.algorithms.contract import (
    Algorithm,
    Exchange,
    Kind,
    Message,
    Payload,
    Reveals,
    Run,
    State,
)
from fedfw.algorithms.setting import Setting


class Certifies(ABC):
    """Clients call their oracle at their gradient plus what the server can compute.

    Each answer then proves a lower bound on the optimum of convex losses, oracles can be private,
    and a private client can check that the server's part does not drown its noise in rounding.
    """

    proves_bounds: ClassVar[bool] = True
    """Draw the bound; it holds where a client's first gradient is not averaged."""

    @property
    def averages(self) -> bool:
        """Return whether gradients are averaged over rounds: then no answer proves a bound."""
        return False

    @abstractmethod
    def public_direction(self, run: Run, shared: State, msg: Message) -> Tensor:
        """Return what the first direction adds to the gradient, or to its average, (m, p)."""


class GathersGradients(ABC):
    """An exchange whose payload has w_i grad f_i at xbar itself, so that its sum proves a bound."""

    gradient_upload: ClassVar[str]
    """The name of that entry."""

    @property
    def rounds_between(self) -> float:
        """Return how many rounds pass from one such exchange to the next, about."""
        return 1.0


class Predicts(ABC):
    """A method that can predict a VALUE, so that a lossy channel sends what was not foreseen."""

    @abstractmethod
    def predict(
        self, run: Run, shared: State, msg: Message, name: str, decoded: Payload
    ) -> Tensor | None:
        """Return the prediction (m, p) from the entries before; None for error feedback."""


class Tunable(ABC):
    """A method that names the values that `fedfw.tune` tries."""

    @classmethod
    @abstractmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        """Return values of options by name, at most twelve points."""


class ChoosesSteps(ABC):
    """A method whose server chooses the step size in `server_step`."""

    @abstractmethod
    def step_taken(self, server: State) -> float | None:
        """Return the step size of the last round, or None before the first."""


def has_points(algorithm: Algorithm) -> bool:
    """Return whether clients keep points x_i between rounds, whose mean is xbar."""
    return algorithm.means.get("xbar") == "x"


def is_certifying(exchange: Exchange) -> bool:
    """Return whether the answers of this exchange prove lower bounds."""
    return isinstance(exchange, Certifies) and exchange.proves_bounds and not exchange.averages


def states_public_direction(algorithm: Algorithm) -> bool:
    """Return whether `public_direction` belongs to the algorithm's `local_update`: a subclass that
    replaces `local_update` must also define `public_direction` anew.
    """
    # From the class to its bases: the first that defines either decides.
    for cls in type(algorithm).__mro__:
        if "public_direction" in vars(cls):
            return True
        if "local_update" in vars(cls):
            return False
    return False


def gathers_gradients(algorithm: Algorithm) -> bool:
    """Return whether some exchange sends exact gradients."""
    return any(isinstance(exchange, GathersGradients) for exchange in algorithm.all_exchanges)


def sends_atoms_only(algorithm: Algorithm) -> bool:
    """Return whether clients send oracle answers to a gradient plus a public direction only."""
    kinds = {kind for exchange in algorithm.all_exchanges for kind in exchange.uploads.values()}
    return kinds <= {Kind.ATOM, Kind.POINT} and algorithm.reveals is Reveals.ATOMS
