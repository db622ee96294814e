"""Losses that are made of other losses: clients one by one, with a quadratic term, or those of a
rank.

`SeparateLosses` evaluate each client as it is alone, which gives the bits of a deployed client: how
a product of matrices rounds depends on its shapes and on where its operands begin in memory, that
is on how many clients share a call, and on the samples with which shorter ones are padded.

`RegularisedLosses` add l2/2 ||x||^2, which makes a convex loss strongly convex.

`SplitLosses` divide clients among ranks: every rank has the losses of some of them, and counts all.
"""

from __future__ import annotations

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
    losses_of_clients : sequence of ClientLosses
        Of one client each.
    """

    def __init__(self, losses_of_clients: Sequence[ClientLosses]) -> None:
        """Join the losses of single clients; their sizes are known where all of them are."""
        self._each = list(losses_of_clients)
        self.n = len(losses_of_clients)
        self.per = losses_of_clients[0].per
        self.weighs = any(losses.weighs for losses in losses_of_clients)
        sizes = [losses.sizes for losses in losses_of_clients if losses.sizes is not None]
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
        """Return the weighted losses (m,) and gradients (m, p) of the clients ``who``, evaluated
        one by one.
        """
        factor_of_row = factors.tolist() if isinstance(factors, Tensor) else [factors] * len(x)
        results = []
        for row, losses, point, client in self._rows(x, who):
            chosen = None if picks is None else picks[row]
            results.append(losses.weighted(point, client, chosen, factor_of_row[row.start], dtype))
        return _concatenated(results)

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """Return the clients' sums of clipped gradients of samples, divided by ``count``, (m, p) in
        float64, evaluated one by one.
        """
        gradients = []
        for row, losses, point, client in self._rows(x, who):
            keep_of_client = None if keep is None else keep[row]
            gradients.append(
                losses.clipped_gradient(point, client, keep_of_client, norm, clip, count[row])
            )
        return torch.cat(gradients)

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        return _concatenated(
            [losses.exactly(point, client) for _, losses, point, client in self._rows(x, who)]
        )

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        return torch.cat(
            [losses.value(point, client) for _, losses, point, client in self._rows(x, who)]
        )

    def _rows(self, x: Tensor, who: Tensor) -> Iterator[tuple[slice, ClientLosses, Tensor, Tensor]]:
        """Yield each client's row of the points x (m, p), its losses, a copy of its point (1, p),
        and its number (1,) among these losses.
        """
        for row, client in enumerate(who.tolist()):
            place = slice(row, row + 1)
            alone = self._each[client]
            point = x[place].clone(memory_format=torch.contiguous_format)
            yield place, alone, point, alone.all_clients(x.device)

    def smoothness(self) -> Tensor | None:
        constants = [losses.smoothness() for losses in self._each]
        known = [constant for constant in constants if constant is not None]
        return torch.cat(known) if len(known) == self.n else None

    def data(self) -> Iterator[Tensor]:
        for losses in self._each:
            yield from losses.data()

    def to(self, device: torch.device) -> SeparateLosses:
        return SeparateLosses([losses.to(device) for losses in self._each])


def _concatenated(found: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the values (m,) and gradients (m, p) of clients that were evaluated one by one."""
    values, gradients = zip(*found, strict=True)
    return torch.cat(values), torch.cat(gradients)


class WrappedLosses(ClientLosses):
    """Losses that are evaluated by other ones, in whose terms clients and points are put first."""

    def __init__(self, inner: ClientLosses) -> None:
        """Wrap losses; the sizes and properties are those of the inner ones."""
        self.inner = inner
        self.n = inner.n
        self.sizes = inner.sizes
        self.per = inner.per
        self.weighs = inner.weighs
        self.countable = inner.countable

    def _inside(self, who: Tensor) -> Tensor:
        """Return the clients ``who`` (m,) by their numbers among the inner losses."""
        return who

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        return self.inner.value(x, self._inside(who))

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self.inner.value_and_gradient(x, self._inside(who), picks)

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.exactly(x, self._inside(who))

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        return self.inner.clipped_gradient(x, self._inside(who), keep, norm, clip, count)

    def public_gradient(self, x: Tensor) -> Tensor | None:
        return self.inner.public_gradient(x)

    def smoothness(self) -> Tensor | None:
        return self.inner.smoothness()

    def data(self) -> Iterator[Tensor]:
        return self.inner.data()


class RegularisedLosses(WrappedLosses):
    """f_i(x) + l2/2 ||x||^2."""

    def __init__(self, inner: ClientLosses, l2: float) -> None:
        super().__init__(inner)
        self.l2 = l2
        self.plain_kernels = inner.plain_kernels

    def all_clients(self, device: torch.device) -> Tensor:
        return self.inner.all_clients(device)

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        return super().value(x, who) + self._term(x)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        values, gradients = super().value_and_gradient(x, who, picks)
        return values + self._term(x), gradients.add_(x, alpha=self.l2)

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = super().exactly(x, who)
        return values + self._term(x.double()), gradients.add_(x.double(), alpha=self.l2)

    def public_gradient(self, x: Tensor) -> Tensor:
        return self.l2 * x

    def _term(self, x: Tensor) -> Tensor:
        return self.l2 / 2 * x.square().sum(1)

    def smoothness(self) -> Tensor | None:
        constants = super().smoothness()
        return None if constants is None else constants + self.l2

    def to(self, device: torch.device) -> RegularisedLosses:
        return RegularisedLosses(self.inner.to(device), self.l2)


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


def own_clients(ranks: Ranks, sizes: list[int]) -> range:
    """Return the clients that this rank keeps, when they have so many samples."""
    cuts = divided(sizes, ranks.size)
    return range(cuts[ranks.rank], cuts[ranks.rank + 1])


class SplitLosses(WrappedLosses):
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
        super().__init__(inner)
        self.own = own
        self.n = n
        self.sizes = sizes

    def _inside(self, who: Tensor) -> Tensor:
        return self.inner.all_clients(who.device) if who is self._everyone else who - self.own.start

    def weighted(
        self,
        x: Tensor,
        who: Tensor,
        picks: Tensor | None,
        factors: float | Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        return self.inner.weighted(x, self._inside(who), picks, factors, dtype)

    def to(self, device: torch.device) -> SplitLosses:
        return SplitLosses(self.inner.to(device), self.own, self.n, self.sizes)
