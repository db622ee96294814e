"""Clients' samples, stacked so that many clients are evaluated by one call.

Clients of similar size share a stack (b, longest, ...); shorter ones are padded, by at most a fifth
of the stack.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from fedfw.problems.base import ClientLosses

Samples = tuple[Tensor, Tensor]
Rows = slice | Tensor
"""Rows of a stack: consecutive ones, or any (b,)."""
Piece = tuple[int, Tensor, Tensor]
"""Some samples of some clients: how many of their samples came before, inputs (b, k, features) and
targets (b, k, ...).
"""

_FULLEST_WASTE = 0.2
_TOGETHER = 8
"""Pieces that are evaluated together at most, where they are whole clients: fewer calls are worth a
larger cache.
"""


@dataclass(frozen=True, eq=False)
class Stack:
    """Some clients' samples: ``who`` (b,) are their numbers, ``sizes`` (b,) how many of the rows
    are theirs.
    """

    who: Tensor
    inputs: Tensor  # (b, longest, ...)
    targets: Tensor  # (b, longest, ...)
    sizes: Tensor

    @cached_property
    def padded(self) -> bool:
        return bool((self.sizes != self.inputs.shape[1]).any())

    @cached_property
    def finite(self) -> bool:
        """Return whether no input is NaN or infinite."""
        return bool(self.inputs.isfinite().all())

    def pieces(
        self, rows: Rows, count: int, picks: Tensor | None, most: int, lanes: int
    ) -> Iterator[tuple[slice, list[Piece]]]:
        """Yield slices of ``count`` clients, which are in these rows, each with its samples in
        pieces.

        A client's samples are cut every ``most`` numbers, whichever other clients are asked for, so
        that the order of its sums does not depend on them. ``lanes`` times as many numbers make a
        piece, from several clients, and more where none of them had to be cut. ``picks`` (count,
        batch) are numbers of samples, or None for all.
        """
        features = math.prod(self.inputs.shape[2:])
        sample_count = self.inputs.shape[1] if picks is None else picks.shape[1]
        samples = max(1, min(sample_count, most // features))
        # Clients that were cut keep to one piece, others share one.
        pieces_together = 1 if samples < sample_count else _TOGETHER
        together = max(1, pieces_together * lanes * most // (samples * features))
        for place in range(0, count, together):
            clients = slice(place, min(place + together, count))
            if isinstance(rows, Tensor):
                stack_rows: Rows = rows[clients]
            else:
                stack_rows = slice(clients.start + rows.start, clients.stop + rows.start)
            pieces = []
            for begin in range(0, sample_count, samples):
                part = slice(begin, begin + samples)
                chosen = None if picks is None else picks[clients, part]
                inputs = _cut(self.inputs, stack_rows, part, chosen)
                pieces.append(
                    (begin, inputs.flatten(2), _cut(self.targets, stack_rows, part, chosen))
                )
            yield clients, pieces

    def picked(self, rows: Rows, picks: Tensor) -> Samples:
        """Return the samples (b, batch, ...) with the numbers ``picks`` (b, batch) of these
        rows.
        """
        return _cut(self.inputs, rows, slice(0), picks), _cut(self.targets, rows, slice(0), picks)

    def in_float64(self) -> Stack:
        """Return the same with floating-point numbers in float64."""
        inputs, targets = (
            t.double() if t.is_floating_point() else t for t in (self.inputs, self.targets)
        )
        return Stack(self.who, inputs, targets, self.sizes)

    def to(self, device: torch.device) -> Stack:
        return Stack(*(t.to(device) for t in (self.who, self.inputs, self.targets, self.sizes)))


Selection = tuple[Stack, Tensor, Rows]
"""A stack, the places (b,) of its clients among those that were asked for, and their rows of it."""


class StackedLosses(ClientLosses):
    """Losses of clients whose samples are in stacks; ``sizes`` (n,) are those of all clients."""

    sizes: Tensor

    def __init__(self, stacks: list[Stack], sizes: Tensor) -> None:
        """Note in which stack, and in which row of it, each client is."""
        self._stacks = stacks
        self.sizes = sizes
        self.n = len(sizes)
        places = torch.empty(2, self.n, dtype=torch.int64)  # which stack, which row of it
        for s, stack in enumerate(stacks):
            places[0, stack.who.cpu()] = s
            places[1, stack.who.cpu()] = torch.arange(len(stack.who))
        self._places = places.to(stacks[0].inputs.device)
        self._selected: tuple[Tensor, list[Selection]] | None = None

    @abstractmethod
    def on_stacks(self, stacks: list[Stack], sizes: Tensor) -> Self:
        """Return the same losses of other samples, on the device and in the precision of these."""

    def to(self, device: torch.device) -> Self:
        return self.on_stacks([stack.to(device) for stack in self._stacks], self.sizes)

    @cached_property
    def _in_float64(self) -> Self:
        return self.on_stacks([stack.in_float64() for stack in self._stacks], self.sizes)

    def data(self) -> Iterator[Tensor]:
        """Yield inputs and targets client by client, without padding."""
        for s, row in self._places.T.tolist():
            stack = self._stacks[s]
            size = int(stack.sizes[row])
            yield stack.inputs[row, :size]
            yield stack.targets[row, :size]

    def select(self, who: Tensor) -> list[Selection]:
        """Return the stacks that hold the clients ``who``, each with the clients' positions in
        ``who`` and their rows in the stack.
        """
        # The same tensor `who` as last time needs no search.
        if self._selected is None or self._selected[0] is not who:
            stacks, rows = self._places.to(who.device)[:, who]
            selections: list[Selection] = []
            for s in stacks.unique().tolist():
                positions = (stacks == s).nonzero().flatten()
                selections.append((self._stacks[s], positions, _as_slice(rows[positions])))
            self._selected = who, selections
        return self._selected[1]


def _as_slice(rows: Tensor) -> Rows:
    """Return rows (b,) as a slice where they are consecutive."""
    first = int(rows[0])
    consecutive = torch.arange(first, first + len(rows), device=rows.device)
    return slice(first, first + len(rows)) if torch.equal(rows, consecutive) else rows


def _cut(tensor: Tensor, rows: Rows, part: slice, picks: Tensor | None) -> Tensor:
    """Return the samples ``part`` of these rows of a tensor (clients, longest, ...), or the samples
    ``picks`` (b, k); a view where possible.
    """
    if picks is None:
        return (
            tensor[rows, part] if isinstance(rows, slice) else tensor[:, part].index_select(0, rows)
        )
    if isinstance(rows, slice):
        rows = torch.arange(rows.start, rows.stop, device=tensor.device)
    # Samples of all clients in one line: several times faster than indexing with two tensors.
    flat_picks = picks + tensor.shape[1] * rows[:, None]
    return (
        tensor.flatten(0, 1)
        .index_select(0, flat_picks.flatten())
        .view(*picks.shape, *tensor.shape[2:])
    )


def stack_clients(clients: list[Samples], may_pad: bool) -> list[Stack]:
    """Group clients by size, the largest first; without padding only equal sizes share a stack."""
    order = sorted(range(len(clients)), key=lambda i: (-len(clients[i][0]), i))
    groups: list[list[int]] = []
    used_rows = 0  # by the last group
    for i in order:
        size = len(clients[i][0])
        group = groups[-1] if groups else []
        longest = len(clients[group[0]][0]) if group else 0
        used_rows += size
        fits = group and (
            size == longest
            or (may_pad and used_rows >= (1 - _FULLEST_WASTE) * longest * (len(group) + 1))
        )
        if fits:
            group.append(i)
        else:
            groups.append([i])
            used_rows = size
    return [_stack(clients, sorted(group)) for group in groups]


def _stack(clients: list[Samples], group: list[int]) -> Stack:
    """Return a stack of these clients' samples; shorter clients are padded with copies of their
    first sample.
    """
    sizes = torch.tensor([len(clients[i][0]) for i in group])
    longest = int(sizes.max())
    tensors = []
    for part in (0, 1):
        first = clients[group[0]][part]
        stacked = first.new_empty(len(group), longest, *first.shape[1:])
        for row, i in enumerate(group):
            values = clients[i][part]
            stacked[row, : len(values)] = values
            stacked[row, len(values) :] = values[0]  # padding that any model can digest
        tensors.append(stacked)
    return Stack(torch.tensor(group), tensors[0], tensors[1], sizes)
