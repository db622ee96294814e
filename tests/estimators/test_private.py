"""Private fits: what leaves a client, what is refused, and that other data give the same fit where
noise covers everything.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedfw import Privacy
from fedfw.estimators import (
    CoxRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
)
from fedfw.estimators import likelihoods as models
from fedfw.estimators.partial_likelihood import Cox
from fedfw.estimators.scaling import Scaling
from fedfw.estimators.sites import as_sites
from fedfw.privacy.mechanisms import GaussianNoise, Vertices
from fedfw.problems import Problem
from fedfw.problems.base import ClientLosses

pytest.importorskip("dp_accounting")

ROWS = 300
ALL = [LinearRegression, LogisticRegression, PoissonRegression]
BUDGET = "eps=4,delta=1e-5"
CONSTRAINTS = [
    {"constraint": "l1:1.5"},
    {"constraint": "l2:1.5", "unpenalised": ["x2"]},
    {"constraint": "l1:1.5", "sees": "atoms"},
    {"bounds": {"x0": (0.2, 1.0)}},
]


def make_rows(kind: type, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 4)) * (1 + seed)
    eta = X[:, 0] - 0.5 * X[:, 1] - seed
    groups = np.arange(ROWS) % 3
    if kind is LinearRegression:
        return X, eta + rng.normal(size=ROWS), groups
    if kind is LogisticRegression:
        return X, (rng.random(ROWS) < 1 / (1 + np.exp(-eta))).astype(int), groups
    return X, rng.poisson(np.exp(np.clip(0.5 * eta, -3, 3))).astype(float), groups


EXACT: list[tuple[type, str]] = [
    *((kind, "sums") for kind in (models.LinearLikelihood, models.Multinomial, Cox)),
    *((kind, "totals") for kind in (models.Gaussian, models.Logistic, models.Poisson)),
    (models.Multinomial, "totals"),
    (Scaling, "from_sites"),
    (Problem, "value"),
    (Problem, "value_and_gradient"),
    (Problem, "smoothness"),
]
"""Where a client's rows become exact sums."""


@pytest.fixture
def exact_sums(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with every exact sum that leaves a client."""
    left: list[str] = []

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any, **keywords: Any) -> Any:
            left.append(name)
            return original(*arguments, **keywords)

        return record

    for kind, name in EXACT:
        original = inspect.getattr_static(kind, name)
        if isinstance(original, classmethod):
            monkeypatch.setattr(kind, name, classmethod(watched(name, original.__func__)))
        else:
            monkeypatch.setattr(kind, name, watched(f"{kind.__name__}.{name}", original))
    for kind in {ClientLosses, *_subclasses(ClientLosses)}:
        for name in ("value", "values", "value_and_gradient"):
            original = vars(kind).get(name)
            if inspect.isfunction(original):
                monkeypatch.setattr(kind, name, watched(f"{kind.__name__}.{name}", original))
    return left


def _subclasses(kind: type) -> set[type]:
    found = set(kind.__subclasses__())
    return found.union(*(_subclasses(one) for one in found))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("options", CONSTRAINTS, ids=str)
def test_no_exact_sum_leaves_a_client(
    kind: type, options: dict[str, Any], exact_sums: list[str]
) -> None:
    X, y, groups = make_rows(kind)
    scales = {f"x{j}": (0.0, 1.0) for j in range(4)}
    fit = kind(**options, privacy=BUDGET, scales=scales).fit(X, y, groups)
    assert exact_sums == []
    assert fit.certificate_ is None
    assert all(record.loss is None and record.gap is None for record in fit.run_.history)
    assert all(record.lower_bound is None for record in fit.run_.history)
    assert fit.run_.history[-1].epsilon <= 4
    assert fit.bytes_.payload == fit.run_.history.total("bytes_up")
    with pytest.raises(ValueError, match="noise of privacy"):
        _ = fit.inference_
    kind(**options).fit(X, y, groups)
    assert exact_sums, "the watch sees an ordinary fit"


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("options", CONSTRAINTS, ids=str)
def test_where_noise_covers_everything_other_data_give_the_same_fit(
    kind: type, options: dict[str, Any]
) -> None:
    """The view of an adversary who has the fitted estimator and its warnings."""
    promise = Privacy(eps=1.0, delta=1e-5, noise=1e9, not_private_seed=3)
    views = []
    for seed in (0, 4):
        X, y, groups = make_rows(kind, seed)
        y[:2] = (0, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit = kind(**options, privacy=promise, standardize=False).fit(X, y, groups)
        views.append((fit, [str(one.message) for one in caught]))
    (one, said), (other, also_said) = views
    assert said == also_said
    assert np.allclose(one.coef_, other.coef_, rtol=1e-5, atol=1e-6)
    assert np.allclose(one.intercept_, other.intercept_, rtol=1e-5, atol=1e-6)
    assert one.bytes_ == other.bytes_
    assert one.n_iter_ == other.n_iter_
    assert one.selected_.tolist() == other.selected_.tolist()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("sees", ["gradients", "atoms"])
def test_one_row_changes_a_message_by_no_more_than_the_clip(
    kind: type, sees: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise, the first direction with a row and with another in its place."""
    sent: list[torch.Tensor] = []

    def record(mechanism: Any, a: torch.Tensor, *rest: Any) -> torch.Tensor:
        sent.append(a.clone())
        return a.to(rest[-1])

    for mechanism in (GaussianNoise, Vertices):
        monkeypatch.setattr(mechanism, "gradient", record, raising=False)
    X, y, groups = make_rows(kind)
    # Without noise nothing else of a private run is different.
    promise = Privacy(eps=float("inf"), delta=1e-5, clip=0.5)
    first = []
    for value in (0.0, 1e6):
        X[0] = value
        y[0] = value > 0
        sent.clear()
        fit = kind("l1:1", privacy=promise, standardize=False, sees=sees, max_rounds=1)
        fit.fit(X, y, groups)
        first.append(sent[0])
    norm = 2 if sees == "gradients" else torch.inf
    change = torch.linalg.vector_norm(first[0] - first[1], norm, dim=1)
    share = 0.5 / (ROWS / 3) / 3
    assert 0 < float(change[0]) <= 2 * share * (1 + 1e-9)
    assert not change[1:].any()


def test_a_private_fit_is_of_use() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 10)) * 3 + 5
    eta = (X[:, 0] - 5) / 3 - 0.7 * (X[:, 1] - 5) / 3
    y = rng.random(4000) < 1 / (1 + np.exp(-eta))
    scales = {f"x{j}": (5.0, 3.0) for j in range(10)}
    fit = LogisticRegression("l1:2", privacy=BUDGET, scales=scales)
    fit.fit(X, y, np.arange(4000) % 4)
    exact = LogisticRegression("l1:2").fit(X, y, np.arange(4000) % 4)
    assert abs(fit.score(X, y) - exact.score(X, y)) < 0.03
    assert np.argsort(-np.abs(fit.coef_[0]))[:2].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r'expected scales=\{"age": \(mean, scale\)'),
        ({"scales": {"x0": (0, 1)}}, "x1, x2, x3 has none, expected a mean and a scale"),
        ({"standardize": False, "sees": "sums"}, "exact sums of gradients"),
        ({"standardize": False, "algorithm": "fedfw-anchored"}, "exact sums of gradients"),
        ({"standardize": False, "infer": "split"}, "intervals that ignore the noise"),
        ({"standardize": False, "constraint": None}, "without a constraint"),
        ({"standardize": False, "privacy": 4}, "expected a Privacy, or a text"),
        ({"standardize": False, "privacy": "eps=4"}, "expected eps=NUMBER,delta=NUMBER"),
    ],
)
def test_what_needs_exact_sums_is_refused(options: dict[str, Any], message: str) -> None:
    X, y, groups = make_rows(LogisticRegression)
    with pytest.raises(ValueError, match=message):
        LogisticRegression(**({"constraint": "l1:1", "privacy": BUDGET} | options)).fit(
            X, y, groups
        )


def test_weights_and_cox_are_refused() -> None:
    X, y, groups = make_rows(LogisticRegression)
    options: dict[str, Any] = {"privacy": BUDGET, "standardize": False}
    with pytest.raises(ValueError, match="sum of all weights"):
        LogisticRegression("l1:1", **options).fit(X, y, groups, np.ones(ROWS))
    survival = np.column_stack([y, np.arange(ROWS) + 1.0])
    with pytest.raises(ValueError, match="PoissonRegression on person-periods"):
        CoxRegression("l1:1", **options).fit(X, survival, groups)


@pytest.mark.parametrize("constraint", [None, "l1:0.8"])
def test_public_scales_take_the_place_of_the_exchange(constraint: Any) -> None:
    X, y, groups = make_rows(LogisticRegression)
    names = [f"x{j}" for j in range(4)]
    own = Scaling.from_sites(as_sites(X, y, groups, target="label"))
    pairs = zip(own.mean.tolist(), own.scale.tolist(), strict=True)
    scales = dict(zip(names, pairs, strict=True))
    public = LogisticRegression(constraint, scales=scales).fit(X, y, groups)
    measured = LogisticRegression(constraint).fit(X, y, groups)
    assert np.allclose(public.coef_, measured.coef_, rtol=1e-6)
    assert public.bytes_.payload == measured.bytes_.payload - own.bytes


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"x0": (0, 1), "x1": (0, 1), "x2": (0, 1), "x3": (0, 0)}, "the scale above 0"),
        ({f"x{j}": (0, 1) for j in range(5)}, "x4 is no column"),
    ],
)
def test_scales_that_make_no_sense_are_refused(scales: Any, message: str) -> None:
    X, y, groups = make_rows(LogisticRegression)
    with pytest.raises(ValueError, match=message):
        LogisticRegression(scales=scales).fit(X, y, groups)
    with pytest.raises(ValueError, match="leave one out"):
        LogisticRegression(scales=scales, standardize=False).fit(X, y, groups)
