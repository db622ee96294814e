"""Estimators: scikit-learn's checks, agreement with pooled fits, statements about coefficients."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from scipy.optimize import LinearConstraint, minimize
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression as PooledLogistic
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from fedfw import ContradictionError
from fedfw.estimators import (
    CoxRegression,
    GapWarning,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
)
from fedfw.estimators import model as model_module
from fedfw.estimators.likelihoods import Gaussian, Likelihood, Logistic, Poisson, total_sums
from fedfw.estimators.partial_likelihood import Cox
from fedfw.estimators.sites import as_sites

ROWS = 240
NAMES = [f"v{j}" for j in range(8)]
ALL = [LinearRegression, LogisticRegression, PoissonRegression, CoxRegression]


def make_rows(kind: type, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X (m, p) on several scales, y and groups of unequal sizes, for an estimator."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(ROWS, len(NAMES)))
    X = Z * np.geomspace(0.1, 30, len(NAMES)) + np.arange(len(NAMES))
    eta = Z[:, 0] - 0.7 * Z[:, 1] + 0.4 * Z[:, 2]
    groups = rng.choice(4, ROWS, p=[0.5, 0.3, 0.15, 0.05])
    if kind is LinearRegression:
        return X, 5 + 2 * eta + rng.normal(size=ROWS), groups
    if kind is LogisticRegression:
        return X, rng.random(ROWS) < 1 / (1 + np.exp(-eta)), groups
    if kind is PoissonRegression:
        return X, rng.poisson(np.exp(0.5 * eta + 1)).astype(float), groups
    times = np.ceil(20 * rng.exponential(np.exp(-eta)))
    return X, np.column_stack([rng.random(ROWS) < 0.7, times]), groups


def likelihood_of(estimator: Any) -> Likelihood:
    """Return the likelihood of an estimator."""
    if isinstance(estimator, CoxRegression):
        return Cox(estimator.ties)
    found: dict[type, Likelihood] = {
        LinearRegression: Gaussian(),
        LogisticRegression: Logistic(),
        PoissonRegression: Poisson(),
    }
    return found[type(estimator)]


def mean_loss(estimator: Any, X: np.ndarray, y: np.ndarray, groups: np.ndarray) -> float:
    """Return the mean loss of a row at the estimator's coefficients."""
    sites = as_sites(X, y, groups, target=type(estimator).target)
    intercept = np.ravel(getattr(estimator, "intercept_", []))
    theta = torch.from_numpy(np.append(np.ravel(estimator.coef_), intercept))
    sums = total_sums(sites, likelihood_of(estimator), theta)
    return sums.value / sums.weight


@pytest.mark.parametrize(
    "estimator", [LinearRegression(), LogisticRegression(), PoissonRegression()], ids=repr
)
def test_scikit_learns_checks_pass(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed
    assert len(results) > 40


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("constraint", ["l1:0.8", "l2:0.5", None])
def test_the_gap_is_proven_and_small(kind: type, constraint: str | None) -> None:
    X, y, groups = make_rows(kind)
    fit = kind(constraint).fit(X, y, groups=groups)
    certificate = fit.certificate_
    assert certificate.relative_gap is not None
    assert 0 <= certificate.relative_gap <= 1e-4
    assert np.isclose(mean_loss(fit, X, y, groups), certificate.loss, rtol=1e-9)


@pytest.mark.parametrize("kind", ALL)
def test_l1_agrees_with_an_independent_solver(kind: type) -> None:
    """scipy's SLSQP on positive and negative parts, over all rows at one place."""
    X, y, groups = make_rows(kind)
    fit = kind("l1:0.8", tol=1e-9).fit(X, y, groups=groups)
    scale = X.std(0)
    mean = torch.from_numpy(X.mean(0))
    sites = as_sites(X, y, groups, target=kind.target)  # type: ignore[attr-defined]
    scaled = sites.transformed(lambda columns: (columns - mean) / torch.from_numpy(scale))
    model = likelihood_of(fit)
    p = len(NAMES)

    def objective(parts: np.ndarray) -> tuple[float, np.ndarray]:
        theta = np.append(parts[:p] - parts[p : 2 * p], parts[2 * p :])
        sums = total_sums(scaled, model, torch.from_numpy(theta))
        gradient = sums.gradient.numpy() / sums.weight
        return sums.value / sums.weight, np.concatenate([gradient[:p], -gradient[:p], gradient[p:]])

    intercepts = model.intercepts
    bounds = [(0, None)] * (2 * p) + [(None, None)] * intercepts
    radius = LinearConstraint(np.append(np.ones(2 * p), np.zeros(intercepts)), -np.inf, 0.8)
    found = minimize(
        objective,
        np.zeros(2 * p + intercepts),
        jac=True,
        bounds=bounds,
        constraints=[radius],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    expected = found.x[:p] - found.x[p : 2 * p]
    assert np.allclose(np.ravel(fit.coef_) * scale, expected, atol=1e-5)
    assert fit.selected_.tolist() == (np.abs(expected) > 1e-6).tolist()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_who_holds_a_row_changes_nothing_but_bytes(kind: type, dtype: type) -> None:
    """Cox's clients are strata: there, pairs of data and groups are compared."""
    X, y, groups = make_rows(kind)
    X = X.astype(dtype)
    whole = kind("l1:0.8", tol=1e-8).fit(X, y, groups=groups)
    pairs = [(X[groups == g], y[groups == g]) for g in np.unique(groups)]
    assert np.allclose(kind("l1:0.8", tol=1e-8).fit(pairs).coef_, whole.coef_, rtol=1e-6)
    if kind is not CoxRegression:
        alone = kind("l1:0.8", tol=1e-8).fit(X, y)
        assert np.allclose(alone.coef_, whole.coef_, rtol=1e-4, atol=1e-7)
        assert alone.bytes_.payload < whole.bytes_.payload


def test_maximum_likelihood_agrees_with_scikit_learn() -> None:
    X, y, groups = make_rows(LogisticRegression)
    fit = LogisticRegression().fit(X, y, groups=groups)
    pooled = PooledLogistic(C=np.inf, tol=1e-10, max_iter=2000).fit(
        StandardScaler().fit_transform(X), y
    )
    assert np.allclose(fit.coef_ * X.std(0), pooled.coef_, atol=1e-3)
    table = fit.inference_
    assert np.allclose([table["coef"][f"x{j}"] for j in range(8)], fit.coef_[0])


def test_several_classes_and_sample_weights() -> None:
    X, _, groups = make_rows(LogisticRegression)
    y = np.array(["low", "mid", "high"])[np.digitize(X[:, 0], [-0.05, 0.05])]
    weights = np.where(np.arange(ROWS) % 3 == 0, 2.0, 1.0)
    repeated = np.repeat(np.arange(ROWS), weights.astype(int))
    X = (X - X.mean(0)) / X.std(0)
    options: dict[str, Any] = {"constraint": "l1:2", "tol": 1e-7, "standardize": False}
    one = LogisticRegression(**options).fit(X, y, groups, weights)
    other = LogisticRegression(**options).fit(X[repeated], y[repeated], groups[repeated])
    assert one.coef_.shape == (3, 8)
    assert np.allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-4)
    assert one.classes_.tolist() == ["high", "low", "mid"]


def test_signs_bounds_and_free_variables_hold() -> None:
    X, y, groups = make_rows(LogisticRegression)
    signed = LogisticRegression("l1:1", bounds={"x1": (0, None)}).fit(X, y, groups)
    assert signed.coef_[0, 1] >= 0
    bounded = LogisticRegression(bounds={"x0": (None, 2.0)}).fit(X, y, groups)
    assert bounded.coef_[0, 0] == pytest.approx(2.0)
    free = LogisticRegression("l1:0.2", unpenalised=["x0"]).fit(X, y, groups)
    assert abs(free.coef_[0, 0] * X[:, 0].std()) > 0.5
    assert free.selected_[0]
    rising = LogisticRegression(monotone={"level": ["x5", "x6", "x7"]}).fit(X, y, groups)
    assert 0 <= rising.coef_[0, 5] <= rising.coef_[0, 6] <= rising.coef_[0, 7]
    grouped = LogisticRegression("l1:0.9", factors={"stage": ["x1", "x6"]}).fit(X, y, groups)
    assert grouped.selected_[1] == grouped.selected_[6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bounds": {"age": (0, None)}}, "expected one of the columns"),
        ({"constraint": "l2:1", "bounds": {"x0": (0, None)}}, "expected an l1 ball"),
        ({"constraint": "l1:1", "bounds": {"x0": (0, 1)}}, "signs alone"),
        ({"factors": {"f": ["x0"]}}, "expected a set with a radius"),
        ({"constraint": "l1:1", "unpenalised": ["x0"], "bounds": {"x0": (0, None)}}, "stands in"),
        ({"sees": "atoms"}, "without a constraint"),
        ({"algorithm": "nonsense"}, "without a constraint"),
        ({"infer": "twice"}, "expected None"),
        ({"tol": 0}, "above 0"),
        ({"constraint": "l1:1", "sees": "everything"}, "expected gradients"),
        ({"constraint": "l1:1", "sees": "atoms", "algorithm": "fedpgd"}, "atoms alone"),
        ({"privacy": "eps=4,delta=1e-5"}, "without a constraint"),
        ({"privacy": "eps=4,delta=1e-5", "constraint": "l1:1"}, "public numbers"),
        ({"constraint": "l1:1", "constrain_intercept": True}, "standardize=False"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    X, y, groups = make_rows(LogisticRegression)
    with pytest.raises(ValueError, match=message):
        LogisticRegression(**options).fit(X, y, groups)


def test_atoms_alone_warn_with_both_numbers() -> None:
    X, y, groups = make_rows(LogisticRegression)
    with pytest.warns(GapWarning, match=r"gap of .* expected at most 0.001"):
        fit = LogisticRegression("l1:0.8", sees="atoms", max_rounds=5).fit(X, y, groups)
    assert fit.certificate_.relative_gap > 1e-3


def test_intervals_after_a_selection_need_a_split() -> None:
    X, y, groups = make_rows(CoxRegression)
    fit = CoxRegression("l1:0.8").fit(X, y, groups)
    with pytest.raises(ValueError, match="too short"):
        _ = fit.inference_
    split = CoxRegression("l1:0.8", infer="split").fit(X, y, groups)
    names = [f"x{j}" for j in np.flatnonzero(split.selected_)]
    assert list(split.inference_["coef"].keys()) == names


def test_survival_curves_are_for_the_sites_of_the_fit() -> None:
    X, y, groups = make_rows(CoxRegression)
    fit = CoxRegression().fit(X, y, groups)
    curves = fit.predict_survival(X[:3], [0.0, 10.0, 1e6], site="0")
    assert np.allclose(curves[:, 0], 1)
    assert (np.diff(curves, axis=1) <= 0).all()
    with pytest.raises(ValueError, match="relative risks alone"):
        fit.predict_survival(X[:3], [1.0], site="elsewhere")
    with pytest.raises(ValueError, match="person-periods"):
        CoxRegression("l1:1", privacy="eps=4,delta=1e-5", standardize=False).fit(X, y, groups)


def test_pipelines_and_searches() -> None:
    X, y, _ = make_rows(LogisticRegression)
    estimator = make_pipeline(StandardScaler(), LogisticRegression("l1:1"))
    assert estimator.fit(X, y).score(X, y) > 0.6
    search = GridSearchCV(LogisticRegression(), {"constraint": ["l1:0.1", "l1:1"]}, cv=3)
    assert search.fit(X, y).best_params_ == {"constraint": "l1:1"}
    assert clone(LogisticRegression("l1:3")).constraint == "l1:3"


class Counting(LogisticRegression):
    """Notes how many clients each fit saw."""

    clients: list[int] = []  # noqa: RUF012 - shared by the clones of a search

    def fit(self, X: Any, y: Any = None, groups: Any = None, sample_weight: Any = None) -> Any:
        super().fit(X, y, groups, sample_weight)
        Counting.clients.append(len(np.unique(groups)) if groups is not None else 1)
        return self


def test_routing_gives_each_fit_the_clients() -> None:
    X, y, groups = make_rows(LogisticRegression)
    Counting.clients.clear()
    with sklearn.config_context(enable_metadata_routing=True):
        routed = Counting("l1:1").set_fit_request(groups=True)
        cross_val_score(routed, X, y, params={"groups": groups}, cv=GroupKFold(4))
    assert Counting.clients == [3, 3, 3, 3]


def test_without_routing_a_fit_in_a_search_warns() -> None:
    X, y, groups = make_rows(LogisticRegression)
    with pytest.warns(UserWarning, match="all rows are one client"):
        cross_val_score(LogisticRegression("l1:1"), X, y, groups=groups, cv=GroupKFold(4))


def test_a_bound_above_the_loss_is_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong proof of the run: polishing finds a loss below it."""
    whole = model_module.fit_constrained

    def overclaiming(*args: Any, **kwargs: Any) -> Any:
        fit = whole(*args, **kwargs)
        claimed = replace(fit.certificate, lower_bound=fit.certificate.loss + 0.01)
        return replace(fit, certificate=claimed)

    monkeypatch.setattr(model_module, "fit_constrained", overclaiming)
    X, y, groups = make_rows(LogisticRegression)
    with pytest.raises(ContradictionError, match="polishing: the loss F is"):
        LogisticRegression("l1:0.8").fit(X, y, groups)
