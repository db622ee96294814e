"""The projected baselines: where they converge, where they rest, one client, absentees, what they send."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.algorithms.base import Aggregate, Plan, Server, Setting
from fedfw.algorithms.projected import dense
from fedfw.atoms import TupleAtom
from fedfw.problems.base import WeightedGradient
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.memory import EveryRow
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import SETS, P, Quadratics


def baselines(D: fedfw.ConstraintSet) -> list[fedfw.Algorithm]:
    return [
        fedfw.FedAvg(D),
        fedfw.FedAvg(D, mu=1.0),
        fedfw.FedDR(D, eta=0.5),
        fedfw.FedDR(D, eta=0.2, alpha=1.9),
        fedfw.contrib.FedADMM(D, eta=0.2),
        fedfw.FedDA(D),
    ]


FREE = fedfw.LinfBall(1e6)
"""A set so large that nothing is projected."""
DTYPES = [torch.float32, torch.float64]


def peers(D: fedfw.ConstraintSet) -> list[fedfw.Algorithm]:
    """Those that send changes of models or of control variates, and take weighted means."""
    return [fedfw.FedAvgM(D, lr=0.03), fedfw.FedCM(D), fedfw.Scaffold(D)]


def adams(D: fedfw.ConstraintSet) -> list[fedfw.Algorithm]:
    return [
        fedfw.FedAdam(D, server_lr=0.1, decay="linear"),
        fedfw.FedAdamW(D, lr=0.1, weight_decay=0.0, decay="linear"),
    ]


WEIGHTS = {"equal": None, "unequal": (0.3, 0.05, 0.1, 0.15, 0.1, 0.1, 0.1, 0.1)}


@cache
def weighted(weights: str, D: fedfw.ConstraintSet) -> Quadratics:
    """Their optimum is worked out once."""
    plain = Quadratics.on("l2")
    return Quadratics(D, plain.A, plain.c, WEIGHTS[weights])


def residual(q: Quadratics, x: torch.Tensor) -> float:
    return (q.value(x) - q.least) / (q.value(q.start) - q.least)


@pytest.mark.parametrize("name", SETS)
def test_converges_to_the_independent_optimum(name: str) -> None:
    q = Quadratics.on(name)
    for algorithm in [*baselines(q.constraint), *peers(q.constraint)]:
        run = fedfw.simulate(q.problem, algorithm, rounds=150, eval_every=150)
        assert residual(q, run.x) < 1e-5, algorithm
        assert q.constraint.contains(run.x)
        assert run.lower_bound is not None
        assert run.lower_bound <= q.least + 1e-9


@pytest.mark.parametrize("name", SETS)
def test_stale_clients_count_as_they_last_were(name: str) -> None:
    """FedDR and FedADMM keep every client's last word, so absentees change nothing of where they converge."""
    q = Quadratics.on(name)

    held: list[Tensor] = []

    def watch(simulation: Simulation) -> None:
        state, server = simulation.clients, simulation.server
        said = state["xhat"] if "xhat" in state else state["x"] + 0.2 * state["z"]
        held.append(torch.stack([said.mean(0), server.vectors["xtilde"]]))
        assert torch.equal(server.xbar, q.constraint.project(server.vectors["xtilde"]))

    for algorithm in (fedfw.FedDR(q.constraint, eta=0.2), fedfw.contrib.FedADMM(q.constraint, eta=0.2)):
        run = fedfw.simulate(q.problem, algorithm, rounds=300, participation=0.4, eval_every=300, callbacks=watch)
        assert residual(q, run.x) < 1e-4, algorithm
    said, known = torch.stack(held).unbind(1)
    assert len(said) == 600
    assert torch.allclose(said, known, atol=1e-10)


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
        fedfw.contrib.FedADMM(q.constraint, eta=eta): ({"x": everyone, "z": -gradients}, {"xtilde": x - eta * slope}),
    }
    rest[fedfw.Scaffold(q.constraint)] = ({"x": everyone[:, :0], "c": gradients}, {"c": slope})
    if local_steps == 1:  # with more, clients drift: these two do not rest at the minimiser then
        rest[fedfw.FedAvg(q.constraint)] = ({"x": everyone}, {})
        rest[fedfw.FedDA(q.constraint)] = (
            {"x": q.start.repeat(q.n, 1)},
            {"start": q.start, "z": x - slope - q.start},
        )
    for algorithm, (clients, vectors) in rest.items():
        simulation = Simulation(q.problem, algorithm, Options(rounds=5, eval_every=5, local_steps=local_steps))
        simulation.coordinator.memory, simulation.coordinator.server = EveryRow(clients), Server(x, vectors)
        run = simulation.run()
        assert torch.allclose(run.x, x, atol=1e-7), algorithm
        for key in set(clients) - {"xhat"}:
            assert torch.allclose(simulation.clients[key], clients[key], atol=1e-6), (algorithm, key)


def test_local_steps_of_fedavg_drift_away_and_those_of_feddr_do_not() -> None:
    q = Quadratics.on("l2")
    drift, none = (
        residual(q, fedfw.simulate(q.problem, a, rounds=150, local_steps=20, eval_every=150).x)
        for a in (fedfw.FedAvg(q.constraint), fedfw.FedDR(q.constraint, eta=0.5))
    )
    assert drift > 1e-3
    assert none < 1e-8
    held = fedfw.simulate(q.problem, fedfw.FedAvg(q.constraint, mu=30.0), rounds=150, local_steps=20, eval_every=150)
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
        fedfw.contrib.FedADMM(q.constraint, eta=eta): admm,
    }
    for algorithm, answer in expected.items():
        x = fedfw.simulate(q.problem, algorithm, rounds=20, eval_every=20).x
        assert torch.allclose(x, answer, atol=1e-9), algorithm


def test_a_seed_fixes_the_run_to_the_bit() -> None:
    q = Quadratics.on("l1")
    for algorithm in [*baselines(q.constraint), *peers(q.constraint), *adams(q.constraint)]:
        options: dict[str, Any] = {"rounds": 15, "eval_every": 15, "participation": 0.5}
        runs = [fedfw.simulate(q.problem, algorithm, seed=s, **options) for s in (3, 3, 4)]
        assert torch.equal(runs[0].x, runs[1].x)
        assert not torch.equal(runs[0].x, runs[2].x)


def test_weights_scale_the_losses() -> None:
    q = weighted("unequal", SETS["l2"])
    for algorithm in [*baselines(q.constraint), *peers(q.constraint)]:
        assert residual(q, fedfw.simulate(q.problem, algorithm, rounds=150, eval_every=150).x) < 1e-4, algorithm


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
    for algorithm in [*baselines(q.constraint), *peers(q.constraint), *adams(q.constraint)]:
        simulation = Simulation(q.problem, algorithm, Options(rounds=6, eval_every=6))
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
        (lambda D: fedfw.contrib.FedADMM(D, eta=-1.0), "eta=-1.0"),
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


# --- methods from the training of networks ---


@cache
def digits_and_their_optimum() -> tuple[fedfw.Problem, fedfw.ConstraintSet, fedfw.solving.Optimum]:
    problem, D = fedfw.load_problem("digits", clients=10, partition="labels:3"), fedfw.L2Ball(10.0)
    return problem, D, fedfw.solve(problem, D, tol=1e-3)


def typed(q: Quadratics, dtype: torch.dtype) -> fedfw.Problem:
    return quadratic_problem(q.A.to(dtype), q.c.to(dtype), q.start.to(dtype), q.weights)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("decay", ["none", "linear"])
def test_one_client_without_a_set_is_the_central_optimizer(K: int, decay: str, dtype: torch.dtype) -> None:
    """torch's own optimizers, with the mean of K steps as the gradient where the optimizer runs at the server."""
    q, rounds, lr = Quadratics.on("l2", n=1), 15, 0.02
    A, c = q.A[0].to(dtype), q.c[0].to(dtype)

    def central(optimizer: str, at_server: bool, **options: Any) -> torch.Tensor:
        x = q.start.to(dtype).clone().requires_grad_()
        made = getattr(torch.optim, optimizer)([x], **options)
        full = made.param_groups[0]["lr"]
        for t in range(rounds):
            left = 1 - t / rounds if decay == "linear" else 1.0
            local, gone = lr * left, x.detach().clone()
            for _ in range(K if at_server else 0):
                gone = gone - local * A @ (gone - c)
            for _ in range(1 if at_server else K):
                x.grad = x.detach() - gone if at_server else A @ (x.detach() - c)
                made.param_groups[0]["lr"] = full if optimizer == "SGD" else full * left
                made.step()
        return x.detach()

    decays: dict[str, Any] = {"lr": lr, "decay": decay}
    expected = {
        fedfw.FedAvgM(FREE, server_momentum=0.8, **decays): central("SGD", True, lr=1.0, momentum=0.8),
        fedfw.FedAdam(FREE, server_lr=0.1, beta1=0.8, beta2=0.95, tau=1e-4, **decays): central(
            "Adam", True, lr=0.1, betas=(0.8, 0.95), eps=1e-4
        ),
        fedfw.FedAdamW(FREE, beta1=0.8, beta2=0.95, weight_decay=0.1, **decays): central(
            "AdamW", False, lr=lr, betas=(0.8, 0.95), eps=1e-8, weight_decay=0.1
        ),
    }
    for algorithm, answer in expected.items():
        x = fedfw.simulate(typed(q, dtype), algorithm, rounds=rounds, eval_every=rounds, local_steps=K).x
        assert torch.allclose(x, answer, atol=1e-12 if dtype == torch.float64 else 1e-5), algorithm


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_client_of_scaffold_is_fedavg(dtype: torch.dtype) -> None:
    """With several clients and unequal weights: `test_weights.py`."""
    rough = 1e-12 if dtype == torch.float64 else 1e-5
    one = Quadratics.on("l2", n=1)
    x, y = (
        fedfw.simulate(typed(one, dtype), cls(FREE, lr=0.03), rounds=12, eval_every=12, local_steps=3).x
        for cls in (fedfw.FedAvg, fedfw.Scaffold)
    )
    assert torch.allclose(x, y, atol=rough)


def test_the_shared_momentum_of_fedcm_is_the_running_average_of_gradients() -> None:
    """With one local step and everybody present it is gradient descent along m <- beta m + (1 - beta) gradient."""
    q, lr, beta = Quadratics.on("l2"), 0.05, 0.7
    x, m = q.start, torch.zeros(P, dtype=torch.float64)
    for _ in range(20):
        m = beta * m + (1 - beta) * q.gradients(x).sum(0)
        x = x - lr * m
    free = quadratic_problem(q.A, q.c, q.start)
    run = fedfw.simulate(free, fedfw.FedCM(FREE, lr=lr, momentum=beta), rounds=20, eval_every=20)
    assert torch.allclose(run.x, x, atol=1e-9)


@pytest.mark.parametrize("D", [fedfw.Box(-0.5, 0.5), fedfw.LinfBall(10.0)], ids=["at the border", "inside"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_adam_converges_where_coordinates_are_projected_one_by_one(D: fedfw.ConstraintSet, weights: str) -> None:
    q = weighted(weights, D)
    for algorithm in adams(D):
        assert residual(q, fedfw.simulate(q.problem, algorithm, rounds=400, eval_every=400).x) < 1e-5, algorithm


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("participation", [1.0, 3])
def test_control_variates_take_the_drift_out(weights: str, participation: float, dtype: torch.dtype) -> None:
    """Ten local steps of clients that differ: SCAFFOLD comes to the optimum, whoever takes part, and FedAvg does not.

    Here the optimum lies inside of the set.
    """
    q = weighted(weights, fedfw.LinfBall(10.0))
    options: dict[str, Any] = {"rounds": 100, "local_steps": 10, "participation": participation, "eval_every": 100}
    drift, none = (
        residual(q, fedfw.simulate(typed(q, dtype), a, **options).x)
        for a in (fedfw.FedAvg(q.constraint, lr=0.02), fedfw.Scaffold(q.constraint, lr=0.02))
    )
    assert none < (1e-8 if dtype == torch.float64 else 1e-4)
    assert drift > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("participation", [1.0, 3])
@pytest.mark.parametrize("name", SETS)
def test_scaffold_comes_to_optima_at_the_border_with_any_number_of_local_steps(
    name: str, participation: float, dtype: torch.dtype
) -> None:
    """Because its gradients are taken in the set; where they were taken outside of it, it stayed away."""
    q = weighted("unequal", SETS[name])
    options: dict[str, Any] = {"rounds": 100, "local_steps": 5, "participation": participation, "eval_every": 100}
    x = fedfw.simulate(typed(q, dtype), fedfw.Scaffold(q.constraint, lr=0.02), **options).x
    assert residual(q, x.double()) < (1e-7 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("everyone", [True, False])
def test_the_steps_of_scaffold_are_those_that_are_written_out_here(
    everyone: bool, weights: str, dtype: torch.dtype
) -> None:
    """The paper's two vectors: models and control variates, whose means are taken apart from each other."""
    q, lr, K, rounds = weighted(weights, SETS["l2"]), 0.03, 4, 9
    A, c, w = q.A.to(dtype), q.c.to(dtype), q.w.to(dtype)

    def nearest(x: Tensor) -> Tensor:
        return x / max(1.0, float(x.norm()))

    def attendance(t: int) -> list[int]:
        return list(range(q.n)) if everyone else sorted({t % q.n, (3 * t + 1) % q.n, (t + 5) % q.n})

    xbar, shared, own = q.start.to(dtype), torch.zeros(P, dtype=dtype), torch.zeros(q.n, P, dtype=dtype)
    for t in range(1, rounds + 1):
        ends, renewed = torch.zeros(P, dtype=dtype), own.clone()
        who = attendance(t)
        for i in who:
            y = xbar
            for _ in range(K):
                y = y - lr * (A[i] @ (nearest(y) - c[i]) - own[i] + shared)
            renewed[i] = own[i] - shared + (xbar - y) / (K * lr)
            ends += w[i] * y / w[who].sum()
        own = renewed
        xbar, shared = nearest(ends), (w[:, None] * own).sum(0)
    options = {"rounds": rounds, "eval_every": rounds, "local_steps": K, "participation": attendance}
    x = fedfw.simulate(typed(q, dtype), fedfw.Scaffold(q.constraint, lr=lr), **options).x
    assert torch.allclose(x, xbar, atol=1e-12 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", [fedfw.Scaffold, fedfw.contrib.FedMuonCV])
def test_the_servers_mean_is_the_weighted_mean_of_all_control_variates(
    cls: type[fedfw.Algorithm], dtype: torch.dtype
) -> None:
    q = weighted("unequal", SETS["l2"])
    rough = 1e-10 if dtype == torch.float64 else 1e-4

    def watch(simulation: Simulation) -> None:
        mean = (q.w[:, None] * simulation.clients["c"].double()).sum(0)
        assert torch.allclose(simulation.server.vectors["c"], mean, atol=rough)
        counts = q.w.to(dtype) * q.n
        again = simulation.algorithm.regroup(simulation.server, simulation.clients, counts)
        assert torch.allclose(again.vectors["c"], mean, atol=rough)

    options: dict[str, Any] = {"rounds": 12, "eval_every": 12, "participation": 3, "local_steps": 2}
    fedfw.simulate(typed(q, dtype), cls(q.constraint), callbacks=watch, **options)


def muons(D: fedfw.ConstraintSet, **options: Any) -> list[fedfw.Algorithm]:
    return [
        fedfw.contrib.LocalMuon(D, **options),
        fedfw.contrib.FedMuon(D, **options),
        fedfw.contrib.FedMuonCV(D, **options),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_client_takes_the_oracle_steps_of_the_central_optimizer(dtype: torch.dtype) -> None:
    """With one local step each is Frank-Wolfe along a running average; LocalMuon's has no past then."""
    q, eta = Quadratics.on("l2", n=1), 0.2
    A, c = q.A[0].to(dtype), q.c[0].to(dtype)

    def central(beta: float) -> torch.Tensor:
        x, m = q.start.to(dtype), None
        for _ in range(10):
            g = A @ (x - c)
            m = g if m is None else beta * m + (1 - beta) * g
            x = (1 - eta) * x - eta * m / m.norm()
        return x

    options: dict[str, Any] = {"schedule": f"constant:{eta}", "momentum": 0.6}
    expected = {
        fedfw.contrib.LocalMuon(q.constraint, schedule=options["schedule"]): central(0.0),
        fedfw.contrib.FedMuon(q.constraint, alignment=0.0, **options): central(0.6),
        fedfw.contrib.FedMuonCV(q.constraint, **options): central(0.6),
    }
    for algorithm, answer in expected.items():
        x = fedfw.simulate(typed(q, dtype), algorithm, rounds=10, eval_every=10).x
        assert torch.allclose(x, answer, atol=1e-9 if dtype == torch.float64 else 1e-4), algorithm


def test_the_mean_of_aligned_steps_is_what_the_clients_end_at() -> None:
    """FedMuon's server rebuilds the mean of the x_i from net atoms; here are the clients' steps, written out."""
    q, K, alpha, beta, rounds = Quadratics.on("l2"), 3, 0.4, 0.7, 5
    lmo = q.constraint.lmo
    xbar, m, s = q.start, None, None
    for t in range(rounds):
        eta = 0.3 * (1 - t / rounds) / K
        ends, momenta = [], []
        for i in range(q.n):
            x, own = xbar, m
            for _ in range(K):
                g = q.A[i] @ (x - q.c[i])
                own = g if own is None else beta * own + (1 - beta) * g
                to = lmo(own).dense()
                x = (1 - eta) * x + eta * (to if s is None else (1 - alpha) * to + alpha * s)
            ends.append(x)
            momenta.append(own)
        end, a = torch.stack(ends).mean(0), 1 - (1 - eta) ** K
        m, s, xbar = torch.stack(momenta).mean(0), (end - (1 - a) * xbar) / a, end
    algorithm = fedfw.contrib.FedMuon(q.constraint, alignment=alpha, momentum=beta, schedule="linear-decay:0.3")
    run = fedfw.simulate(q.problem, algorithm, rounds=rounds, eval_every=rounds, local_steps=K)
    assert torch.allclose(run.x, xbar, atol=1e-6)  # net atoms are rounded to float32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("participation", [1.0, 3])
@pytest.mark.parametrize("name", SETS)
def test_oracle_steps_stay_in_the_set_whoever_takes_part(name: str, participation: float, dtype: torch.dtype) -> None:
    q, rough = weighted("unequal", SETS[name]), 1e-12 if dtype == torch.float64 else 1e-5
    options: dict[str, Any] = {"rounds": 10, "eval_every": 10, "local_steps": 3, "participation": participation}
    for algorithm in muons(q.constraint):
        seen: list[Tensor] = []
        fedfw.simulate(
            typed(q, dtype), algorithm, callbacks=lambda s, seen=seen: seen.append(s.xbar.clone()), **options
        )
        assert len(seen) == 10
        assert bool(torch.as_tensor(q.constraint.contains(torch.stack(seen), rough, batch=True)).all())


def test_local_muon_stays_where_clients_disagree_and_control_variates_move_it() -> None:
    """The oracle's bias: what is proven of LocalMuon, on the line."""
    two = fedfw.testing.two_quadratics()
    local, aligned, corrected = (
        float(fedfw.simulate(two, algorithm, rounds=100, eval_every=100, local_steps=2).x)
        for algorithm in muons(fedfw.Box(-1.0, 1.0))
    )
    assert abs(local) < 1e-6
    assert aligned > 0.5  # the shared momentum has the sign of the mean gradient, until clients' own are added
    assert corrected > 0.9


def test_local_muon_sends_atoms_and_nothing_else() -> None:
    q = Quadratics.on("l1")
    local, shared, corrected = (
        fedfw.simulate(q.problem, a, rounds=3).history[-1].bytes_up for a in muons(q.constraint)
    )
    assert fedfw.contrib.LocalMuon.contract.shares == ""
    assert local < 8 * 8 * P < min(shared, corrected)


@pytest.mark.parametrize("cls", [fedfw.FedAvgM, fedfw.FedCM, fedfw.Scaffold, fedfw.FedAdam, fedfw.FedAdamW])
@pytest.mark.parametrize("network", [False, True])
def test_grids_have_few_settings(cls: type[fedfw.Algorithm], network: bool) -> None:
    setting = Setting(8, FREE, (P,), not network, smoothness=lambda: None if network else 8.0)
    for method in (cls, fedfw.contrib.LocalMuon, fedfw.contrib.FedMuon, fedfw.contrib.FedMuonCV):
        size = math.prod(len(values) for values in method.grid(setting).values())
        assert 3 <= size <= (6 if network else 12), method


def test_squares_below_zero_do_not_spoil_the_steps_of_others() -> None:
    """Only a client that does not keep to the protocol sends them."""
    plan = Plan(1, FREE, lr=0.1)
    zero = torch.zeros(2)
    server = Server(zero, {"m": zero, "v": zero})
    aggregate = Aggregate(1, True, zero, beside={"m": zero, "v": -torch.ones(2)}, weight=1.0)
    after = fedfw.FedAdamW(FREE, lr=0.1).server_step(plan, server, aggregate, 1)
    assert torch.equal(after.vectors["v"], zero)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_that_no_gradients_have_do_not_spoil_the_steps_of_others(dtype: torch.dtype) -> None:
    """A huge m beside a v of zero would make everybody's next steps overflow, and their answers be refused for good."""
    algorithm, plan = fedfw.FedAdamW(FREE, lr=0.1), Plan(1, FREE, local_steps=3, lr=0.1)
    zero = torch.zeros(2, dtype=dtype)
    sent = {"m": torch.tensor([9e17, -9e17], dtype=dtype), "v": -torch.ones(2, dtype=dtype)}
    aggregate = Aggregate(1, True, zero, beside=sent, weight=1.0)
    server = algorithm.server_step(plan, Server(zero, {"m": zero, "v": zero}), aggregate, 1)
    _, message = algorithm.broadcast(plan, server, torch.arange(1), zero[None], 2)

    def gradient(x: Tensor, **_: bool) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, dtype=dtype), 1e-3 * torch.ones_like(x)

    _, answer, _ = algorithm.client_step(plan, {"x": zero[None, :0]}, message, gradient, dense)
    assert isinstance(answer, TupleAtom)
    assert all(bool((part.dense().abs() < 10).all()) for part in answer.parts)


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.8, 0.95), (0.5, 0.3), (0.9, 0.5), (0.0, 0.0)])
def test_moments_of_gradients_are_kept_as_they_are(beta1: float, beta2: float) -> None:
    """Also those of the sequence of gradients for which |m| / sqrt(v) is largest: g_j = (beta1 / beta2)^j backwards."""
    algorithm, plan = fedfw.FedAdamW(FREE, lr=0.1, beta1=beta1, beta2=beta2), Plan(1, FREE, lr=0.1)
    zero = torch.zeros(1, dtype=torch.float64)
    worst = [(beta1 / beta2) ** j if beta2 else 1.0 for j in reversed(range(60))]
    for gradients in (worst, torch.randn(60, generator=torch.Generator().manual_seed(0)).tolist()):
        m = v = zero
        for g in gradients:
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
            aggregate = Aggregate(1, True, zero, beside={"m": m, "v": v}, weight=1.0)
            after = algorithm.server_step(plan, Server(zero, {"m": m, "v": v}), aggregate, 1)
            assert torch.equal(after.vectors["m"], m)
            assert torch.equal(after.vectors["v"], v)
