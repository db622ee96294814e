"""Polishing: what ``polish="support"`` makes of a model, beside SciPy's minimum over the set."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import fedfw
from fedfw.rounds.wire import NUMBER_NBYTES
from fedfw.simulation.polishing import polish_support

DTYPES = (torch.float32, torch.float64)
FEATURES = 20
CLIENTS = 3
NON_ZEROS = 4
RADIUS = 3.49


def samples(dtype: torch.dtype, outputs: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return clients' inputs, and targets that depend on four features."""
    draw = torch.Generator().manual_seed(1)
    weights = torch.zeros(FEATURES, outputs)
    weights[[2, 7, 11, 16]] = torch.tensor([[2.0], [1.5], [-1.0], [-0.7]])
    clients = []
    for _ in range(CLIENTS):
        shared = torch.randn(40, 1, generator=draw)  # features are correlated
        inputs = 0.5 * shared + torch.randn(40, FEATURES, generator=draw)
        noise = torch.randn(40, outputs, generator=draw)
        clients.append((inputs.to(dtype), (inputs @ weights + noise).to(dtype)))
    return clients


def regression(dtype: torch.dtype = torch.float64, outputs: int = 1) -> fedfw.Problem:
    """Return least squares on these samples, from zero."""
    model = nn.Linear(FEATURES, outputs, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    return fedfw.Problem(model, nn.functional.mse_loss, samples(dtype, outputs))


def minimum_in_l1() -> np.ndarray:
    """Return SciPy's minimum over the l1 ball: x is the difference of two positive parts."""
    clients = [(A.numpy(), b.numpy()[:, 0]) for A, b in samples(torch.float64, 1)]

    def value(parts: np.ndarray) -> tuple[float, np.ndarray]:
        x = parts[:FEATURES] - parts[FEATURES:]
        residuals = [A @ x - b for A, b in clients]
        loss = np.mean([np.mean(r**2) for r in residuals])
        pairs = zip(clients, residuals, strict=True)
        slope = np.mean([2 * A.T @ r / len(r) for (A, _), r in pairs], axis=0)
        return float(loss), np.concatenate([slope, -slope])

    inside = {"type": "ineq", "fun": lambda parts: RADIUS - parts.sum()}
    found = minimize(
        value,
        np.zeros(2 * FEATURES),
        jac=True,
        bounds=[(0, None)] * (2 * FEATURES),
        constraints=[inside],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    assert found.success
    return found.x[:FEATURES] - found.x[FEATURES:]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_polished_support_is_that_of_the_minimum(dtype: torch.dtype) -> None:
    problem = regression(dtype)
    algorithm = fedfw.FedFW(fedfw.L1Ball(RADIUS))
    plain = fedfw.simulate(problem, algorithm, rounds=60)
    run = fedfw.simulate(problem, algorithm, rounds=60, polish="support")
    best = minimum_in_l1()
    assert len(plain.support(0.0)) > NON_ZEROS
    assert run.support(0.0).tolist() == np.flatnonzero(np.abs(best) > 1e-6).tolist()
    np.testing.assert_allclose(run.feasible.flatten().numpy(), best, atol=1e-4)
    assert torch.equal(run.x, plain.x)
    assert run.history[-1].loss == plain.history[-1].loss
    assert run.polishing.accepted
    assert run.polishing.loss == problem.value(run.feasible) < plain.history[-1].loss
    assert (run.polishing.before, run.polishing.after) == (len(plain.support(0.0)), NON_ZEROS)
    assert "polished: 4 of" in repr(run)
    assert torch.equal(run.model.weight, run.feasible)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "constraint",
    [
        "l1:2",
        "ksparse:k=3,r=0.8",
        "ksupport:k=3,r=2",
        "simplex:2",
        "capped-simplex:2",
        "hypersimplex:2",
        "group:2,groups=columns",
    ],
)
def test_every_set_of_sparse_vectors_can_be_polished(constraint: str, dtype: torch.dtype) -> None:
    problem = regression(dtype, outputs=3)
    run = fedfw.simulate(problem, fedfw.FedFWPlus(constraint), rounds=40, polish="support")
    before = run.x.flatten().nonzero().flatten()
    assert set(run.support(0.0).tolist()) <= set(before.tolist())
    assert problem.bind(constraint).contains(run.feasible.flatten())
    assert run.polishing.loss <= run.history[-1].loss
    assert run.lower_bound <= run.polishing.loss


def test_a_polished_group_is_dropped_as_a_whole() -> None:
    problem = regression(outputs=3)
    run = fedfw.simulate(
        problem, fedfw.FedFW("group:4,groups=columns"), rounds=60, polish="support"
    )
    assert run.feasible.ne(0).any(0).sum() < run.x.ne(0).any(0).sum()
    assert torch.equal(run.feasible.ne(0).any(0), run.feasible.ne(0).all(0))


def test_the_bytes_of_polishing_are_those_of_its_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = {"value": 0, "value_and_gradient": 0}
    problem = regression()
    algorithm = fedfw.FedFW(fedfw.L1Ball(RADIUS))
    plain = fedfw.simulate(problem, algorithm, rounds=20)

    def counted(name: str) -> Callable[..., object]:
        method = getattr(fedfw.Problem, name)

        def call(*args: object, **kwargs: object) -> object:
            calls[name] += 1
            return method(*args, **kwargs)

        return call

    for name in calls:
        monkeypatch.setattr(fedfw.Problem, name, counted(name))
    _, report = polish_support(problem, algorithm.constraint, plain.feasible.flatten())
    calls["value"] -= 1  # the loss before polishing, which the first gradient's exchange gives
    vector = 1 + 8 * report.before
    exchanges = calls["value"] + calls["value_and_gradient"]
    up = exchanges * NUMBER_NBYTES + calls["value_and_gradient"] * vector
    assert report.bytes_up == CLIENTS * up
    first = report.bytes_down // CLIENTS - exchanges * vector
    assert report.before * 8 < first <= 1 + report.before * (8 + 2) + 8
    assert fedfw.simulate(problem, algorithm, rounds=20, polish="support").history.total(
        "bytes_up"
    ) == plain.history.total("bytes_up")


def test_a_polishing_that_would_raise_the_loss_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(objective: object, project: object, x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.zeros_like(x)]

    monkeypatch.setattr("fedfw.simulation.polishing.accelerated_steps", worse)
    run = fedfw.simulate(regression(), fedfw.FrankWolfe("l1:3"), rounds=9, polish="support")
    assert not run.polishing.accepted
    assert torch.equal(run.feasible, run.x)
    assert "polished: not kept, 0 of" in repr(run)


@pytest.mark.parametrize(
    ("constraint", "options", "message"),
    [
        ("l2:1", {}, r'polish="support" does not go with L2Ball'),
        ("box:-1,1", {}, r'polish="support" does not go with Box'),
        ("nuclear:1", {}, r'polish="support" does not go with'),
        (fedfw.Product({"*": "l1:1"}), {}, r'polish="support" does not go with'),
        ("l1:1", {"privacy": "eps=1,delta=1e-5"}, "polish takes exact sums of gradients"),
    ],
)
def test_what_cannot_be_polished_is_refused_before_the_first_round(
    constraint: object, options: dict[str, object], message: str
) -> None:
    problem = fedfw.load_problem("digits", clients=3)
    with pytest.raises(ValueError, match=message):
        fedfw.simulate(problem, fedfw.FedFW(constraint), polish="support", **options)
