"""Clients that are divided among ranks: every rank has the losses of some of them, and knows how
many others have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedfw.problems.base import ClientLosses
from fedfw.ranks import Ranks, divided

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
    """How many samples a client has, without reading them."""
    if isinstance(data, OnDemand):
        return data.size
    return len(data[0]) if isinstance(data, tuple | list) and len(data) else len(data)


def own_clients(ranks: Ranks, sizes: list[int], speed: Callable[[int], float]) -> range:
    """The clients that this rank keeps, when they have so many samples.

    ``speed`` measures how many samples this rank works through in a second, tried on one client; it
    is asked where ranks are balanced by time.
    """
    if ranks.size == 1:
        return range(len(sizes))
    speeds = [1.0] * ranks.size
    if ranks.balance == "time":
        middle = sorted(range(len(sizes)), key=sizes.__getitem__)[len(sizes) // 2]
        speeds = ranks.exchange(speed(middle))
    cuts = divided(sizes, speeds)
    return range(cuts[ranks.rank], cuts[ranks.rank + 1])


def speed_of(losses: ClientLosses, x: Tensor) -> float:
    """Samples a second of the first client's gradient at x (p,)."""
    who, samples = torch.zeros(1, dtype=torch.int64, device=x.device), 0
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

    Clients are called by their numbers among all of them. `everyone` is everyone whom this rank
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
        self.inner, self.own, self.n, self.sizes = inner, own, n, sizes
        self.per, self.weighs, self.countable = inner.per, inner.weighs, inner.countable

    def _inside(self, who: Tensor) -> Tensor:
        """The same clients by their places on this rank."""
        return self.inner.everyone(who.device) if who is self._everyone else who - self.own.start

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
        """L_i of this rank's clients."""
        return self.inner.smoothness()

    def data(self) -> Iterator[Tensor]:
        return self.inner.data()

    def to(self, device: torch.device) -> SplitLosses:
        return SplitLosses(self.inner.to(device), self.own, self.n, self.sizes)
