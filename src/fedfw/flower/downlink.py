"""xbar on its way down: the shortest of the whole vector, what changed, and the sum of the last round's atoms."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfw.simulation.ledger import decode_down, encode_dense, encode_sum, encode_values


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
        choices = [encode_dense(xbar)]
        if since:
            places = (self.changed >= since).nonzero().flatten()
            if len(places) < len(xbar):
                choices.append(encode_values(xbar, places))
            if self._sum is not None and self._sum[0] == since:
                choices.append(self._sum[1])
        return min(choices, key=len)

    def moved(self, t: int, before: Tensor, after: Tensor, step: tuple[float, float, Tensor] | None = None) -> None:
        """Note what round t did; ``step`` is (keep, scale, total) of `move_mean`, where that is all it did."""
        self.changed.masked_fill_(before != after, t)
        self._ready.clear()
        self._sum = None
        if step is not None and int(step[2].count_nonzero()) < len(after):
            told = encode_sum(*step)
            if torch.equal(decode_down(told, before), after):  # a client must end with the server's bits
                self._sum = t, told
