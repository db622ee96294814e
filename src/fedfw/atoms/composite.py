"""Atoms made of atoms: one a parameter of a model, or one seen through another layout of the coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.atoms.base import Atom, ReadAtom, read_framed
from fedfw.atoms.bits import Reader


def split_columns(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Views of consecutive columns: (n, sum of sizes) -> (n, size) each."""
    ends = list(accumulate(sizes))
    return [x[:, end - size : end] for end, size in zip(ends, sizes, strict=True)]


@dataclass(frozen=True, eq=False, kw_only=True)
class TupleAtom(Atom):
    """The parts of a product, in the order of the flat vector."""

    tag: ClassVar[int] = 9
    stacked: ClassVar[tuple[str, ...]] = ()

    parts: tuple[Atom, ...]

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        parts: Sequence[Mapping[type[Atom], ReadAtom]],
    ) -> Self:
        atoms = tuple(read_framed(reader, readers) for readers in parts)
        return cls(shape=shape, precision=precision, parts=atoms)

    @property
    def kind(self) -> str:
        return " + ".join(part.kind for part in self.parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    def _row(self, i: int) -> dict[str, Any]:
        return {"parts": tuple(part[i] for part in self.parts)}

    def _slices(self, x: Tensor) -> Sequence[Tensor]:
        return split_columns(x, [prod(part.shape) for part in self.parts])

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return torch.cat([part._dense(dtype) for part in self.parts], dim=1)

    def _dot(self, g: Tensor) -> Tensor:
        products = [part._dot(piece.contiguous()) for part, piece in zip(self.parts, self._slices(g), strict=True)]
        return torch.stack(products).sum(0)

    def _add(self, x: Tensor, weight: Tensor) -> None:
        for part, piece in zip(self.parts, self._slices(x), strict=True):
            if piece.is_contiguous():
                part._add(piece, weight)
            else:  # a slice of a stack: rank-k products want contiguous rows
                copy = piece.contiguous()
                part._add(copy, weight)
                piece.copy_(copy)

    def _add_sum(self, x: Tensor, weight: float) -> None:
        for part, piece in zip(self.parts, self._slices(x[None]), strict=True):
            part._add_sum(piece[0], weight)

    def _payload(self) -> bytes:
        return b"".join(part.to_bytes() for part in self.parts)

    def _payload_nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rearranged(Atom):
    """An atom whose coordinates stand in another order: ``order[j]`` is the inner place of coordinate j.

    It travels as the inner atom: both ends know the order.
    """

    stacked: ClassVar[tuple[str, ...]] = ()

    inner: Atom
    order: Tensor  # (p,) int64

    @classmethod
    def wrap(cls, inner: Atom, order: Tensor, shape: tuple[int, ...]) -> Self:
        return cls(
            shape=shape,
            batched=inner.batched,
            precision=inner.precision,
            bound=inner.bound,
            inner=inner,
            order=order,
        )

    @property
    def kind(self) -> str:
        return self.inner.kind

    def __len__(self) -> int:
        return len(self.inner)

    def _row(self, i: int) -> dict[str, Any]:
        return {"inner": self.inner[i]}

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return self.inner._dense(dtype)[:, self.order.to(self._device())]

    def _dot(self, g: Tensor) -> Tensor:
        return self.inner._dot(torch.empty_like(g).index_copy_(1, self.order.to(g.device), g))

    def _add(self, x: Tensor, weight: Tensor) -> None:
        x.addcmul_(self._dense(x.dtype), weight)

    def _device(self) -> torch.device:
        tensor: Tensor = getattr(self.inner, self.inner.stacked[0])
        return tensor.device

    def _frame(self) -> bytes:
        return self.inner._frame()

    def _payload(self) -> bytes:
        return self.inner._payload()

    def _payload_nbytes(self) -> int:
        return self.inner._payload_nbytes()
