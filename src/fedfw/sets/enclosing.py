"""A simple set around another one, for clients that cannot afford its oracle."""

from __future__ import annotations

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


def enclosing(constraint: ConstraintSet, norm: str, shape: Shape | None = None) -> ConstraintSet:
    """The ball of ``norm`` around the origin that contains ``constraint``.

    Its radius is the largest value of the norm over the set, or an upper bound from the inequalities between norms.

    Parameters
    ----------
    norm
        "l1", "l2", "linf", "spectral" or "nuclear".
    shape
        The parameter's shape; may be left out where the radius does not depend on it.
    """
    if norm not in _BALLS:
        raise ValueError(f"enclosing: unknown norm {norm!r}, expected one of {', '.join(_BALLS)}")
    if shape is not None:
        constraint._check_shape(tuple(shape))
        return _BALLS[norm](largest_norm(constraint, norm, tuple(shape)))
    size = constraint.fixed_size
    probes: list[Shape] = [(128, 128), (256, 256)] if size is None else [(size,)]
    radii = {_radius_at(constraint, norm, probe) for probe in probes}
    if len(radii) == 1 and (radius := radii.pop()) is not None:
        return _BALLS[norm](radius)
    raise ValueError(f"enclosing: the {norm} radius of {constraint!r} depends on the shape: pass shape=")


def _radius_at(constraint: ConstraintSet, norm: str, shape: Shape) -> float | None:
    try:
        constraint._check_shape(shape)
        return largest_norm(constraint, norm, shape)
    except ValueError:
        return None


def largest_norm(constraint: ConstraintSet, norm: str, shape: Shape) -> float:
    """An upper bound on ``norm`` over the set, from the norms the set knows."""
    known = constraint._norms(shape)
    if norm in known:
        return known[norm]
    p = prod(shape)
    q = min(shape[0], prod(shape[1:])) if len(shape) > 1 else 1
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
    """sqrt(one * other): l2 <= sqrt(l1 linf), and the same for singular values."""
    return math.sqrt(one * other) if math.isfinite(one) and math.isfinite(other) else math.inf
