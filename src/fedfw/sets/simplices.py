"""Non-negative vectors with a given sum, and their relatives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.atoms import Atom, ReadAtom, SparseSigns, Zero
from fedfw.linalg.selection import first_argmax, first_top_k
from fedfw.linalg.water import shrink_magnitudes, water_fill
from fedfw.sets.base import ConstraintSet, Request, Shape, positive, positive_integer


def _ones(indices: Tensor, signs: Tensor, shape: Shape, request: Request, scale: float) -> SparseSigns:
    """``scale`` at ``indices`` (n, k) where ``signs`` (n, k) is one."""
    return SparseSigns(
        shape=shape,
        batched=True,
        precision=request.precision,
        indices=indices,
        signs=signs.to(torch.int8),
        scale=scale,
        signed=False,
    )


@dataclass(frozen=True, eq=False)
class Simplex(ConstraintSet):
    """{x >= 0, sum x_j = r}; atoms are r e_j."""

    name: ClassVar[str] = "simplex"
    summary: ClassVar[str] = "x >= 0, sum x_j = r"
    is_polytope: ClassVar[bool] = True
    oracle_cost: ClassVar[str] = "p"
    projection_cost: ClassVar[str] = "p log p"

    r: float = 1.0

    def __post_init__(self) -> None:
        positive(self, r=self.r)

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        index = first_argmax(-g)[:, None]
        return _ones(index, torch.ones_like(index), shape, request, self.r)

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return torch.maximum((x.sum(1) - self.r).abs(), -x.amin(1)) / self.r

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return water_fill(x, self.r)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {SparseSigns: partial(SparseSigns.read, shape=shape, k=1, scale=self.r, signed=False)}

    def diameter(self, shape: Shape) -> float:
        return self.r * math.sqrt(2) if prod(shape) > 1 else 0.0

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l1": self.r}


@dataclass(frozen=True, eq=False)
class CappedSimplex(Simplex):
    """{x >= 0, sum x_j <= r}; atoms are r e_j and the origin."""

    name: ClassVar[str] = "capped-simplex"
    summary: ClassVar[str] = "x >= 0, sum x_j <= r"

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        index = first_argmax(-g)[:, None]
        return _ones(index, g.gather(1, index) < 0, shape, request, self.r)

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return torch.maximum(x.sum(1) - self.r, -x.amin(1)) / self.r

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return shrink_magnitudes(x, self.r)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {**super().readers(shape), Zero: partial(Zero.read, shape=shape)}

    def diameter(self, shape: Shape) -> float:
        return self.r * (math.sqrt(2) if prod(shape) > 1 else 1.0)


@dataclass(frozen=True, eq=False)
class Hypersimplex(ConstraintSet):
    """{0 <= x <= 1, sum x_j = k}; atoms have k ones."""

    name: ClassVar[str] = "hypersimplex"
    summary: ClassVar[str] = "0 <= x_j <= 1, sum x_j = k"
    is_polytope: ClassVar[bool] = True
    oracle_cost: ClassVar[str] = "p"
    projection_cost: ClassVar[str] = "p log p"

    k: int

    def __post_init__(self) -> None:
        positive_integer(self, k=self.k)

    def _check_shape(self, shape: Shape) -> None:
        if self.k > prod(shape):
            raise ValueError(f"Hypersimplex(k={self.k}) is empty for a parameter of shape {shape}")

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        indices = first_top_k(-g, self.k)
        return _ones(indices, torch.ones_like(indices), shape, request, 1.0)

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        sums = (x.sum(1) - self.k).abs() / self.k
        return torch.maximum(sums, torch.maximum(x.amax(1) - 1, -x.amin(1)))

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return water_fill(x, self.k, cap=1.0)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {SparseSigns: partial(SparseSigns.read, shape=shape, k=self.k, scale=1.0, signed=False)}

    def diameter(self, shape: Shape) -> float:
        return math.sqrt(2 * min(self.k, prod(shape) - self.k))

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l1": float(self.k), "linf": 1.0}
