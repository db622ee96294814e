"""What must hold in every round, for every algorithm, set, schedule and attendance."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
import fedfw.schedules
from fedfw.problems.quadratics import quadratic_problem, random_quadratics
from fedfw.schedules import Schedule, convex
from fedfw.simulation import Simulation
from fedfw_reproduction.known_quadratics import SETS, P, Quadratics

LAM = 0.05
ATTENDANCE = {
    "everyone": 1.0,
    "a third": 0.3,
    "each its own": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
    "three": 3,
    "given": lambda t: [] if t % 5 == 0 else [t % 8, (3 * t) % 8],
}


def algorithms(D: fedfw.ConstraintSet) -> list[fedfw.Algorithm]:
    return [
        fedfw.FedFW(D, penalty=LAM),
        fedfw.FedFW(D, penalty=LAM, momentum=0.9),
        fedfw.FedFWPlus(D, penalty=LAM),
        fedfw.FedFWPlus(D, penalty=LAM, momentum=0.5, schedule="nonconvex"),
        fedfw.FedFWSto(D, penalty=LAM),
        fedfw.FedFWAnchored(D, anchor_every=4),
        fedfw.FedFWAnchored(
            D, anchor_every=4, momentum=0.9, penalty=LAM, schedule="linear-decay:0.3"
        ),
    ]


@pytest.mark.parametrize("attendance", ATTENDANCE)
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("local_steps", [1, 3])
def test_mean_membership_and_duals_in_every_round(
    name: str, attendance: str, local_steps: int
) -> None:
    q = Quadratics.on(name)
    held: list[tuple[Tensor, Tensor]] = []  # what the clients and the server have after every round
    duals: list[tuple[Tensor, Tensor]] = []

    def watch(simulation: Simulation) -> None:
        clients, server = simulation.clients, simulation.server.state
        held.append((clients["x"].clone(), server["xbar"].clone()))
        for name, of in simulation.algorithm.means.items():
            if name != "xbar":
                mean = server[name].expand_as(server["xbar"])
                duals.append((clients[of].mean(0).expand_as(mean), mean.clone()))

    for algorithm in algorithms(q.constraint):
        held.clear()
        duals.clear()
        run = fedfw.simulate(
            q.problem,
            algorithm,
            rounds=24,  # after which the anchors and the attendance that are given have begun anew
            participation=ATTENDANCE[attendance],  # type: ignore[arg-type]
            local_steps=local_steps,
            eval_every=24,
            callbacks=[watch],
        )
        assert run.history[-1].distance == 0.0
        x, xbar = (torch.stack(each) for each in zip(*held, strict=True))
        assert x.shape == (24, 8, P)
        assert torch.allclose(x.mean(1), xbar, atol=1e-12)
        assert bool(torch.as_tensor(q.constraint.contains(x.flatten(0, 1), 1e-7, batch=True)).all())
        assert bool(torch.as_tensor(q.constraint.contains(xbar, 1e-7, batch=True)).all())
        keeps_duals = hasattr(algorithm, "anchor_every") or algorithm.name == "fedfw+"
        assert bool(duals) == keeps_duals
        if duals:
            of_clients, of_server = (torch.stack(each) for each in zip(*duals, strict=True))
            assert torch.allclose(of_clients, of_server, atol=1e-12)


def frank_wolfe_path(q: Quadratics, rounds: int) -> torch.Tensor:
    """Plain Frank-Wolfe on F in ten lines."""
    x = q.start.clone()
    for t in range(1, rounds + 1):
        s = q.constraint.lmo(q.gradients(x).sum(0)).dense(torch.float64)
        x = (1 - 2 / (t + 1)) * x + 2 / (t + 1) * s
    return x


@pytest.mark.parametrize("name", SETS)
def test_one_client_and_the_central_method_are_frank_wolfe(name: str) -> None:
    for n, method, options in (
        (1, fedfw.FedFW, {"penalty": 1.0, "momentum": 0.0}),
        (1, fedfw.FedFWPlus, {"penalty": 1.0, "momentum": 0.0}),
        (8, fedfw.FrankWolfe, {"momentum": 0.0}),
    ):
        q = Quadratics.on(name, n=n)
        algorithm = method(q.constraint, **options)
        run = fedfw.simulate(q.problem, algorithm, rounds=30, eval_every=30)
        assert torch.allclose(run.x, frank_wolfe_path(q, 30), atol=1e-9), method


def test_sto_with_full_batches_and_rho_one_is_fedfw() -> None:
    q = Quadratics.on("l2")
    rates = convex(0.6)
    sto = fedfw.FedFWSto(q.constraint, penalty=LAM, schedule=Schedule(rates.eta, rates.growth))
    plain = fedfw.FedFW(q.constraint, penalty=LAM, momentum=0.0)
    options: dict[str, Any] = {"rounds": 50, "eval_every": 50, "participation": 0.6}
    one, other = (fedfw.simulate(q.problem, a, **options).x for a in (sto, plain))
    assert torch.equal(one, other)


def test_a_gradient_that_is_not_finite_names_client_and_round() -> None:
    """The loss is finite, its derivative is not."""
    problem = fedfw.Problem.from_losses(
        [lambda x: x.square().sum(), lambda x: x.abs().sqrt().sum()],
        torch.zeros(3, dtype=torch.float64),
    )
    for every in (1, 20):
        with pytest.raises(
            fedfw.NonFiniteError, match=r"round 1: NaN or infinity in .* client \[1\]"
        ) as caught:
            fedfw.simulate(
                problem, fedfw.FedFW(fedfw.L1Ball(1.0), penalty=LAM), rounds=20, eval_every=every
            )
        assert caught.value.rows == (1,)


class TestCounterexample:
    """f_1 = (x-3)^2, f_2 = (x+1)^2 on [-1, 1]: F is least at 1."""

    problem = fedfw.testing.two_quadratics()
    D = fedfw.Box(-1.0, 1.0)

    @pytest.mark.parametrize("lam", [0.1, 0.3, 1.0])
    def test_fedfw_follows_its_law(self, lam: float) -> None:
        path = []
        fedfw.simulate(
            self.problem,
            fedfw.FedFW(self.D, penalty=lam),
            rounds=1000,
            eval_every=1000,
            callbacks=[lambda s: path.append(1 - float(s.server.xbar))],
        )
        for t in range(300, 1000):  # path[t - 1] is 1 - xbar^{t+1}
            assert abs(path[t - 1] - 2 / (2 + lam * (t + 2) ** 0.5)) < 0.01

    @pytest.mark.parametrize(
        ("algorithm", "options", "end", "error"),
        [
            (fedfw.NaiveFW("box:-1,1", schedule="constant:0.3"), {"local_steps": 1}, 0.0, 1e-12),
            (fedfw.NaiveFW("box:-1,1", schedule="constant:0.3"), {"local_steps": 5}, 0.0, 1e-12),
            (fedfw.FedFWPlus("box:-1,1", penalty=1.0), {"rounds": 1000}, 1.0, 0.001),
            (fedfw.FedFWAnchored("box:-1,1", anchor_every=5), {"rounds": 20}, 1.0, 1e-6),
        ],
    )
    def test_averages_stay_at_zero_and_others_reach_the_optimum(
        self, algorithm: fedfw.Algorithm, options: dict[str, Any], end: float, error: float
    ) -> None:
        options = {"rounds": 100} | options
        run = fedfw.simulate(self.problem, algorithm, eval_every=options["rounds"], **options)
        assert abs(float(run.x) - end) < error
        assert (run.history[-1].gap > 1) == (end == 0.0)


class TestSchedules:
    """Every row of the table."""

    @pytest.mark.parametrize(
        ("name", "p", "horizon", "t", "eta", "growth", "rho"),
        [
            ("convex", 1.0, 100, 1, 1.0, 2**0.5, 1.0),
            ("convex", 1.0, 100, 9, 2 / 10, 10**0.5, 1.0),
            ("convex", 0.5, 100, 9, 2 / 6, 6**0.5, 1.0),
            ("nonconvex", 1.0, 1000, 5, 0.01, 10.0, 1.0),
            ("nonconvex", 0.5, 1998, 5, 0.01, 10.0, 1.0),
            ("stochastic", 1.0, 100, 1, 1.0, 3.0, 1.0),
            ("stochastic", 1.0, 100, 20, 9 / 28, 28**0.5, 4 / 9),
            ("constant:0.25", 1.0, 100, 40, 0.25, 1.0, 1.0),
            ("linear-decay:0.2", 1.0, 1000, 501, 0.1, 10.0, 1.0),
        ],
    )
    def test_by_name(
        self, name: str, p: float, horizon: int, t: int, eta: float, growth: float, rho: float
    ) -> None:
        schedule = fedfw.schedules.make_schedule(name, p, horizon)
        assert schedule.eta(t) == pytest.approx(eta)
        assert schedule.growth(t) == pytest.approx(growth)
        assert schedule.rho(t) == pytest.approx(rho)
        assert schedule.rho(1) <= 1.0

    def test_networks_get_short_steps_unless_they_were_given(self) -> None:
        bumpy = dataclasses.replace(Quadratics.on("l2"), convex=False)
        for algorithm in (fedfw.FedFW, fedfw.FedFWPlus, fedfw.FedFWAnchored):
            run = fedfw.simulate(bumpy.problem, algorithm(bumpy.constraint, penalty=LAM), rounds=8)
            assert (run.algorithm.momentum, run.algorithm.schedule) == (0.9, "linear-decay:0.05")
            assert [r.eta for r in run.history] == [
                pytest.approx(0.05 * (8 - t) / 8) for t in range(8)
            ]
            given = algorithm(bumpy.constraint, penalty=LAM, schedule="convex")
            kept = fedfw.simulate(bumpy.problem, given, rounds=1).algorithm
            assert (kept.momentum, kept.schedule) == (0.9, "convex")
            for beta, steps in ((0.9, "linear-decay:0.05"), (0.0, None)):
                named = algorithm(bumpy.constraint, penalty=LAM, momentum=beta)
                assert fedfw.simulate(bumpy.problem, named, rounds=1).algorithm.schedule == steps
        flat = fedfw.simulate(
            Quadratics.on("l2").problem, fedfw.FedFW(bumpy.constraint, penalty=LAM), rounds=1
        )
        assert flat.algorithm.schedule is None

    @pytest.mark.parametrize(
        "name", ["cosine", "constant", "constant:2", "linear-decay:x", "convex:3"]
    )
    def test_unknown_ones_are_refused_with_the_known(self, name: str) -> None:
        with pytest.raises(ValueError, match="expected one of convex, nonconvex"):
            fedfw.schedules.make_schedule(name, 1.0, 10)

    def test_a_step_outside_0_1_is_refused_when_it_comes(self) -> None:
        q = Quadratics.on("l2")
        with pytest.raises(ValueError, match=r"eta=1\.5 at t=3"):
            fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, schedule=lambda t: t / 2), rounds=5)


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_a_text_stands_for_a_set(name: str) -> None:
    algorithm = fedfw.ALGORITHMS[name]
    assert algorithm("L2:10").constraint == fedfw.L2Ball(10)
    assert algorithm("l2:10") == algorithm(fedfw.L2Ball(10))


@pytest.mark.parametrize(
    "attendance", [lambda t: range(5), lambda t: [t % 5, (3 * t + 1) % 5] if t % 4 else []]
)
@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("gradient_at", ["xbar", "own"])
def test_anchored_with_momentum_is_its_transcription(
    gradient_at: str, penalty: float, attendance: Any
) -> None:
    """The corrected gradient is averaged, with every client's own last anchor; the penalty is added
    to the average.
    """
    n, p, every, beta, rounds, D = 5, 6, 4, 0.9, 30, fedfw.Box(-1.0, 0.5)
    A, c = random_quadratics(n, p, 10.0, 1.0, 0)
    problem = quadratic_problem(A, c, torch.zeros(p, dtype=torch.float64))
    seen: list[Tensor] = []
    algorithm = fedfw.FedFWAnchored(
        D,
        penalty=penalty,
        momentum=beta,
        anchor_every=every,
        gradient_at=gradient_at,
        schedule=fedfw.schedules.convex(),
    )
    options = {"rounds": rounds, "participation": attendance, "eval_every": rounds}
    fedfw.simulate(problem, algorithm, callbacks=lambda s: seen.append(s.xbar.clone()), **options)
    X, anchors, d, met = (
        torch.zeros(n, p).double(),
        dict[int, Tensor](),
        torch.zeros(n, p).double(),
        [False] * n,
    )
    for t in range(1, rounds + 1):
        present, eta, lam = sorted(set(attendance(t))), 2 / (t + 1), penalty * (t + 1) ** 0.5
        xbar = X.mean(0)
        if present and (t - 1) % every == 0:
            anchors |= {i: A[i] @ (xbar - c[i]) / n for i in present}
            if gradient_at == "own":
                X[present] = xbar
            xbar = X.mean(0)
        after = X.clone()
        for i in present:
            corrected = A[i] @ ((X[i] if gradient_at == "own" else xbar) - c[i]) / n
            if i in anchors:
                corrected = corrected - anchors[i] + torch.stack([*anchors.values()]).mean(0)
            d[i] = beta * d[i] + (1 - beta) * corrected if met[i] else corrected
            met[i] = True
            g = d[i] + lam * (X[i] - xbar)
            after[i] = (1 - eta) * X[i] + eta * torch.where(g <= 0, 0.5, -1.0)
        X = after
        assert torch.allclose(seen[t - 1], X.mean(0), atol=1e-12), t
