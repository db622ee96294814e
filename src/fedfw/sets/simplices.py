"""The simplex, the simplex with its interior down to the origin, and the hypersimplex."""

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
from fedfw.sets.base import ConstraintSet, Count, Request, Shape, Size


def _ones(
    indices: Tensor, signs: Tensor, shape: Shape, request: Request, scale: float
) -> SparseSigns:
    """Return atoms with ``scale`` at those ``indices`` (n, k) where ``signs`` (n, k) is one."""
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
    """The simplex ``{x : x >= 0, sum x_j = r}``; with r = 1 it is the set of probability vectors.

    It suits mixture weights, portfolios and distributions over p choices. Its extreme points are
    the p vectors ``r e_j``, which put the whole sum on one coordinate, so an atom is sent as one
    index.

    Parameters
    ----------
    r : float, default 1.0
        The sum of the entries; positive and finite.

    Raises
    ------
    ValueError
        If r is not a positive finite number.

    Notes
    -----
    The oracle returns ``r e_j`` for the coordinate j with the smallest g_j in O(p) operations. The
    projection sorts the entries and costs O(p log p). The diameter is ``r sqrt(2)`` for p > 1.

    Examples
    --------
    >>> import torch, fedfw
    >>> simplex = fedfw.Simplex(1.0)
    >>> simplex.lmo(torch.tensor([0.5, -2.0, 1.0])).dense().tolist()
    [0.0, 1.0, 0.0]
    >>> [round(v, 4) for v in simplex.project(torch.tensor([0.5, 0.9, -1.0])).tolist()]
    [0.3, 0.7, 0.0]
    """

    name: ClassVar[str] = "simplex"
    is_polytope: ClassVar[bool] = True

    r: Size = 1.0

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        index = first_argmax(-g)[:, None]
        return _ones(index, torch.ones_like(index), shape, request, self.r)

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return torch.maximum((x.sum(1) - self.r).abs(), -x.amin(1)) / self.r

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return water_fill(x, self.r)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {
            SparseSigns: partial(SparseSigns.read, shape=shape, k=1, scale=self.r, signed=False)
        }

    def diameter(self, shape: Shape) -> float:
        if prod(shape) > 1:
            return self.r * math.sqrt(2)
        return 0.0

    def _face(self, support: Tensor, shape: Shape) -> ConstraintSet:
        return self  # in fewer coordinates

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l1": self.r}


@dataclass(frozen=True, eq=False)
class CappedSimplex(Simplex):
    """The set ``{x : x >= 0, sum x_j <= r}``: the simplex together with everything between it and
    the origin.

    It suits non-negative quantities under a budget that need not be spent, such as allocations or
    non-negative sparse weights. Its extreme points are the origin and the vectors ``r e_j``, one
    for each of the p entries; the origin is sent as a single byte.

    Parameters
    ----------
    r : float, default 1.0
        The largest sum of the entries; positive and finite.

    Raises
    ------
    ValueError
        If r is not a positive finite number.

    Notes
    -----
    The oracle returns ``r e_j`` for the coordinate j with the smallest g_j if that g_j is negative,
    and the origin otherwise, in O(p) operations. The projection costs O(p log p). The diameter is
    ``r sqrt(2)`` for p > 1.

    Examples
    --------
    >>> import torch, fedfw
    >>> budget = fedfw.CappedSimplex(2.0)
    >>> budget.lmo(torch.tensor([0.5, -2.0, 1.0])).dense().tolist()
    [0.0, 2.0, 0.0]
    >>> budget.lmo(torch.tensor([0.5, 2.0, 1.0])).dense().tolist()
    [0.0, 0.0, 0.0]
    """

    name: ClassVar[str] = "capped-simplex"

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
    """The set ``{x : 0 <= x_j <= 1, sum x_j = k}``, the convex hull of all choices of k items out
    of p.

    It suits the relaxation of problems that select exactly k of p items, such as features or
    sensors. Its extreme points have k entries equal to one and the others equal to zero, so an atom
    is sent as a set of k indices, in about log2 C(p, k) bits.

    Parameters
    ----------
    k : int
        How many items are chosen; at least 1. A parameter with fewer than k entries is refused
        where it is used.

    Raises
    ------
    ValueError
        If k is not a whole number of at least 1.

    Notes
    -----
    The oracle puts ones at the k smallest entries of g in O(p) operations. The projection costs O(p
    log p). The diameter is ``sqrt(2 min(k, p - k))``.

    Examples
    --------
    >>> import torch, fedfw
    >>> choose_two = fedfw.Hypersimplex(2)
    >>> choose_two.lmo(torch.tensor([0.5, -2.0, 1.0, -1.0])).dense().tolist()
    [0.0, 1.0, 0.0, 1.0]
    >>> choose_two.diameter((4,))
    2.0
    """

    name: ClassVar[str] = "hypersimplex"
    is_polytope: ClassVar[bool] = True

    k: Count

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
        return {
            SparseSigns: partial(SparseSigns.read, shape=shape, k=self.k, scale=1.0, signed=False)
        }

    def diameter(self, shape: Shape) -> float:
        return math.sqrt(2 * min(self.k, prod(shape) - self.k))

    def _face(self, support: Tensor, shape: Shape) -> ConstraintSet:
        return self  # in fewer coordinates

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l1": float(self.k), "linf": 1.0}
