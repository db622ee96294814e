"""Clients' samples, stacked so that many clients are evaluated by one call.

Clients of similar size share a stack (b, longest, ...); shorter ones are padded, by at most a fifth
of the stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

Samples = tuple[Tensor, Tensor]

_FULLEST_WASTE = 0.2
_TOGETHER = 16
"""Pieces that are evaluated together at most, where they are whole clients: fewer calls are worth a
larger cache.
"""


class Piece(NamedTuple):
    """Some samples of some clients."""

    begin: int  # how many of their samples came before
    inputs: Tensor  # (b, k, features)
    targets: Tensor  # (b, k, ...)


class Group(NamedTuple):
    """Clients that are evaluated together, and their samples piece by piece."""

    clients: slice  # their places among those that were asked for
    counts: int | Tensor  # samples of each in all pieces; (b,) where what is beyond them is padding
    pieces: list[Piece]
    share: float | Tensor  # of one sample: 1 / counts


@dataclass(frozen=True)
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
        """Whether no input is NaN or infinite."""
        return bool(self.inputs.isfinite().all())

    def groups(
        self, rows: Sequence[int], picks: Tensor | None, most: int, lanes: int
    ) -> Iterator[Group]:
        """The samples of the clients in these rows, or those that they picked, in pieces.

        A client's samples are cut every ``most`` numbers, whichever other clients are asked for, so
        that the order of its sums does not depend on them. ``lanes`` times as many numbers make a
        piece, from several clients, and more where none of them had to be cut.

        Parameters
        ----------
        rows
            Of this stack; a range where everyone is meant.
        picks
            (len(rows), batch) numbers of samples, or None for all.
        """
        features, device = math.prod(self.inputs.shape[2:]), self.inputs.device
        total = self.inputs.shape[1] if picks is None else picks.shape[1]
        samples = max(1, min(total, most // features))
        whole = 1 if samples < total else _TOGETHER
        together = max(1, whole * lanes * most // (samples * features))
        for place in range(0, len(rows), together):
            clients, some = slice(place, place + together), rows[place : place + together]
            side_by_side = range(some[0], some[0] + len(some))
            adjacent = some == side_by_side or list(some) == list(side_by_side)
            theirs = (
                slice(some[0], some[0] + len(some))
                if adjacent
                else torch.tensor(some, device=device)
            )
            counts = self.sizes[theirs].to(device) if picks is None and self.padded else total
            pieces = []
            for begin in range(0, total, samples):
                part = slice(begin, min(begin + samples, total))
                chosen = None if picks is None else picks[clients, part]
                inputs, targets = (
                    _cut(tensor, theirs, part, chosen) for tensor in (self.inputs, self.targets)
                )
                pieces.append(Piece(begin, inputs.flatten(2), targets))
            yield Group(
                clients,
                counts,
                pieces,
                1 / (counts if isinstance(counts, int) else counts.double()),
            )

    def in_float64(self) -> Stack:
        """The same with floating-point numbers in float64."""
        inputs, targets = (
            t.double() if t.is_floating_point() else t for t in (self.inputs, self.targets)
        )
        return Stack(self.who, inputs, targets, self.sizes)

    def to(self, device: torch.device) -> Stack:
        return Stack(*(t.to(device) for t in (self.who, self.inputs, self.targets, self.sizes)))


def _cut(tensor: Tensor, rows: slice | Tensor, part: slice, picks: Tensor | None) -> Tensor:
    """A part of these rows of a tensor (clients, longest, ...), or what they picked (b, k): a view
    where it can be.
    """
    if picks is None:
        return (
            tensor[rows, part] if isinstance(rows, slice) else tensor[:, part].index_select(0, rows)
        )
    if isinstance(rows, slice):
        rows = torch.arange(rows.start, rows.stop, device=tensor.device)
    # Samples of all clients in one line: several times faster than indexing with two tensors.
    numbers = picks + tensor.shape[1] * rows[:, None]
    return (
        tensor.flatten(0, 1)
        .index_select(0, numbers.flatten())
        .view(*picks.shape, *tensor.shape[2:])
    )


def samples_of(stacks: list[Stack]) -> Iterator[Tensor]:
    """The inputs and the targets of each client, in the clients' order and without padding."""
    places = [(int(i), stack, row) for stack in stacks for row, i in enumerate(stack.who.tolist())]
    for _, stack, row in sorted(places, key=lambda place: place[0]):
        size = int(stack.sizes[row])
        yield stack.inputs[row, :size]
        yield stack.targets[row, :size]


def stack_clients(clients: list[Samples], may_pad: bool) -> list[Stack]:
    """Group clients by size, the largest first; without padding only equal sizes share a stack."""
    order = sorted(range(len(clients)), key=lambda i: (-len(clients[i][0]), i))
    groups: list[list[int]] = []
    used = 0  # by the last group
    for i in order:
        size, group = len(clients[i][0]), groups[-1] if groups else []
        longest = len(clients[group[0]][0]) if group else 0
        used += size
        fits = group and (
            size == longest
            or (may_pad and used >= (1 - _FULLEST_WASTE) * longest * (len(group) + 1))
        )
        if fits:
            group.append(i)
        else:
            groups.append([i])
            used = size
    return [_stack(clients, sorted(group)) for group in groups]


def _stack(clients: list[Samples], group: list[int]) -> Stack:
    sizes = torch.tensor([len(clients[i][0]) for i in group])
    longest = int(sizes.max())
    tensors = []
    for part in (0, 1):
        first = clients[group[0]][part]
        stacked = first.new_empty(len(group), longest, *first.shape[1:])
        for row, i in enumerate(group):
            own = clients[i][part]
            stacked[row, : len(own)] = own
            stacked[row, len(own) :] = own[0]  # padding that any model can digest
        tensors.append(stacked)
    return Stack(torch.tensor(group), tensors[0], tensors[1], sizes)
