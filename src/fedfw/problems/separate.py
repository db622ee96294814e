"""Clients whose losses are worked out one by one, each as it is alone: the bits of a deployed
client.

How a product of matrices rounds depends on its shapes and on where its operands begin in memory: on
how many clients share a call, and on the samples with which shorter ones are padded. Here nothing
of that depends on other clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedfw.problems.base import ClientLosses


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
        self._each, self.n = list(each), len(each)
        self.per, self.weighs = each[0].per, any(one.weighs for one in each)
        sizes = [one.sizes for one in each if one.sizes is not None]
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
        values, gradients = _room(x, dtype)
        each = factors.tolist() if isinstance(factors, Tensor) else [factors] * len(x)
        for row, alone, own in self._rows(x, who):
            chosen = None if picks is None else picks[row]
            values[row], gradients[row] = alone.weighted(
                own, _only(alone, x), chosen, each[row.start], dtype
            )
        return values, gradients

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
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
        each = [one.smoothness() for one in self._each]
        known = [one for one in each if one is not None]
        return torch.cat(known) if len(known) == self.n else None

    def data(self) -> Iterator[Tensor]:
        for one in self._each:
            yield from one.data()

    def to(self, device: torch.device) -> SeparateLosses:
        return SeparateLosses([one.to(device) for one in self._each])


def _room(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return room for values (m,) and gradients (m, p) at points x (m, p)."""
    gradients = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return x.new_empty(len(x), dtype=dtype), gradients


def _only(alone: ClientLosses, x: Tensor) -> Tensor:
    """Return the number of the one client of these losses, which is 0, as the losses know it."""
    return alone.everyone(x.device)
