"""Balls of the l1, l2 and linf norms, of the l2 norms of rows, and boxes."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod, sqrt
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.atoms import Atom, Dense, ReadAtom, SignVector, SparseSigns
from fedfw.atoms.floats import round_inside, scaled_into
from fedfw.linalg.selection import first_argmax, robust_row_norms, unit_rows
from fedfw.linalg.water import shrink_magnitudes
from fedfw.sets.base import ConstraintSet, Request, Shape, Size
from fedfw.sets.projections import LOST_TO_ROUNDING


@dataclass(frozen=True, eq=False)
class L1Ball(ConstraintSet):
    """The l1 ball ``{x : sum |x_j| <= r}``, which favours vectors with few non-zero entries.

    It is the constraint of the lasso and the usual choice when a sparse model is wanted. Its
    extreme points are the 2p vectors ``r e_j`` and ``-r e_j``, where p is the number of entries of
    the parameter and e_j is the j-th unit vector, so an atom is one coordinate and one sign, and
    takes a few bytes to send.

    Parameters
    ----------
    r : float
        Radius: the largest sum of magnitudes; positive and finite.

    Raises
    ------
    ValueError
        If r is not a positive finite number.

    Notes
    -----
    The oracle returns ``-r sign(g_j) e_j`` for the coordinate j with the largest ``|g_j|`` in O(p)
    operations. The projection sorts the magnitudes and costs O(p log p). The diameter is 2r.

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.L1Ball(2.0)
    >>> ball.lmo(torch.tensor([1.0, -3.0, 2.0])).dense().tolist()
    [0.0, 2.0, 0.0]
    >>> ball.project(torch.tensor([3.0, 2.0, 0.0])).tolist()
    [1.5, 0.5, 0.0]
    """

    name: ClassVar[str] = "l1"
    is_polytope: ClassVar[bool] = True

    r: Size

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return -r sign(g_j) e_j at the first coordinate j where |g| is largest."""
        index = first_argmax(g.abs())[:, None]
        # Where g_j is 0, all of g is 0 and every point of the set is a minimiser: r e_1 is taken.
        signs = torch.where(g.gather(1, index) > 0, -1, 1).to(torch.int8)
        return SparseSigns(
            shape=shape,
            batched=True,
            precision=request.precision,
            indices=index,
            signs=signs,
            scale=self.r,
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return x.abs().sum(1) / self.r - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return shrink_magnitudes(x.abs(), self.r).copysign(x)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {SparseSigns: partial(SparseSigns.read, shape=shape, k=1, scale=self.r, signed=True)}

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r

    def _face(self, support: Tensor, shape: Shape) -> ConstraintSet:
        return self  # in fewer coordinates

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l1": self.r}


@dataclass(frozen=True, eq=False)
class L2Ball(ConstraintSet):
    """The Euclidean ball ``{x : ||x||_2 <= r}``, which bounds the overall size of the weights.

    It plays the role of weight decay as a hard constraint. Every point of its surface is an extreme
    point, so an atom is a dense vector with a number for each of the p entries of the parameter.
    The set is strongly convex, which means that its surface is curved everywhere; this can make
    Frank-Wolfe methods converge faster than on a polytope.

    Parameters
    ----------
    r : float
        Radius: the largest Euclidean norm; positive and finite.

    Raises
    ------
    ValueError
        If r is not a positive finite number.

    Notes
    -----
    The oracle returns ``-r g / ||g||_2`` and the projection scales x down to norm r; both cost
    O(p). The diameter is 2r.

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.L2Ball(10.0)
    >>> [round(v, 4) for v in ball.lmo(torch.tensor([3.0, -4.0])).dense().tolist()]
    [-6.0, 8.0]
    >>> ball.project(torch.tensor([30.0, 40.0])).tolist()
    [6.0, 8.0]
    """

    name: ClassVar[str] = "l2"

    r: Size

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return -r g / ||g|| for each row g of (n, p), rounded so that it stays inside the ball;
        for a zero row the direction is the first unit vector.
        """
        unit, norms = unit_rows(g)
        return Dense(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=-self.r * norms,
            values=round_inside(unit, request.precision).neg_(),
            scale=self.r,
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return robust_row_norms(x) / self.r - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        norm = robust_row_norms(x)[:, None]
        return torch.where(norm > self.r, x * (self.r / norm), x)

    def _shrink(self, x: Tensor, shape: Shape, precision: torch.dtype) -> Tensor:
        return scaled_into(x, robust_row_norms(x), self.r, precision)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {Dense: partial(Dense.read, shape=shape, scale=self.r)}

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l2": self.r}


@dataclass(frozen=True, eq=False)
class RowBalls(ConstraintSet):
    """The matrices ``{X : every row has Euclidean norm <= r}``, such as embeddings, of which a row
    belongs to a word.

    Its extreme points are the matrices whose rows all have norm r, so an atom is dense. A parameter
    with more than two axes is treated as the matrix whose rows are its first axis.

    Parameters
    ----------
    r : float
        Radius: the largest Euclidean norm of a row; positive and finite.

    Raises
    ------
    ValueError
        If r is not a positive finite number. A parameter with fewer than two axes is refused where
        it is used.

    Notes
    -----
    The oracle returns ``-r g_i / ||g_i||_2`` for each row g_i and the projection scales long rows
    down to norm r; both cost O(p). The diameter is ``2 r sqrt(m)`` for m rows.

    Examples
    --------
    >>> import torch, fedfw
    >>> balls = fedfw.RowBalls(10.0)
    >>> (
    ...     balls.lmo(torch.tensor([[3.0, -4.0], [0.0, 1.0]])).dense().round(decimals=4) + 0.0
    ... ).tolist()
    [[-6.0, 8.0], [0.0, -10.0]]
    >>> balls.project(torch.tensor([[30.0, 40.0], [1.0, 1.0]])).tolist()
    [[6.0, 8.0], [1.0, 1.0]]
    """

    name: ClassVar[str] = "rows"
    needs_matrix: ClassVar[bool] = True

    r: Size

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return -r g_j / ||g_j|| for each row g_j, rounded so that each stays inside its ball."""
        unit, norms = unit_rows(g.reshape(-1, prod(shape[1:])))
        return Dense(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=-self.r * norms.reshape(len(g), -1).sum(1),
            values=round_inside(-unit.reshape(g.shape), request.precision),
            scale=self.r,
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return (
            robust_row_norms(x.reshape(-1, prod(shape[1:]))).reshape(len(x), -1).amax(1) / self.r
            - 1
        )

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return L2Ball(self.r)._project(x.reshape(-1, prod(shape[1:])), shape[1:]).reshape(x.shape)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {Dense: partial(Dense.read, shape=shape, scale=self.r)}

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r * sqrt(shape[0])

    def _norms(self, shape: Shape) -> dict[str, float]:
        l2 = self.r * sqrt(shape[0])
        return {"l1": self.r * shape[0] * sqrt(prod(shape[1:])), "l2": l2, "linf": self.r}


class _Corners(ConstraintSet):
    """The code that `LinfBall` and `Box` share: each coordinate has a lower and an upper bound."""

    is_polytope: ClassVar[bool] = True

    @abstractmethod
    def _bounds(self) -> tuple[Tensor, Tensor]:
        """Return lowest and highest values, float64, each of shape () or (p,)."""

    def _bounds_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper bounds on ``device``, each () or (p,), in float64."""
        lo, hi = self._bounds()
        if device == lo.device == hi.device:
            return lo, hi
        # A scalar bound is created on the device directly, because a copy to a GPU would make the
        # host wait.
        return tuple(  # type: ignore[return-value]
            bound.to(device) if bound.ndim else bound.new_full((), float(bound), device=device)
            for bound in (lo, hi)
        )

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        lo, hi = self._bounds_on(g.device)
        return SignVector(
            shape=shape, batched=True, precision=request.precision, at_hi=g <= 0, lo=lo, hi=hi
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        lo, hi = self._bounds_on(x.device)
        return torch.maximum(lo - x, x - hi).amax(1) / (hi - lo).max()

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        lo, hi = self._bounds_on(x.device)
        return x.clamp(lo, hi)

    def _is_coarse(self, shape: Shape, dtype: torch.dtype) -> bool:
        """Return whether the bounds, rounded to this dtype, leave the box by more than rounding
        may.
        """
        # Rounding keeps the order of numbers, so a point leaves the box by no more than the bounds
        # themselves move.
        lo, hi = self._bounds()
        below = lo - lo.to(dtype).double()
        above = hi.to(dtype).double() - hi
        return not bool(torch.maximum(below, above).max() <= LOST_TO_ROUNDING * (hi - lo).max())

    def _round_into(self, x: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
        return self._shrink(x, shape, dtype)

    def _shrink(self, x: Tensor, shape: Shape, precision: torch.dtype) -> Tensor:
        """Return x clamped to the box, in this precision; a bound that rounds outwards is replaced
        by the next number inwards.
        """
        lo, hi = self._bounds_on(x.device)
        rounded = x.clamp(lo, hi).to(precision)
        rounded = torch.where(
            rounded.double() > hi, rounded.nextafter(torch.full_like(rounded, -torch.inf)), rounded
        )
        return torch.where(
            rounded.double() < lo, rounded.nextafter(torch.full_like(rounded, torch.inf)), rounded
        )

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        lo, hi = self._bounds()
        return {SignVector: partial(SignVector.read, shape=shape, lo=lo, hi=hi)}

    def diameter(self, shape: Shape) -> float:
        lo, hi = self._bounds()
        return float(robust_row_norms((hi - lo).expand(1, prod(shape))))

    def _norms(self, shape: Shape) -> dict[str, float]:
        lo, hi = self._bounds()
        largest = torch.maximum(lo.abs(), hi.abs()).expand(prod(shape))
        l2 = float(robust_row_norms(largest[None]))
        return {"l1": float(largest.sum()), "l2": l2, "linf": float(largest.max())}


@dataclass(frozen=True, eq=False)
class LinfBall(_Corners):
    """The linf ball ``{x : max |x_j| <= r}``, which bounds every coordinate by the same number.

    It suits weights that must stay in a fixed range, for example because they will be quantised.
    Its extreme points are the 2^p vectors whose p entries are all r or -r, so an atom is sent as
    one bit per coordinate.

    Parameters
    ----------
    r : float
        Radius: the largest magnitude of an entry; positive and finite.

    Raises
    ------
    ValueError
        If r is not a positive finite number.

    Notes
    -----
    The oracle returns ``-r sign(g)`` with r where g_j is zero, and the projection clips every
    entry; both cost O(p). The diameter is ``2 r sqrt(p)``.

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.LinfBall(0.5)
    >>> ball.lmo(torch.tensor([1.0, -3.0, 0.0])).dense().tolist()
    [-0.5, 0.5, 0.5]
    >>> ball.diameter((4,))
    2.0
    """

    name: ClassVar[str] = "linf"

    r: Size

    def _bounds(self) -> tuple[Tensor, Tensor]:
        hi = torch.tensor(self.r, dtype=torch.float64)
        return -hi, hi


@dataclass(frozen=True, eq=False)
class Box(_Corners):
    """The box ``{x : lo <= x_j <= hi}``, in which every coordinate has a lower and an upper bound.

    It suits parameters with known limits, such as non-negative weights of at most one, and the
    limits may differ from one coordinate to another. Its extreme points are the corners, where
    every coordinate is at one of its two bounds, so an atom is sent as one bit per coordinate.

    Parameters
    ----------
    lo : float or Tensor
        Lower bound: one number for all coordinates, or a tensor with as many entries as the
        parameter.
    hi : float or Tensor
        Upper bound, in the same form. It is at least ``lo`` everywhere and above it for at least
        one coordinate.

    Raises
    ------
    ValueError
        If a bound is not finite, if ``lo > hi`` somewhere, if the bounds are equal everywhere, or
        if two tensors of bounds differ in size.

    Notes
    -----
    The oracle takes ``hi_j`` where ``g_j <= 0`` and ``lo_j`` elsewhere, and the projection clips
    every entry; both cost O(p) operations for a parameter with p entries. The diameter is the
    Euclidean norm of ``hi - lo``.

    Examples
    --------
    >>> import torch, fedfw
    >>> fedfw.Box(-1.0, 2.0).lmo(torch.tensor([1.0, -3.0])).dense().tolist()
    [-1.0, 2.0]
    >>> box = fedfw.Box(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0]))
    >>> box.project(torch.tensor([5.0, 5.0, -5.0])).tolist()
    [1.0, 2.0, 0.0]
    """

    name: ClassVar[str] = "box"

    lo: float | Tensor
    hi: float | Tensor

    def __post_init__(self) -> None:
        """Check that the bounds are finite, ordered, of one size, and not equal everywhere."""
        lo, hi = self._bounds()
        if lo.ndim and hi.ndim and lo.shape != hi.shape:
            raise ValueError(f"Box: lo has {lo.numel()} entries and hi {hi.numel()}")
        if not bool(lo.isfinite().all() & hi.isfinite().all() & (lo <= hi).all() & (lo < hi).any()):
            raise ValueError(
                f"Box: lo={self.lo}, hi={self.hi}, expected finite lo <= hi that differ somewhere"
            )

    def _bounds(self) -> tuple[Tensor, Tensor]:
        lo, hi = (
            torch.as_tensor(bound, dtype=torch.float64).detach() for bound in (self.lo, self.hi)
        )
        return (lo if lo.ndim == 0 else lo.flatten()), (hi if hi.ndim == 0 else hi.flatten())

    @property
    def entries(self) -> int | None:
        return max((bound.numel() for bound in self._bounds() if bound.ndim), default=None)
