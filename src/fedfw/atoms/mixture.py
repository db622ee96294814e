"""The net atom of several local steps: a convex combination whose weights both ends know from the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.atoms.base import Atom, ReadAtom, read_framed
from fedfw.atoms.bits import Reader
from fedfw.atoms.composite import TupleAtom
from fedfw.atoms.dense import Dense, DenseAtom


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixture(Atom):
    """sum_k weights[k] * parts[k]; only the parts travel, in order."""

    tag: ClassVar[int] = 10
    stacked: ClassVar[tuple[str, ...]] = ()

    parts: tuple[Atom, ...]
    weights: tuple[float, ...]

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        readers: Mapping[type[Atom], ReadAtom],
        weights: tuple[float, ...],
    ) -> Self:
        parts = tuple(read_framed(reader, readers) for _ in weights)
        return cls(shape=shape, precision=precision, parts=parts, weights=weights)

    @property
    def kind(self) -> str:
        return f"{len(self.parts)} x {self.parts[0].kind}"

    def __len__(self) -> int:
        return len(self.parts[0])

    def _row(self, i: int) -> dict[str, Any]:
        return {"parts": tuple(part[i] for part in self.parts)}

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return _combine([part._dense(dtype) for part in self.parts], self.weights)

    def _dot(self, g: Tensor) -> Tensor:
        return _combine([part._dot(g) for part in self.parts], self.weights)

    def _add(self, x: Tensor, weight: Tensor) -> None:
        for part, share in zip(self.parts, self.weights, strict=True):
            part._add(x, weight * share)

    def _add_sum(self, x: Tensor, weight: float) -> None:
        for part, share in zip(self.parts, self.weights, strict=True):
            part._add_sum(x, weight * share)

    def _payload(self) -> bytes:
        return b"".join(part.to_bytes() for part in self.parts)

    def _payload_nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def _combine(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = values[0] * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total.add_(value, alpha=weight)
    return total


def mix(atoms: Sequence[Atom], weights: Sequence[float]) -> Atom:
    """The convex combination of stacks of atoms in the shorter of two forms: all the parts, or one dense vector.

    ``weights`` are positive and sum to 1. One atom is returned as it is.
    """
    first = atoms[0]
    if len(atoms) == 1:
        return first
    if isinstance(first, TupleAtom):
        columns = zip(*(atom.parts for atom in atoms if isinstance(atom, TupleAtom)), strict=True)
        return replace(first, bound=None, parts=tuple(mix(column, weights) for column in columns))
    mixture = Mixture(
        shape=first.shape,
        batched=first.batched,
        precision=first.precision,
        parts=tuple(atoms),
        weights=tuple(weights),
    )
    numbers = len(first) * torch.Size(first.shape).numel()
    dense_nbytes = len(first) + numbers * first.precision.itemsize
    if not isinstance(first, DenseAtom) and mixture.nbytes < dense_nbytes:
        return mixture
    values = mixture._dense(torch.float64).to(first.precision)
    return Dense(shape=first.shape, batched=first.batched, precision=first.precision, values=values)


def mixture_readers(
    readers: Mapping[type[Atom], ReadAtom], shape: tuple[int, ...], weights: Sequence[float]
) -> dict[type[Atom], ReadAtom]:
    """How to read what `mix` made of atoms that ``readers`` can read."""

    def read(reader: Reader, precision: torch.dtype) -> Mixture:
        return Mixture.read(reader, precision, shape=shape, readers=readers, weights=tuple(weights))

    def read_dense(reader: Reader, precision: torch.dtype) -> Dense:
        return Dense.read(reader, precision, shape=shape, scale=1.0)

    return {Mixture: read, Dense: read_dense}
