r"""Cox's partial likelihood of one stratum as sums: value, gradient, Hessian and score residuals.

Patients are in the order of falling times; those with an event come last among the patients of one
time (`events_last`), and those without weight are left out. Let r_j = w_j exp(s_j), and let i run
over the events. With Efron's ties the events at its time are at risk with the share c_i = 1 - l/d
when event i is the l-th of them (l = 0 to d - 1), and c_i = 1 with Breslow's. With the sum D_i of
shares times r over those at risk, their weighted mean u_i of x, and the mean weight o_i of the
events at the time of i,

    value    = sum_i (o_i log D_i - w_i s_i)
    gradient = sum_i (o_i u_i - w_i x_i)
    Hessian  = sum_j k_j x_j x_j' - sum_i o_i u_i u_i'
    k_j      = r_j sum_i o_i c_ij / D_i,

c_ij being c_i for the events at the time of i, 1 for others at risk and 0 else: O(m p^2). The score
residual of patient j is the derivative of the score by w_j (Lin and Wei 1989; of tied events,
Efron's mean),

    (x_j - mean of u_i at j's time, if j has the event) - exp(s_j) sum_i o_i c_ij (x_j - u_i) / D_i.

All sums over those at risk are sums of positive numbers, in logarithms: columns are taken relative
to their least value in the stratum, which changes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw.estimators.likelihoods import Likelihood
from fedfw.estimators.sites import Site
from fedfw.estimators.sums import Sums
from fedfw.problems.survival import (
    TieGroups,
    Ties,
    events_last,
    running_maxima,
    validate_event_times,
)


class Cox(Likelihood):
    """Cox's proportional hazards model with a baseline hazard of its own for each site.

    Parameters
    ----------
    ties : str
        ``"efron"`` or ``"breslow"``.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    >>> y = torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=torch.float64)
    >>> round(Cox().sums(Site(X, y), torch.zeros(1, dtype=torch.float64)).value, 4)
    0.6931
    """

    name = "cox"
    ratio = "hazard ratio"
    intercepts = 0

    def __init__(self, ties: Ties = "efron") -> None:
        if ties not in ("breslow", "efron"):
            raise ValueError(f"ties={ties!r}, expected 'breslow' or 'efron'")
        self.ties = ties

    def validate(self, site: Site) -> None:
        validate_event_times(site.y, site.name)

    def validate_all(self, sites: Iterable[Site]) -> None:
        events = 0.0
        for site in sites:
            self.validate(site)
            events += float(site.y[site.row_weights > 0, 0].sum())
        if events == 0:
            raise ValueError("no site has an event, expected at least one: all rows are censored")

    def sums(
        self, site: Site, theta: Tensor, *, hessian: bool = False, outer: bool = False
    ) -> Sums:
        p = len(theta)
        weight = float(site.row_weights.sum())
        stratum = _Stratum.of(site, self.ties)
        if not bool(stratum.ties.events.any()):
            matrix = torch.zeros(p, p, dtype=torch.float64)
            zeros = torch.zeros(p, dtype=torch.float64)
            return Sums(
                len(site),
                weight,
                0.0,
                zeros,
                matrix if hessian else None,
                matrix.clone() if outer else None,
            )
        risk = _Risk.of(stratum, stratum.X @ theta)
        w = stratum.weights[stratum.events]
        terms = risk.shares * risk.log_sums - w * risk.scores[stratum.events]
        means = risk.means(stratum)
        gradient = risk.shares @ means - w @ stratum.X[stratum.events]
        curvature = None
        if hessian:
            expected = risk.expected(stratum)
            curvature = stratum.X.T @ (expected.unsqueeze(1) * stratum.X)
            curvature = curvature - means.T @ (risk.shares.unsqueeze(1) * means)
        products = None
        if outer:
            residuals = stratum.weights.unsqueeze(1) * _residuals(stratum, risk, means)
            products = residuals.T @ residuals
        return Sums(len(site), weight, float(terms.sum()), gradient, curvature, products)

    def score_residuals(self, site: Site, theta: Tensor) -> Tensor:
        """Return the score residuals (m, p) of a site's rows, without their weights; zero for rows
        without weight.

        They stay at the site: only the sum of their outer products is shared.
        """
        stratum = _Stratum.of(site, self.ties)
        residuals = torch.zeros(len(site), len(theta), dtype=torch.float64)
        if bool(stratum.ties.events.any()):
            risk = _Risk.of(stratum, stratum.X @ theta)
            residuals[stratum.order] = _residuals(stratum, risk, risk.means(stratum))
        return residuals

    def baseline(self, site: Site, theta: Tensor, at: Tensor | None = None) -> Baseline:
        """Return the baseline hazard of a site, by Breslow's or Efron's estimator as ties are.

        Parameters
        ----------
        site : Site
            With at least one event.
        theta : Tensor
            (p,).
        at : Tensor, optional
            (p,): the patient whose hazard it is; zeros by default.

        Notes
        -----
        The times are those of single patients' events: they are for the site itself, or for
        parties that it trusts with them.
        """
        stratum = _Stratum.of(site, self.ties)
        if not bool(stratum.ties.events.any()):
            raise ValueError(
                f"{site.name} has no event, expected at least one for a baseline hazard"
            )
        risk = _Risk.of(stratum, stratum.X @ theta)
        patient = torch.zeros_like(theta) if at is None else at.double()
        shift = (patient - stratum.least) @ theta
        jumps = risk.shares * (shift - risk.log_sums).exp()
        times, places = torch.unique(stratum.times[stratum.events], return_inverse=True)
        hazard = torch.zeros_like(times).index_add(0, places, jumps)
        return Baseline(times, hazard)


@dataclass(frozen=True, eq=False)
class Baseline:
    """The hazard of one patient as a step function.

    Parameters
    ----------
    times : Tensor
        (g,), rising: those of events.
    hazard : Tensor
        (g,): the increase of the cumulative hazard at each.

    Examples
    --------
    >>> import torch
    >>> base = Baseline(torch.tensor([1.0, 4.0]), torch.tensor([0.5, 0.25]))
    >>> base.cumulative_at(torch.tensor([0.0, 1.0, 9.0])).tolist()
    [0.0, 0.5, 0.75]
    """

    times: Tensor
    hazard: Tensor

    def cumulative_at(self, times: Tensor) -> Tensor:
        """Return the cumulative hazard at times of any shape."""
        steps = torch.cat([self.hazard.new_zeros(1), self.hazard.cumsum(0)])
        return steps[torch.searchsorted(self.times, times.contiguous(), right=True)]

    def survival_at(self, times: Tensor, relative_risk: float = 1.0) -> Tensor:
        """Return the probability of no event up to times, for a relative risk."""
        return (-relative_risk * self.cumulative_at(times)).exp()


@dataclass(frozen=True, eq=False)
class _Stratum:
    """A site's m patients with weight in the order of `events_last`.

    ``X`` (m, p) is relative to ``least`` (p,), and ``events`` (N,) are the places of the events.
    """

    X: Tensor
    least: Tensor
    times: Tensor
    weights: Tensor
    offset: Tensor | None
    ties: TieGroups
    events: Tensor
    order: Tensor

    @classmethod
    def of(cls, site: Site, ties: Ties) -> _Stratum:
        weights = site.row_weights
        order = events_last(site.y)
        order = order[weights[order] > 0]
        X = site.X[order]
        least = X.amin(0) if len(X) else torch.zeros_like(site.X[0])
        groups = TieGroups.of(site.y[order], torch.float64)
        if ties == "breslow":
            groups = groups._replace(kept=torch.ones_like(groups.kept))
        offset = None if site.offset is None else site.offset[order]
        return cls(
            X - least,
            least,
            site.y[order, 1],
            weights[order],
            offset,
            groups,
            groups.events.nonzero().flatten(),
            order,
        )


@dataclass(frozen=True, eq=False)
class _Risk:
    """The sums over those at risk, at some scores.

    ``scores`` (m,) are s; ``shifted`` and ``heights`` (m,) are those of `running_maxima` of the
    logarithms of r. Of the N events, ``others`` is the sum of r over those at risk without an event
    at that time, ``tied`` (m,) is r itself, both over exp of the largest logarithm at risk;
    ``sums`` is D on that scale and ``log_sums`` log D; ``shares`` are the o.
    """

    scores: Tensor
    shifted: Tensor
    heights: Tensor
    totals: Tensor
    others: Tensor
    tied: Tensor
    sums: Tensor
    log_sums: Tensor
    shares: Tensor

    @classmethod
    def of(cls, stratum: _Stratum, scores: Tensor) -> _Risk:
        ties = stratum.ties
        i = stratum.events
        scores = scores if stratum.offset is None else scores + stratum.offset
        logs = scores + stratum.weights.log()
        largest, heights = running_maxima(logs)
        shifted = logs - largest + heights
        totals = shifted.logcumsumexp(0)
        highest = largest[ties.last]
        before = ties.before[i]
        others = (totals - heights + largest)[before.clamp(min=0)] - highest[i]
        others = torch.where(before < 0, 0.0, others.exp())
        tied = (logs - highest).exp()
        sums = others + ties.kept[i] * _of_time(ties, tied * ties.events)[i]
        counts = _of_time(ties, ties.events)[i]
        shares = _of_time(ties, stratum.weights * ties.events)[i] / counts
        return cls(
            scores, shifted, heights, totals, others, tied, sums, sums.log() + highest[i], shares
        )

    def means(self, stratum: _Stratum) -> Tensor:
        """Return the weighted means u (N, p) of those at risk."""
        ties = stratum.ties
        i = stratum.events
        logs = stratum.X.log()
        means = (
            (self.shifted.unsqueeze(1) + logs).logcumsumexp(0) - self.totals.unsqueeze(1)
        ).exp()
        tied = _of_time(ties, (self.tied * ties.events).unsqueeze(1) * stratum.X)[i]
        sums = self.others.unsqueeze(1) * means[ties.before[i].clamp(min=0)]
        return (sums + ties.kept[i].unsqueeze(1) * tied) / self.sums.unsqueeze(1)

    def expected(self, stratum: _Stratum) -> Tensor:
        """Return the k (m,): the events that patients expect, times their weights."""
        i = stratum.events
        jumps = (self.shares / self.sums).unsqueeze(1)
        within = _of_time_of_events(stratum, stratum.ties.kept[i].unsqueeze(1) * jumps)
        own = (stratum.ties.events * self.tied).unsqueeze(1) * within
        return (self._later(stratum, jumps) + own).squeeze(1)

    def expected_means(self, stratum: _Stratum, means: Tensor) -> Tensor:
        """Return r_j sum_i o_i c_ij u_i / D_i (m, p)."""
        i = stratum.events
        jumps = (self.shares / self.sums).unsqueeze(1) * means
        within = _of_time_of_events(stratum, stratum.ties.kept[i].unsqueeze(1) * jumps)
        own = (stratum.ties.events * self.tied).unsqueeze(1) * within
        return self._later(stratum, jumps) + own

    def _later(self, stratum: _Stratum, jumps: Tensor) -> Tensor:
        """Return r_j times the sum of jumps (N, k) of events whose group begins after j, (m, k).

        Jumps are on the scale of the largest logarithm at risk.
        """
        ties = stratum.ties
        i = stratum.events
        before = ties.before[i]
        rise = self.heights[before.clamp(min=0)] - self.heights[ties.last[i]]
        slots = jumps.new_zeros(len(self.scores) + 1, jumps.shape[1])
        slots.index_add_(0, before + 1, jumps * rise.exp().unsqueeze(1))
        logs = slots[1:].log() - self.heights.unsqueeze(1)
        later = logs.flip(0).logcumsumexp(0).flip(0)
        return (self.shifted.unsqueeze(1) + later).exp()


def _of_time(ties: TieGroups, values: Tensor) -> Tensor:
    """Return, for each patient, the sum of values (m, ...) over the patients of the same time."""
    return torch.zeros_like(values).index_add(0, ties.last, values)[ties.last]


def _of_time_of_events(stratum: _Stratum, values: Tensor) -> Tensor:
    """Return the same for values (N, k) of the events, (m, k)."""
    all_rows = values.new_zeros(len(stratum.X), values.shape[1])
    all_rows[stratum.events] = values
    return _of_time(stratum.ties, all_rows)


def _residuals(stratum: _Stratum, risk: _Risk, means: Tensor) -> Tensor:
    """Return the score residuals (m, p) in the stratum's order, without weights."""
    ties = stratum.ties
    expected = risk.expected(stratum).unsqueeze(1) * stratum.X
    expected = expected - risk.expected_means(stratum, means)
    counts = _of_time(ties, ties.events).clamp(min=1).unsqueeze(1)
    mean = _of_time_of_events(stratum, means) / counts
    observed = ties.events.unsqueeze(1) * (stratum.X - mean)
    return observed - expected / stratum.weights.unsqueeze(1)
