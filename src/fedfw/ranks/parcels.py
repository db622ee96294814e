"""What a rank sends so that all ranks can add up vectors: their entries that are not zero, or all of them, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from fedfw.checks import bits_of

WHOLE = -1
"""In place of how many entries there are: a vector that is sent with all of its numbers."""


def pack(total: Tensor, beside: Sequence[Tensor], most: int) -> tuple[int, Tensor]:
    """A vector (p,) and further tensors as bytes.

    Parameters
    ----------
    total : Tensor
        (p,), sent by its entries where these take fewer than ``most`` bytes.
    beside : sequence of Tensor
        Sent whole.

    Returns
    -------
    int
        How many entries there are, or `WHOLE`.
    Tensor
        (k,) of bytes.

    Examples
    --------
    >>> import torch
    >>> count, body = pack(torch.tensor([0.0, 0.0, 2.0, 0.0]), [], most=16)
    >>> count, body.tolist()
    (1, [2, 0, 0, 0, 0, 0, 0, 64])
    """
    # A zero with a sign is an entry, too: sums must have the bits that they have in one process.
    places = bits_of(total).nonzero().flatten()
    index = _index_of(total)
    few = len(places) * (index.itemsize + total.itemsize) < most
    parts = [places.to(index), total[places]] if few else [total]
    return len(places) if few else WHOLE, torch.cat([as_bytes(part) for part in (*parts, *beside)])


def add_unpacked(count: int, body: Tensor, total: Tensor, beside: Sequence[Tensor]) -> None:
    """Add what `pack` made of a vector and further tensors to such a vector and such tensors."""
    index = _index_of(total)
    first = [total.nbytes] if count == WHOLE else [count * index.itemsize, count * total.itemsize]
    ends = list(accumulate([*first, *(tensor.nbytes for tensor in beside)]))
    # Copies, because numbers lie at multiples of their size.
    parts = [body[begin:end].clone() for begin, end in zip([0, *ends], ends, strict=False)]
    if count == WHOLE:
        total += parts[0].view(total.dtype)
    else:
        total.index_add_(0, parts[0].view(index).long(), parts[1].view(total.dtype))
    for tensor, part in zip(beside, parts[len(first) :], strict=True):
        tensor += part.view(tensor.dtype).view_as(tensor)


def _index_of(total: Tensor) -> torch.dtype:
    return torch.int32 if len(total) < 2**31 else torch.int64


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, a view where its numbers lie side by side."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def padded(x: Tensor, length: int) -> Tensor:
    """x (k, ...) with zeros behind it, or its first rows: (length, ...)."""
    if len(x) >= length:
        return x[:length]
    longer = x.new_zeros(length, *x.shape[1:])
    longer[: len(x)] = x
    return longer
