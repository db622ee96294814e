"""xbar on its way down: the shortest of the whole vector, what changed, and the sum of the last round's atoms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfw.algorithms.base import Plan, Upload
from fedfw.algorithms.oracle_steps import move_mean
from fedfw.simulation.ledger import encode_dense, encode_sum, encode_values, sparse_nbytes


class Downlink:
    """Remembers which round last changed each coordinate of xbar.

    A client that has the xbar of the order of round ``since`` is told the coordinates that have changed since, or, if
    that was the last round and everyone's atom was counted, the sum of the atoms. Nobody is told another's atom.
    """

    def __init__(self, xbar: Tensor) -> None:
        self.changed = torch.zeros(len(xbar), dtype=torch.int64)
        self._sum: tuple[int, bytes] | None = None
        self._ready: dict[int, bytes] = {}

    def encode(self, xbar: Tensor, since: int) -> bytes:
        """For a client that has the xbar of round ``since``'s order; 0 for none."""
        if since not in self._ready:
            self._ready[since] = self._encode(xbar, since)
        return self._ready[since]

    def _encode(self, xbar: Tensor, since: int) -> bytes:
        told = self._sum[1] if self._sum is not None and self._sum[0] == since else None
        if since:
            places = (self.changed >= since).nonzero().flatten()
            least = 1 + xbar.numel() * xbar.element_size() if told is None else len(told)
            if sparse_nbytes(places, len(xbar), xbar.element_size()) < least:
                return encode_values(xbar, places)
        return encode_dense(xbar) if told is None else told

    def moved(self, t: int, before: Tensor, after: Tensor, step: tuple[float, float, Tensor] | None = None) -> None:
        """Note what round t did; ``step`` is (keep, scale, total) of `move_mean`, where that is all it did."""
        self.changed = torch.where(before != after, self.changed.clamp(min=t), self.changed)
        self._ready.clear()
        self._sum = None
        if step is not None:
            keep, scale, total = step
            places = total.nonzero().flatten()
            short = 16 + sparse_nbytes(places, len(after), after.element_size()) < after.numel() * after.element_size()
            if short and torch.equal(move_mean(before, keep, scale, total), after):  # clients end with the same bits
                self._sum = t, encode_sum(keep, scale, total)


def repeatable_step(plan: Plan, t: int, uploads: Sequence[Upload], xbar: Tensor) -> tuple[float, float, Tensor]:
    """The server's step of a round with everyone, (keep, scale, total) of `move_mean`: clients can repeat it."""
    total = torch.zeros_like(xbar)
    for upload in uploads:
        upload.atoms.add_sum_to(total)
    eta, _ = plan.mixing(t)
    return 1 - eta, eta / plan.n, total
