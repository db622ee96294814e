"""The additions of `ConstraintSet.project` to a set's own projection: points that are far away, and
rounding to a dtype.

The set's own projection works in float64, and its rounding errors grow with the distance of the
point: at 1e16 times the size of the set they are as large as the set. So results for far points are
verified, and refused where that fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfw.errors import InfeasibleError, NoProjectionError
from fedfw.linalg.selection import robust_row_norms

if TYPE_CHECKING:
    from fedfw.sets.base import ConstraintSet, Shape

FAR = 2.0**20
"""A point is far where its l2 norm is above so many extents of the set; below, float64 keeps ten
digits of the set.
"""

SOLVED_WITHIN = 2.0**10
"""The distance of a point, in about the set's size, up to which iterative solvers take it as it is;
they lose digits of farther ones.
"""

TOLERANCE = 1e-6
"""The distance from its set at which a projection may be, relative to the set's size: what
`contains` allows by default.
"""

_BEFORE_ROUNDING = TOLERANCE / 2
"""The part of it that a projection in float64 may use; rounding to float32 may use the rest."""

LOST_TO_ROUNDING = TOLERANCE / 4
"""The part of it up to which rounding is not looked at again."""

_CORRECTED = 1e-10
"""The distance outside at which a result for a far point may be before it is projected once
more."""

_SUBOPTIMALITY = 2.0**-20
"""How much farther from a far point its projection may be than the nearest point of the set, in
extents of the set.
"""

_ROUNDINGS = 32
_MOST_SUBOPTIMAL = 2.0**-7
"""The roundings of the far point that it may be besides, and how much at most in extents of the
set.
"""

_INWARD = (2, 4, 8, 16, 32)
"""The distances by which points are moved inwards before they are rounded, in roundings."""

_EQUALITY_ROUNDINGS = 8
"""The number of roundings to 16 bits by which a set without an interior may be violated."""


class Frame(NamedTuple):
    """The properties of a set that `project` needs for parameters of one shape and dtype.

    Parameters
    ----------
    extent : float
        About the size of the set, in the l2 norm.
    far : float
        The l2 norm above which points are far; finite.
    coarse : bool
        Whether rounding to the dtype may move a point out of the set.
    """

    extent: float
    far: float
    coarse: bool


def project_far(constraint: ConstraintSet, x: Tensor, shape: Shape, extent: float) -> Tensor:
    """Project rows of which some are far from the set, and verify every result.

    Parameters
    ----------
    constraint : ConstraintSet
        The set.
    x : Tensor
        Shape (n, p), float64; finite.
    shape : tuple of int
        Shape of the parameter.
    extent : float
        As in `Frame`.

    Returns
    -------
    Tensor
        Points of the set, shape (n, p). The distance of each to its row of x is above the least by
        at most 2^-20 extents, or by 32 roundings of the row where those are more and below 2^-7
        extents.

    Raises
    ------
    InfeasibleError
        If that cannot be reached for a row; it gives the row's size.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.sets.projections import project_far
    >>> x = torch.tensor([[1e200, 1e200, 0.0]], dtype=torch.float64)
    >>> project_far(fedfw.Simplex(1.0), x, (3,), extent=1.4).tolist()
    [[0.5, 0.5, 0.0]]
    """
    good = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    cause: Exception | None = None
    with np.errstate(all="ignore"):  # what overflows is found by the verification
        # Solvers that cannot continue fail in these ways.
        try:
            projected, good = _project_and_verify(constraint, x, shape, extent)
        except NoProjectionError:
            raise
        except (ArithmeticError, RuntimeError, ValueError) as error:
            cause = error
    if bool(good.all()):
        return projected
    size = float(x[~good].abs().max())
    raise InfeasibleError(
        f"cannot project a point with entries up to {size:.3g} on {constraint!r}, whose size is "
        f"about {extent:.3g}: no result could be verified. A point nearer to the set is required; "
        "use a smaller step size or scale the point"
    ) from cause


def _project_and_verify(
    constraint: ConstraintSet, x: Tensor, shape: Shape, extent: float
) -> tuple[Tensor, Tensor]:
    """Return the results of the set's own projection (n, p), and which of them are close enough to
    the nearest points: (n,) bool.
    """
    projected = constraint._project(x, shape)
    inside = _holds(constraint, projected, shape, _CORRECTED)
    if not bool(inside.all()):
        # A result that rounding errors have put outside of the set is near it, from where a second
        # projection is accurate.
        near = torch.where(projected.isfinite(), projected, 0.0)
        projected = torch.where(inside[:, None], projected, constraint._project(near, shape))
        inside = _holds(constraint, projected, shape, _BEFORE_ROUNDING)
    projected = torch.where(inside[:, None], projected, 0.0)
    move = projected - x
    distance = robust_row_norms(move)
    direction = move / distance.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    best = constraint.lmo(direction.reshape(-1, *shape), batch=True, precision=torch.float64)
    # P is nearest to x if and only if <P - x, P - s> is at most 0 for every s in the set: the
    # oracle returns the s for which this product is largest.
    excess = (direction * (projected - best.dense(torch.float64).reshape(x.shape))).sum(1)
    roundings = _ROUNDINGS * 2.0**-53 * (robust_row_norms(x) / extent)
    allowed = torch.where(roundings <= _MOST_SUBOPTIMAL, roundings, 0.0).clamp(min=_SUBOPTIMALITY)
    return projected, inside & (excess <= allowed * extent * (1 + extent / distance))


def _holds(constraint: ConstraintSet, x: Tensor, shape: Shape, tol: float) -> Tensor:
    """Return which rows of x (n, p) are finite and in the set up to a tolerance: (n,) bool."""
    finite = x.isfinite().all(1)
    held = constraint._violation(torch.where(finite[:, None], x, 0.0), shape) <= tol
    return held & finite


def round_into(constraint: ConstraintSet, x: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Round points of a set to a dtype so coarse that rounding may leave the set, and stay inside.

    Parameters
    ----------
    constraint : ConstraintSet
        The set.
    x : Tensor
        Points of the set, (n, p), float64.
    shape : tuple of int
        Shape of the parameter.
    dtype : torch.dtype
        float16, bfloat16, float32 or float64.

    Returns
    -------
    Tensor
        Points of the set up to 1e-6 of its size, in ``dtype``. In 16 bits, points of a set without
        an interior, such as a simplex, are violated by up to 8 roundings of the dtype.

    Raises
    ------
    InfeasibleError
        If the dtype has no such numbers.

    Notes
    -----
    A point that rounding moves out of the set is moved towards a point in the set's middle before
    it is rounded, by as few roundings as needed.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.sets.projections import round_into
    >>> ball, x = fedfw.L1Ball(1.0), torch.full((1, 3), 1 / 3, dtype=torch.float64)
    >>> rounded = round_into(ball, x, (3,), torch.bfloat16)
    >>> float(x.bfloat16().double().sum()) > 1.001, float(rounded.double().sum()) <= 1
    (True, True)
    """
    rounded = x.to(dtype)
    good = _holds(constraint, rounded.double(), shape, TOLERANCE)
    if bool(good.all()):
        return rounded
    middle = _middle(constraint, x, shape)
    step = torch.finfo(dtype).eps
    for roundings in _INWARD:  # from few to many: the first that suffices for a row is taken
        moved = (x + roundings * step * (middle - x)).to(dtype)
        newly_good = _holds(constraint, moved.double(), shape, TOLERANCE) & ~good
        rounded = torch.where(newly_good[:, None], moved, rounded)
        good = good | newly_good
        if bool(good.all()):
            return rounded
    allowed = TOLERANCE
    if dtype in (torch.float16, torch.bfloat16):
        allowed = _EQUALITY_ROUNDINGS * step
    good = good | _holds(constraint, rounded.double(), shape, allowed)
    if not bool(good.all()):
        size = float(x[~good].abs().max())
        raise InfeasibleError(
            f"{dtype} is too coarse for {constraint!r}: a point of it with entries up to "
            f"{size:.3g} lies outside after "
            "rounding. A dtype with more digits or a larger range is required, such as float64"
        )
    return rounded


def _middle(constraint: ConstraintSet, x: Tensor, shape: Shape) -> Tensor:
    """Return a point (p,) in the middle of the set: the mean of opposite extreme points."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(8, *shape, generator=generator, dtype=torch.float64).to(x.device)
    both = torch.cat([directions, -directions])
    points = constraint.lmo(both, batch=True, precision=torch.float64).dense(torch.float64)
    return points.reshape(len(both), -1).mean(0)
