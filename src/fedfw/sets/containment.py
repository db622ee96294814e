"""Containment of one set in another: proven by norms where they are known, refuted by a point, or
left open; and a norm ball around a set, for clients that cannot afford the oracle of the set
itself.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedfw.sets.base import ConstraintSet, Shape
from fedfw.sets.norm_balls import Box, L1Ball, L2Ball, LinfBall
from fedfw.sets.product import BoundProduct, LinearLayerSet
from fedfw.sets.simplices import CappedSimplex, Hypersimplex, Simplex
from fedfw.sets.sparse_balls import GroupBall, KSparse, KSupport
from fedfw.sets.spectral import NuclearBall, PartialIsometry, SpectralBall

TRIED = 16
"""The number of extreme points that are tried where nothing can be proven."""
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
    # The extreme points that the oracle returns for random directions, the same in every call.
    g = torch.randn(TRIED, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    atoms = smaller.lmo(g, batch=True).dense(torch.float64)
    if bool(torch.as_tensor(larger.contains(atoms, 1e-5, batch=True)).all()):
        return None
    return False


def _is_proven(larger: ConstraintSet, smaller: ConstraintSet, shape: Shape) -> bool:
    """Return whether ``smaller`` lies inside ``larger`` for points of this shape, by rules that are
    each a proof; False says that no rule applies, not that it lies outside.
    """
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
            # The same norm with a smaller radius; otherwise the norms below may still decide.
            if replace(larger, r=smaller.r) == smaller:
                return True
    # Norm bounds that suffice to lie in ``larger``; a subclass may be a smaller set.
    if type(larger) not in _SUFFICE:
        return False
    limits = _SUFFICE[type(larger)](larger)
    return all(
        largest_norm(smaller, norm, shape) <= limit * _ROUNDING for norm, limit in limits.items()
    )


def _range(constraint: ConstraintSet, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return numbers between which every coordinate of a set's points lies, float64, each of shape
    () or (p,).
    """
    if isinstance(constraint, Box):
        return constraint._bounds()
    most = torch.tensor(largest_norm(constraint, "linf", shape), dtype=torch.float64)
    return torch.zeros_like(most) if isinstance(constraint, Simplex | Hypersimplex) else -most, most


_BALLS: dict[str, Callable[[float], ConstraintSet]] = {
    "l1": L1Ball,
    "l2": L2Ball,
    "linf": LinfBall,
    "spectral": SpectralBall,
    "nuclear": NuclearBall,
}


def enclosing(constraint: ConstraintSet, norm: str, shape: Shape) -> ConstraintSet:
    """Return a ball around the origin, in a norm of your choice, that contains a given set.

    Clients that cannot afford the oracle of the set may use that of the ball (see ``relax`` of
    `fedfw.simulate`).

    Parameters
    ----------
    constraint : ConstraintSet
        The set to be enclosed.
    norm : str
        "l1", "l2", "linf", "spectral" or "nuclear".
    shape : tuple of int
        The parameter's shape.

    Returns
    -------
    ConstraintSet
        An `L1Ball`, `L2Ball`, `LinfBall`, `SpectralBall` or `NuclearBall`. Its radius is the
        largest value of the norm over the set, or an upper bound that follows from inequalities
        between norms.

    Raises
    ------
    ValueError
        If the norm is unknown, or the set is not defined for the shape.

    Examples
    --------
    >>> import torch, fedfw
    >>> fedfw.enclosing(fedfw.KSparse(4, 2.0), "l2", (16,))
    L2Ball(r=4.0)
    >>> fedfw.enclosing(fedfw.L2Ball(1.0), "l1", (16,))
    L1Ball(r=4.0)
    """
    if norm not in _BALLS:
        raise ValueError(f"enclosing: unknown norm {norm!r}, expected one of {', '.join(_BALLS)}")
    constraint._check_shape(tuple(shape))
    return _BALLS[norm](largest_norm(constraint, norm, tuple(shape)))


def largest_norm(constraint: ConstraintSet, norm: str, shape: Shape) -> float:
    """Return an upper bound on a norm over a set, derived from the norms that the set states.

    Parameters
    ----------
    constraint : ConstraintSet
        The set.
    norm : str
        "l1", "l2", "linf", "spectral" or "nuclear".
    shape : tuple of int
        The parameter's shape.

    Returns
    -------
    float
        The largest value of the norm over the set if the set states it, otherwise an upper bound.

    Examples
    --------
    >>> import fedfw
    >>> from fedfw.sets.containment import largest_norm
    >>> largest_norm(fedfw.L1Ball(3.0), "l2", (10,))
    3.0
    """
    norms = constraint._norms(shape)
    if norm in norms:
        return norms[norm]
    # From the other norms: |x|_2 <= |x|_1 <= sqrt(p) |x|_2, |x|_2 <= sqrt(|x|_1 |x|_inf), and so
    # on; the same for the q singular values of a matrix, a vector having one.
    p = prod(shape)
    q = 1
    if len(shape) > 1:
        q = min(shape[0], prod(shape[1:]))
    l1, l2, linf, spectral, nuclear = (norms.get(name, math.inf) for name in _BALLS)
    from_entries = min(l1, math.sqrt(p) * linf, _geometric(l1, linf))
    from_singular_values = min(nuclear, math.sqrt(q) * spectral, _geometric(nuclear, spectral))
    l2 = min(l2, from_entries, from_singular_values)
    from_others = {
        "l2": l2,
        "l1": min(math.sqrt(p) * l2, p * linf),
        "linf": min(l2, spectral),
        "spectral": l2,
        "nuclear": min(math.sqrt(q) * l2, l1, q * spectral),
    }
    return from_others[norm]


def _geometric(one: float, other: float) -> float:
    """Return sqrt(one * other): the l2 norm is at most sqrt(l1 * linf), and the same holds for
    singular values.
    """
    if math.isfinite(one) and math.isfinite(other):
        return math.sqrt(one * other)
    return math.inf
