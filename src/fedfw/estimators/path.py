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
from matplotlib.figure import Figure
from sklearn.base import clone

from fedfw.estimators.after_selection import halves
from fedfw.estimators.base import FederatedEstimator
from fedfw.estimators.fitting import Bytes, Certificate
from fedfw.estimators.model import FittedModel, Prepared, Settings, prepare
from fedfw.estimators.radii import (
    Array,
    refuse_privacy,
    search_radii,
    set_of_radius,
    sorted_radii,
    stretched,
    with_radius,
)
from fedfw.estimators.sites import Sites
from fedfw.report.plots import save_figure

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
