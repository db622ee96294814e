"""A norm ball around a set, for clients that cannot afford the oracle of the set itself."""

import math
from collections.abc import Callable
from math import prod

from fedfw.sets.base import ConstraintSet, Shape
from fedfw.sets.norm_balls import L1Ball, L2Ball, LinfBall
from fedfw.sets.spectral import NuclearBall, SpectralBall

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
    """Return an upper bound on a norm over a set, derived from the norms that the set knows.

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
        The largest value of the norm over the set if the set knows it, otherwise an upper bound.

    Examples
    --------
    >>> import fedfw
    >>> from fedfw.sets.enclosing import largest_norm
    >>> largest_norm(fedfw.L1Ball(3.0), "l2", (10,))
    3.0
    """
    known = constraint._norms(shape)
    if norm in known:
        return known[norm]
    p = prod(shape)
    q = 1
    if len(shape) > 1:
        q = min(shape[0], prod(shape[1:]))
    l1, l2, linf, spectral, nuclear = (known.get(name, math.inf) for name in _BALLS)
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
    """sqrt(one * other): the l2 norm is at most sqrt(l1 * linf), and the same holds for singular
    values.
    """
    if math.isfinite(one) and math.isfinite(other):
        return math.sqrt(one * other)
    return math.inf
