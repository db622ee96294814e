"""The projected baselines: where they converge, where they rest, one client, absentees, what they send."""

from __future__ import annotations

import pytest
import torch

import fedfw
from fedfw.algorithms.base import Server
from fedfw.problems.base import WeightedGradient
from fedfw.rounds.memory import EveryRow
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.studies.quadratics import SETS, P, Quadratics


def baselines(D: fedfw.ConstraintSet) -> list[fedfw.Algorithm]:
    return [
        fedfw.FedAvg(D),
        fedfw.FedAvg(D, mu=1.0),
        fedfw.FedDR(D, eta=0.5),
        fedfw.FedDR(D, eta=0.2, alpha=1.9),
        fedfw.FedADMM(D, eta=0.2),
        fedfw.FedDA(D),
    ]


def residual(q: Quadratics, x: torch.Tensor) -> float:
    return (q.value(x) - q.least) / (q.value(q.start) - q.least)


@pytest.mark.parametrize("name", SETS)
def test_converges_to_the_independent_optimum(name: str) -> None:
    q = Quadratics.on(name)
    for algorithm in baselines(q.constraint):
        run = fedfw.simulate(q.problem, algorithm, rounds=400, eval_every=400)
        assert residual(q, run.x) < 1e-5, algorithm
        assert q.constraint.contains(run.x)
        assert run.lower_bound is not None
        assert run.lower_bound <= q.least + 1e-9


@pytest.mark.parametrize("name", SETS)
def test_stale_clients_count_as_they_last_were(name: str) -> None:
    """FedDR and FedADMM keep every client's last word, so absentees change nothing of where they converge."""
    q = Quadratics.on(name)

    def watch(simulation: Simulation) -> None:
        state, server = simulation.clients, simulation.server
        said = state["xhat"] if "xhat" in state else state["x"] + 0.2 * state["z"]
        assert torch.allclose(said.mean(0), server.vectors["xtilde"], atol=1e-10)
        assert torch.equal(server.xbar, q.constraint.project(server.vectors["xtilde"]))

    for algorithm in (fedfw.FedDR(q.constraint, eta=0.2), fedfw.FedADMM(q.constraint, eta=0.2)):
        run = fedfw.simulate(q.problem, algorithm, rounds=1000, participation=0.4, eval_every=1000, callbacks=watch)
        assert residual(q, run.x) < 1e-4, algorithm


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("local_steps", [1, 3])
def test_the_minimiser_is_a_fixed_point(name: str, local_steps: int) -> None:
    q = Quadratics.on(name)
    x = q.optimum
    gradients = q.n * q.gradients(x)  # of h_i = n w_i f_i
    slope = gradients.mean(0)
    eta = 0.3
    everyone = x.repeat(q.n, 1)
    y = x + eta * gradients
    rest = {
        fedfw.FedDR(q.constraint, eta=eta, alpha=1.5): (
            {"x": everyone, "y": y, "xhat": 2 * everyone - y},
            {"xtilde": x - eta * slope},
        ),
        fedfw.FedADMM(q.constraint, eta=eta): ({"x": everyone, "z": -gradients}, {"xtilde": x - eta * slope}),
    }
    if local_steps == 1:  # with more, clients drift: these two do not rest at the minimiser then
        rest[fedfw.FedAvg(q.constraint)] = ({"x": everyone}, {})
        rest[fedfw.FedDA(q.constraint)] = (
            {"x": q.start.repeat(q.n, 1)},
            {"start": q.start, "z": x - slope - q.start},
        )
    for algorithm, (clients, vectors) in rest.items():
        simulation = Simulation(q.problem, algorithm, Options(rounds=5, local_steps=local_steps))
        simulation.coordinator.memory, simulation.coordinator.server = EveryRow(clients), Server(x, vectors)
        run = simulation.run()
        assert torch.allclose(run.x, x, atol=1e-7), algorithm
        for key in set(clients) - {"xhat"}:
            assert torch.allclose(simulation.clients[key], clients[key], atol=1e-6), (algorithm, key)


def test_local_steps_of_fedavg_drift_away_and_those_of_feddr_do_not() -> None:
    q = Quadratics.on("l2")
    drift, none = (
        residual(q, fedfw.simulate(q.problem, a, rounds=400, local_steps=20, eval_every=400).x)
        for a in (fedfw.FedAvg(q.constraint), fedfw.FedDR(q.constraint, eta=0.5))
    )
    assert drift > 1e-3
    assert none < 1e-8
    held = fedfw.simulate(q.problem, fedfw.FedAvg(q.constraint, mu=30.0), rounds=400, local_steps=20, eval_every=400)
    assert residual(q, held.x) < drift / 3  # FedProx


@pytest.mark.parametrize("name", SETS)
def test_one_client(name: str) -> None:
    """Each is then a known central method, written out here."""
    q = Quadratics.on(name, n=1)
    L = float(q.smoothness[0])
    lr, eta, alpha, project = 1 / L, 0.4, 1.3, q.constraint.project

    def slope(x: torch.Tensor) -> torch.Tensor:
        return q.gradients(x).sum(0)

    def proximal(x: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
        """The minimiser of the linearised loss near x with the pull to the centre."""
        return (x / lr + centre / eta - slope(x)) / (1 / lr + 1 / eta)

    gradient = dual = q.start
    x = y = douglas = q.start
    u, z, admm = q.start, torch.zeros(P, dtype=torch.float64), q.start
    for _ in range(20):
        gradient = project(gradient - lr * slope(gradient))
        dual = dual - lr * slope(project(dual))
        y = y + alpha * (douglas - x)
        x = proximal(x, y)
        douglas = project(2 * x - y)
        u = proximal(u, admm - eta * z)
        z = z + (u - admm) / eta
        admm = project(u + eta * z)
    expected = {
        fedfw.FedAvg(q.constraint): gradient,
        fedfw.FedDA(q.constraint): project(dual),
        fedfw.FedDR(q.constraint, eta=eta, alpha=alpha): douglas,
        fedfw.FedADMM(q.constraint, eta=eta): admm,
    }
    for algorithm, answer in expected.items():
        assert torch.allclose(fedfw.simulate(q.problem, algorithm, rounds=20).x, answer, atol=1e-9), algorithm


def test_a_seed_fixes_the_run_to_the_bit() -> None:
    q = Quadratics.on("l1")
    for algorithm in baselines(q.constraint):
        runs = [fedfw.simulate(q.problem, algorithm, rounds=15, participation=0.5, seed=s) for s in (3, 3, 4)]
        assert torch.equal(runs[0].x, runs[1].x)
        assert not torch.equal(runs[0].x, runs[2].x)


def test_weights_scale_the_losses() -> None:
    weights = (0.3, 0.05, 0.1, 0.15, 0.1, 0.1, 0.1, 0.1)
    plain = Quadratics.on("l2")
    q = Quadratics(plain.constraint, plain.A, plain.c, weights)
    for algorithm in baselines(q.constraint):
        assert residual(q, fedfw.simulate(q.problem, algorithm, rounds=600, eval_every=600).x) < 1e-4, algorithm


def test_payloads_are_dense_and_counted_as_such() -> None:
    q = Quadratics.on("l2")
    dense = 8 * (1 + 8 * P)
    for algorithm in baselines(q.constraint):
        record = fedfw.simulate(q.problem, algorithm, rounds=3).history[-1]
        assert record.bytes_up == dense, algorithm
        assert record.bytes_down == dense, algorithm
        assert record.consensus is None
        assert record.eta is None
        assert record.seconds is not None
        assert record.seconds["projection"] > 0


def test_a_stack_of_one_client_is_its_row_of_the_stack() -> None:
    """A deployed client calls the same step alone."""
    q = Quadratics.on("l2")
    for algorithm in baselines(q.constraint):
        simulation = Simulation(q.problem, algorithm, Options(rounds=6))
        simulation.run()
        simulation.t = 7
        who = torch.arange(q.n)
        _, message = algorithm.broadcast(simulation.plan, simulation.server, who, simulation.clients["x"], 7)
        oracle = WeightedGradient(q.problem.losses, q.problem.weights[who], who, lambda: None, 7)
        state, sent, _ = algorithm.client_step(simulation.plan, simulation.clients, message, oracle, q.constraint.lmo)
        for i in range(q.n):
            alone = WeightedGradient(q.problem.losses, q.problem.weights[i : i + 1], who[i : i + 1], lambda: None, 7)
            own = {name: value[i : i + 1] for name, value in simulation.clients.items()}
            after, one, _ = algorithm.client_step(simulation.plan, own, message, alone, q.constraint.lmo)
            assert torch.allclose(one.dense(), sent.dense()[i : i + 1], atol=1e-12)
            assert all(torch.allclose(after[name], state[name][i : i + 1], atol=1e-12) for name in state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda D: fedfw.FedDR(D, alpha=2.0), "alpha=2.0, expected a number above 0 and below 2"),
        (lambda D: fedfw.FedDR(D, eta=0.0), "eta=0.0"),
        (lambda D: fedfw.FedADMM(D, eta=-1.0), "eta=-1.0"),
        (lambda D: fedfw.FedAvg(D, mu=-1.0), "mu=-1.0"),
        (lambda D: fedfw.FedAvg(D, mu=float("inf")), "mu=inf"),
        (lambda D: fedfw.FedDR(D, eta=float("inf")), "eta=inf"),
        (lambda D: fedfw.FedAvg(D, lr=0.0), "lr=0.0, expected a positive number"),
        (lambda D: fedfw.FedAvg(D, lr="fast"), "lr='fast', expected a number"),
        (lambda D: fedfw.FedDA(D, server_lr=0.0), "server_lr=0.0"),
    ],
)
def test_bad_values_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make(fedfw.L2Ball(1.0))


def test_a_set_without_projection_and_an_unknown_smoothness_are_refused() -> None:
    class OnlyAnOracle(fedfw.L1Ball):
        has_projection = property(lambda self: False)  # type: ignore[assignment]

    q = Quadratics.on("l1")
    with pytest.raises(ValueError, match="fedavg projects, and"):
        fedfw.simulate(q.problem, fedfw.FedAvg(OnlyAnOracle(1.0)), rounds=1)
    unknown = fedfw.Problem.from_losses([lambda x: x.square().sum()], torch.zeros(3))
    with pytest.raises(ValueError, match="lr='auto': nothing is known"):
        fedfw.simulate(unknown, fedfw.FedAvg(fedfw.L1Ball(1.0)), rounds=1)
    assert fedfw.simulate(unknown, fedfw.FedAvg(fedfw.L1Ball(1.0), lr=0.1), rounds=1).x.norm() == 0
