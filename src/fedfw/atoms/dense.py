"""Atoms with a value at every coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedfw.atoms.base import Atom
from fedfw.atoms.bits import Reader, byte_width, pack_bits, read_bits, read_integer, write_integer
from fedfw.atoms.floats import floats_to_bytes, read_floats


@dataclass(frozen=True, eq=False, kw_only=True)
class DenseAtom(Atom):
    """An atom that says its values at all p coordinates; only `_dense` differs between kinds."""

    def _dot(self, g: Tensor) -> Tensor:
        return (g.double() * self._dense(torch.float64)).sum(1)

    def _add(self, x: Tensor, weight: Tensor) -> None:
        x.addcmul_(self._dense(x.dtype), weight)


@dataclass(frozen=True, eq=False, kw_only=True)
class Dense(DenseAtom):
    """``scale`` times a vector that travels whole."""

    tag: ClassVar[int] = 5
    stacked: ClassVar[tuple[str, ...]] = ("values",)

    values: Tensor  # (n, p) in the atom's precision
    scale: float = 1.0

    @classmethod
    def read(cls, reader: Reader, precision: torch.dtype, *, shape: tuple[int, ...], scale: float) -> Self:
        values = read_floats(reader, (1, prod(shape)), precision)
        return cls(shape=shape, precision=precision, values=values, scale=scale)

    @property
    def kind(self) -> str:
        return "dense"

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return self.values.to(dtype) * self.scale

    def _payload(self) -> bytes:
        return floats_to_bytes(self.values)

    def _payload_nbytes(self) -> int:
        return self.values.numel() * self.values.element_size()


@dataclass(frozen=True, eq=False, kw_only=True)
class SignVector(DenseAtom):
    """A corner of a box: a bit a coordinate says whether it is at ``hi`` or at ``lo``."""

    tag: ClassVar[int] = 6
    stacked: ClassVar[tuple[str, ...]] = ("at_hi",)

    at_hi: Tensor  # (n, p) bool
    lo: Tensor  # float64, () or (p,)
    hi: Tensor  # float64, () or (p,)

    @classmethod
    def read(cls, reader: Reader, precision: torch.dtype, *, shape: tuple[int, ...], lo: Tensor, hi: Tensor) -> Self:
        bits = torch.from_numpy(read_bits(reader, prod(shape)).astype(bool))
        return cls(shape=shape, precision=precision, at_hi=bits[None], lo=lo, hi=hi)

    @property
    def kind(self) -> str:
        return "sign vector"

    def _dense(self, dtype: torch.dtype) -> Tensor:
        lo, hi = (bound.to(self.at_hi.device, dtype) for bound in (self.lo, self.hi))
        return torch.where(self.at_hi, hi, lo)

    def _payload(self) -> bytes:
        return pack_bits(self.at_hi[0].cpu().numpy().astype(np.uint8))

    def _payload_nbytes(self) -> int:
        return len(self) * ((prod(self.shape) + 7) // 8)


@dataclass(frozen=True, eq=False, kw_only=True)
class Vertex(DenseAtom):
    """One row of a matrix of vertices that both ends hold."""

    tag: ClassVar[int] = 7
    stacked: ClassVar[tuple[str, ...]] = ("index",)

    index: Tensor  # (n,) int64
    vertices: Tensor  # (vertices, p) float64

    @classmethod
    def read(cls, reader: Reader, precision: torch.dtype, *, shape: tuple[int, ...], vertices: Tensor) -> Self:
        index = torch.tensor([read_integer(reader, len(vertices))])
        return cls(shape=shape, precision=precision, index=index, vertices=vertices)

    @property
    def kind(self) -> str:
        return "vertex index"

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return self.vertices.to(self.index.device)[self.index].to(dtype)

    def _payload(self) -> bytes:
        return write_integer(int(self.index[0]), len(self.vertices))

    def _payload_nbytes(self) -> int:
        return len(self) * byte_width(len(self.vertices))
