"""Weights of clients: methods that average weigh in one way, so they agree wherever their equations
are the same.
"""

from functools import cache
from typing import Any

import pytest
import torch

import fedfw
from fedfw.problems.quadratics import quadratic_problem, random_quadratics

N, P, LR = 5, 6, 0.04
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
WEIGHTS = pytest.mark.parametrize(
    "weights", [None, (1.0, 1.0, 8.0, 2.0, 0.5)], ids=["equal", "unequal"]
)
STEPS = pytest.mark.parametrize("local_steps", [1, 3])
ATTENDANCE = pytest.mark.parametrize(
    "participation", [1.0, lambda t: [t % N, (t + 2) % N, 4][: 1 + t % 3]], ids=["everyone", "some"]
)
FREE = fedfw.LinfBall(1e6)
"""A set so large that nothing is projected."""
BALL = fedfw.L2Ball(1.0)


@cache
def problem(weights: tuple[float, ...] | None, dtype: torch.dtype) -> fedfw.Problem:
    A, c = random_quadratics(N, P, 10.0, 1.0, 0)
    return quadratic_problem(A.to(dtype), c.to(dtype), torch.zeros(P, dtype=dtype), weights=weights)


def end_of(
    algorithm: fedfw.Algorithm,
    weights: tuple[float, ...] | None,
    dtype: torch.dtype,
    **options: Any,
) -> torch.Tensor:
    rounds = options.pop("rounds", 6)
    return fedfw.simulate(
        problem(weights, dtype), algorithm, rounds=rounds, eval_every=rounds, **options
    ).x


def assert_same(algorithms: list[fedfw.Algorithm], *run: Any, **options: Any) -> None:
    """All runs end at the first one's point, which is not where they began."""
    first, *others = (end_of(algorithm, *run, **options) for algorithm in algorithms)
    rough = 1e-11 if first.dtype == torch.float64 else 2e-5
    assert float(first.norm()) > 0.1
    for algorithm, other in zip(algorithms[1:], others, strict=True):
        assert torch.allclose(other, first, atol=rough), algorithm


def written_out(
    weights: tuple[float, ...] | None, local_steps: int, participation: Any, D: Any
) -> torch.Tensor:
    """FedAvg by its formula, in float64: docs/algorithms.md, "Weights of clients"."""
    A, c = random_quadratics(N, P, 10.0, 1.0, 0)
    w = torch.tensor(weights or (1.0,) * N, dtype=torch.float64)
    x = torch.zeros(P, dtype=torch.float64)
    for t in range(1, 7):
        present = list(range(N)) if participation == 1.0 else sorted(set(participation(t)))
        total = torch.zeros_like(x)
        for i in present:
            own = x
            for _ in range(local_steps):
                own = own - LR * A[i] @ (own - c[i])
            total += w[i] * own
        x = D.project(total / w[present].sum())
    return x


# --- local models, their changes, and gradients ---


@DTYPES
@WEIGHTS
@ATTENDANCE
@STEPS
@pytest.mark.parametrize("D", [BALL, FREE], ids=["ball", "free"])
def test_fedavg_is_its_formula_and_others_without_momentum_are_fedavg(
    D: Any, local_steps: int, participation: Any, weights: Any, dtype: torch.dtype
) -> None:
    options = {"local_steps": local_steps, "participation": participation}
    fedavg = end_of(fedfw.FedAvg(D, lr=LR), weights, dtype, **options)
    expected = written_out(weights, local_steps, participation, D)
    assert torch.allclose(fedavg.double(), expected, atol=1e-11 if dtype == torch.float64 else 2e-5)
    same = [
        fedfw.FedAvg(D, lr=LR),
        fedfw.FedAvgM(D, lr=LR, server_momentum=0.0),
        fedfw.FedCM(D, lr=LR, momentum=0.0),
        fedfw.FedAvg(D, lr=LR, compress_down=f"topk:{P}"),  # which sends the change of the model
    ]
    assert_same(same[:3], weights, dtype, **options)
    # One of these sends 16 bits of a number.
    sent = end_of(same[3], weights, dtype, **options)
    assert torch.allclose(sent, fedavg, atol=0.02)


@DTYPES
@WEIGHTS
@ATTENDANCE
@STEPS
def test_without_a_projection_dual_averaging_and_adam_are_fedavg(
    local_steps: int, participation: Any, weights: Any, dtype: torch.dtype
) -> None:
    same: list[fedfw.Algorithm] = [
        fedfw.FedAvg(FREE, lr=LR),
        fedfw.FedDA(FREE, lr=LR),
        fedfw.contrib.FastFedDA(FREE, lr=LR, strong=0.0),
        # Adam with a huge tau divides every number by it.
        fedfw.FedAdam(FREE, lr=LR, server_lr=1e9, tau=1e9, beta1=0.0, beta2=0.0),
        fedfw.FedAdamW(FREE, lr=LR * 1e9, tau=1e9, beta1=0.0, beta2=0.0, weight_decay=0.0),
    ]
    options = {"local_steps": local_steps, "participation": participation}
    assert_same(same[:3], weights, dtype, **options)
    fedavg = end_of(same[0], weights, dtype, **options)
    for adam in same[3:]:
        x = end_of(adam, weights, dtype, **options)
        assert torch.allclose(x, fedavg, atol=1e-6 if dtype == torch.float64 else 2e-5), adam


@DTYPES
@WEIGHTS
@ATTENDANCE
def test_one_local_step_is_a_step_along_the_mean_gradient(
    participation: Any, weights: Any, dtype: torch.dtype
) -> None:
    """FedProx takes the shorter step 1 / (1/lr + mu); FedPGD takes FedAvg's, at the server."""
    mu = 3.0
    same: list[fedfw.Algorithm] = [
        fedfw.FedAvg(BALL, lr=LR, mu=mu),
        fedfw.FedAvg(BALL, lr=1 / (1 / LR + mu)),
        fedfw.FedPGD(BALL, lr=1 / (1 / LR + mu)),
    ]
    assert_same(same, weights, dtype, participation=participation)


# --- oracle steps ---


@DTYPES
@WEIGHTS
@ATTENDANCE
@STEPS
def test_oracle_steps_without_what_is_shared_are_local_muon(
    local_steps: int, participation: Any, weights: Any, dtype: torch.dtype
) -> None:
    common: dict[str, Any] = {"momentum": 0.0, "schedule": "constant:0.2"}
    visits = (
        common if local_steps > 1 else common | {"momentum": "auto"}
    )  # one step has no momentum in LocalMuon
    same: list[fedfw.Algorithm] = [
        fedfw.contrib.LocalMuon(BALL, **visits),
        fedfw.contrib.FedMuon(BALL, alignment=0.0, **common),
        fedfw.FedLMO(BALL, correction=False, **common),
    ]
    assert_same(same, weights, dtype, local_steps=local_steps, participation=participation)
    if local_steps == 1:  # naive steps have a clock of their own
        naive = fedfw.NaiveFW(BALL, schedule="constant:0.2")
        assert_same([same[0], naive], weights, dtype, participation=participation)


@DTYPES
@WEIGHTS
@ATTENDANCE
def test_oracle_steps_at_the_server_are_frank_wolfe(
    participation: Any, weights: Any, dtype: torch.dtype
) -> None:
    common: dict[str, Any] = {"momentum": 0.5, "schedule": "constant:0.2"}
    same: list[fedfw.Algorithm] = [
        fedfw.FrankWolfe(BALL, **common),
        fedfw.ServerLMO(BALL, correction=False, **common),
    ]
    assert_same(same, weights, dtype, participation=participation)


# --- what goes with the weights ---


def test_a_step_size_by_theory_fits_the_losses_on_which_steps_are_taken() -> None:
    """A client of small weight may be the steepest: steps on its own loss must not be longer than
    it bears.
    """
    A = torch.stack([torch.eye(2), 40 * torch.eye(2)]).double()
    steep = quadratic_problem(
        A, torch.ones(2, 2).double(), torch.zeros(2).double(), weights=(0.95, 0.05)
    )
    assert steep.smoothness() == pytest.approx(4.0)
    assert steep.local_smoothness() == pytest.approx(40.0)
    D = fedfw.L2Ball(5.0)
    for cls, L in ((fedfw.FedAvg, 40.0), (fedfw.FedCM, 40.0), (fedfw.FedDR, 4.0)):
        run = fedfw.simulate(steep, cls(D, lr="theory"), rounds=3, local_steps=3)
        assert run.algorithm.lr == pytest.approx(1 / L), cls
    losses = [
        r.loss
        for r in fedfw.simulate(
            steep, fedfw.FedAvg(D, lr="theory"), rounds=40, local_steps=3
        ).history
    ]
    assert losses == sorted(losses, reverse=True)
