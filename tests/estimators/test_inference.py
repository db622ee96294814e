"""Fits and standard errors against statsmodels' and lifelines' of the pooled rows, and the cases
that have no maximum.
"""

import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from fedfw.estimators.inference import as_table, covariance, wald
from fedfw.estimators.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    Multinomial,
    Poisson,
    total_sums,
)
from fedfw.estimators.newton import SeparationWarning, maximum_likelihood, null_model
from fedfw.estimators.partial_likelihood import Cox
from fedfw.estimators.sites import Sites, as_sites
from tests.estimators.reference import (
    FILE,
    lifelines_fits,
    regression_data,
    statsmodels_fits,
    survival_data,
)

KEPT: dict[str, Any] = json.loads(FILE.read_text())
LINEAR: dict[str, tuple[Likelihood, str, bool, bool]] = {
    "linear": (Gaussian(), "linear", False, False),
    "linear weighted": (Gaussian(), "linear", True, False),
    "logistic": (Logistic(), "logistic", False, False),
    "logistic weighted": (Logistic(), "logistic", True, False),
    "poisson": (Poisson(), "poisson", False, True),
    "poisson weighted": (Poisson(), "poisson", True, True),
}


def regression_sites(column: str, weighted: bool = False, offset: bool = False) -> Sites:
    data = regression_data()
    return as_sites(
        data["X"],
        data[column],
        data["groups"],
        sample_weight=data["weights"] if weighted else None,
        offset=data["offset"] if offset else None,
    )


def survival_sites(column: str = "y", weighted: bool = False, offset: bool = False) -> Sites:
    data = survival_data()
    return as_sites(
        data["X"],
        data[column],
        data["groups"],
        sample_weight=data["weights"] if weighted else None,
        offset=data["offset"] if offset else None,
        target="survival",
    )


def column(table: Any, name: str) -> list[float]:
    values = table[name]
    return list(values.values()) if isinstance(values, dict) else values.tolist()


def robust_errors(sites: Sites, likelihood: Likelihood, fit: Any) -> list[float]:
    sums = total_sums(sites, likelihood, fit.theta, hessian=True, outer=True)
    return column(wald(fit, sums, sandwich=True), "se")


@pytest.mark.parametrize("name", LINEAR)
def test_fits_are_those_of_statsmodels(name: str) -> None:
    likelihood, target, weighted, offset = LINEAR[name]
    sites = regression_sites(target, weighted, offset)
    fit = maximum_likelihood(sites, likelihood)
    expected = KEPT["statsmodels"][name]
    table = wald(fit, level=0.9)
    for own, theirs in (
        (column(table, "coef"), expected["coef"]),
        (column(table, "se"), expected["se"]),
        (column(table, "p"), expected["p"]),
        (np.column_stack([column(table, "low"), column(table, "high")]), expected["interval"]),
        (robust_errors(sites, likelihood, fit), expected["sandwich"]),
    ):
        np.testing.assert_allclose(own, theirs, rtol=1e-8)
    assert fit.converged
    assert fit.decrement < 1e-12


@pytest.mark.parametrize("ties", ["breslow", "efron"])
@pytest.mark.parametrize("name", ["cox", "cox with offset", "cox untied"])
def test_stratified_cox_fits_are_those_of_statsmodels(name: str, ties: Any) -> None:
    sites = survival_sites("untied" if "untied" in name else "y", offset="offset" in name)
    fit = maximum_likelihood(sites, Cox(ties))
    expected = KEPT["statsmodels"][f"{name} {ties}"]
    table = wald(fit, level=0.9)
    np.testing.assert_allclose(column(table, "coef"), expected["coef"], rtol=1e-8)
    np.testing.assert_allclose(column(table, "se"), expected["se"], rtol=1e-8)
    np.testing.assert_allclose(column(table, "p"), expected["p"], rtol=1e-8)
    np.testing.assert_allclose(
        np.column_stack([column(table, "low"), column(table, "high")]), expected["interval"], 1e-8
    )
    assert fit.value == pytest.approx(expected["loss"], rel=1e-12)
    if ties == "breslow":
        outer = total_sums(sites, Cox(ties), fit.theta, outer=True).outer
        np.testing.assert_allclose(outer, expected["outer"], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["ties", "untied", "ties weighted", "untied weighted"])
def test_stratified_cox_fits_are_those_of_lifelines(name: str) -> None:
    sites = survival_sites("untied" if "untied" in name else "y", weighted="weighted" in name)
    likelihood = Cox("efron")
    fit = maximum_likelihood(sites, likelihood)
    expected = KEPT["lifelines"][name]
    table = wald(fit)
    np.testing.assert_allclose(column(table, "coef"), expected["coef"], rtol=1e-8)
    np.testing.assert_allclose(column(table, "se"), expected["se"], rtol=1e-8)
    assert fit.value == pytest.approx(expected["loss"], rel=1e-10)
    np.testing.assert_allclose(column(table, "ratio"), np.exp(expected["coef"]), rtol=1e-8)
    if "untied" in name:
        # The residuals of lifelines do not handle ties: they depend on the order of the rows.
        np.testing.assert_allclose(
            robust_errors(sites, likelihood, fit), expected["sandwich"], rtol=1e-8
        )
    center = torch.tensor(expected["center"], dtype=torch.float64)
    for i, site in enumerate(sites):
        times, cumulative = torch.tensor(expected["hazard"][str(i)], dtype=torch.float64)
        base = Cox("breslow").baseline(site, fit.theta, center)
        found = base.cumulative_at(times)
        known = ~cumulative.isnan()
        np.testing.assert_allclose(found[known], cumulative[known], rtol=1e-6, atol=1e-7)


def test_contrasts_of_classes_are_those_of_statsmodels() -> None:
    fit = maximum_likelihood(regression_sites("multinomial"), Multinomial(3))
    expected = KEPT["statsmodels"]["multinomial"]
    table = torch.cat([fit.theta[:9].view(3, 3), fit.theta[9:, None]], 1)
    assert float(table.sum(0).abs().max()) < 1e-8
    np.testing.assert_allclose(table[1:] - table[0], expected["coef"], rtol=1e-8)
    assert fit.value == pytest.approx(expected["loss"], rel=1e-12)
    matrix = covariance(fit)
    for k in (1, 2):
        contrast = torch.zeros(4, 12, dtype=torch.float64)
        for j in range(4):
            contrast[j, 3 * k + j if j < 3 else 9 + k] = 1
            contrast[j, j if j < 3 else 9] = -1
        errors = (contrast @ matrix @ contrast.T).diagonal().sqrt()
        np.testing.assert_allclose(errors, expected["se"][k - 1], rtol=1e-8)


def test_the_kept_figures_are_those_of_the_installed_packages() -> None:
    for package, fits in (("statsmodels", statsmodels_fits), ("lifelines", lifelines_fits)):
        pytest.importorskip(package)
        for name, found in fits().items():
            for key in ("coef", "se"):
                np.testing.assert_allclose(found[key], KEPT[package][name][key], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_other_dtypes_are_taken(dtype: Any) -> None:
    draw = np.random.RandomState(0)
    X = draw.randint(-5, 6, (60, 2)).astype(dtype)
    y = draw.poisson(2.0, 60).astype(dtype)
    fit = maximum_likelihood(as_sites(X, y, np.arange(60) % 2), Poisson())
    exact = maximum_likelihood(as_sites(X.astype(float), y.astype(float)), Poisson())
    assert fit.theta.dtype is torch.float64
    assert torch.allclose(fit.theta, exact.theta, rtol=1e-10)


# --- Newton ---


def test_bytes_are_those_of_the_exchanges() -> None:
    sites = regression_sites("logistic")
    fit = maximum_likelihood(sites, Logistic())
    q = 4
    each = 8 * (q + 3 + q + q * (q + 1) // 2)
    assert fit.bytes == len(sites) * (8 * 2 + fit.exchanges * each)
    assert fit.exchanges == fit.steps + 1


def test_the_null_model_has_the_intercept_alone() -> None:
    sites = regression_sites("poisson", offset=True)
    fit = null_model(sites, Poisson())
    assert fit.theta[:3].tolist() == [0.0] * 3
    site = sites.pooled_rows()
    assert float(fit.theta[3]) == pytest.approx(
        float((site.y.sum() / site.offset.exp().sum()).log()), rel=1e-10
    )
    patients = survival_sites()
    null = null_model(patients, Cox())
    assert null.theta.tolist() == [0.0] * 3
    assert null.value == total_sums(patients, Cox(), torch.zeros(3, dtype=torch.float64)).value


def test_fixed_parameters_stay() -> None:
    sites = regression_sites("logistic")
    data = regression_data()
    free = torch.tensor([True, False, True, True])
    fit = maximum_likelihood(sites, Logistic(), free=free)
    alone = as_sites(data["X"][:, [0, 2]], data["logistic"], data["groups"])
    expected = maximum_likelihood(alone, Logistic())
    assert float(fit.theta[1]) == 0
    assert torch.allclose(fit.theta[free], expected.theta, rtol=1e-9)
    np.testing.assert_allclose(column(wald(fit), "se"), column(wald(expected), "se"), rtol=1e-9)
    start = torch.tensor([0.0, -0.1, 0.0, 0.0], dtype=torch.float64)
    moved = maximum_likelihood(sites, Logistic(), start, free=free)
    assert float(moved.theta[1]) == -0.1
    assert moved.value < fit.value
    with pytest.raises(ValueError, match=r"start of shape \(2,\), expected \(4,\)"):
        maximum_likelihood(sites, Logistic(), start[:2])


def test_many_steps_too_few_are_said() -> None:
    sites = regression_sites("logistic")
    with pytest.warns(UserWarning, match=r"Newton's decrement is .* of the loss after 1 steps"):
        fit = maximum_likelihood(sites, Logistic(), max_steps=1)
    with pytest.raises(ValueError, match="no inference: Newton's decrement is"):
        wald(fit)


def separated(kind: str) -> tuple[Likelihood, Sites, tuple[str, ...]]:
    """Data whose likelihood has no maximum, and the variables that it has none for."""
    draw = np.random.RandomState(3)
    X = draw.randn(300, 3)
    X[:, 2] = draw.uniform(size=300) < 0.1
    rare = X[:, 2] == 1
    groups = np.arange(300) % 3
    y = (draw.uniform(size=300) < 0.5).astype(float)
    counts = draw.poisson(2.0, 300).astype(float)
    survival = np.column_stack([draw.uniform(size=300) < 0.7, draw.exponential(size=300)])
    if kind == "logistic, quasi":
        return Logistic(), as_sites(X, np.where(rare, 1.0, y), groups), ("x2",)
    if kind == "logistic, complete":
        return Logistic(), as_sites(X, (X[:, 0] + X[:, 1] > 0).astype(float), groups), ("x0", "x1")
    if kind == "logistic, one class":
        return Logistic(), as_sites(X, np.ones(300), groups), ("intercept",)
    if kind == "poisson":
        return Poisson(), as_sites(X, np.where(rare, 0.0, counts), groups), ("x2",)
    if kind == "multinomial":
        target = np.where(rare, 0.0, draw.randint(0, 3, 300))
        return Multinomial(3), as_sites(X, target, groups), ("x2[0]", "x2[1]", "x2[2]")
    if kind == "cox":
        survival[rare, 0] = 0
        return Cox(), as_sites(X, survival, groups, target="survival"), ("x2",)
    # Cox, complete: the order of the events is that of a column.
    ordered = np.column_stack([np.ones(300), -X[:, 1]])
    return Cox(), as_sites(X, ordered, target="survival"), ("x1",)


@pytest.mark.parametrize(
    "kind",
    [
        "logistic, quasi",
        "logistic, complete",
        "logistic, one class",
        "poisson",
        "multinomial",
        "cox",
        "cox, complete",
    ],
)
def test_separation_is_named_and_has_no_inference(kind: str) -> None:
    likelihood, sites, names = separated(kind)
    with pytest.warns(SeparationWarning, match=f"the coefficients of .*{names[0][:2]}"):
        fit = maximum_likelihood(sites, likelihood)
    assert set(names) <= set(fit.separated)
    if "complete" not in kind:
        assert fit.separated == names
    assert not fit.converged
    assert bool(fit.theta.isfinite().all())
    with pytest.raises(ValueError, match="no inference: the coefficients of"):
        wald(fit)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e4])
@pytest.mark.parametrize("mean", [0.1, 1000.0])
def test_strong_effects_are_no_separation(scale: float, mean: float) -> None:
    draw = np.random.RandomState(5)
    X = draw.randn(500, 3)
    X[:, 2] = draw.uniform(size=500) < 0.02
    y = draw.poisson(mean * np.exp(2 * X[:, 0] - X[:, 1] + X[:, 2])).astype(float)
    events = (draw.uniform(size=500) < 1 / (1 + np.exp(-6 * X[:, 0]))).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for likelihood, target in ((Poisson(), y), (Logistic(), events)):
            fit = maximum_likelihood(as_sites(X * scale, target, np.arange(500) % 4), likelihood)
            assert fit.converged


def test_collinear_columns_have_the_shortest_coefficients_and_no_inference() -> None:
    data = regression_data()
    X = data["X"] - data["X"].mean(0)
    doubled = np.column_stack([X, X[:, 0] + X[:, 1], np.ones(len(X))])
    for likelihood, y in ((Gaussian(), "linear"), (Logistic(), "logistic"), (Poisson(), "poisson")):
        fit = maximum_likelihood(as_sites(doubled, data[y], data["groups"]), likelihood)
        plain = maximum_likelihood(as_sites(X, data[y], data["groups"]), likelihood)
        assert fit.converged
        assert fit.value == pytest.approx(plain.value, rel=1e-10)
        assert fit.collinear == ("x0", "x1", "x3", "x4", "intercept")
        with pytest.raises(ValueError, match="no inference: the columns x0, x1, x3, x4"):
            wald(fit)
        if y == "linear":
            pooled = LinearRegression().fit(doubled, data[y])
            np.testing.assert_allclose(fit.theta[:5], pooled.coef_, rtol=1e-8, atol=1e-10)
            assert float(fit.theta[5]) == pytest.approx(pooled.intercept_, rel=1e-8)
    wide = np.random.RandomState(0).randn(20, 40)
    fit = maximum_likelihood(as_sites(wide, wide[:, 0], np.arange(20) % 2), Gaussian())
    pooled = LinearRegression().fit(wide, wide[:, 0])
    np.testing.assert_allclose(fit.theta[:40], pooled.coef_, rtol=1e-7, atol=1e-10)


def test_too_few_rows_have_no_variance() -> None:
    fit = maximum_likelihood(as_sites(np.array([[0.0], [1.0]]), np.array([1.0, 2.0])), Gaussian())
    with pytest.raises(ValueError, match="2 rows for 2 parameters leave no degree of freedom"):
        wald(fit)


def test_a_table_is_a_mapping_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    table = as_table({"coef": np.array([1.0, 2.0])}, ("age", "intercept"))
    assert table == {"coef": {"age": 1.0, "intercept": 2.0}}


def test_the_sandwich_needs_outer_products() -> None:
    fit = maximum_likelihood(regression_sites("linear"), Gaussian())
    with pytest.raises(ValueError, match="the sandwich needs the sum of outer products"):
        wald(fit, sandwich=True)
    with pytest.raises(ValueError, match="level=95, expected a number between 0 and 1"):
        wald(fit, level=95)
