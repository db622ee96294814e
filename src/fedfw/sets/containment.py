"""Whether one set lies inside another: proven by norms where they are known, refuted by a point, or
not known.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedfw.sets.base import ConstraintSet, Shape
from fedfw.sets.enclosing import largest_norm
from fedfw.sets.norm_balls import Box, L1Ball, L2Ball, LinfBall
from fedfw.sets.product import BoundProduct, LinearLayerSet
from fedfw.sets.simplices import CappedSimplex, Hypersimplex, Simplex
from fedfw.sets.sparse_balls import GroupBall, KSparse, KSupport
from fedfw.sets.spectral import NuclearBall, PartialIsometry, SpectralBall

TRIED = 16
"""How many extreme points are tried where nothing can be proven."""
_ROUNDING = 1 + 1e-12

_SUFFICE: dict[type[ConstraintSet], Callable[[Any], dict[str, float]]] = {
    # Bounds on norms that together put a point inside the set.
    L1Ball: lambda D: {"l1": D.r},
    L2Ball: lambda D: {"l2": D.r},
    LinfBall: lambda D: {"linf": D.r},
    KSparse: lambda D: {"linf": D.r, "l1": D.k * D.r},
    KSupport: lambda D: {"l1": D.r},
    GroupBall: lambda D: {"l1": D.r},
    NuclearBall: lambda D: {"nuclear": D.r},
    SpectralBall: lambda D: {"spectral": D.r},
    PartialIsometry: lambda D: {"spectral": D.r, "nuclear": D.k * D.r},
}


def contains_set(larger: ConstraintSet, smaller: ConstraintSet, shape: Shape) -> bool | None:
    """Return whether every point of one set lies in another.

    Parameters
    ----------
    larger : ConstraintSet
        The set that is to contain the other.
    smaller : ConstraintSet
        The set that is to lie inside.
    shape : tuple of int
        Shape of the parameter.

    Returns
    -------
    bool or None
        True where it is proven, False where an extreme point of ``smaller`` lies outside, and None
        where it is not known: nothing proves it, and `TRIED` extreme points for random directions
        lie inside.

    Examples
    --------
    >>> import fedfw
    >>> from fedfw.sets.containment import contains_set
    >>> l1, l2 = fedfw.L1Ball(1.0), fedfw.L2Ball(1.0)
    >>> contains_set(l2, l1, (5,)), contains_set(l1, l2, (5,))
    (True, False)
    """
    if _is_proven(larger, smaller, shape):
        return True
    g = torch.randn(TRIED, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    atoms = smaller.lmo(g, batch=True).dense(torch.float64)
    if bool(torch.as_tensor(larger.contains(atoms, 1e-5, batch=True)).all()):
        return None
    return False


def _is_proven(larger: ConstraintSet, smaller: ConstraintSet, shape: Shape) -> bool:
    if larger == smaller:
        return True
    match larger, smaller:
        case BoundProduct(), BoundProduct() if larger.shapes == smaller.shapes:
            return all(map(_is_proven, larger.parts, smaller.parts, larger.shapes))
        case LinearLayerSet(), LinearLayerSet():
            return _is_proven(larger.inner, smaller.inner, larger._matrix)
        case Box(), _:
            lo, hi = larger._bounds()
            least, most = _range(smaller, shape)
            return bool((lo <= least).all() and (most <= hi).all())
        case CappedSimplex(), Simplex() | Hypersimplex():  # a CappedSimplex is a Simplex here
            return largest_norm(smaller, "l1", shape) <= larger.r * _ROUNDING
        case KSupport() | GroupBall(), KSupport() | GroupBall() if smaller.r <= larger.r:
            if replace(larger, r=smaller.r) == smaller:
                return True
    if type(larger) not in _SUFFICE:  # of a class that derives from one of them nothing is known
        return False
    limits = _SUFFICE[type(larger)](larger)
    return all(
        largest_norm(smaller, norm, shape) <= limit * _ROUNDING for norm, limit in limits.items()
    )


def _range(constraint: ConstraintSet, shape: Shape) -> tuple[Tensor, Tensor]:
    """Numbers between which every coordinate of a set's points lies, float64, each of shape () or
    (p,).
    """
    if isinstance(constraint, Box):
        return constraint._bounds()
    most = torch.tensor(largest_norm(constraint, "linf", shape), dtype=torch.float64)
    return torch.zeros_like(most) if isinstance(constraint, Simplex | Hypersimplex) else -most, most
