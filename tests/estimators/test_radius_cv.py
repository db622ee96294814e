"""The radius by folds within clients."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import log_loss, mean_poisson_deviance

from fedfw.estimators import (
    CoxRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    RadiusCV,
)
from fedfw.estimators.after_selection import halves
from fedfw.estimators.fitting import Bytes
from fedfw.estimators.likelihoods import Gaussian, Logistic, Poisson
from fedfw.estimators.model import Settings, fit_model
from fedfw.estimators.partial_likelihood import Cox
from fedfw.estimators.radius_cv import choose, fold_numbers, score_rows
from fedfw.estimators.sites import as_sites

RADII = [0.3, 0.8, 1.4, 3.0]
GROUPS = np.arange(150) % 3


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((150, 6))
    return X, X[:, 0] - 0.7 * X[:, 1] + 0.5 * rng.standard_normal(150)


def survival(eta: Any) -> Any:
    rng = np.random.default_rng(4)
    times = np.ceil(5 * rng.exponential(np.exp(-eta)))
    return np.column_stack([rng.random(len(eta)) < 0.7, times])


def test_folds_partition_each_clients_rows_and_balance_classes() -> None:
    X, eta = rows()
    labels = (eta > 0.8).astype(int)
    sites = as_sites(X, labels, GROUPS, target="label")
    numbers = fold_numbers(sites, Logistic(), 4, seed=0)
    for site, own in zip(sites, numbers, strict=True):
        assert len(own) == len(site)
        assert set(own.tolist()) == {0, 1, 2, 3}
        for label in (0, 1):
            counts = own[site.y == label].bincount(minlength=4)
            assert counts.max() - counts.min() <= 1
    again = fold_numbers(sites, Logistic(), 4, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(numbers, again, strict=True))
    other = fold_numbers(sites, Logistic(), 4, seed=1)
    assert not all(torch.equal(a, b) for a, b in zip(numbers, other, strict=True))


def test_the_rule_of_one_standard_error_on_a_known_table() -> None:
    mean = np.array([5.0, 3.1, 3.0, 2.9, 3.5])
    error = np.array([0.5, 0.3, 0.1, 0.15, 0.1])
    assert choose(mean, error, False, one_standard_error=False) == 3
    assert choose(mean, error, False, one_standard_error=True) == 2
    assert choose(-mean, error, True, one_standard_error=True) == 2
    assert choose(np.array([1.0, 1.0]), np.zeros(2), False, one_standard_error=False) == 0


def test_scores_are_the_deviance_of_held_out_rows() -> None:
    X, eta = rows()
    counts = np.random.default_rng(0).poisson(np.exp(eta / 3))
    for estimator, y, likelihood, target, expected in (
        (
            LinearRegression(),
            eta,
            Gaussian(),
            "number",
            lambda f: ((f.predict(X) - eta) ** 2).mean(),
        ),
        (
            LogisticRegression(),
            eta > 0,
            Logistic(),
            "label",
            lambda f: 2 * log_loss(eta > 0, f.predict_proba(X)),
        ),
        (
            PoissonRegression(),
            counts,
            Poisson(),
            "number",
            lambda f: mean_poisson_deviance(counts, f.predict(X)),
        ),
    ):
        fit = estimator.fit(X, y)
        sites = as_sites(X, y, target=target)
        model = fit_model(sites, likelihood, Settings())
        sums = score_rows(sites[0], likelihood, model, "deviance")
        assert sums.score / sums.count == pytest.approx(expected(fit), rel=1e-6)


@pytest.mark.parametrize("scoring", ["deviance", "concordance"])
def test_cox_by_partial_likelihood_and_by_concordance(scoring: Any) -> None:
    X, eta = rows()
    y = survival(eta)
    found = RadiusCV(CoxRegression(), RADII, 3, scoring=scoring).fit(X, y, GROUPS)
    assert found.best_radius_ in RADII
    mean = np.asarray(list(dict(found.scores_["mean"]).values()))
    assert (mean[-1] > mean[0]) if scoring == "concordance" else (mean[-1] < mean[0])
    if scoring == "concordance":
        assert ((mean > 0.5) & (mean <= 1)).all()
    assert found.strata_.keys() == {"0", "1", "2"}
    assert found.predict_survival(X[:2], [1.0, 2.0], "1").shape == (2, 2)


def test_cox_scores_and_their_ties() -> None:
    # Of equal times one is comparable with a censored patient; equal predictions count one half.
    X = np.zeros((4, 1))
    y = np.array([[1, 1.0], [0, 1.0], [1, 2.0], [1, 2.0]])
    sites = as_sites(X, y, target="survival")
    fitted = as_sites(np.arange(4.0)[:, None], y, target="survival")
    model = fit_model(fitted, Cox(), Settings())
    sums = score_rows(sites[0], Cox(), model, "concordance")
    assert (sums.score, sums.count) == (1.5, 3)
    deviance = score_rows(sites[0], Cox(), model, "deviance")
    # risk sets: 4 patients at time 1; Efron's 2 and 1 at time 2
    assert deviance.score == pytest.approx(2 * np.log(4 * 2 * 1))
    assert deviance.count == 3


def test_it_is_an_estimator_of_scikit_learn(tmp_path: Any) -> None:
    X, eta = rows()
    search = RadiusCV(LogisticRegression(tol=1e-3), RADII, folds=3, random_state=5)
    assert clone(search).get_params()["estimator__tol"] == 1e-3
    with pytest.raises(AttributeError, match="coef_"):
        assert search.coef_
    assert not hasattr(RadiusCV(LinearRegression()), "predict_proba")
    found = search.fit(X, eta > 0, groups=GROUPS)
    assert found.n_features_in_ == 6
    assert found.classes_.tolist() == [False, True]
    cold = LogisticRegression(f"l1:{found.best_radius_}", tol=1e-3).fit(X, eta > 0, groups=GROUPS)
    assert np.allclose(found.coef_, cold.coef_)
    assert found.predict_proba(X).shape == (150, 2)
    assert found.score(X, eta > 0) > 0.8
    assert isinstance(found.bytes_, Bytes)
    assert found.bytes_.payload > cold.bytes_.payload
    found.plot(tmp_path / "cv.png")
    assert (tmp_path / "cv.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="after a selection"):
        assert found.inference_


def test_a_split_chooses_the_radius_on_the_selecting_halves() -> None:
    X, eta = rows()
    found = RadiusCV(LinearRegression(infer="split"), RADII, 3).fit(X, eta, GROUPS)
    changed = eta.copy()
    rows_of = as_sites(np.arange(150.0)[:, None], eta, GROUPS)
    second = torch.cat([site.X for site in halves(rows_of, 0)[1]]).long().flatten().numpy()
    changed[second] += 100 * np.random.default_rng(0).standard_normal(len(second))
    again = RadiusCV(LinearRegression(infer="split"), RADII, 3).fit(X, changed, GROUPS)
    assert list(found.scores_["mean"]) == list(again.scores_["mean"])
    first_errors = list(dict(found.inference_["se"]).values())
    second_errors = list(dict(again.inference_["se"]).values())
    assert not np.allclose(first_errors, second_errors)


def test_pairs_small_clients_and_refusals() -> None:
    X, eta = rows()
    pairs = [(X[:70], eta[:70]), (X[70:148], eta[70:148]), (X[148:], eta[148:])]
    assert RadiusCV(LinearRegression(), RADII, 3).fit(pairs).best_radius_ in RADII
    for options, message in (
        ({"folds": 1}, "expected a whole number of at least 2"),
        ({"folds": 200}, "leaves a fold without rows"),
        ({"scoring": "auc"}, "expected deviance or concordance"),
        ({"scoring": "concordance"}, "is for survival times"),
    ):
        with pytest.raises(ValueError, match=message):
            RadiusCV(LinearRegression(), RADII, **options).fit(X, eta, GROUPS)  # type: ignore[arg-type]
    private = LinearRegression("l1:1", privacy="eps=4,delta=1e-5")
    with pytest.raises(ValueError, match="would be charged"):
        RadiusCV(private, RADII).fit(X, eta, GROUPS)
