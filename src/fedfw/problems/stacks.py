"""Clients' samples, stacked so that many clients are evaluated by one call.

Clients of similar size share a stack (b, longest, ...); shorter ones are padded, by at most a fifth of the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Samples = tuple[Tensor, Tensor]

_FULLEST_WASTE = 0.2


@dataclass(frozen=True)
class Stack:
    """Some clients' samples: ``who`` (b,) are their numbers, ``sizes`` (b,) how many of the rows are theirs."""

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

    def in_float64(self) -> Stack:
        """The same with floating-point numbers in float64."""
        inputs, targets = (t.double() if t.is_floating_point() else t for t in (self.inputs, self.targets))
        return Stack(self.who, inputs, targets, self.sizes)

    def to(self, device: torch.device) -> Stack:
        return Stack(*(t.to(device) for t in (self.who, self.inputs, self.targets, self.sizes)))


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
        fits = group and (size == longest or (may_pad and used >= (1 - _FULLEST_WASTE) * longest * (len(group) + 1)))
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
