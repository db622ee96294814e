"""Losses that are made of other losses: clients one by one, with a quadratic term, or those of a
rank.

`SeparateLosses` evaluate each client as it is alone, which gives the bits of a deployed client: how
a product of matrices rounds depends on its shapes and on where its operands begin in memory, that
is on how many clients share a call, and on the samples with which shorter ones are padded.

`RegularisedLosses` add l2/2 ||x||^2, which makes a convex loss strongly convex.

`SplitLosses` divide clients among ranks: every rank has the losses of some of them, and counts all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedfw.problems.base import ClientLosses
from fedfw.ranks import Ranks, divided


class SeparateLosses(ClientLosses):
    """The losses of clients, each of which has an object of its own.

    A client's point is copied before it is used, so that it begins in memory where it does in every
    other run.

    Parameters
    ----------
    each : sequence of ClientLosses
        Of one client each.
    """

    def __init__(self, each: Sequence[ClientLosses]) -> None:
        """Join losses of one client each."""
        self._each = list(each)
        self.n = len(each)
        self.per = each[0].per
        self.weighs = any(losses.weighs for losses in each)
        sizes = [losses.sizes for losses in each if losses.sizes is not None]
        self.sizes = torch.cat(sizes) if len(sizes) == self.n else None

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self.weighted(x, who, picks, 1.0, x.dtype)

    def weighted(
        self,
        x: Tensor,
        who: Tensor,
        picks: Tensor | None,
        factors: float | Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Evaluate the clients one by one; see `ClientLosses.weighted`."""
        values, gradients = _room(x, dtype)
        row_factors = factors.tolist() if isinstance(factors, Tensor) else [factors] * len(x)
        for row, alone, own in self._rows(x, who):
            chosen = None if picks is None else picks[row]
            values[row], gradients[row] = alone.weighted(
                own, _only(alone, x), chosen, row_factors[row.start], dtype
            )
        return values, gradients

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """Evaluate the clients one by one; see `ClientLosses.clipped_gradient`."""
        _, gradients = _room(x, torch.float64)
        for row, alone, own in self._rows(x, who):
            looked = None if keep is None else keep[row]
            gradients[row] = alone.clipped_gradient(
                own, _only(alone, x), looked, norm, clip, count[row]
            )
        return gradients

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = _room(x, torch.float64)
        for row, alone, own in self._rows(x, who):
            values[row], gradients[row] = alone.exactly(own, _only(alone, x))
        return values, gradients

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        values = x.new_empty(len(x))
        for row, alone, own in self._rows(x, who):
            values[row] = alone.value(own, _only(alone, x))
        return values

    def _rows(self, x: Tensor, who: Tensor) -> Iterator[tuple[slice, ClientLosses, Tensor]]:
        """Yield each client's row of the points x (m, p), its losses, and a copy of its point (1,
        p).
        """
        for row, client in enumerate(who.tolist()):
            place = slice(row, row + 1)
            yield place, self._each[client], x[place].clone(memory_format=torch.contiguous_format)

    def smoothness(self) -> Tensor | None:
        constants = [losses.smoothness() for losses in self._each]
        known = [constant for constant in constants if constant is not None]
        return torch.cat(known) if len(known) == self.n else None

    def data(self) -> Iterator[Tensor]:
        for losses in self._each:
            yield from losses.data()

    def to(self, device: torch.device) -> SeparateLosses:
        return SeparateLosses([losses.to(device) for losses in self._each])


def _room(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return room for values (m,) and gradients (m, p) at points x (m, p)."""
    gradients = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return x.new_empty(len(x), dtype=dtype), gradients


def _only(alone: ClientLosses, x: Tensor) -> Tensor:
    """Return the number of the one client of these losses, which is 0, as the losses know it."""
    return alone.all_clients(x.device)


class RegularisedLosses(ClientLosses):
    """f_i(x) + l2/2 ||x||^2."""

    def __init__(self, inner: ClientLosses, l2: float) -> None:
        """Wrap losses; the sizes and properties are those of the inner ones."""
        self.inner = inner
        self.l2 = l2
        self.n = inner.n
        self.sizes = inner.sizes
        self.plain_kernels = inner.plain_kernels
        self.per = inner.per
        self.weighs = inner.weighs

    def all_clients(self, device: torch.device) -> Tensor:
        return self.inner.all_clients(device)

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        return self.inner.value(x, who) + self._term(x)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        values, gradients = self.inner.value_and_gradient(x, who, picks)
        return values + self._term(x), gradients.add_(x, alpha=self.l2)

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = self.inner.exactly(x, who)
        return values + self._term(x.double()), gradients.add_(x.double(), alpha=self.l2)

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        return self.inner.clipped_gradient(x, who, keep, norm, clip, count)

    def public_gradient(self, x: Tensor) -> Tensor | None:
        inner = self.inner.public_gradient(x)
        return self.l2 * x if inner is None else inner + self.l2 * x

    def _term(self, x: Tensor) -> Tensor:
        return self.l2 / 2 * x.square().sum(1)

    def smoothness(self) -> Tensor | None:
        inner = self.inner.smoothness()
        return None if inner is None else inner + self.l2

    def data(self) -> Iterator[Tensor]:
        return self.inner.data()

    def to(self, device: torch.device) -> RegularisedLosses:
        return RegularisedLosses(self.inner.to(device), self.l2)


_LONG_ENOUGH = 0.2
"""Seconds over which a rank's speed is measured."""


@dataclass(frozen=True)
class OnDemand:
    """A client's data that are read where they are needed: only by the rank that keeps the client.

    Parameters
    ----------
    size : int
        How many samples there are.
    read : callable
        () -> what `fedfw.Problem` takes of a client.
    """

    size: int
    read: Callable[[], Any]


def size_of(data: Any) -> int:
    """Return how many samples a client has, without reading them."""
    if isinstance(data, OnDemand):
        return data.size
    if isinstance(data, DataLoader):
        return len(data.dataset)  # type: ignore[arg-type]
    return len(data[-1]) if isinstance(data, tuple | list) and len(data) else len(data)


def own_clients(ranks: Ranks, sizes: list[int], speed: Callable[[int], float]) -> range:
    """Return the clients that this rank keeps, when they have so many samples.

    ``speed`` measures how many samples this rank works through in a second, tried on one client; it
    is asked where ranks are balanced by time.
    """
    if ranks.size == 1:
        return range(len(sizes))
    speeds = [1.0] * ranks.size
    if ranks.balance == "time":
        middle = sorted(range(len(sizes)), key=sizes.__getitem__)[len(sizes) // 2]
        speeds = ranks.all_gather_object(speed(middle))
    cuts = divided(sizes, speeds)
    return range(cuts[ranks.rank], cuts[ranks.rank + 1])


def speed_of(losses: ClientLosses, x: Tensor) -> float:
    """Return samples a second of the first client's gradient at x (p,)."""
    who = torch.zeros(1, dtype=torch.int64, device=x.device)
    samples = 0
    losses.value_and_gradient(x[None], who, None)  # the first call is slower
    begin = time.perf_counter()
    while (seconds := time.perf_counter() - begin) < _LONG_ENOUGH:
        losses.value_and_gradient(x[None], who, None)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        samples += 1 if losses.sizes is None else int(losses.sizes[0])
    return samples / seconds


class SplitLosses(ClientLosses):
    """The losses of all n clients, of which this rank can work out its own.

    Clients are called by their numbers among all of them. `all_clients` are those that this rank
    keeps.

    Parameters
    ----------
    inner : ClientLosses
        Of this rank's clients.
    own : range
        Their numbers.
    n : int
        How many clients all ranks have.
    sizes : Tensor or None
        (n,): samples of all of them.
    """

    own: range

    def __init__(self, inner: ClientLosses, own: range, n: int, sizes: Tensor | None) -> None:
        """Wrap this rank's losses; numbers are translated on the way in."""
        self.inner = inner
        self.own = own
        self.n = n
        self.sizes = sizes
        self.per = inner.per
        self.weighs = inner.weighs
        self.countable = inner.countable

    def _inside(self, who: Tensor) -> Tensor:
        """Return the same clients by their places on this rank."""
        return self.inner.all_clients(who.device) if who is self._everyone else who - self.own.start

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self.inner.value_and_gradient(x, self._inside(who), picks)

    def weighted(
        self,
        x: Tensor,
        who: Tensor,
        picks: Tensor | None,
        factors: float | Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Evaluate clients of this rank; see `ClientLosses.weighted`."""
        return self.inner.weighted(x, self._inside(who), picks, factors, dtype)

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.exactly(x, self._inside(who))

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        return self.inner.value(x, self._inside(who))

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        return self.inner.clipped_gradient(x, self._inside(who), keep, norm, clip, count)

    def public_gradient(self, x: Tensor) -> Tensor | None:
        return self.inner.public_gradient(x)

    def smoothness(self) -> Tensor | None:
        """Return L_i of this rank's clients."""
        return self.inner.smoothness()

    def data(self) -> Iterator[Tensor]:
        return self.inner.data()

    def to(self, device: torch.device) -> SplitLosses:
        return SplitLosses(self.inner.to(device), self.own, self.n, self.sizes)
