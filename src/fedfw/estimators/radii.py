"""The radius of a constraint: sets that differ in it, its grids, and fits that begin at another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from torch import Tensor

from fedfw.estimators.after_selection import halves
from fedfw.estimators.base import FederatedEstimator
from fedfw.estimators.fitting import Bytes
from fedfw.estimators.model import Prepared, Settings, prepare
from fedfw.sets import ConstraintSet, L1Ball
from fedfw.sets.registry import as_set

Array = npt.NDArray[Any]

_SMALLEST = 0.25
"""The smallest radius of a grid, as a share of the step to the best first variable."""
_DOUBLINGS = 7
"""The largest radius of a grid is at most 2 to the power of this times that step."""
_LITTLE = 0.1
"""Share of the whole decrease of the loss below which a doubling of the radius gains too little."""


def default_radii(
    estimator: FederatedEstimator,
    X: Any,
    y: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    offset: Any = None,
    count: int = 20,
) -> Array:
    """Return a geometric grid of radii (count,).

    With r_1 the radius at which one Frank-Wolfe step from the null model, of the best length, ends,
    the grid begins at a quarter of r_1. It ends where the constraint stops binding: the radius is
    doubled until the fit lies inside of the set, or gains less than 10 % of the whole decrease of
    the loss, or 128 r_1 is reached, as where classes are separated.

    The parameters are those of `path`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators import LinearRegression, default_radii
    >>> X = np.random.default_rng(0).standard_normal((60, 3))
    >>> default_radii(LinearRegression(), X, X @ [1.0, 0.5, 0.0], count=3).round(2)
    array([0.28, 0.65, 1.51])
    """
    refuse_privacy(estimator, "default_radii")
    estimator = clone(estimator)
    sites = estimator._read(X, y, groups, sample_weight, offset)
    settings = with_radius(estimator._settings(), 1.0)
    used = halves(sites, settings.seed)[0] if estimator.infer == "split" else sites
    prepared = prepare(used, estimator._likelihood(sites), settings)
    return search_radii(prepared, settings, count)[0]


def search_radii(prepared: Prepared, settings: Settings, count: int) -> tuple[Array, Bytes]:
    """Return the grid of `default_radii` and the bytes that were sent for it."""
    first, sent = _first_radius(prepared, settings)
    loss = prepared.null_loss
    radius = first
    model = None
    for _ in range(_DOUBLINGS):
        radius *= 2
        stated = with_radius(settings, radius)
        start = None if model is None else stretched(prepared, stated, model.parameters, 2.0)
        model = prepared.fit(stated, start)
        sent = sent + model.bytes
        free = _inner_radius(prepared, stated, model.parameters)
        gained = loss - model.certificate.loss
        loss = model.certificate.loss
        if free < 1:
            radius *= free
            break
        if gained <= _LITTLE * (prepared.null_loss - loss):
            break
    return np.geomspace(min(_SMALLEST * first, radius), radius, count), sent


def _first_radius(prepared: Prepared, settings: Settings) -> tuple[float, Bytes]:
    """Return how far, as a share of the set's radius 1, the best step along the oracle's answer
    from the null model goes, and the bytes of its two gradients.
    """
    x = prepared.null_theta
    _, gradient = prepared.problem.value_and_gradient(x)
    atom = prepared.constraint(settings).lmo(gradient).dense()
    count = prepared.rows * prepared.geometry(settings).penalised
    step = atom.to(x, copy=True)
    step[count:] = 0.0
    width = 1e-3
    _, moved = prepared.problem.value_and_gradient(x + width * step)
    slope = -float(gradient @ step)
    curvature = float((moved - gradient) @ step) / width
    clients = len(prepared.sites)
    sent = Bytes.of_exchanges(2 * clients * 8 * len(x), 2, clients)
    if slope <= 0 or curvature <= 0:
        return 1.0, sent
    return slope / curvature, sent


def stretched(prepared: Prepared, settings: Settings, x: Tensor, ratio: float) -> Tensor:
    """Return the parameters (q,) of the last fit for a radius that is ``ratio`` times as large:
    multiplied by it where the last constraint was binding.
    """
    wider = x.clone()
    wider[: prepared.rows * prepared.geometry(settings).penalised] *= ratio
    binding = _inner_radius(prepared, settings, wider) >= 1 - 1e-3
    return wider if binding or not prepared.constraint(settings).contains(x) else x


def _inner_radius(prepared: Prepared, settings: Settings, x: Tensor) -> float:
    """Return the radius of the smallest set of the kind around x (q,), as a share of the set's own:
    1 where x is at its surface.
    """
    constraint = prepared.constraint(settings)
    penalised = prepared.rows * prepared.geometry(settings).penalised
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        wider = x.clone()
        wider[:penalised] /= middle
        if constraint.contains(wider):
            high = middle
        else:
            low = middle
    return high if high < 1 - 1e-3 else 1.0


def with_radius(settings: Settings, radius: float) -> Settings:
    """Return the settings with another radius of the constraint."""
    statement = settings.statement
    changed = dataclasses.replace(statement, constraint=set_of_radius(statement.constraint, radius))
    return dataclasses.replace(settings, statement=changed)


def set_of_radius(constraint: Any, radius: float) -> ConstraintSet:
    """Return a set of the same kind with this radius; None is an l1 ball."""
    if constraint is None:
        return L1Ball(radius)
    ball: Any = as_set(constraint)
    names = {field.name for field in dataclasses.fields(ball)}
    if "r" not in names:
        raise ValueError(f"{ball!r} has no radius, expected a set with one, such as l1:8")
    changed: ConstraintSet = dataclasses.replace(ball, r=radius)
    return changed


def sorted_radii(radii: Sequence[float] | Array) -> Array:
    """Return radii (R,) rising and without repetitions; refuse any that is no positive number."""
    grid = np.unique(np.asarray(radii, dtype=np.float64))
    if grid.ndim != 1 or not len(grid) or not np.isfinite(grid).all() or grid[0] <= 0:
        raise ValueError(f"radii={radii!r}, expected one or more positive numbers")
    return grid


def refuse_privacy(estimator: FederatedEstimator, what: str) -> None:
    """Refuse many fits of the same rows under a privacy budget that one fit is meant to spend."""
    if estimator.privacy is not None:
        raise ValueError(
            f"{what} with privacy={estimator.privacy!r}: every fit and every score would be "
            "charged to the budget. Expected privacy=None, on rows that are public or agreed for "
            "it: choose the radius there, then make one private fit"
        )
