"""Stability selection: halves, frequencies and bounds."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from fedfw.estimators import (
    CoxRegression,
    LinearRegression,
    LogisticRegression,
    StabilitySelection,
)
from fedfw.estimators.sites import as_sites
from fedfw.estimators.stability import (
    complementary_halves,
    threshold_for,
    unimodal_bound,
    unimodal_factor,
    worst_case_bound,
)

GROUPS = np.arange(120) % 3


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 12))
    return X, 1.5 * X[:, 2] - 1.5 * X[:, 7] + 0.5 * rng.standard_normal(120)


def test_halves_are_complementary_within_each_client() -> None:
    numbers = np.arange(11.0)[:, None]
    sites = as_sites(numbers, numbers[:, 0], ["a"] * 4 + ["b"] * 7)
    first, second = complementary_halves(sites, torch.Generator().manual_seed(0))
    for whole, one, other in zip(sites, first, second, strict=True):
        assert len(one) == len(other) == len(whole) // 2
        drawn = set(one.X.flatten().tolist()) | set(other.X.flatten().tolist())
        assert len(drawn) == 2 * len(one)
        assert drawn <= set(whole.X.flatten().tolist())


def test_bounds_are_the_published_ones() -> None:
    # Meinshausen and Buehlmann: pi = 0.9 and q = sqrt(0.8 p) bound the expectation by 1.
    assert worst_case_bound(np.sqrt(0.8 * 1000), 1000, 0.9) == pytest.approx(1)
    # printed by the R package stabs with unimodality, to three digits or more
    for threshold, q, p, pairs, bound in (
        (0.8, 20, 88, 50, 3.743316),
        (0.97, 15, 32, 100, 0.975),
    ):
        assert unimodal_bound(q, p, threshold, pairs) == pytest.approx(bound, rel=1e-3)
    # both formulas of theorem 2 meet at 3/4; below its range it says nothing
    at, after = unimodal_factor(0.75, 50, 0.1), unimodal_factor(0.75 + 1e-9, 50, 0.1)
    assert at == pytest.approx(1 / 0.98)
    assert after == pytest.approx(1.04 / 1.02)
    assert unimodal_factor(0.505, 50, 0.1) is None
    assert unimodal_factor(0.9, 50, 0.6) is None
    for threshold in (0.6, 0.7, 0.8, 0.9, 1.0):
        factor = unimodal_factor(threshold, 50, 0.05)
        assert factor is not None
        assert factor < 1 / (2 * threshold - 1)


def test_thresholds_for_a_number_of_false_selections() -> None:
    assert threshold_for(1.0, 10, 200, 50, "none") == 0.75
    unimodal = threshold_for(1.0, 10, 200, 50, "unimodal")
    assert unimodal < 0.75
    assert (unimodal_bound(10, 200, unimodal, 50) or 9) <= 1
    assert (unimodal_bound(10, 200, unimodal - 0.01, 50) or 9) > 1
    with pytest.raises(
        ValueError, match="the least bound is 5, at threshold 1; expected a smaller"
    ):
        threshold_for(1.0, 10, 20, 50, "none")


def test_the_worst_case_bound_holds_for_pure_noise() -> None:
    false = []
    bounds = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((60, 20))
        noise = LinearRegression("l1:0.4", tol=1e-2)
        found = StabilitySelection(noise, pairs=4, threshold=0.6).fit(
            X, rng.standard_normal(60), np.arange(60) % 2
        )
        false.append(found.selected_.sum())
        bounds.append(found.bounds_["shah_samworth"])
        assert found.mean_selected_ == pytest.approx(found.frequencies_.sum())
    assert np.mean(false) <= np.mean(bounds)


@pytest.mark.parametrize("kind", ["linear", "logistic", "cox"])
def test_strong_variables_are_selected(kind: str, tmp_path: Any) -> None:
    X, eta = rows()
    times = np.ceil(20 * np.random.default_rng(1).exponential(np.exp(-eta)))
    estimator, y = {
        "linear": (LinearRegression("l1:2"), eta),
        "logistic": (LogisticRegression("l1:2"), eta > 0),
        "cox": (CoxRegression("l1:1"), np.column_stack([times < 90, times])),
    }[kind]
    search = StabilitySelection(estimator, pairs=4, threshold=0.9, random_state=2)
    found = clone(search).fit(X, y, groups=GROUPS)
    assert found.selected_[[2, 7]].all()
    assert found.selected_.sum() <= 4
    assert found.get_support() is found.selected_
    assert found.transform(X).shape == (120, found.selected_.sum())
    assert set(list(dict(found.table_["frequency"]))[:2]) == {"x2", "x7"}
    assert found.n_features_in_ == 12
    assert found.bytes_.payload > 0
    again = clone(search).fit([(X[g == GROUPS], y[g == GROUPS]) for g in range(3)])
    assert np.array_equal(found.frequencies_, again.frequencies_)
    found.plot(tmp_path / "stability.png")
    assert (tmp_path / "stability.png").stat().st_size > 1000


def test_a_number_of_false_selections_sets_the_threshold() -> None:
    X, eta = rows()
    search = StabilitySelection(LinearRegression("l1:1"), pairs=3, false_selections=1.0)
    found = search.fit(X, eta, GROUPS)
    assert found.threshold_ > 0.5
    assert found.bounds_["shah_samworth"] <= 1


def test_what_cannot_be_is_refused() -> None:
    X, eta = rows()
    for options, message in (
        ({"pairs": 0}, "whole number of at least 1"),
        ({"threshold": 0.5}, "a share above 1/2"),
        ({"assumption": "hope"}, "expected none or unimodal"),
        ({"false_selections": 0}, "expected a number above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            StabilitySelection(LinearRegression("l1:1"), **options).fit(X, eta, GROUPS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no constraint and selects all variables"):
        StabilitySelection(LinearRegression()).fit(X, eta, GROUPS)
    private = LinearRegression("l1:1", privacy="eps=4,delta=1e-5")
    with pytest.raises(ValueError, match="would be charged"):
        StabilitySelection(private).fit(X, eta, GROUPS)
    with pytest.raises(ValueError, match="halves need two or more at every client"):
        StabilitySelection(LinearRegression("l1:1")).fit(X, eta, [0] * 119 + [1])
