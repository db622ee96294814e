"""What goes down is rounded, and what rounding took is part of the next model: nothing drifts."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedfw
from fedfw.compression import compress_down_option
from fedfw.problems.quadratics import quadratic_problem, random_quadratics
from fedfw.rounds.downlink import Downlink
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from tests.table import METHODS, classes

HALF_A_UNIT = 2.0**-24
"""The largest relative error of a number that is rounded to float32."""


@given(seed=st.integers(0, 2**31), count=st.integers(1, 60))
def test_models_that_were_held_add_up_to_the_models(seed: int, count: int) -> None:
    """All but one rounding error arrives, however many rounds there are."""
    generator = torch.Generator().manual_seed(seed)
    models = torch.rand(count, 5, generator=generator, dtype=torch.float64)
    downlink = Downlink(torch.float32)
    x = torch.zeros(5)
    state = downlink.init(x.double())
    difference = torch.zeros(5, dtype=torch.float64)
    for model in models:
        state = downlink.follow(state, model, None)
        held = state["held"]
        assert torch.equal(held.float().double(), held)
        difference += model - held
        assert float(difference.abs().max()) <= 1.01 * HALF_A_UNIT
        assert torch.allclose(state["residual"], difference, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", METHODS)
def test_what_clients_of_a_method_hold_does_not_drift(name: str, participation: float) -> None:
    """For every method, in float32: what clients held adds up to what the server had, or is it."""
    algorithm = METHODS[name]
    if algorithm.name == "frank-wolfe" and getattr(algorithm, "schedule", None) == "curvature":
        participation = 1.0
    compressed = compress_down_option(algorithm) != "none"
    difference: list[Tensor] = [torch.zeros(())]
    largest = [0.0]
    repeated = [0]

    def watch(simulation: Simulation) -> None:
        server = simulation.server
        model = simulation.algorithm.model_to_send(server.state)
        if compressed or not simulation.now.count:
            return
        if model.dtype is torch.float32:
            assert torch.equal(server.held, model)
            return
        difference.append(difference[-1] + (model - server.held))
        largest.append(max(largest[-1], float(model.abs().max())))
        # Where clients repeat an update they keep the last rounding error, once more a round.
        rounded = torch.equal(server.held.float().double(), server.held)
        repeated.append(0 if rounded else repeated[-1] + 1)
        most = 1.01 * HALF_A_UNIT * largest[-1] * (1 + repeated[-1])
        assert float(server.down["residual"].abs().max()) <= most
        if len(simulation.algorithm.all_exchanges) == 1:  # anchors have messages of their own
            assert float(difference[-1].abs().max()) <= most

    problem = classes(torch.float32)
    options: dict[str, Any] = {"rounds": 30, "eval_every": 30, "participation": participation}
    fedfw.simulate(problem, algorithm, callbacks=watch, **options)
    kept = Simulation(problem, algorithm, Options(rounds=1)).coordinator.server.down
    assert (len(difference) > 1) == ("residual" in kept and not compressed)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_duals_of_clients_keep_their_mean_over_thousands_of_rounds(
    participation: float,
) -> None:
    """Each client integrates the float32 models that it receives, and the server the same sums;
    without feedback the error would grow with the rounds.
    """
    A, c = random_quadratics(5, 6, 10.0, 1.0, 0)
    problem = quadratic_problem(A.float(), c.float(), torch.zeros(6))
    algorithm = fedfw.FedFWPlus("l2:1", penalty=0.1, momentum=0.0, schedule="convex")
    options = Options(rounds=4000, eval_every=4000, participation=participation, seed=1)
    simulation = Simulation(problem, algorithm, options)
    simulation.run()
    mean = simulation.clients["y"].mean(0)
    assert float(simulation.clients["y"].abs().max()) > 0.01
    assert float((mean - simulation.server.state["ybar"]).abs().max()) < 6e-9


# --- clients that come and go: what is the mean of all clients is worked out anew ---


@pytest.mark.parametrize("name", METHODS)
def test_means_are_those_of_the_clients_that_there_are(name: str) -> None:
    """A client leaves after some rounds, and another one joins, which begins at the start."""
    algorithm = METHODS[name]
    full = algorithm.name == "frank-wolfe"
    problem = classes(torch.float64)
    options = Options(rounds=5, eval_every=5, participation=1.0 if full else 0.6)
    simulation = Simulation(problem, algorithm, options)
    simulation.run()
    coordinator = simulation.coordinator
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    for move in ("leave", "join"):
        if move == "leave":
            coordinator.leave(1, weights * 3 / weights.sum())
        else:
            weights = torch.tensor([1.0, 2.0, 0.5, 4.0], dtype=torch.float64)
            newcomer = simulation.method.init(coordinator.run, problem.start[None]).flat()
            coordinator.join(3, newcomer, weights * 4 / weights.sum())
        n = coordinator.run.n
        assert n == len(weights) == len(coordinator.holds)
        rows = coordinator.memory.gather(torch.arange(n))
        counts = weights * n / weights.sum() if algorithm.weighted else torch.ones(n)
        server = coordinator.server
        for mean, of in simulation.algorithm.means.items():
            expected = (rows[of].double() * counts[:, None]).mean(0)
            assert torch.allclose(server.state[mean].double(), expected, rtol=0.0, atol=1e-12)
        for entry, total in server.estimates.items():
            expected = (rows[f"h.{entry}"] * counts[:, None]).sum(0)
            assert torch.allclose(total, expected, rtol=0.0, atol=1e-12)
        if "residual" not in server.down and compress_down_option(algorithm) == "none":
            assert torch.equal(server.held, simulation.algorithm.model_to_send(server.state))


@pytest.mark.parametrize("name", ["fedda", "fast-fedda", "fedpal", "fedpgd"])
@pytest.mark.parametrize("down", ["none", "topk:2"])
def test_the_first_message_brings_the_point_that_the_server_works_at(name: str, down: str) -> None:
    """FedDA's is its dual, which is zero wherever the model begins."""
    problem = fedfw.testing.quadratics()
    problem.start[:] = 0.1
    seen = []

    def look(simulation: Simulation) -> None:
        if simulation.t == 1:
            seen.append(simulation.now.message.vectors["xbar"])

    algorithm = fedfw.ALGORITHMS[name]("l2:1", lr=0.01, compress_down=down)
    fedfw.simulate(problem, algorithm, rounds=2, callbacks=look)
    begun = torch.zeros(5) if name == "fedda" else problem.start
    assert torch.equal(seen[0], begun.double())
