"""Sets of matrices that are defined by singular values or eigenvalues.

A parameter with more than two axes, such as a convolution kernel, is treated as the matrix whose
rows are its first axis and whose columns are all other axes together. Below, a matrix has m rows
and n columns, and ' denotes the transpose.
"""

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
from fedfw.atoms.floats import round_inside, scaled_into
from fedfw.linalg.leading import Leading, leading_pairs, spectral_bound
from fedfw.linalg.polar import polar_factor
from fedfw.linalg.selection import unit_rows
from fedfw.linalg.singular import DENSE_UP_TO, normalised, top_singular
from fedfw.linalg.water import shrink_magnitudes, water_fill
from fedfw.sets.base import ConstraintSet, Count, Request, Shape, Size

DEFAULT_TOL = 1e-6
"""Relative accuracy of the largest singular value that iterative oracles reach when `lmo` is given
no ``tol``.
"""


def _sides(shape: Shape) -> tuple[int, int]:
    """Return numbers of rows and columns of a parameter of ``shape``."""
    return shape[0], prod(shape[1:])


def _matrices(x: Tensor, shape: Shape) -> Tensor:
    """Return rows (n, p) as matrices (n, rows, columns)."""
    return x.reshape(-1, *_sides(shape))


def _with_singular_values(x: Tensor, shape: Shape, total: float, cap: float) -> Tensor:
    """Project the singular values on {sum <= total, each <= cap} and rebuild the matrices from
    them.
    """
    u, sigma, vh = torch.linalg.svd(_matrices(x, shape), full_matrices=False)
    projected: Tensor = (u * shrink_magnitudes(sigma, total, cap).unsqueeze(1)) @ vh
    return projected.flatten(1)


class _Isometries(ConstraintSet):
    """Matrices with singular values of at most r whose sum is at most k r, where a subclass says
    what k is.

    An atom is -r times the sum of k singular pairs of g: the polar factor of g where k is the
    smaller side. It is sent as 2k vectors, or as a matrix where that is shorter.
    """

    needs_matrix: ClassVar[bool] = True
    likes_long_stacks: ClassVar[bool] = True

    r: Size

    @abstractmethod
    def _rank(self, shape: Shape) -> int:
        """Return the number k of singular pairs in an atom, at most the smaller side of the
        matrix.
        """

    def _as_factors(self, shape: Shape) -> bool:
        """Return whether the 2k vectors of an atom have fewer entries than the matrix."""
        rows, columns = _sides(shape)
        return self._rank(shape) * (rows + columns) < rows * columns

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return -r U V^T for the leading k singular pairs of each matrix g, as factors or as a
        dense matrix; which algorithm finds them depends on k.
        """
        k = self._rank(shape)
        matrices = _matrices(g, shape)
        if k == 1 and self._as_factors(shape):
            # Small matrices are decomposed whatever the tolerance is. It may be a tensor on a GPU,
            # whose value the host must not read while it records a round.
            tol = DEFAULT_TOL
            if min(_sides(shape)) > DENSE_UP_TO:
                tol = request.tol or DEFAULT_TOL
            pair = top_singular(matrices, tol)
            pairs = Leading(pair.u.unsqueeze(2), pair.v.unsqueeze(2), pair.value, pair.upper)
        elif k == min(_sides(shape)):  # all pairs: U V^T is the polar factor
            polar = polar_factor(matrices, request.tol)
            return self._as_dense(polar.s, polar.upper, shape, request)
        else:
            pairs = leading_pairs(matrices, k, request.tol)
        if not self._as_factors(shape):
            return self._as_dense(pairs.u @ pairs.v.mT, pairs.upper, shape, request)
        return LowRank(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=-self.r * pairs.upper,
            u=round_inside(-pairs.u, request.precision, math.sqrt(k)),
            v=round_inside(pairs.v, request.precision, math.sqrt(k)),
            scale=self.r,
        )

    def _as_dense(self, s: Tensor, upper: Tensor, shape: Shape, request: Request) -> Atom:
        """Return the atoms -r s, rounded inside of the set, for matrices s (n, rows, columns) of
        the set with r = 1 where <g, s> <= ``upper``.
        """
        return Dense(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=-self.r * upper,
            values=round_inside(-s, request.precision, math.sqrt(self._rank(shape))).flatten(1),
            scale=self.r,
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        sigma = torch.linalg.svdvals(_matrices(x, shape))
        return torch.maximum(sigma[:, 0] / self.r, sigma.sum(1) / (self._rank(shape) * self.r)) - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return _with_singular_values(x, shape, self._rank(shape) * self.r, self.r)

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        """Return whether an atom has factors u and v with k columns and singular values of at most
        1, or is a dense matrix of the set.

        The k x k Gram matrices answer this with k^2 (rows + columns) operations, which is
        proportional to the size of the atom for small k. The entries are checked first, because a
        huge u and a tiny v could have an acceptable product and still overflow when they are used.
        """
        if not isinstance(atom, LowRank):
            return super()._accepts(atom, shape, tol)
        k = self._rank(shape)
        rows, columns = _sides(shape)
        if atom.symmetric or atom.u.shape != (1, rows, k) or atom.v.shape != (1, columns, k):
            return False
        if abs(atom.scale - self.r) > tol * self.r or not all(
            bool((x.abs() <= 1 + tol).all()) for x in (atom.u, atom.v)
        ):
            return False
        # sigma_1(x)^2 is the spectral norm of x' x.
        grams = (x[0].double().mT @ x[0].double() for x in (atom.u, atom.v))
        return all(float(torch.linalg.matrix_norm(gram, ord=2)) <= (1 + tol) ** 2 for gram in grams)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        """Return the function that decodes an atom for parameters of this shape, by kind: factors
        u and v, or a dense matrix where that is shorter.
        """
        rows, columns = _sides(shape)
        if not self._as_factors(shape):
            return {Dense: partial(Dense.read, shape=shape, scale=self.r)}
        k = self._rank(shape)
        return {
            LowRank: partial(
                LowRank.read, shape=shape, rows=rows, columns=columns, k=k, scale=self.r
            )
        }

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r * math.sqrt(self._rank(shape))

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"spectral": self.r, "nuclear": self.r * self._rank(shape)}


@dataclass(frozen=True, eq=False)
class NuclearBall(_Isometries):
    """The nuclear-norm ball ``{X : sum of singular values <= r}``, which favours matrices of low
    rank.

    It is the usual constraint for matrix completion and multi-task learning, and its oracle is much
    cheaper than its projection. Its extreme points are the rank-one matrices ``r u v'`` with unit
    vectors u and v, so an atom of an m x n matrix is sent as m + n numbers instead of m n.

    Parameters
    ----------
    r : float
        Radius: the largest sum of the singular values; positive and finite.

    Raises
    ------
    ValueError
        If r is not a positive finite number.

    Notes
    -----
    The oracle returns ``-r u v'`` with the singular vectors of g that belong to its largest
    singular value. Where the smaller side is at most 128 they come from a dense decomposition;
    beyond, Lanczos iterations multiply by g 10 to 60 times, at O(m n) each, until the relative
    accuracy ``tol`` of `lmo` (1e-6 by default) is reached. The atom's ``bound`` is a true lower
    bound on the minimum in both cases. The projection needs all singular values and costs O(m n
    min(m, n)). The diameter is 2r.

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.NuclearBall(3.0)
    >>> g = torch.diag(torch.tensor([1.0, -5.0]))
    >>> atom = ball.lmo(g)
    >>> (atom.dense().round(decimals=4) + 0.0).tolist()
    [[0.0, 0.0], [0.0, 3.0]]
    >>> atom.kind, round(float(atom.dot(g)), 4)
    ('rank 1', -15.0)
    """

    name: ClassVar[str] = "nuclear"
    likes_long_stacks: ClassVar[bool] = False

    r: Size

    def _rank(self, shape: Shape) -> int:
        return 1

    def _as_factors(self, shape: Shape) -> bool:
        return True

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return _with_singular_values(x, shape, self.r, math.inf)


@dataclass(frozen=True, eq=False)
class SpectralBall(_Isometries):
    """The spectral-norm ball ``{X : largest singular value <= r}``, which bounds how far a matrix
    stretches a vector.

    It bounds the Lipschitz constant of a linear or convolutional layer, and so suits networks that
    must be robust or stable. Its extreme points are r times the matrices whose singular values are
    all one, such as rotations; an atom of an m x n matrix is sent as m n numbers.

    Parameters
    ----------
    r : float
        Radius: the largest singular value that is allowed; positive and finite.

    Raises
    ------
    ValueError
        If r is not a positive finite number.

    Notes
    -----
    The oracle returns ``-r U V'``, where ``g = U S V'`` is the singular value decomposition. When
    `lmo` is given a ``tol`` it may return another matrix s of the ball, for which ``<g, s>`` is
    proven to be within that relative error of the minimum; it comes from Newton-Schulz iterations,
    which a GPU takes much faster than a decomposition, and g = 0 then gives s = 0. The projection
    clips the singular values at r. Both cost O(m n min(m, n)). The atom's ``bound`` is a true lower
    bound on the minimum. The diameter is ``2 r sqrt(min(m, n))``.

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.SpectralBall(2.0)
    >>> (ball.lmo(torch.diag(torch.tensor([1.0, -5.0]))).dense().round(decimals=4) + 0.0).tolist()
    [[-2.0, 0.0], [0.0, 2.0]]
    >>> (ball.project(torch.diag(torch.tensor([1.0, -5.0]))).round(decimals=4) + 0.0).tolist()
    [[1.0, 0.0], [0.0, -2.0]]
    """

    name: ClassVar[str] = "spectral"

    r: Size

    def _rank(self, shape: Shape) -> int:
        return min(_sides(shape))

    def _shrink(self, x: Tensor, shape: Shape, precision: torch.dtype) -> Tensor:
        return scaled_into(
            x, spectral_bound(_matrices(x, shape)), self.r, precision, math.sqrt(self._rank(shape))
        )


@dataclass(frozen=True, eq=False)
class PartialIsometry(_Isometries):
    """The set ``{X : singular values <= r, their sum <= k r}``, whose atoms have rank k.

    It lies between `NuclearBall` (k = 1) and `SpectralBall` (k = min(m, n)), as `KSparse` does for
    vectors: it still favours low rank, but one atom moves k directions at once. Its extreme points
    are ``r U V'`` where U and V have k orthonormal columns, so an atom of an m x n matrix is sent
    as k (m + n) numbers, or as m n numbers where that is fewer.

    Parameters
    ----------
    k : int
        The rank of an atom; at least 1.
    r : float, default 1.0
        The largest singular value that is allowed; positive and finite.

    Raises
    ------
    ValueError
        If k is not a whole number of at least 1, or r is not a positive finite number.

    Notes
    -----
    The oracle returns -r times the sum of the k leading singular pairs of g, from a singular value
    decomposition at O(m n min(m, n)). When `lmo` is given a ``tol`` they come from the eigenvectors
    of the smaller of gg' and g'g, and ``<g, s>`` is proven to be within that relative error of the
    minimum. For k = 1 it is the oracle of `NuclearBall`, and for k = min(m, n) that of
    `SpectralBall`. The diameter is ``2 r sqrt(min(k, m, n))``.

    Examples
    --------
    >>> import torch, fedfw
    >>> atom = fedfw.PartialIsometry(2, 1.0).lmo(torch.diag(torch.tensor([1.0, 2.0, 3.0])))
    >>> (atom.dense().round(decimals=4) + 0.0).tolist()
    [[0.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]]
    >>> fedfw.PartialIsometry(2, 1.0).lmo(torch.eye(20)).kind
    'rank 2'
    """

    name: ClassVar[str] = "partial-isometry"

    k: Count
    r: Size = 1.0

    def _rank(self, shape: Shape) -> int:
        return min(self.k, *_sides(shape))


@dataclass(frozen=True, eq=False)
class Spectrahedron(ConstraintSet):
    """The set of symmetric positive semidefinite matrices with trace r.

    It suits covariance and metric matrices, density matrices and relaxations of combinatorial
    problems as semidefinite programs. Its extreme points are the rank-one matrices ``r v v'`` with
    a unit vector v, so an atom of an m x m parameter is sent as m numbers.

    Parameters
    ----------
    r : float, default 1.0
        The trace, which is the sum of the eigenvalues; positive and finite.

    Raises
    ------
    ValueError
        If r is not a positive finite number. A parameter that is not a square matrix is refused
        where it is used.

    Notes
    -----
    The oracle returns ``r v v'`` with the eigenvector v of ``(g + g') / 2`` that belongs to its
    smallest eigenvalue. Up to 128 rows it comes from a dense decomposition; beyond, Lanczos
    iterations on ``c I - (g + g') / 2``, with c so large that this matrix is positive semidefinite,
    cost O(m^2) each. The projection costs O(m^3). The diameter is ``r sqrt(2)`` for m > 1.

    Examples
    --------
    >>> import torch, fedfw
    >>> atom = fedfw.Spectrahedron(2.0).lmo(torch.diag(torch.tensor([3.0, -1.0])))
    >>> (atom.dense().round(decimals=4) + 0.0).tolist()
    [[0.0, 0.0], [0.0, 2.0]]
    >>> atom.nbytes
    9
    """

    name: ClassVar[str] = "spectrahedron"
    needs_matrix: ClassVar[bool] = True

    r: Size = 1.0

    def _check_shape(self, shape: Shape) -> None:
        if len(shape) < 2 or shape[0] != prod(shape[1:]):
            raise ValueError(
                f"Spectrahedron needs a square matrix, got a parameter of shape {shape}"
            )

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return r v v^T for the eigenvector v of the lowest eigenvalue of the symmetric part of
        g.
        """
        matrices, size = normalised(_matrices(g, shape).double())  # before g_ij + g_ji is rounded
        symmetric = (matrices + matrices.mT) / 2
        if shape[0] <= DENSE_UP_TO:
            values, vectors = torch.linalg.eigh(symmetric)
            v = vectors[:, :, 0]
            lowest = values[:, 0]
        else:
            # shift >= the largest eigenvalue (Gershgorin, Frobenius): shift I - g is positive
            # semidefinite, and its leading singular pair is g's lowest eigenpair.
            row_sums = symmetric.abs().sum(2).amax(1)
            shift = torch.minimum(row_sums, torch.linalg.matrix_norm(symmetric))
            shifted = (
                shift[:, None, None] * torch.eye(shape[0], dtype=symmetric.dtype, device=g.device)
                - symmetric
            )
            pair = top_singular(shifted, request.tol or DEFAULT_TOL)
            v = pair.v
            lowest = shift - pair.upper
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
        """Return whether an atom is r v v^T with a unit vector v, up to rounding."""
        if not isinstance(atom, LowRank) or not atom.symmetric or atom.u.shape[2] != 1:
            return False
        if atom.precision is torch.bfloat16:  # no oracle rounds so coarsely
            return False
        if atom.u.shape != (1, shape[0], 1) or (
            atom.v is not atom.u and not torch.equal(atom.v, atom.u)
        ):
            return False
        rounding = 4 * torch.finfo(atom.precision).eps
        return (
            abs(float(atom.u.double().norm()) - 1) <= rounding
            and abs(atom.scale - self.r) <= tol * self.r
        )

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        """Return the function that decodes an atom: one vector v, which stands for r v v^T."""
        rows, _ = _sides(shape)
        return {
            LowRank: partial(
                LowRank.read,
                shape=shape,
                rows=rows,
                columns=rows,
                k=1,
                scale=self.r,
                symmetric=True,
            )
        }

    def diameter(self, shape: Shape) -> float:
        if shape[0] > 1:
            return self.r * math.sqrt(2)
        return 0.0

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"nuclear": self.r}


def _symmetric(x: Tensor, shape: Shape) -> Tensor:
    """Return the symmetric parts of the matrices: (n, p) -> (n, m, m)."""
    matrices = _matrices(x, shape)
    return (matrices + matrices.mT) / 2
