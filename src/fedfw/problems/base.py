"""Federated problems: F(x) = sum_i w_i f_i(x), where f_i is client i's own mean loss."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedfw.checks import all_finite
from fedfw.errors import NonFiniteError
from fedfw.problems.known_losses import Per

Shapes = dict[str, tuple[int, ...]]


class ClientLosses(ABC):
    """The f_i of all clients, evaluated for any stack of them at any stack of points.

    The only thing algorithms and the simulator know of models and data.
    """

    n: int
    countable: bool = True
    """True if F, a sum over all clients, is computed at evaluations."""
    sizes: Tensor | None = None
    """(n,) samples of each client; None where there are no samples to draw from."""
    plain_kernels: bool = False
    """True if full gradients of all clients are the same kernels in the same order every time, on
    one stream.
    """
    per: Per = "sample"
    """The kind of f_i: a mean over client i's samples, or a function of all of them together
    ("client").
    """
    weighs: bool = False
    """True if a sample's share in that mean depends on the other samples' targets."""

    own: range | None = None
    """The numbers of this rank's clients; None where it keeps all of them."""
    _everyone: Tensor | None = None

    def all_clients(self, device: torch.device) -> Tensor:
        """Return the numbers (m,) of all clients that this rank keeps: the same tensor every time,
        known without a look at its numbers.
        """
        if self._everyone is None or self._everyone.device != device:
            own = range(self.n) if self.own is None else self.own
            self._everyone = torch.arange(own.start, own.stop, device=device)
        return self._everyone

    @abstractmethod
    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return f_i and its gradient for the clients ``who`` (m,), client who[j] at x[j].

        Parameters
        ----------
        x
            (m, p).
        picks
            (m, batch) numbers of the samples to use, or None for all.

        Returns
        -------
        (m,) values and (m, p) gradients.
        """

    def weighted(
        self,
        x: Tensor,
        who: Tensor,
        picks: Tensor | None,
        factors: float | Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Return `value_and_gradient` at x in this precision, times one factor or (m,) of them."""
        values, gradients = self.value_and_gradient(x.to(dtype), who, picks)
        return times_factors(values, gradients, factors)

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """Return sums (m, p) of the samples' gradients, each cut down to ``clip`` in a norm, over
        ``count`` (m,).

        A sample's gradient is worked out in the precision of x. Its norm, its clipped version and
        the sums are in float64 whatever the data are in: in float32 one sample could change the
        rounding of many sums, by more than its own gradient.

        A sample whose loss or gradient is not finite adds zero to the sum and still counts, so that
        nothing depends on it. Terms that are no sample's, such as an l2 term, are left out: see
        `public_gradient`.

        Parameters
        ----------
        x : Tensor
            (m, p).
        who : Tensor
            (m,): clients' numbers.
        keep : Tensor or None
            (m, most samples of any client): which samples count; None for all.
        norm : {"linf", "l2"}
            In which gradients are cut down.
        clip : float
            To what.
        count : Tensor
            (m,): what the sums are divided by.
        """
        raise ValueError(
            f"privacy is for linear layers and modules with samples, not for {type(self).__name__}"
        )

    def public_gradient(self, x: Tensor) -> Tensor | None:
        """Return the part (m, p) of clients' gradients at x (m, p) that does not depend on data;
        None for none.
        """
        return None

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `value_and_gradient` does on all samples, computed in float64 a piece at a
        time.

        Certificates are made from this: rounding errors of float32 would make them false.

        Raises
        ------
        RuntimeError
            Where the losses cannot be worked out in float64, such as functions that hold tensors in
            float32.
        """
        return self._in_float64.value_and_gradient(x.double(), who, None)

    @cached_property
    def _in_float64(self) -> ClientLosses:
        """Return the losses from data in float64."""
        return self

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        """Return f_i (m,) alone, on all samples."""
        return self.value_and_gradient(x, who, None)[0]

    def smoothness(self) -> Tensor | None:
        """Return L_i (n,) in float64, where it is known: how fast the gradient of f_i can
        change.
        """
        return None

    def data(self) -> Iterator[Tensor]:
        """Return every tensor that the losses are made from, client by client, by which two
        problems are compared.

        None where there is nothing to look at, as with plain functions.
        """
        yield from ()

    @abstractmethod
    def to(self, device: torch.device) -> ClientLosses:
        """Return the same on another device."""


def times_factors(
    values: Tensor, gradients: Tensor, factors: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Return values (m,) and gradients (m, p), which are overwritten, times one factor or (m,) of
    them.
    """
    if isinstance(factors, Tensor):
        return values * factors, gradients.mul_(factors.unsqueeze(1))
    if factors == 1:
        return values, gradients
    return values * factors, gradients.mul_(factors)


@dataclass(frozen=True)
class WeightedGradient:
    """A stack of clients' weighted losses: called with x (m, p) it gives w_i f_i (m,) and w_i grad
    f_i (m, p).

    Parameters
    ----------
    losses : ClientLosses
        Of these and perhaps further clients.
    weights : Tensor
        (m,): their w_i, in the precision of the run.
    who : Tensor
        (m,): their places among the losses.
    pick : callable
        () -> the samples (m, batch) of the next gradient, or None for all.
    round_ : int
        For the message of a `NonFiniteError`.
    numbers : Tensor, optional
        (m,): what the clients are called in such a message; by default their places.
    exact_weights : Tensor, optional
        (m,): the weights in float64, for certificates; by default ``weights``.
    """

    losses: ClientLosses
    weights: Tensor
    who: Tensor
    pick: Callable[[], Tensor | None]
    round_: int
    numbers: Tensor | None = None
    exact_weights: Tensor | None = None

    def __call__(
        self,
        x: Tensor,
        full: bool = False,
        exact: bool = False,
        plain: bool = False,
        times: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Return w_i f_i (m,) and w_i grad f_i (m, p) at points x (m, p).

        ``full`` evaluates all samples instead of a minibatch, ``exact`` all samples in float64,
        ``plain`` leaves out the weights w_i, and ``times`` multiplies the results.
        """
        weights = self.weights
        if exact:
            # A weight that was rounded to float32 is the weight of another problem, with another
            # optimum.
            weights = weights.double() if self.exact_weights is None else self.exact_weights
        factors = 1.0 if plain else weights * times
        if exact:
            values, gradients = self.losses.exactly(x, self.who)
            values, gradients = times_factors(values, gradients, factors)
        else:
            picks = None if full else self.pick()
            values, gradients = self.losses.weighted(x, self.who, picks, factors, weights.dtype)
        numbers = self.who if self.numbers is None else self.numbers
        validate_finite(values, gradients, numbers, self.round_)
        return values, gradients


def validate_finite(values: Tensor, gradients: Tensor, who: Tensor, round_: int) -> None:
    """Refuse NaN and infinity, with the client and the round.

    Only the values are looked at: a gradient that is not finite makes a direction that is not, and
    the oracle that is given it refuses that, again with client and round.
    """
    if all_finite(values):
        return
    is_invalid = ~values.isfinite() | ~gradients.isfinite().all(1)
    clients = who[is_invalid].tolist()
    names = ", ".join(map(str, clients[:10]))
    raise NonFiniteError(
        f"round {round_}: NaN or infinity in the loss or gradient of client {names}", clients
    )


def normalised_weights(weights: Sequence[float] | Tensor | str | None, n: int) -> Tensor:
    """Return the clients' weights w_i > 0 (n,) in float64, which sum to 1: 1/n each by default, and
    given numbers divided by their sum.
    """
    if weights is None or weights == "equal":
        return torch.full((n,), 1 / n, dtype=torch.float64)
    if isinstance(weights, str):
        raise ValueError(
            f"weights={weights!r}, expected 'equal', 'samples' or {n} positive numbers"
        )
    given = torch.as_tensor(weights, dtype=torch.float64).flatten()
    if len(given) != n or not bool(given.isfinite().all()) or float(given.min()) <= 0:
        raise ValueError(f"weights={weights}, expected {n} positive numbers, one a client")
    return given / math.fsum(given.tolist())  # exact, so that a deployment divides by the same sum
