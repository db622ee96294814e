r"""Models as sums over rows: the negative log-likelihood, its gradient, its Hessian and the sum of
outer products of scores.

A site returns `Sums` of its rows and nothing else. Sums of all sites are added, so that a fit from
them is the fit of the pooled rows. With the linear predictor eta = x'b + b_0 + offset, a row's
weight w multiplies all that it adds:

===========  ==================================  ==================  ====================
model        term of a row                       derivative by eta   second derivative
===========  ==================================  ==================  ====================
Gaussian     (y - eta)^2 / 2                     eta - y             1
Logistic     log(1 + exp(eta)) - y eta           sigmoid(eta) - y    s (1 - s)
Poisson      exp(eta) - y eta + log y!           exp(eta) - y        exp(eta)
Multinomial  log(sum_k exp(eta_k)) - eta_y       softmax - onehot    diag(s) - s s'
===========  ==================================  ==================  ====================

Cox's model, whose rows of one site depend on each other, is in
`fedfw.estimators.partial_likelihood`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

from fedfw.estimators.sites import Site, Sites
from fedfw.estimators.sums import Sums

_SMALLEST_SHARE = 0.5
"""Rows of an outcome that is absent, for the start of the intercept."""


class Likelihood(ABC):
    """A model as sums over the rows of a site.

    Parameters of a linear predictor are the coefficients in the order of the columns, then the
    intercept; with K of them, K rows of coefficients, then K intercepts, as in `torch.nn.Linear`.
    """

    name: str
    ratio: str | None = None
    """The name of exp of a coefficient; None where it has no meaning."""
    intercepts: int = 1

    def width(self, p: int) -> int:
        """Return the number of parameters q for p columns."""
        return p * max(1, self.intercepts) + self.intercepts

    def parameter_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the q parameters for those of the p columns."""
        return (*names, "intercept")[: self.width(len(names))]

    def structural(self, p: int) -> Tensor:
        """Return (q, k): directions in which no data can tell parameters apart."""
        return torch.zeros(self.width(p), 0, dtype=torch.float64)

    def validate(self, site: Site) -> None:  # noqa: B027, some models have nothing to refuse
        """Refuse targets that the model has no probability for."""

    def validate_all(self, sites: Iterable[Site]) -> None:
        """Refuse targets of any site, and those from which nothing can be estimated."""
        for site in sites:
            self.validate(site)

    @abstractmethod
    def sums(
        self, site: Site, theta: Tensor, *, hessian: bool = False, outer: bool = False
    ) -> Sums:
        """Return the sums over a site's rows at theta (q,)."""

    def totals(self, site: Site) -> Tensor:
        """Return what `start` needs of a site: sums over its rows."""
        return torch.zeros(0, dtype=torch.float64)

    def start(self, totals: Tensor, p: int) -> Tensor:
        """Return parameters (q,) to begin with: those of a model of the intercept alone, for
        `totals` of all sites (exactly so where there are no offsets).
        """
        return torch.zeros(self.width(p), dtype=torch.float64)


class LinearLikelihood(Likelihood):
    """A model of one linear predictor whose rows are independent."""

    def predictor(self, site: Site, theta: Tensor) -> Tensor:
        """Return eta (m,)."""
        eta = site.X @ theta[:-1] + theta[-1]
        return eta if site.offset is None else eta + site.offset

    @abstractmethod
    def terms(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each row's term and its first and second derivative by eta, (m,) each."""

    def sums(
        self, site: Site, theta: Tensor, *, hessian: bool = False, outer: bool = False
    ) -> Sums:
        w = site.row_weights
        values, slopes, curvatures = self.terms(self.predictor(site, theta), site.y)
        # A row without weight adds nothing, even where its own term overflows.
        counts = w > 0
        values, slopes, curvatures = (
            torch.where(counts, w * part, 0.0) for part in (values, slopes, curvatures)
        )
        return Sums(
            len(site),
            float(w.sum()),
            float(values.sum()),
            torch.cat([slopes @ site.X, slopes.sum()[None]]),
            _gram(site.X, curvatures) if hessian else None,
            _gram(site.X, slopes.square()) if outer else None,
        )


def _gram(X: Tensor, weights: Tensor) -> Tensor:
    """Return A' diag(weights) A (p + 1, p + 1), where A is X (m, p) and a column of ones."""
    A = torch.cat([X, torch.ones_like(X[:, :1])], 1)
    return A.T @ (weights.unsqueeze(1) * A)


class Gaussian(LinearLikelihood):
    """Least squares: half the weighted sum of squared residuals.

    Examples
    --------
    >>> import torch
    >>> site = Site(torch.ones(2, 1).double(), torch.tensor([1.0, 3.0]).double())
    >>> Gaussian().sums(site, torch.zeros(2).double()).value
    5.0
    """

    name = "linear"

    def terms(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        residual = eta - y
        return residual.square() / 2, residual, torch.ones_like(eta)

    def totals(self, site: Site) -> Tensor:
        target = site.y if site.offset is None else site.y - site.offset
        return torch.stack([site.row_weights @ target, site.row_weights.sum()])

    def start(self, totals: Tensor, p: int) -> Tensor:
        theta = torch.zeros(p + 1, dtype=torch.float64)
        theta[-1] = totals[0] / totals[1]
        return theta


class Logistic(LinearLikelihood):
    """Binary logistic regression; targets are probabilities from 0 to 1, as a rule 0 and 1."""

    name = "logistic"
    ratio = "odds ratio"

    def validate(self, site: Site) -> None:
        if bool(((site.y < 0) | (site.y > 1)).any()):
            raise ValueError(f"{site.name}: y outside of 0 to 1, expected 0 and 1 for two classes")

    def terms(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        small = torch.exp(-eta.abs())
        values = small.log1p() + eta.clamp(min=0) - eta * y
        probability = torch.where(eta < 0, small, 1.0) / (1 + small)
        return values, probability - y, small / (1 + small).square()

    def totals(self, site: Site) -> Tensor:
        return torch.stack([site.row_weights @ site.y, site.row_weights.sum()])

    def start(self, totals: Tensor, p: int) -> Tensor:
        ones = totals[0].clamp(min=_SMALLEST_SHARE)
        zeros = (totals[1] - totals[0]).clamp(min=_SMALLEST_SHARE)
        theta = torch.zeros(p + 1, dtype=torch.float64)
        theta[-1] = (ones / zeros).log()
        return theta


class Poisson(LinearLikelihood):
    """Poisson regression with a logarithm as link; ``offset`` is the logarithm of the exposure."""

    name = "poisson"
    ratio = "rate ratio"

    def validate(self, site: Site) -> None:
        if bool((site.y < 0).any()):
            raise ValueError(f"{site.name}: a negative y, expected counts of at least 0")

    def terms(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rate = eta.exp()
        # The constant makes this -log p, which is never negative.
        return rate - y * eta + torch.lgamma(y + 1), rate - y, rate

    def totals(self, site: Site) -> Tensor:
        exposure = site.row_weights if site.offset is None else site.row_weights * site.offset.exp()
        return torch.stack([site.row_weights @ site.y, exposure.sum()])

    def start(self, totals: Tensor, p: int) -> Tensor:
        theta = torch.zeros(p + 1, dtype=torch.float64)
        theta[-1] = (totals[0].clamp(min=_SMALLEST_SHARE) / totals[1]).log()
        return theta


class Multinomial(Likelihood):
    """Softmax regression of K classes with K (p + 1) parameters; y are class numbers.

    One vector added to the coefficients of all classes changes nothing (`structural`): fits have
    coefficients and intercepts whose sums over the classes are zero.
    """

    name = "multinomial"
    ratio = "odds ratio"

    def __init__(self, classes: int, labels: Sequence[object] | None = None) -> None:
        if classes < 2:
            raise ValueError(f"{classes} classes, expected at least 2")
        self.intercepts = classes
        self.labels = tuple(map(str, range(classes) if labels is None else labels))

    def parameter_names(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"{name}[{k}]" for k in self.labels for name in names) + tuple(
            f"intercept[{k}]" for k in self.labels
        )

    def structural(self, p: int) -> Tensor:
        K = self.intercepts
        directions = torch.zeros(K * (p + 1), p + 1, dtype=torch.float64)
        directions[: K * p, :p] = torch.eye(p, dtype=torch.float64).repeat(K, 1)
        directions[K * p :, p:] = 1
        return directions.div_(K**0.5)

    def validate(self, site: Site) -> None:
        y = site.y
        if bool(((y < 0) | (y >= self.intercepts) | (y != y.round())).any()):
            raise ValueError(
                f"{site.name}: y is no class number, expected 0 to {self.intercepts - 1}"
            )

    def sums(
        self, site: Site, theta: Tensor, *, hessian: bool = False, outer: bool = False
    ) -> Sums:
        K = self.intercepts
        p = site.X.shape[1]
        if site.offset is not None:
            raise ValueError(f"{site.name}: an offset, expected none for several classes")
        w = site.row_weights
        scores = site.X @ theta[: K * p].view(K, p).T + theta[K * p :]
        logs = scores.log_softmax(1)
        targets = torch.nn.functional.one_hot(site.y.long(), K).double()
        shares = logs.exp()
        slopes = w[:, None] * (shares - targets)
        A = torch.cat([site.X, torch.ones_like(site.X[:, :1])], 1)
        curvature = None
        if hessian:
            curvature = -_blocks(shares * w[:, None].sqrt(), A)
            for k in range(K):
                diagonal = A.T @ ((w * shares[:, k])[:, None] * A)
                places = _places(K, p, k)
                curvature[places[:, None], places] += diagonal
        return Sums(
            len(site),
            float(w.sum()),
            -float((w * (logs * targets).sum(1)).sum()),
            torch.cat([(slopes.T @ site.X).flatten(), slopes.sum(0)]),
            curvature,
            _blocks(slopes, A) if outer else None,
        )

    def totals(self, site: Site) -> Tensor:
        targets = torch.nn.functional.one_hot(site.y.long(), self.intercepts).double()
        return site.row_weights @ targets

    def start(self, totals: Tensor, p: int) -> Tensor:
        logs = totals.clamp(min=_SMALLEST_SHARE).log()
        theta = torch.zeros(self.width(p), dtype=torch.float64)
        theta[-self.intercepts :] = logs - logs.mean()
        return theta


def _places(K: int, p: int, k: int) -> Tensor:
    """Return the places (p + 1,) of class k's coefficients and its intercept."""
    return torch.cat([torch.arange(k * p, (k + 1) * p), torch.tensor([K * p + k])])


def _blocks(slopes: Tensor, A: Tensor) -> Tensor:
    """Return the sum of outer products of the rows' vectors (slope_k a)_k, (K (p + 1), K (p + 1)),
    for slopes (m, K) and A (m, p + 1), in the order of the parameters.
    """
    K = slopes.shape[1]
    p = A.shape[1] - 1
    vectors = (slopes[:, :, None] * A[:, None, :]).flatten(1)
    products = vectors.T @ vectors
    order = torch.empty(K * (p + 1), dtype=torch.int64)
    for k in range(K):
        order[_places(K, p, k)] = torch.arange(k * (p + 1), (k + 1) * (p + 1))
    return products[order[:, None], order]


def total_sums(
    sites: Iterable[Site],
    likelihood: Likelihood,
    theta: Tensor,
    *,
    hessian: bool = False,
    outer: bool = False,
) -> Sums:
    """Return the sums over all sites.

    Examples
    --------
    >>> import torch
    >>> site = Site(torch.ones(2, 1).double(), torch.tensor([1.0, 3.0]).double())
    >>> total_sums([site, site], Gaussian(), torch.zeros(2).double()).value
    10.0
    """
    each = (likelihood.sums(site, theta, hessian=hessian, outer=outer) for site in sites)
    return reduce(Sums.__add__, each)


def total_start(sites: Sites, likelihood: Likelihood) -> Tensor:
    """Return the parameters (q,) to begin with, from sums of all sites."""
    totals = torch.stack([likelihood.totals(site) for site in sites]).sum(0)
    return likelihood.start(totals, sites.p)
