"""Balls of the l1, l2 and linf norms, and boxes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.atoms import Atom, Dense, ReadAtom, SignVector, SparseSigns
from fedfw.atoms.floats import round_inside
from fedfw.linalg.selection import first_argmax, row_norms, unit_rows
from fedfw.linalg.water import shrink_magnitudes
from fedfw.sets.base import ConstraintSet, Request, Shape, positive


@dataclass(frozen=True, eq=False)
class L1Ball(ConstraintSet):
    """{x: sum |x_j| <= r}; atoms are +-r e_j."""

    name: ClassVar[str] = "l1"
    summary: ClassVar[str] = "sum |x_j| <= r"
    is_polytope: ClassVar[bool] = True
    oracle_cost: ClassVar[str] = "p"
    projection_cost: ClassVar[str] = "p log p"

    r: float

    def __post_init__(self) -> None:
        positive(self, r=self.r)

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        index = first_argmax(g.abs())[:, None]
        signs = torch.where(g.gather(1, index) > 0, -1, 1).to(torch.int8)
        return SparseSigns(
            shape=shape, batched=True, precision=request.precision, indices=index, signs=signs, scale=self.r
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return x.abs().sum(1) / self.r - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return shrink_magnitudes(x.abs(), self.r).copysign(x)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {SparseSigns: partial(SparseSigns.read, shape=shape, k=1, scale=self.r, signed=True)}

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l1": self.r}


@dataclass(frozen=True, eq=False)
class L2Ball(ConstraintSet):
    """{x: ||x||_2 <= r}; the atom is -r g/||g||."""

    name: ClassVar[str] = "l2"
    summary: ClassVar[str] = "Euclidean norm <= r"
    strongly_convex: ClassVar[bool] = True
    oracle_cost: ClassVar[str] = "p"
    projection_cost: ClassVar[str] = "p"

    r: float

    def __post_init__(self) -> None:
        positive(self, r=self.r)

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        unit, norms = unit_rows(g)
        return Dense(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=-self.r * norms,
            values=round_inside(-unit, request.precision),
            scale=self.r,
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return row_norms(x) / self.r - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        norm = row_norms(x)[:, None]
        return torch.where(norm > self.r, x * (self.r / norm), x)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {Dense: partial(Dense.read, shape=shape, scale=self.r)}

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l2": self.r}


class _Corners(ConstraintSet):
    """What boxes share: bounds a coordinate, and corners told by a bit each."""

    is_polytope: ClassVar[bool] = True
    oracle_cost: ClassVar[str] = "p"
    projection_cost: ClassVar[str] = "p"

    @abstractmethod
    def _bounds(self) -> tuple[Tensor, Tensor]:
        """Lowest and highest values, float64, each () or (p,)."""

    def _bounds_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        lo, hi = self._bounds()
        # A number becomes a tensor there without a copy that the host would wait for.
        return tuple(  # type: ignore[return-value]
            bound.to(device) if bound.ndim else bound.new_full((), float(bound), device=device) for bound in (lo, hi)
        )

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        lo, hi = self._bounds_on(g.device)
        return SignVector(shape=shape, batched=True, precision=request.precision, at_hi=g <= 0, lo=lo, hi=hi)

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        lo, hi = self._bounds_on(x.device)
        return torch.maximum(lo - x, x - hi).amax(1) / (hi - lo).max()

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        lo, hi = self._bounds_on(x.device)
        return x.clamp(lo, hi)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        lo, hi = self._bounds()
        return {SignVector: partial(SignVector.read, shape=shape, lo=lo, hi=hi)}

    def diameter(self, shape: Shape) -> float:
        lo, hi = self._bounds()
        return float((hi - lo).expand(prod(shape)).norm())

    def _norms(self, shape: Shape) -> dict[str, float]:
        lo, hi = self._bounds()
        largest = torch.maximum(lo.abs(), hi.abs()).expand(prod(shape))
        return {"l1": float(largest.sum()), "l2": float(largest.norm()), "linf": float(largest.max())}


@dataclass(frozen=True, eq=False)
class LinfBall(_Corners):
    """{x: max |x_j| <= r}; atoms are sign vectors times r."""

    name: ClassVar[str] = "linf"
    summary: ClassVar[str] = "max |x_j| <= r"

    r: float

    def __post_init__(self) -> None:
        positive(self, r=self.r)

    def _bounds(self) -> tuple[Tensor, Tensor]:
        hi = torch.tensor(self.r, dtype=torch.float64)
        return -hi, hi


@dataclass(frozen=True, eq=False)
class Box(_Corners):
    """{x: lo <= x <= hi}, coordinate by coordinate; atoms are corners, a bit a coordinate.

    ``lo`` and ``hi`` are numbers, or tensors with as many entries as the parameter.
    """

    name: ClassVar[str] = "box"
    summary: ClassVar[str] = "lo <= x_j <= hi"

    lo: float | Tensor
    hi: float | Tensor

    def __post_init__(self) -> None:
        lo, hi = self._bounds()
        if lo.ndim and hi.ndim and lo.shape != hi.shape:
            raise ValueError(f"Box: lo has {lo.numel()} entries and hi {hi.numel()}")
        if not bool(lo.isfinite().all() & hi.isfinite().all() & (lo <= hi).all() & (lo < hi).any()):
            raise ValueError(f"Box: lo={self.lo}, hi={self.hi}, expected finite lo <= hi that differ somewhere")

    def _bounds(self) -> tuple[Tensor, Tensor]:
        lo, hi = (torch.as_tensor(bound, dtype=torch.float64).detach() for bound in (self.lo, self.hi))
        return (lo if lo.ndim == 0 else lo.flatten()), (hi if hi.ndim == 0 else hi.flatten())

    @property
    def fixed_size(self) -> int | None:
        return max((bound.numel() for bound in self._bounds() if bound.ndim), default=None)

    def _check_shape(self, shape: Shape) -> None:
        for bound in self._bounds():
            if bound.ndim and bound.numel() != prod(shape):
                raise ValueError(f"Box: bounds with {bound.numel()} entries for a parameter of shape {shape}")
