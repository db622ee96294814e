"""Sets of matrices told by their singular values or eigenvalues.

A parameter with more than two axes (a convolution kernel) is seen as out x rest.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.atoms import Atom, Dense, LowRank, ReadAtom
from fedfw.atoms.floats import round_inside
from fedfw.linalg.selection import unit_rows
from fedfw.linalg.singular import DENSE_UP_TO, TopSingular, normalised, top_singular
from fedfw.linalg.water import shrink_magnitudes, water_fill
from fedfw.sets.base import ConstraintSet, Request, Shape, positive, positive_integer

DEFAULT_TOL = 1e-6
"""Relative accuracy of sigma_1 that iterating oracles reach unless asked for another."""


class _MatrixSet(ConstraintSet):
    needs_matrix: ClassVar[bool] = True

    def _check_shape(self, shape: Shape) -> None:
        if len(shape) < 2:
            raise ValueError(f"{type(self).__name__} needs a matrix, got a parameter of shape {shape}")


def _sides(shape: Shape) -> tuple[int, int]:
    return shape[0], prod(shape[1:])


def _matrices(x: Tensor, shape: Shape) -> Tensor:
    """(n, p) -> (n, rows, columns)."""
    return x.reshape(-1, *_sides(shape))


def _with_singular_values(x: Tensor, shape: Shape, total: float, cap: float) -> Tensor:
    """Project singular values on {sum <= total, each <= cap} and put the matrices together again."""
    u, sigma, vh = torch.linalg.svd(_matrices(x, shape), full_matrices=False)
    projected: Tensor = (u * shrink_magnitudes(sigma, total, cap).unsqueeze(1)) @ vh
    return projected.flatten(1)


def _rank_one(pair: TopSingular, r: float, shape: Shape, request: Request) -> Atom:
    """-r u v', rounded so that it stays in the nuclear ball."""
    u, v = (round_inside(x, request.precision).unsqueeze(2) for x in (-pair.u, pair.v))
    return LowRank(shape=shape, batched=True, precision=request.precision, bound=-r * pair.upper, u=u, v=v, scale=r)


def _warm_start(request: Request, n: int) -> Tensor | None:
    """Right vectors (n, columns) of earlier atoms, where there are such."""
    warm = request.warm
    return warm.v[:, :, 0] if isinstance(warm, LowRank) and len(warm) == n else None


@dataclass(frozen=True, eq=False)
class NuclearBall(_MatrixSet):
    """{X: sum of singular values <= r}; atoms are -r u v' with the top singular pair of g."""

    name: ClassVar[str] = "nuclear"
    summary: ClassVar[str] = "sum of singular values <= r"
    oracle_cost: ClassVar[str] = "m n, 10-50 times"
    projection_cost: ClassVar[str] = "m n min(m, n)"

    r: float

    def __post_init__(self) -> None:
        positive(self, r=self.r)

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        pair = top_singular(_matrices(g, shape), request.tol or DEFAULT_TOL, _warm_start(request, len(g)))
        return _rank_one(pair, self.r, shape, request)

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        sigma: Tensor = torch.linalg.svdvals(_matrices(x, shape))
        return sigma.sum(1) / self.r - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return _with_singular_values(x, shape, self.r, math.inf)

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        return isinstance(atom, LowRank) and _isometric(atom, shape, 1, self.r, tol)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        rows, columns = _sides(shape)
        return {LowRank: partial(LowRank.read, shape=shape, rows=rows, columns=columns, k=1, scale=self.r)}

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"nuclear": self.r}


class _Isometries(_MatrixSet):
    """Singular values at most r with a sum of at most k r; atoms are -r times k singular pairs of g, from an SVD.

    An atom travels as its 2k vectors, or as a matrix where that is shorter.
    """

    oracle_cost: ClassVar[str] = "m n min(m, n)"
    projection_cost: ClassVar[str] = "m n min(m, n)"

    r: float

    @abstractmethod
    def _rank(self, shape: Shape) -> int:
        """k, at most the smaller side."""

    def _as_factors(self, shape: Shape) -> bool:
        rows, columns = _sides(shape)
        return self._rank(shape) * (rows + columns) < rows * columns

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        k, matrices = self._rank(shape), _matrices(g, shape)
        if k == 1 and self._as_factors(shape):
            pair = top_singular(matrices, request.tol or DEFAULT_TOL, _warm_start(request, len(g)))
            return _rank_one(pair, self.r, shape, request)
        matrices, size = normalised(matrices)
        u, sigma, vh = torch.linalg.svd(matrices.double(), full_matrices=False)
        bound = -self.r * sigma[:, :k].sum(1) * size
        if self._as_factors(shape):
            left, right = (round_inside(x, request.precision, math.sqrt(k)) for x in (-u[:, :, :k], vh[:, :k].mT))
            return LowRank(
                shape=shape, batched=True, precision=request.precision, bound=bound, u=left, v=right, scale=self.r
            )
        values = round_inside(-(u[:, :, :k] @ vh[:, :k]).flatten(1), request.precision, math.sqrt(k))
        return Dense(shape=shape, batched=True, precision=request.precision, bound=bound, values=values, scale=self.r)

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        sigma = torch.linalg.svdvals(_matrices(x, shape))
        return torch.maximum(sigma[:, 0] / self.r, sigma.sum(1) / (self._rank(shape) * self.r)) - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return _with_singular_values(x, shape, self._rank(shape) * self.r, self.r)

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        if isinstance(atom, LowRank):
            return _isometric(atom, shape, self._rank(shape), self.r, tol)
        return super()._accepts(atom, shape, tol)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        rows, columns = _sides(shape)
        if not self._as_factors(shape):
            return {Dense: partial(Dense.read, shape=shape, scale=self.r)}
        k = self._rank(shape)
        return {LowRank: partial(LowRank.read, shape=shape, rows=rows, columns=columns, k=k, scale=self.r)}

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r * math.sqrt(self._rank(shape))

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"spectral": self.r, "nuclear": self.r * self._rank(shape)}


@dataclass(frozen=True, eq=False)
class SpectralBall(_Isometries):
    """{X: largest singular value <= r}; the atom is -r times the polar factor of g."""

    name: ClassVar[str] = "spectral"
    summary: ClassVar[str] = "largest singular value <= r"

    r: float

    def __post_init__(self) -> None:
        positive(self, r=self.r)

    def _rank(self, shape: Shape) -> int:
        return min(_sides(shape))


@dataclass(frozen=True, eq=False)
class PartialIsometry(_Isometries):
    """{X: largest singular value <= r, sum of singular values <= k r}; atoms are -r times k singular pairs of g."""

    name: ClassVar[str] = "partial-isometry"
    summary: ClassVar[str] = "singular values <= r, their sum <= k r"

    k: int
    r: float = 1.0

    def __post_init__(self) -> None:
        positive_integer(self, k=self.k)
        positive(self, r=self.r)

    def _rank(self, shape: Shape) -> int:
        return min(self.k, *_sides(shape))


@dataclass(frozen=True, eq=False)
class Spectrahedron(_MatrixSet):
    """{X symmetric positive semidefinite, trace r}; atoms are r v v' with the lowest eigenvector of g's symmetric part.

    Larger matrices than DENSE_UP_TO use Lanczos on the shifted matrix c I - g.
    """

    name: ClassVar[str] = "spectrahedron"
    summary: ClassVar[str] = "X positive semidefinite, trace r"
    oracle_cost: ClassVar[str] = "m^2, 10-50 times"
    projection_cost: ClassVar[str] = "m^3"

    r: float = 1.0

    def __post_init__(self) -> None:
        positive(self, r=self.r)

    def _check_shape(self, shape: Shape) -> None:
        super()._check_shape(shape)
        if len(set(_sides(shape))) != 1:
            raise ValueError(f"Spectrahedron needs a square matrix, got a parameter of shape {shape}")

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        matrices, size = normalised(_matrices(g, shape))
        symmetric = (matrices + matrices.mT) / 2
        if shape[0] <= DENSE_UP_TO:
            values, vectors = torch.linalg.eigh(symmetric.double())
            v, lowest = vectors[:, :, 0], values[:, 0]
        else:
            row_sums = symmetric.abs().sum(2).amax(1)
            shift = torch.minimum(row_sums, torch.linalg.matrix_norm(symmetric))
            shifted = shift[:, None, None] * torch.eye(shape[0], dtype=g.dtype, device=g.device) - symmetric
            pair = top_singular(shifted, request.tol or DEFAULT_TOL, _warm_start(request, len(g)))
            v, lowest = pair.v, shift.double() - pair.upper
        v = round_inside(unit_rows(v)[0], request.precision).unsqueeze(2)
        return LowRank(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=self.r * lowest * size,
            u=v,
            v=v,
            scale=self.r,
            symmetric=True,
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        skew = (_matrices(x, shape) - _symmetric(x, shape)).abs().amax((1, 2))
        values = torch.linalg.eigvalsh(_symmetric(x, shape))
        trace = (values.sum(1) - self.r).abs()
        return torch.stack([skew, trace, -values[:, 0]]).amax(0) / self.r

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        values, vectors = torch.linalg.eigh(_symmetric(x, shape))
        kept = water_fill(values, self.r)
        projected: Tensor = (vectors * kept.unsqueeze(1)) @ vectors.mT
        return projected.flatten(1)

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        if not isinstance(atom, LowRank) or not atom.symmetric or atom.u.shape[2] != 1:
            return False
        if atom.u.shape != (1, shape[0], 1) or (atom.v is not atom.u and not torch.equal(atom.v, atom.u)):
            return False
        rounding = 4 * torch.finfo(atom.precision).eps
        return abs(float(atom.u.double().norm()) - 1) <= rounding and abs(atom.scale - self.r) <= tol * self.r

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        rows, _ = _sides(shape)
        return {LowRank: partial(LowRank.read, shape=shape, rows=rows, columns=rows, k=1, scale=self.r, symmetric=True)}

    def diameter(self, shape: Shape) -> float:
        return self.r * math.sqrt(2) if shape[0] > 1 else 0.0

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"nuclear": self.r}


def _symmetric(x: Tensor, shape: Shape) -> Tensor:
    matrices = _matrices(x, shape)
    return (matrices + matrices.mT) / 2


def _isometric(atom: LowRank, shape: Shape, k: int, r: float, tol: float) -> bool:
    """Whether ``atom`` is r u v' with k columns and singular values of u and of v at most 1.

    From the k x k Gram matrices: k^2 (rows + columns) operations, so proportional to the atom for small k. Entries
    are looked at first: a huge u and a tiny v would pass as a product, and overflow when they are used.
    """
    rows, columns = _sides(shape)
    if atom.symmetric or atom.u.shape != (1, rows, k) or atom.v.shape != (1, columns, k):
        return False
    if abs(atom.scale - r) > tol * r or not all(bool((x.abs() <= 1 + tol).all()) for x in (atom.u, atom.v)):
        return False
    grams = (x[0].double().mT @ x[0].double() for x in (atom.u, atom.v))
    return all(float(torch.linalg.matrix_norm(gram, ord=2)) <= (1 + tol) ** 2 for gram in grams)
