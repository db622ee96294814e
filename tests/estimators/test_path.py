"""Paths: every fit is as good as a fit of its own, for a fraction of its cost."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from fedfw.estimators import (
    CoxRegression,
    FederatedEstimator,
    GapWarning,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    default_radii,
    path,
)
from fedfw.estimators.likelihoods import Logistic, Multinomial
from fedfw.estimators.problems import problem_of, restricted_problem
from fedfw.estimators.sites import as_sites
from fedfw.sets import Box

RADII = [0.2, 0.5, 1.0]
GROUPS = np.arange(120) % 3


def rows() -> tuple[Any, Any]:
    """Return columns (120, 8) of different scales and a predictor (120,) of three of them."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((120, 8)) * np.array([1, 2, 1, 1, 0.1, 1, 1, 1])
    return X, X[:, 0] - 0.5 * X[:, 1] + 5 * X[:, 4] + 0.5 * rng.standard_normal(120)


def targets(estimator: FederatedEstimator, eta: Any) -> Any:
    """Return targets of the estimator's kind."""
    rng = np.random.default_rng(2)
    if isinstance(estimator, CoxRegression):
        times = np.ceil(10 * rng.exponential(np.exp(-eta / 2)))
        return np.column_stack([rng.random(len(eta)) < 0.7, times])
    if isinstance(estimator, PoissonRegression):
        return rng.poisson(np.exp(eta / 3))
    if isinstance(estimator, LogisticRegression):
        return np.digitize(eta, [-0.5, 0.5]) if estimator.tol == 1e-5 else eta > 0
    return eta


ESTIMATORS: list[FederatedEstimator] = [
    LinearRegression("l1:1"),
    LogisticRegression(),
    LogisticRegression("l1:1", tol=1e-5),  # three classes
    PoissonRegression("l1:1", bounds={"x4": (0, None)}),
    CoxRegression("l1:1"),
    LinearRegression("l1:1", factors={"f": ["x1", "x2"]}, unpenalised=["x0"]),
    LinearRegression("l1:1", sees="sums"),
    LogisticRegression("l2:1"),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_fits_of_a_path_are_those_of_single_fits(estimator: FederatedEstimator) -> None:
    X, eta = rows()
    y = targets(estimator, eta)
    found = path(estimator, RADII[::-1], X, y, GROUPS)
    assert found.radii.tolist() == RADII
    kind = "l2" if estimator.constraint == "l2:1" else "l1"
    for i, radius in enumerate(RADII):
        cold = clone(estimator).set_params(constraint=f"{kind}:{radius}").fit(X, y, groups=GROUPS)
        share = estimator._settings().share
        assert 0 <= found.certificates[i].relative_gap + 1e-12 <= share + 1e-9
        assert found.losses[i] == pytest.approx(cold.certificate_.loss, abs=2 * share)
        assert np.array_equal(found.selected[i], cold.selected_)
        at = found.at(radius)
        assert np.array_equal(at.coef_.squeeze(), found.coefficients[i])
        assert at.predict(X).shape == (120,)
        assert at.constraint.r == radius
        with pytest.raises(ValueError, match="after a selection"):
            assert at.inference_


def test_later_fits_send_less_than_the_first() -> None:
    X, eta = rows()
    models = path(LogisticRegression(), [0.5, 0.6, 0.7], X, eta > 0, GROUPS).models
    first, *others = (model.bytes.payload for model in models)
    assert max(others) < first


def test_atoms_alone_are_enough() -> None:
    X, eta = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GapWarning)
        found = path(LinearRegression(sees="atoms", max_rounds=40), RADII, X, eta, GROUPS)
    assert all(model.run is not None for model in found.models)
    assert np.all(np.diff(found.losses) < 0)


def test_pairs_pictures_and_names(tmp_path: Any) -> None:
    X, eta = rows()
    pairs = [(X[g == GROUPS], eta[g == GROUPS]) for g in range(3)]
    found = path(LinearRegression(), RADII, pairs)
    assert np.allclose(
        found.coefficients, path(LinearRegression(), RADII, X, eta, GROUPS).coefficients
    )
    figure = found.plot(tmp_path / "path.png")
    assert (tmp_path / "path.png").stat().st_size > 1000
    assert figure.axes[0].get_xlabel() == "radius"
    with pytest.raises(ValueError, match="is not on the path"):
        found.at(0.3)


def test_a_path_with_split_fits_the_selecting_halves() -> None:
    X, eta = rows()
    found = path(LinearRegression(infer="split"), RADII, X, eta, GROUPS)
    cold = LinearRegression("l1:0.5", infer="split").fit(X, eta, groups=GROUPS)
    assert np.allclose(found.at(0.5).coef_, cold.coef_, atol=1e-4)
    coefficients = found.at(0.5).inference_["coef"]
    expected = cold.inference_["coef"]
    for name, value in dict(expected).items():
        assert coefficients[name] == pytest.approx(value)


def test_default_radii_end_where_the_constraint_stops_binding() -> None:
    X, eta = rows()
    radii = default_radii(LinearRegression(), X, eta, GROUPS, count=7)
    assert len(radii) == 7
    assert np.allclose(radii[1:] / radii[:-1], radii[1] / radii[0])
    free = LinearRegression().fit(X, eta, groups=GROUPS)
    assert radii[-1] == pytest.approx(np.abs(free.coef_ * X.std(0)).sum(), rel=0.02)
    assert len(path(LinearRegression(), None, X, eta, GROUPS).radii) == 20
    # separated classes: the constraint binds at any radius
    assert np.isfinite(default_radii(LogisticRegression(), X[:, :1], X[:, 0] > 0)).all()


def test_what_cannot_be_is_refused() -> None:
    X, eta = rows()
    with pytest.raises(ValueError, match="every fit and every score would be charged"):
        path(LinearRegression("l1:1", privacy="eps=4,delta=1e-5"), RADII, X, eta, GROUPS)
    with pytest.raises(ValueError, match="has no radius"):
        path(LinearRegression(Box(-1.0, 1.0)), RADII, X, eta, GROUPS)
    for radii in ([], [0.0, 1.0], [np.nan]):
        with pytest.raises(ValueError, match="expected one or more positive numbers"):
            path(LinearRegression(), radii, X, eta, GROUPS)


@pytest.mark.parametrize("K", [2, 3])
def test_the_problem_of_a_support_is_the_whole_problem_there(K: int) -> None:
    X, eta = rows()
    sites = as_sites(X, np.digitize(eta, [-0.5, 0.5][: K - 1]), GROUPS, target="label")
    likelihood = Logistic() if K == 2 else Multinomial(K)
    width = likelihood.width(8)
    generator = torch.Generator().manual_seed(0)
    support = torch.tensor([1, 4, width - 1] if K == 2 else [1, 9, 20, 22, width - 1])
    whole = problem_of(sites, likelihood, torch.zeros(width).double())
    narrow, places = restricted_problem(sites, likelihood, support)
    z = torch.randn(len(support), generator=generator, dtype=torch.float64)
    value, gradient = whole.value_and_gradient(whole.start.index_copy(0, support, z))
    near, slope = narrow.value_and_gradient(narrow.start.index_copy(0, places, z))
    assert near == pytest.approx(value, rel=1e-12)
    assert torch.allclose(slope[places], gradient[support])
