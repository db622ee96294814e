"""Estimators on what a hurried user or an attacker passes: strange data, statements and arguments."""

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from sklearn.base import clone

from fedfw.estimators import (
    CoxRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
)

ROWS = 120
ALL = [LinearRegression, LogisticRegression, PoissonRegression, CoxRegression]
CONSTRAINTS = [None, "l1:0.8", "l2:0.5"]


def make_rows(kind: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X (m, 4), y and groups of three sites."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(ROWS, 4))
    eta = X[:, 0] - 0.5 * X[:, 1]
    groups = rng.integers(0, 3, ROWS)
    if kind is LinearRegression:
        return X, eta + rng.normal(size=ROWS), groups
    if kind is LogisticRegression:
        return X, (rng.random(ROWS) < 1 / (1 + np.exp(-eta))).astype(int), groups
    if kind is PoissonRegression:
        return X, rng.poisson(np.exp(0.5 * eta)).astype(float), groups
    times = rng.exponential(np.exp(-eta))
    return X, np.column_stack([rng.random(ROWS) < 0.7, times]), groups


def coefficients(estimator: Any) -> np.ndarray:
    return np.ravel(estimator.coef_)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("value", [0.0, 1.0, 1e9])
def test_a_constant_column_changes_nothing(kind: type, constraint: Any, value: float) -> None:
    X, y, groups = make_rows(kind)
    plain = kind(constraint).fit(X, y, groups)
    wide = kind(constraint).fit(np.column_stack([X, np.full(ROWS, value)]), y, groups)
    assert np.allclose(coefficients(wide)[:4], coefficients(plain), rtol=1e-3, atol=1e-3)
    assert coefficients(wide)[4] == 0


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("kind", ALL)
def test_units_do_not_matter(kind: type, constraint: Any) -> None:
    X, y, groups = make_rows(kind)
    scales = np.array([1e9, 1e-9, 1.0, 1e3])
    plain = kind(constraint).fit(X, y, groups)
    scaled = kind(constraint).fit(X * scales, y, groups)
    assert np.allclose(coefficients(scaled) * scales, coefficients(plain), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("kind", ALL)
def test_a_site_with_one_row_and_one_class_at_a_site(kind: type, constraint: Any) -> None:
    X, y, groups = make_rows(kind)
    groups = np.where(y if y.ndim == 1 else y[:, 0] > 0.5, groups, 1)
    groups[0] = 9
    fit = kind(constraint).fit(X, y, groups)
    assert fit.certificate_.relative_gap <= 1e-4


@pytest.mark.parametrize("kind", [LinearRegression, CoxRegression])
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_fit_without_loss_has_no_gap(kind: type, constraint: Any) -> None:
    """One row, or a constant target: the null model is perfect."""
    X, y, _ = make_rows(kind)
    y[0] = 1.0
    fit = kind(constraint).fit(X[:1], y[:1])
    assert fit.certificate_.relative_gap == 0
    assert not coefficients(fit).any()


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_more_columns_than_rows(constraint: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 60))
    fit = LinearRegression(constraint).fit(X, rng.normal(size=20), np.arange(20) % 3)
    assert fit.certificate_.relative_gap <= 1e-4
    with pytest.raises(ValueError, match="no inference"):
        _ = fit.inference_


def test_separation_is_said_once() -> None:
    X, _, groups = make_rows(LogisticRegression)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = LogisticRegression().fit(X, X[:, 0] > 0, groups)
    assert [str(one.message)[:42] for one in caught] == [
        "separation: the coefficients of x0 grow wi"
    ]
    with pytest.raises(ValueError, match="the coefficients of x0 have no finite"):
        _ = fit.inference_


@pytest.mark.parametrize("bounds", [(0.5, 0.8), (-1.0, -0.5), (0.5, 0.5), (-0.2, 0.1)])
@pytest.mark.parametrize("tol", [1e-4, 1e-9])
def test_bounds_that_exclude_zero(bounds: tuple[float, float], tol: float) -> None:
    X, y, groups = make_rows(LinearRegression)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = LinearRegression(bounds={"x0": bounds, "x1": (0.1, None)}, tol=tol)
        fit.fit(X, y, groups)
    low = np.array([bounds[0] - 1e-12, 0.1, -np.inf, -np.inf, -np.inf])
    high = np.array([bounds[1] + 1e-12, np.inf, np.inf, np.inf, np.inf])
    A = np.column_stack([X, np.ones(ROWS)])
    exact = lsq_linear(A, y, (low, high), tol=1e-12)
    assert fit.certificate_.loss == pytest.approx(exact.cost / ROWS, rel=10 * tol)
    assert np.allclose(fit.coef_, exact.x[:4], atol=20 * tol**0.5)


@pytest.mark.parametrize("kind", ALL)
def test_fits_are_pickled_cloned_and_fitted_again(kind: type) -> None:
    X, y, groups = make_rows(kind)
    fit = kind("l1:0.8").fit(X, y, groups)
    kept = pickle.loads(pickle.dumps(fit))
    assert np.array_equal(kept.predict(X), fit.predict(X))
    assert not hasattr(clone(fit), "coef_")
    again = fit.fit(X[:, :3], y, groups)
    assert again.n_features_in_ == 3
    assert np.array_equal(again.coef_, kind("l1:0.8").fit(X[:, :3], y, groups).coef_)


@pytest.mark.parametrize("kind", [LinearRegression, LogisticRegression, PoissonRegression])
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_rows_without_weight_count_for_nothing(kind: type, constraint: Any) -> None:
    X, y, groups = make_rows(kind)
    weights = (groups > 0).astype(float)
    X[groups == 0] = 1e6
    fit = kind(constraint, tol=1e-8).fit(X, y, groups, weights)
    rest = kind(constraint, tol=1e-8).fit(X[groups > 0], y[groups > 0], groups[groups > 0])
    assert np.allclose(fit.coef_, rest.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_a_radius_of_nearly_nothing_and_one_of_everything(kind: type) -> None:
    X, y, groups = make_rows(kind)
    tiny = kind("l1:1e-6").fit(X, y, groups)
    assert np.abs(coefficients(tiny)).sum() <= 2e-6
    assert tiny.certificate_.relative_gap <= 1e-4
    loose = kind("l1:1e6", tol=1e-8).fit(X, y, groups)
    assert np.allclose(loose.coef_, kind().fit(X, y, groups).coef_, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bounds": {"x0": "ab"}}, r"expected \(low, high\)"),
        ({"bounds": {"x0": (0,)}}, r"expected \(low, high\)"),
        ({"bounds": {"x0": (np.nan, 1)}}, r"expected \(low, high\)"),
        ({"bounds": {"x0": (40, None)}}, "beyond the box"),
        ({"bounds": {"x0": (2, 1)}}, "low <= high"),
        ({"constraint": "l1:1", "unpenalised": "x0"}, r"expected a list of columns: \['x0'\]"),
        ({"constraint": "l1:1", "factors": {"f": "x0"}}, "expected a list of columns"),
        ({"monotone": {"f": "x0"}}, "expected a list of columns"),
        ({"constraint": "l1:1", "factors": {"f": ["x0"], "g": ["x0"]}}, "names 'x0' twice"),
        ({"monotone": {"f": ["x0", "x0"]}}, "names 'x0' twice"),
        ({"constraint": "l1:1", "algorithm": "sgd"}, "algorithm='sgd', expected"),
        ({"constraint": "l1:1", "algorithm": 3}, "algorithm=3, expected"),
        ({"constraint": "l1:1", "tol": "small"}, "expected a number above 0"),
        ({"constraint": "l1:1", "max_rounds": 0}, "expected a whole number"),
        ({"constraint": "l1:0"}, "expected a positive"),
        ({"constraint": "l1:1", "random_state": np.random.RandomState(0)}, "a whole number"),
    ],
)
@pytest.mark.parametrize("kind", ALL)
def test_wrong_parameters_are_refused(kind: type, options: dict[str, Any], message: str) -> None:
    X, y, groups = make_rows(kind)
    with pytest.raises(ValueError, match=message):
        kind(**options).fit(X, y, groups)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.array([1, "a"] * 60, dtype=object), "of several types, int, str"),
        (np.array([1.0, np.nan] * 60), "row 1 has none"),
        (np.array([None, "a"] * 60), "row 0 has none"),
        (np.zeros((ROWS, 2)), "expected one for each"),
        (np.zeros(3), "expected one for each"),
    ],
)
def test_wrong_groups_are_refused(groups: np.ndarray, message: str) -> None:
    X, y, _ = make_rows(LinearRegression)
    with pytest.raises(ValueError, match=message):
        LinearRegression("l1:1").fit(X, y, groups)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_no_event_at_any_site_is_refused(constraint: Any) -> None:
    X, y, groups = make_rows(CoxRegression)
    y[:, 0] = 0
    with pytest.raises(ValueError, match="no site has an event"):
        CoxRegression(constraint).fit(X, y, groups)
