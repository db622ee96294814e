"""Maximum likelihood from sums: Newton steps, with the cases in which there is no maximum.

The server sends theta, each site returns `Sums`, and the server takes the step. Two properties of
the data are found on the way:

- **Collinear columns.** A direction in which no row's predictor changes is in the null space of
  every Hessian. The fit is the one with the shortest coefficients; inference is refused.
- **Separation** (Cox: a monotone likelihood). The likelihood rises for ever along some direction.
  Newton's steps then keep their length while the decrement falls by a constant factor. The fit ends
  there, with finite coefficients and a warning that names the variables.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedfw.estimators.likelihoods import Likelihood, total_start, total_sums
from fedfw.estimators.newton_geometry import Geometry
from fedfw.estimators.sites import Sites
from fedfw.estimators.sums import Sums, restricted

_STILL_LONG = 0.8
"""Steps that are at least this share of the last one do not become shorter."""
_LONG_STEPS = 4
"""Such steps in a row that show separation where `_is_far` holds, too."""
_SEPARATED = 1e-8
"""Of the decrement over the value at the start: far from it, Newton's steps may be long, too."""
_PERFECT = 1e-3
"""Of the value over that at the start: all outcomes are separated if the decrement does not fall
beside it.
"""
_NAMED = 0.1
"""Shares of the longest entry of a separating direction from which a variable is named."""
_DECREASE = 1e-4
_HALVINGS = 40
_ROUNDING = 1e-14


class SeparationWarning(UserWarning):
    """The likelihood has no maximum: some coefficients grow without end."""


@dataclass(frozen=True, eq=False)
class NewtonFit:
    """A maximum-likelihood fit.

    Parameters
    ----------
    theta : Tensor
        (q,), the parameters in the order of `Likelihood`.
    value : float
        The negative log-likelihood there.
    hessian : Tensor
        (q, q) there.
    sums : Sums
        All sums there.
    decrement : float
        Newton's decrement g' H^-1 g / 2 over the value, before the last step: how much of the value
        was left to win.
    steps, exchanges : int
        Newton steps, and the times that sites were asked for sums.
    bytes : int
        Of all parameters sent to sites and all sums that they returned.
    converged : bool
        Whether the decrement came below ``tol``.
    separated, collinear : tuple of str
        The parameters without a finite estimate, and those of collinear columns.
    names : tuple of str
        Of all q parameters.
    free : Tensor
        (q,), a mask: parameters that were fitted, the others being fixed.
    likelihood : Likelihood
    """

    theta: Tensor
    value: float
    hessian: Tensor
    sums: Sums
    decrement: float
    steps: int
    exchanges: int
    bytes: int
    converged: bool
    separated: tuple[str, ...]
    collinear: tuple[str, ...]
    names: tuple[str, ...]
    free: Tensor
    likelihood: Likelihood


def maximum_likelihood(
    sites: Sites,
    likelihood: Likelihood,
    start: Tensor | None = None,
    *,
    free: Tensor | None = None,
    tol: float = 1e-12,
    max_steps: int = 50,
) -> NewtonFit:
    """Return the maximum-likelihood fit, from sums over each site's rows.

    Parameters
    ----------
    sites : Sites
    likelihood : Likelihood
    start : Tensor, optional
        (q,); by default the model of the intercept alone.
    free : Tensor, optional
        (q,), a mask of the parameters to fit; the others stay at ``start``, or at 0.
    tol : float
        The fit ends after the step whose decrement, over the value, is at most this.
    max_steps : int
        More are not taken: a warning gives the decrement.

    Returns
    -------
    NewtonFit

    Warns
    -----
    SeparationWarning
        Where the likelihood has no maximum; the message names the variables.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators.likelihoods import Gaussian
    >>> from fedfw.estimators.sites import as_sites
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> fit = maximum_likelihood(as_sites(X, 1 + 2 * X[:, 0], groups=[0, 0, 1, 1]), Gaussian())
    >>> [round(number, 6) for number in fit.theta.tolist()], fit.converged
    ([2.0, 1.0], True)
    """
    likelihood.validate_all(sites)
    q = likelihood.width(sites.p)
    mask = torch.ones(q, dtype=torch.bool) if free is None else free.bool()
    exchange = _Exchange(sites, likelihood, mask)
    theta = _first_point(sites, likelihood, start, mask, free is not None)
    sums = exchange(theta)
    if not _is_finite(sums):
        raise ValueError(
            "the likelihood at the start is NaN or infinite, expected finite numbers: standardise "
            "the columns, or look for extreme offsets"
        )
    geometry = Geometry.of(sums, likelihood.structural(sites.p)[mask])
    reference = abs(sums.value)
    decrement = float("inf")
    path: list[float] = []
    steps = 0
    converged = False
    separated = False
    while steps < max_steps:
        step = geometry.newton_step(sums)
        decrement = max(0.0, -float(sums.gradient @ step)) / 2
        scale = max(abs(sums.value), _ROUNDING * reference)
        # A fit without residuals has the value 0.
        relative = decrement / scale if decrement > 0 else 0.0
        converged = relative <= tol
        moved = _line_search(exchange, theta, sums, step, decrement, mask)
        if moved is None:
            # Not even the shortest step is seen in the value: only rounding is left.
            converged = converged or decrement <= 1e3 * _ROUNDING * max(scale, reference)
            break
        theta, sums, share = moved
        steps += 1
        if converged:
            break
        path.append(geometry.length(step) if share == 1 else 0.0)
        separated = _is_far(decrement, sums.value, reference) and _keeps_its_length(path)
        if separated:
            break
    decrement = decrement / max(abs(sums.value), _ROUNDING * reference, 1e-300)
    all_names = likelihood.parameter_names(sites.names)
    names = [name for name, is_free in zip(all_names, mask.tolist(), strict=True) if is_free]
    without_end = geometry.named(step, names, _NAMED) if separated else ()
    final = exchange.all_sums(theta)
    # The predictors stay as they are, and so do all sums.
    theta = theta.clone()
    theta[mask] = geometry.shortest(theta[mask], _is_coefficient(likelihood, sites.p)[mask])
    fit = NewtonFit(
        theta,
        final.value,
        final.curvature,
        final,
        decrement,
        steps,
        exchange.count,
        exchange.bytes,
        converged and not separated,
        without_end,
        geometry.collinear(names),
        all_names,
        mask,
        likelihood,
    )
    _warn(fit, tol)
    return fit


def null_model(sites: Sites, likelihood: Likelihood) -> NewtonFit:
    """Return the fit of the intercept alone (Cox: of no parameter), whose loss tolerances refer to.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators.likelihoods import Gaussian
    >>> from fedfw.estimators.sites import as_sites
    >>> null_model(as_sites(np.ones((2, 1)), np.array([1.0, 3.0])), Gaussian()).value
    1.0
    """
    free = ~_is_coefficient(likelihood, sites.p)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeparationWarning)
        return maximum_likelihood(sites, likelihood, free=free)


class _Exchange:
    """Asks all sites for sums, and counts what travels."""

    def __init__(self, sites: Sites, likelihood: Likelihood, free: Tensor) -> None:
        self.sites = sites
        self.likelihood = likelihood
        self.free = free
        self.count = 0
        self.bytes = 8 * len(likelihood.totals(sites[0])) * len(sites)
        self._last: tuple[Tensor, Sums] | None = None

    def __call__(self, theta: Tensor) -> Sums:
        """Return the sums for the free parameters, with the Hessian."""
        return restricted(self.all_sums(theta), self.free)

    def all_sums(self, theta: Tensor) -> Sums:
        """Return the sums for all parameters, those of the last point without asking again."""
        if self._last is not None and torch.equal(self._last[0], theta):
            return self._last[1]
        sums = total_sums(self.sites, self.likelihood, theta, hessian=True)
        self.count += 1
        self.bytes += len(self.sites) * (8 * len(theta) + sums.bytes)
        self._last = theta.clone(), sums
        return sums


def _line_search(
    exchange: _Exchange,
    theta: Tensor,
    sums: Sums,
    step: Tensor,
    decrement: float,
    free: Tensor,
) -> tuple[Tensor, Sums, float] | None:
    """Return the next point, its sums and the share of the step that was taken; None where no share
    lowers the value.
    """
    share = 1.0
    for _ in range(_HALVINGS):
        point = theta.clone()
        point[free] += share * step
        found = exchange(point)
        allowed = _ROUNDING * abs(sums.value) * max(1.0, sums.rows**0.5)
        enough = sums.value - 2 * _DECREASE * share * decrement + allowed
        if _is_finite(found) and found.value <= enough:
            return point, found, share
        share /= 2
    return None


def _is_far(decrement: float, value: float, reference: float) -> bool:
    """Return whether steps that are long here lead nowhere: there is nothing left to win, or the
    value falls to 0 as fast as the decrement.
    """
    perfect = value <= _PERFECT * reference and decrement >= 0.05 * value
    return perfect or decrement <= _SEPARATED * reference


def _keeps_its_length(path: list[float]) -> bool:
    """Return whether the last steps were whole ones, none of them much shorter than the one
    before.
    """
    last = path[-_LONG_STEPS - 1 :]
    return len(last) == _LONG_STEPS + 1 and all(
        after >= _STILL_LONG * before > 0 for before, after in pairwise(last)
    )


def _first_point(
    sites: Sites, likelihood: Likelihood, start: Tensor | None, free: Tensor, fixed: bool
) -> Tensor:
    """Return the start (q,)."""
    usual = total_start(sites, likelihood)
    if start is None:
        return torch.where(free, usual, 0.0) if fixed else usual
    if start.shape != usual.shape:
        raise ValueError(
            f"start of shape {tuple(start.shape)}, expected {tuple(usual.shape)}: "
            + ", ".join(likelihood.parameter_names(sites.names)[:10])
        )
    return start.double().clone()


def _is_coefficient(likelihood: Likelihood, p: int) -> Tensor:
    """Return a mask (q,) that is false for intercepts, which come last."""
    q = likelihood.width(p)
    return torch.arange(q) < q - likelihood.intercepts


def _is_finite(sums: Sums) -> bool:
    """Return whether value, gradient and Hessian are finite."""
    value = torch.tensor(sums.value, dtype=torch.float64)
    return all(bool(part.isfinite().all()) for part in (value, sums.gradient, sums.curvature))


def _warn(fit: NewtonFit, tol: float) -> None:
    """Warn of a fit that is no maximum."""
    if fit.separated:
        what = "monotone likelihood" if fit.likelihood.name == "cox" else "separation"
        warnings.warn(
            f"{what}: the coefficients of {', '.join(fit.separated)} grow without end, so the "
            "likelihood has no maximum; the fit ends with finite ones and has no inference. Leave "
            "these variables out, or pass a constraint such as 'l2:5'",
            SeparationWarning,
            stacklevel=3,
        )
    elif not fit.converged:
        warnings.warn(
            f"Newton's decrement is {fit.decrement:.2g} of the loss after {fit.steps} steps, "
            f"expected at most {tol:g}: raise max_steps, or standardise the columns",
            stacklevel=3,
        )
