"""Wald intervals and p-values of a maximum-likelihood fit, from sums alone.

With the Hessian H of the negative log-likelihood at the fit, the covariance of the estimates is
H^-1, times the residual variance for the linear model. The sandwich H^-1 S H^-1, with S the sum of
outer products of the rows' scores (HC0; for Cox's model Lin and Wei's residuals), holds without the
model's assumption on the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor

from fedfw.estimators.newton import NewtonFit
from fedfw.estimators.sums import Sums, restricted

Array = npt.NDArray[np.float64]


def wald(
    fit: NewtonFit,
    sums: Sums | None = None,
    names: Sequence[str] | None = None,
    *,
    sandwich: bool = False,
    level: float = 0.95,
) -> Any:
    """Return a table of estimates, standard errors, p-values and intervals.

    Parameters
    ----------
    fit : NewtonFit
    sums : Sums, optional
        At the fit, with ``outer`` for the sandwich: `total_sums(sites, likelihood, fit.theta,
        hessian=True, outer=True)`. By default those of the fit, which have no ``outer``.
    names : sequence of str, optional
        Of the parameters that were fitted; by default the fit's.
    sandwich : bool
        Whether standard errors are the sandwich's.
    level : float
        Of the intervals.

    Returns
    -------
    DataFrame or dict
        Columns ``coef``, ``se``, ``z``, ``p``, ``low``, ``high`` by the parameters' names, and for
        models with odds, rate or hazard ratios ``ratio``, ``ratio_low``, ``ratio_high``, which are
        exp of ``coef``, ``low`` and ``high``. Without pandas a mapping of mappings:
        ``table["coef"]["age"]`` is the same in both.

    Notes
    -----
    For the linear model, the variance has n - q degrees of freedom and ``z`` is Student's t with as
    many; with the sandwich it is normal, as in statsmodels. n counts rows, whatever their weights.

    Raises
    ------
    ValueError
        For a fit with separation or collinear columns, which are named, and for one that has not
        converged.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators.likelihoods import Gaussian
    >>> from fedfw.estimators.newton import maximum_likelihood
    >>> from fedfw.estimators.sites import as_sites
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> fit = maximum_likelihood(as_sites(X, np.array([0.0, 1.5, 1.5, 3.0])), Gaussian())
    >>> table = wald(fit, names=("dose", "intercept"))
    >>> round(float(table["coef"]["dose"]), 3), round(float(table["se"]["dose"]), 3)
    (0.9, 0.212)
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level}, expected a number between 0 and 1")
    refuse_without_maximum(fit)
    found = fit.sums if sums is None else sums
    chosen = np.array(fit.names)[fit.free.numpy()].tolist() if names is None else list(names)
    if len(chosen) != int(fit.free.sum()):
        raise ValueError(f"{len(chosen)} names for {int(fit.free.sum())} parameters")
    freedom = degrees_of_freedom(fit) if fit.likelihood.name == "linear" and not sandwich else None
    matrix = covariance(fit, found, sandwich=sandwich)
    coef = fit.theta[fit.free].numpy()
    se = matrix.diagonal().sqrt().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # a fit without residuals has se = 0
        z = coef / se
    if freedom is None:
        p = 2 * special.ndtr(-np.abs(z))
        factor = special.ndtri((1 + level) / 2)
    else:
        p = 2 * special.stdtr(freedom, -np.abs(z))
        factor = special.stdtrit(freedom, (1 + level) / 2)
    columns = {
        "coef": coef,
        "se": se,
        "z": z,
        "p": p,
        "low": coef - factor * se,
        "high": coef + factor * se,
    }
    if fit.likelihood.ratio is not None:
        with np.errstate(over="ignore"):
            columns["ratio"] = np.exp(columns["coef"])
            columns["ratio_low"] = np.exp(columns["low"])
            columns["ratio_high"] = np.exp(columns["high"])
    return as_table(columns, chosen)


def covariance(fit: NewtonFit, sums: Sums | None = None, *, sandwich: bool = False) -> Tensor:
    """Return the covariance (k, k) of the k parameters that were fitted.

    Where a model's parameters are determined up to a direction only (several classes), it is that
    of the parameters whose sum over the classes is zero.
    """
    found = restricted(fit.sums if sums is None else sums, fit.free)
    p = (len(fit.theta) - fit.likelihood.intercepts) // max(1, fit.likelihood.intercepts)
    structural = fit.likelihood.structural(p)[fit.free]
    structural = structural[:, (structural.norm(dim=0) - 1).abs() < 1e-9]
    basis = _complement(structural)
    hessian = basis.T @ found.curvature @ basis
    lengths = hessian.diagonal().sqrt()
    inverse: Tensor = torch.linalg.inv(hessian / lengths / lengths.unsqueeze(1))
    inverse = basis @ (inverse / lengths / lengths.unsqueeze(1)) @ basis.T
    if sandwich:
        if found.outer is None:
            raise ValueError(
                "the sandwich needs the sum of outer products of scores, expected "
                "total_sums(..., hessian=True, outer=True)"
            )
        return inverse @ found.outer @ inverse
    if fit.likelihood.name == "linear":
        return 2 * found.value / degrees_of_freedom(fit) * inverse
    return inverse


def degrees_of_freedom(fit: NewtonFit) -> int:
    """Return the number of rows less that of the parameters; refuse fewer than one."""
    left = fit.sums.rows - int(fit.free.sum())
    if left < 1:
        raise ValueError(
            f"{fit.sums.rows} rows for {int(fit.free.sum())} parameters leave no degree of "
            "freedom, expected more rows than parameters"
        )
    return left


def as_table(columns: dict[str, Array], names: Sequence[str]) -> Any:
    """Return columns by name: a frame of pandas where it is installed, else a mapping."""
    try:
        import pandas
    except ImportError:
        return {
            column: dict(zip(names, values.tolist(), strict=True))
            for column, values in columns.items()
        }
    return pandas.DataFrame(columns, index=list(names))


def _complement(directions: Tensor) -> Tensor:
    """Return an orthonormal basis (q, q - k) of what is orthogonal to directions (q, k)."""
    q, k = directions.shape
    if k == 0:
        return torch.eye(q, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(directions, mode="complete")[0]
    return basis[:, k:]


def refuse_without_maximum(fit: NewtonFit) -> None:
    """Refuse fits whose standard errors would mean nothing."""
    if fit.separated:
        raise ValueError(
            f"no inference: the coefficients of {', '.join(fit.separated)} have no finite estimate "
            "(separation); leave these variables out"
        )
    if fit.collinear:
        raise ValueError(
            f"no inference: the columns {', '.join(fit.collinear)} are collinear, so their "
            "coefficients are not determined; leave one of them out"
        )
    if not fit.converged:
        raise ValueError(
            f"no inference: Newton's decrement is {fit.decrement:.2g} of the loss after "
            f"{fit.steps} steps, so the fit is no maximum; raise max_steps or standardise the "
            "columns"
        )
