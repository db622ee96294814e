"""Fits at several radii, each from the parameters of the last.

The first fit, at the smallest radius, is a whole one. The others share its scaling, problem and
curvature and begin at its parameters, stretched to the new radius: where sums of gradients may be
shared they are polished at once, and each ends with a certificate of its own (`Prepared.fit`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from sklearn.base import clone
from torch import Tensor

from fedfw.estimators.after_selection import halves
from fedfw.estimators.base import FederatedEstimator
from fedfw.estimators.fitting import Bytes, Certificate
from fedfw.estimators.model import FittedModel, Prepared, Settings, prepare
from fedfw.estimators.sites import Sites
from fedfw.report.plots import save_figure
from fedfw.sets import ConstraintSet, L1Ball
from fedfw.sets.registry import as_set

Array = npt.NDArray[Any]

_SMALLEST = 0.25
"""The smallest radius of a grid, as a share of the step to the best first variable."""
_DOUBLINGS = 7
"""The largest radius of a grid is at most 2 to the power of this times that step."""
_LITTLE = 0.1
"""Share of the whole decrease of the loss below which a doubling of the radius gains too little."""
_LABELLED = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Path:
    """Fits at several radii.

    Parameters
    ----------
    estimator : FederatedEstimator
        That the fits are of; its own radius has no meaning here.
    names : tuple of str
        Of the p columns.
    radii : array
        (R,), rising.
    coefficients : array
        (R, p) on the original scale; (R, K, p) with several classes.
    selected : array
        (R, p), which variables are in each model.
    losses : array
        (R,), the mean loss of a row.
    certificates : tuple of Certificate
        A proof for each fit.
    bytes : Bytes
        What all clients sent for all fits.
    scale : array
        (p,): what a coefficient is multiplied by for the standardised column.
    models : tuple of FittedModel
        The fits.
    sites : Sites
        The data of the fits.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators import LinearRegression, path
    >>> X = np.random.default_rng(0).standard_normal((60, 3))
    >>> found = path(LinearRegression("l1:1"), [0.5, 1, 2], X, X @ [1.0, 0.5, 0.0])
    >>> found.selected.sum(1), found.at(2.0).coef_.round(3)
    (array([1, 2, 2]), array([1. , 0.5, 0. ]))
    """

    estimator: FederatedEstimator
    names: tuple[str, ...]
    radii: Array
    coefficients: Array
    selected: Array
    losses: Array
    certificates: tuple[Certificate, ...]
    bytes: Bytes
    scale: Array
    models: tuple[FittedModel, ...]
    sites: Sites

    def at(self, radius: float) -> FederatedEstimator:
        """Return the fitted estimator at one of the radii; no client computes a gradient for it."""
        (places,) = np.nonzero(np.isclose(self.radii, radius, rtol=1e-9))
        if not len(places):
            shown = ", ".join(f"{r:.4g}" for r in self.radii)
            raise ValueError(f"radius={radius!r} is not on the path, expected one of {shown}")
        return fitted(
            self.estimator, self.sites, float(self.radii[places[0]]), self.models[places[0]]
        )

    def plot(self, file: str | FilePath | None = None) -> Figure:
        """Draw the coefficients of standardised columns against the radius, a line a variable, and
        save the picture where a file is given (.png, .svg or .pdf).
        """
        figure = Figure(figsize=(8, 5), layout="constrained")
        axis = figure.subplots()
        lines = self.coefficients * self.scale
        lines = lines.reshape(len(self.radii), -1, len(self.names))
        largest = np.abs(lines).max((0, 1))
        labelled = set(np.argsort(-largest)[:_LABELLED].tolist())
        for j in np.flatnonzero(self.selected.any(0)):
            label = self.names[j] if j in labelled else None
            for k in range(lines.shape[1]):
                style = f"C{j % 10}"
                axis.plot(self.radii, lines[:, k, j], style, lw=1, label=label if k == 0 else None)
        axis.axhline(0, color="0.7", lw=0.8)
        axis.set(xscale="log", xlabel="radius", ylabel="coefficient of the standardised column")
        if labelled & set(np.flatnonzero(self.selected.any(0)).tolist()):
            axis.legend(fontsize=8, title="largest coefficients")
        if file is not None:
            save_figure(figure, FilePath(file))
        return figure


def path(
    estimator: FederatedEstimator,
    radii: Sequence[float] | Array | None,
    X: Any,
    y: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    offset: Any = None,
) -> Path:
    """Fit an estimator at several radii, each fit from the parameters of the last.

    Parameters
    ----------
    estimator : FederatedEstimator
        Its constraint says which set has the radii, such as ``"l1:1"``; None is an l1 ball.
    radii : sequence of float, optional
        In any order; None takes `default_radii`.
    X, y, groups, sample_weight, offset
        As of the estimator's ``fit``.

    Returns
    -------
    Path
        With the radii rising.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators import LogisticRegression, path
    >>> X = np.random.default_rng(0).standard_normal((80, 4))
    >>> found = path(LogisticRegression(), [2.0, 0.1], X, X[:, 2] > 0, groups=np.arange(80) % 2)
    >>> found.radii, found.selected[0]
    (array([0.1, 2. ]), array([False, False,  True, False]))
    """
    refuse_privacy(estimator, "path")
    estimator = clone(estimator)
    sites = estimator._read(X, y, groups, sample_weight, offset)
    return path_of_sites(estimator, radii, sites)


def path_of_sites(
    estimator: FederatedEstimator, radii: Sequence[float] | Array | None, sites: Sites
) -> Path:
    """Return the path of an estimator that has read the sites; with ``infer="split"`` it is that of
    the halves that select.
    """
    settings = with_radius(estimator._settings(), 1.0)
    likelihood = estimator._likelihood(sites)
    used = halves(sites, settings.seed)[0] if estimator.infer == "split" else sites
    prepared = prepare(used, likelihood, settings)
    searched = Bytes()
    if radii is None:
        radii, searched = search_radii(prepared, settings, 20)
    grid = sorted_radii(radii)
    models = fit_radii(prepared, settings, grid)
    coefficients = np.stack([model.coef.numpy() for model in models])
    return Path(
        estimator,
        sites.names,
        grid,
        coefficients[:, 0] if prepared.rows == 1 else coefficients,
        np.stack([model.selected.numpy() for model in models]),
        np.array([model.certificate.loss for model in models]),
        tuple(model.certificate for model in models),
        sum((model.bytes for model in models), searched),
        prepared.scaling.scale.numpy(),
        tuple(models),
        sites,
    )


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


def fit_radii(prepared: Prepared, settings: Settings, radii: Array) -> list[FittedModel]:
    """Return the fits at rising radii (R,), each from the parameters of the last."""
    models: list[FittedModel] = []
    for i, radius in enumerate(radii):
        stated = with_radius(settings, float(radius))
        start = None
        if models:
            ratio = float(radius / radii[i - 1])
            start = stretched(prepared, stated, models[-1].parameters, ratio)
        models.append(prepared.fit(stated, start))
    return models


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
    if not (dataclasses.is_dataclass(ball) and "r" in {f.name for f in dataclasses.fields(ball)}):
        raise ValueError(f"{ball!r} has no radius, expected a set with one, such as l1:8")
    changed: ConstraintSet = dataclasses.replace(ball, r=radius)
    return changed


def sorted_radii(radii: Sequence[float] | Array) -> Array:
    """Return radii (R,) rising and without repetitions; refuse those that are no positive numbers."""
    grid = np.unique(np.asarray(radii, dtype=np.float64))
    if grid.ndim != 1 or not len(grid) or not np.isfinite(grid).all() or grid[0] <= 0:
        raise ValueError(f"radii={radii!r}, expected one or more positive numbers")
    return grid


def refuse_privacy(estimator: FederatedEstimator, what: str) -> None:
    """Refuse many fits of the same rows under a privacy budget that one fit is meant to spend."""
    if estimator.privacy is not None:
        raise ValueError(
            f"{what} with privacy={estimator.privacy!r}: every fit and every score would be charged "
            "to the budget. Expected privacy=None, on rows that are public or agreed for it: "
            "choose the radius there, then make one private fit"
        )


def fitted(
    estimator: FederatedEstimator, sites: Sites, radius: float, model: FittedModel
) -> FederatedEstimator:
    """Return an estimator with the fitted attributes of a model of its sites."""
    found: FederatedEstimator = clone(estimator)
    found.set_params(constraint=set_of_radius(estimator.constraint, radius))
    found.n_features_in_ = estimator.n_features_in_
    if hasattr(estimator, "feature_names_in_"):
        found.feature_names_in_ = estimator.feature_names_in_
    return found._fit_sites(sites, model)
