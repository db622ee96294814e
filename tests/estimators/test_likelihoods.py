"""Models as sums over rows: derivatives, sums over sites, Cox's partial likelihood against loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedfw
from fedfw.estimators.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    Multinomial,
    Poisson,
    total_sums,
)
from fedfw.estimators.partial_likelihood import Cox
from fedfw.estimators.sites import Site, Sites, as_sites
from tests.estimators.reference import regression_data, survival_data

CASES: dict[str, tuple[Likelihood, str]] = {
    "linear": (Gaussian(), "linear"),
    "logistic": (Logistic(), "logistic"),
    "poisson": (Poisson(), "poisson"),
    "multinomial": (Multinomial(3), "multinomial"),
    "cox breslow": (Cox("breslow"), "y"),
    "cox efron": (Cox("efron"), "y"),
}
MODELS = pytest.mark.parametrize("name", CASES)


def sites_of(name: str, weighted: bool = True, pooled: bool = False) -> Sites:
    """The sites of a case with standardised columns, weights and, for one predictor, offsets."""
    _, column = CASES[name]
    survival = column == "y"
    data: dict[str, Any] = survival_data() if survival else regression_data()
    X = data["X"]
    return as_sites(
        (X - X.mean(0)) / X.std(0),
        data[column],
        None if pooled else data["groups"],
        sample_weight=data["weights"] if weighted else None,
        offset=None if name == "multinomial" else data["offset"],
        target="survival" if survival else "number",
    )


def point(likelihood: Likelihood, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return 0.5 * torch.randn(likelihood.width(3), generator=draw, dtype=torch.float64)


@MODELS
@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_are_those_of_finite_differences(name: str, weighted: bool) -> None:
    likelihood, _ = CASES[name]
    sites = sites_of(name, weighted)
    theta = point(likelihood)
    sums = total_sums(sites, likelihood, theta, hessian=True)
    step = 1e-5
    for unit, slope, row in zip(
        torch.eye(len(theta), dtype=torch.float64), sums.gradient, sums.curvature, strict=True
    ):
        up = total_sums(sites, likelihood, theta + step * unit)
        down = total_sums(sites, likelihood, theta - step * unit)
        assert (up.value - down.value) / (2 * step) == pytest.approx(
            float(slope), rel=1e-6, abs=1e-5
        )
        assert torch.allclose((up.gradient - down.gradient) / (2 * step), row, rtol=1e-6, atol=1e-5)


@MODELS
def test_sums_over_sites_are_those_of_the_pooled_rows(name: str) -> None:
    """Cox's sites are strata, so that there the same strata are compared in another order."""
    likelihood, _ = CASES[name]
    sites = sites_of(name)
    theta = point(likelihood)
    options = {"hessian": True, "outer": True}
    found = total_sums(sites, likelihood, theta, **options)
    if name.startswith("cox"):
        other = total_sums([*sites][::-1], likelihood, theta, **options)
    else:
        other = total_sums(sites.pooled(), likelihood, theta, **options)
    assert found.rows == other.rows == sites.n
    assert found.weight == pytest.approx(sites.weight, rel=1e-12)
    assert found.value == pytest.approx(other.value, rel=1e-12)
    for one, two in (
        (found.gradient, other.gradient),
        (found.curvature, other.curvature),
        (found.outer, other.outer),
    ):
        assert torch.allclose(one, two, rtol=1e-9, atol=1e-9)
    q = len(theta)
    assert found.bytes == 8 * (3 + q + q * (q + 1))
    assert total_sums(sites, likelihood, theta).hessian is None


@MODELS
def test_the_order_of_rows_changes_nothing(name: str) -> None:
    likelihood, _ = CASES[name]
    site = sites_of(name)[1]
    theta = point(likelihood, 1)
    order = torch.randperm(len(site), generator=torch.Generator().manual_seed(2))
    one = likelihood.sums(site, theta, hessian=True, outer=True)
    two = likelihood.sums(site.rows(order), theta, hessian=True, outer=True)
    assert one.value == pytest.approx(two.value, rel=1e-12)
    assert torch.allclose(one.gradient, two.gradient, rtol=1e-10, atol=1e-10)
    assert torch.allclose(one.curvature, two.curvature, rtol=1e-10, atol=1e-10)
    assert torch.allclose(one.outer, two.outer, rtol=1e-10, atol=1e-10)


@MODELS
def test_a_row_without_weight_is_a_row_left_out(name: str) -> None:
    likelihood, _ = CASES[name]
    site = sites_of(name)[0]
    theta = point(likelihood, 1)
    kept = torch.arange(len(site)) % 3 > 0
    zeroed = Site(site.X, site.y, torch.where(kept, site.row_weights, 0.0), site.offset)
    one = likelihood.sums(zeroed, theta, hessian=True, outer=True)
    two = likelihood.sums(site.rows(kept), theta, hessian=True, outer=True)
    assert one.value == pytest.approx(two.value, rel=1e-12)
    assert torch.allclose(one.curvature, two.curvature, rtol=1e-10, atol=1e-10)
    assert torch.allclose(one.outer, two.outer, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["linear", "logistic", "poisson", "cox breslow"])
def test_whole_weights_are_repeated_rows(name: str) -> None:
    """Efron's ties would make groups of what is repeated."""
    likelihood, _ = CASES[name]
    site = sites_of(name, weighted=False)[0]
    counts = torch.arange(len(site)) % 3 + 1
    weighted = Site(site.X, site.y, counts.double(), site.offset)
    repeated = site.rows(torch.arange(len(site)).repeat_interleave(counts))
    theta = point(likelihood)
    one = likelihood.sums(weighted, theta, hessian=True)
    two = likelihood.sums(repeated, theta, hessian=True)
    assert one.value == pytest.approx(two.value, rel=1e-12)
    assert torch.allclose(one.gradient, two.gradient, rtol=1e-10, atol=1e-10)
    assert torch.allclose(one.curvature, two.curvature, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["linear", "logistic", "poisson"])
def test_the_outer_product_is_that_of_the_rows_gradients(name: str) -> None:
    likelihood, _ = CASES[name]
    site = sites_of(name)[0]
    theta = point(likelihood)
    each = [likelihood.sums(site.rows(torch.tensor([j])), theta).gradient for j in range(len(site))]
    rows = torch.stack(each)
    found = likelihood.sums(site, theta, outer=True).outer
    assert torch.allclose(found, rows.T @ rows, rtol=1e-10)


def test_a_softmax_of_two_classes_is_the_logistic_model() -> None:
    sites = sites_of("logistic")
    plain = Sites(tuple(Site(s.X, s.y, s.weights) for s in sites), sites.names)
    theta = point(Logistic())
    both = torch.cat([torch.zeros(3).double(), theta[:3], torch.zeros(1).double(), theta[3:]])
    one = total_sums(plain, Logistic(), theta)
    two = total_sums(plain, Multinomial(2), both)
    assert one.value == pytest.approx(two.value, rel=1e-12)
    chosen = torch.tensor([3, 4, 5, 7])
    assert torch.allclose(one.gradient, two.gradient[chosen], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_large_predictors_stay_finite(scale: float) -> None:
    for name in ("logistic", "multinomial", "cox efron", "cox breslow"):
        likelihood, _ = CASES[name]
        sums = total_sums(
            sites_of(name), likelihood, scale * point(likelihood), hessian=True, outer=True
        )
        assert math.isfinite(sums.value)
        assert all(bool(m.isfinite().all()) for m in (sums.gradient, sums.curvature, sums.outer))


# --- Cox ---


def cox_by_loops(site: Site, theta: Tensor, efron: bool) -> Tensor:
    """The negative log partial likelihood, from its formula."""
    scores = site.X @ theta
    if site.offset is not None:
        scores = scores + site.offset
    w = site.row_weights
    event, time = site.y.unbind(1)
    total = torch.zeros(())
    for moment in time[event > 0].unique():
        tied = (time == moment) & (event > 0)
        at_risk = time >= moment
        d = int(tied.sum())
        mean = w[tied].mean()
        for rank in range(d):
            share = rank / d if efron else 0.0
            risk = (w * scores.exp())[at_risk].sum() - share * (w * scores.exp())[tied].sum()
            total = total + mean * risk.log()
        total = total - (w * scores)[tied].sum()
    return total


rows = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(1, 4),
        st.integers(-8, 8),
        st.integers(-8, 8),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=100, deadline=None)
@given(rows, st.booleans())
def test_coxs_sums_are_those_of_the_loops(
    drawn: list[tuple[int, int, int, int, int]], efron: bool
) -> None:
    table = torch.tensor(drawn, dtype=torch.float64)
    site = Site(table[:, 2:4] / 4, table[:, :2], table[:, 4] / 2)
    theta = torch.tensor([0.7, -1.3], dtype=torch.float64)
    likelihood = Cox("efron" if efron else "breslow")
    sums = likelihood.sums(site, theta, hessian=True, outer=True)
    if not bool(table[:, 0].any()):
        assert sums.value == 0
        return

    def by_loops(x: Tensor) -> Tensor:
        return cox_by_loops(site, x, efron)

    gradient = torch.autograd.functional.jacobian(by_loops, theta)
    hessian = torch.autograd.functional.hessian(by_loops, theta)
    assert sums.value == pytest.approx(float(by_loops(theta)), rel=1e-9, abs=1e-10)
    assert torch.allclose(sums.gradient, gradient, rtol=1e-9, atol=1e-10)
    assert torch.allclose(sums.curvature, hessian, rtol=1e-9, atol=1e-9)
    # The residuals are the derivatives of the score by the rows' weights.
    residuals = likelihood.score_residuals(site, theta)

    def score(weights: Tensor) -> Tensor:
        own = Site(site.X, site.y, weights)
        x = theta.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cox_by_loops(own, x, efron), x, create_graph=True)
        return -slope

    by_weights = torch.autograd.functional.jacobian(score, site.row_weights).T
    assert torch.allclose(residuals, by_weights, rtol=1e-8, atol=1e-9)
    weighted = site.row_weights[:, None] * residuals
    assert torch.allclose(-weighted.sum(0), sums.gradient, rtol=1e-8, atol=1e-9)
    assert torch.allclose(weighted.T @ weighted, sums.outer, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_the_value_is_that_of_the_loss_of_federated_training(ties: Any) -> None:
    for site in sites_of("cox efron", weighted=False):
        theta = point(Cox())
        plain = Site(site.X, site.y)
        expected = fedfw.cox_loss(site.X @ theta, site.y, ties=ties) * len(site)
        assert Cox(ties).sums(plain, theta).value == pytest.approx(float(expected), rel=1e-12)


def test_what_a_column_has_in_common_costs_no_digits() -> None:
    site = sites_of("cox efron", weighted=False)[0]
    X = (site.X * 256).round() / 256
    theta = point(Cox())
    plain = Cox().sums(Site(X, site.y), theta, hessian=True, outer=True)
    moved = Cox().sums(Site(X + 2.0**30, site.y), theta, hessian=True, outer=True)
    assert plain.value == moved.value
    assert torch.equal(plain.curvature, moved.curvature)
    assert torch.equal(plain.outer, moved.outer)


def test_the_baseline_hazard_is_that_of_the_loops() -> None:
    site = sites_of("cox efron")[0]
    theta = point(Cox())
    event, time = site.y.unbind(1)
    risk = site.row_weights * (site.X @ theta + site.offset).exp()
    for ties in ("breslow", "efron"):
        base = Cox(ties).baseline(site, theta)
        assert base.times.tolist() == time[event > 0].unique().tolist()
        for moment, found in zip(base.times, base.hazard, strict=True):
            tied = (time == moment) & (event > 0)
            d = int(tied.sum())
            mean = site.row_weights[tied].mean()
            jumps = [
                mean
                / (
                    risk[time >= moment].sum()
                    - (r / d if ties == "efron" else 0) * risk[tied].sum()
                )
                for r in range(d)
            ]
            assert float(found) == pytest.approx(float(sum(jumps)), rel=1e-12)
    later = Cox().baseline(site, theta, at=torch.ones(3, dtype=torch.float64))
    assert torch.allclose(later.hazard, base.hazard * theta.sum().exp())
    assert base.survival_at(torch.tensor([0.0])).tolist() == [1.0]
    assert float(base.survival_at(base.times[-1:], 2.0)) == pytest.approx(
        math.exp(-2 * float(base.hazard.sum()))
    )


def test_targets_without_a_probability_are_refused_by_the_site() -> None:
    X = np.ones((2, 1))
    for likelihood, y, message in (
        (Logistic(), [0.0, 2.0], "all rows: y outside of 0 to 1"),
        (Poisson(), [0.0, -1.0], "all rows: a negative y"),
        (Multinomial(3), [0.0, 3.0], "all rows: y is no class number, expected 0 to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            likelihood.validate_all(as_sites(X, np.array(y)))
    censored = as_sites(X, np.array([[0, 1.0], [0, 2.0]]), target="survival")
    with pytest.raises(ValueError, match="no site has an event"):
        Cox().validate_all(censored)
    with pytest.raises(ValueError, match="has no event, expected at least one"):
        Cox().baseline(censored[0], torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="ties='exact', expected"):
        Cox("exact")  # type: ignore[arg-type]
