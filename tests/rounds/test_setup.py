"""What is worked out before the first round: device, start and certificate."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st

import fedfw
from fedfw.errors import NoProjectionError
from fedfw.rounds.options import Options
from fedfw.rounds.setup import (
    Certificate,
    StartingGradients,
    feasible_start,
    mean_steepness,
    steepness_of,
    usable_device,
)
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import SETS, P, Quadratics


@pytest.mark.parametrize("wanted", ["tpu", "meta", "cpu:x", ""])
def test_devices_that_there_are_not(wanted: str) -> None:
    with pytest.raises(ValueError, match=f"device={wanted!r}, expected cpu or cuda"):
        usable_device(wanted)
    assert usable_device("cpu") == usable_device(torch.device("cpu")) == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device='cuda': there is no CUDA device here"):
            usable_device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SETS)
def test_a_start_outside_is_projected_and_one_inside_is_kept(name: str, dtype: torch.dtype) -> None:
    D = SETS[name]
    far = 5 * torch.randn(P, generator=torch.Generator().manual_seed(0), dtype=dtype)
    with pytest.warns(UserWarning, match="so the run begins at the nearest point") as told:
        start = feasible_start(D, far)
    assert f"moved by {float((start - far).double().norm()):.3g}" in str(told[0].message)
    assert D.contains(start)
    assert torch.allclose(start, D.project(far))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert feasible_start(D, start) is start


def test_a_start_that_cannot_be_projected_is_refused() -> None:
    class OnlyAnOracle(fedfw.L1Ball):
        has_projection = property(lambda self: False)  # type: ignore[assignment]

        def project(self, x: torch.Tensor, batch: bool = False) -> torch.Tensor:
            raise NoProjectionError("this set has no projection")

    with pytest.raises(ValueError, match="the start lies outside the constraint: give a start inside"):
        feasible_start(OnlyAnOracle(1.0), torch.ones(P))
    inside = torch.zeros(P)
    assert feasible_start(OnlyAnOracle(1.0), inside) is inside


# --- what is known of the losses at the start ---


@pytest.mark.parametrize("weights", [None, (0.3, 0.05, 0.1, 0.15, 0.1, 0.1, 0.1, 0.1)])
def test_gradients_at_the_start(weights: tuple[float, ...] | None) -> None:
    q = replace(Quadratics.on("l2"), weights=weights)
    measured = StartingGradients(q.problem, q.start)
    h = q.gradients(q.start) * q.n  # of h_i = n w_i f_i
    assert measured.steepness() == pytest.approx(float(h.square().sum(1).mean().sqrt()), rel=1e-6)
    assert measured.heterogeneity() == pytest.approx(float((h - h.mean(0)).square().sum(1).mean().sqrt()))


@given(st.lists(st.tuples(st.floats(1e-20, 1e20), st.floats(1e-3, 1.0)), min_size=1, max_size=9), st.randoms())
def test_the_mean_steepness_does_not_depend_on_the_order(told: list[tuple[float, float]], chance: Any) -> None:
    """A deployed server hears its clients in any order, and the penalty that follows has to be the same number."""
    total = sum(weight for _, weight in told)
    each = [(number, weight / total) for number, weight in told]
    shuffled = chance.sample(each, len(each))
    found = [mean_steepness(*map(list, zip(*pairs, strict=True))) for pairs in (each, shuffled)]
    assert found[0] == found[1]


def test_steepness_has_seven_digits() -> None:
    g = torch.tensor([1 / 3, 2.0, -5.0])
    assert steepness_of(g) == float(f"{float(g.double().norm()):.7g}")
    assert steepness_of(g) == steepness_of(g.double().to(torch.float32))


# --- the certificate ---


def certificate(algorithm: fedfw.Algorithm, problem: fedfw.Problem | None = None, **options: Any) -> Certificate:
    problem = Quadratics.on("l1").problem if problem is None else problem
    return Simulation(problem, algorithm, Options(**options)).certificate


def samples(model: torch.nn.Module | None = None) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(9, 4, generator=generator), torch.arange(9) % 3) for _ in range(3)]
    return fedfw.Problem(torch.nn.Linear(4, 3) if model is None else model, nnf.cross_entropy, data)


def test_what_a_run_will_prove() -> None:
    D = fedfw.L1Ball(1.0)
    plain = fedfw.FedFW(D, penalty=0.1)
    assert certificate(plain) is Certificate.EVERY_ROUND
    assert certificate(fedfw.FedFWAnchored(D)) is Certificate.EVERY_ROUND
    assert certificate(fedfw.FedFW(D, penalty=0.1, momentum=0.5)) is Certificate.AVERAGED
    assert certificate(fedfw.FedFWSto(D, penalty=0.1)) is Certificate.AVERAGED
    assert certificate(fedfw.NaiveFW(D)) is Certificate.AT_EVALUATIONS
    assert certificate(fedfw.FedAvg(D)) is Certificate.AT_EVALUATIONS
    assert certificate(plain, samples(), batch_size=3) is Certificate.MINIBATCHES
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    assert certificate(plain, samples(network)) is Certificate.NOT_CONVEX

    def make(who: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(len(who), 2, 4), torch.zeros(len(who), 2, dtype=torch.int64)

    made = fedfw.Problem.generated(torch.nn.Linear(4, 3), nnf.cross_entropy, 50, make)
    assert certificate(plain, made) is Certificate.NOT_COUNTED


def test_a_private_run_proves_nothing() -> None:
    pytest.importorskip("dp_accounting")
    plain = fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1)
    assert certificate(plain, samples(), privacy="eps=1,delta=1e-5,noise=30") is Certificate.PRIVATE


def test_certificate_says_when_it_is_not_valid() -> None:
    q = Quadratics.on("l1")
    unknown = fedfw.Problem.from_losses([lambda x: x.sin().sum()], torch.zeros(3))
    run = fedfw.simulate(unknown, fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=3)
    assert run.lower_bound is None
    assert run.certificate.startswith("none, because the losses are not known to be convex")
    with pytest.raises(ValueError, match="tol needs a certificate"):
        fedfw.simulate(unknown, fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=3, tol=0.1)
    averaged = fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, momentum=0.9), rounds=20, eval_every=10)
    assert averaged.history[5].lower_bound is None
    assert averaged.history[9].lower_bound is not None
    assert "loss - gap at evaluations, because clients step along averaged gradients" in averaged.certificate
