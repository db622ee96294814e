"""The projected baselines: where they converge, where they rest, one client, absentees, what they
send.
"""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.algorithms import Client, Message, Rates, Run, State
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.channels import dense
from fedfw.rounds.sums import Participants, Upload
from fedfw_reproduction.known_quadratics import SETS, P, Quadratics


def baselines(D: fedfw.ConstraintSet) -> list[fedfw.Algorithm]:
    return [
        fedfw.FedAvg(D),
        fedfw.FedAvg(D, mu=1.0),
        fedfw.FedDR(D, eta=0.5),
        fedfw.FedDR(D, eta=0.2, alpha=1.9),
        fedfw.contrib.FedADMM(D, eta=0.2),
        fedfw.FedDA(D),
        # These send changes of models or of control variates, and take weighted means.
        fedfw.FedAvgM(D, lr=0.03),
        fedfw.FedCM(D),
        fedfw.Scaffold(D),
    ]


FREE = fedfw.LinfBall(1e6)
"""A set so large that nothing is projected."""
DTYPES = [torch.float32, torch.float64]


WEIGHTS = {"equal": None, "unequal": (0.3, 0.05, 0.1, 0.15, 0.1, 0.1, 0.1, 0.1)}


def attending(t: int, everyone: bool, n: int) -> list[int]:
    return list(range(n)) if everyone else [t % n, (3 * t + 1) % n, (t + 5) % n]


def nearest(x: torch.Tensor) -> torch.Tensor:
    """In the ball of radius 1."""
    return x / x.norm().clamp(min=1.0)


@cache
def weighted(weights: str, D: fedfw.ConstraintSet) -> Quadratics:
    """Their optimum is worked out once."""
    plain = Quadratics.on("l2")
    return Quadratics(D, plain.A, plain.c, WEIGHTS[weights])


@pytest.mark.parametrize("name", SETS)
def test_converges_to_the_independent_optimum(name: str) -> None:
    q = Quadratics.on(name)
    for algorithm in baselines(q.constraint):
        run = fedfw.simulate(q.problem, algorithm, rounds=150, eval_every=150)
        assert q.residuals(run)[-1] < 1e-5 * (q.value(q.start) - q.least), algorithm
        assert q.constraint.contains(run.x)
        assert run.lower_bound <= q.least + 1e-9


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


def test_a_set_without_projection_and_an_unknown_smoothness_are_refused() -> None:
    class OnlyAnOracle(fedfw.L1Ball):
        has_projection = property(lambda self: False)  # type: ignore[assignment]

    q = Quadratics.on("l1")
    with pytest.raises(ValueError, match="fedavg projects, and"):
        fedfw.simulate(q.problem, fedfw.FedAvg(OnlyAnOracle(1.0)), rounds=1)
    unknown = fedfw.Problem.from_losses([lambda x: x.pow(4).sum()], torch.zeros(3))
    with pytest.raises(ValueError, match="Cannot derive lr='auto'"):
        fedfw.simulate(unknown, fedfw.FedAvg(fedfw.L1Ball(1.0)), rounds=1)
    assert fedfw.simulate(unknown, fedfw.FedAvg(fedfw.L1Ball(1.0), lr=0.1), rounds=1).x.norm() == 0


# --- methods from the training of networks ---


def typed(q: Quadratics, dtype: torch.dtype) -> fedfw.Problem:
    return quadratic_problem(q.A.to(dtype), q.c.to(dtype), q.start.to(dtype), q.weights)


def run_of(
    q: Quadratics,
    dtype: torch.dtype,
    algorithm: fedfw.Algorithm,
    everyone: bool,
    rounds: int,
    K: int,
    callbacks: Any = (),
) -> fedfw.Run:
    return fedfw.simulate(
        typed(q, dtype),
        algorithm,
        rounds=rounds,
        eval_every=rounds,
        local_steps=K,
        participation=lambda t: attending(t, everyone, q.n),
        callbacks=callbacks,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("decay", ["none", "linear"])
def test_one_client_without_a_set_is_the_central_optimizer(
    K: int, decay: str, dtype: torch.dtype
) -> None:
    """torch's own optimizers, with the mean of K steps as the gradient where the optimizer runs at
    the server.
    """
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
        fedfw.FedAvgM(FREE, server_momentum=0.8, **decays): central(
            "SGD", True, lr=1.0, momentum=0.8
        ),
        fedfw.FedAdam(FREE, server_lr=0.1, beta1=0.8, beta2=0.95, tau=1e-4, **decays): central(
            "Adam", True, lr=0.1, betas=(0.8, 0.95), eps=1e-4
        ),
        fedfw.FedAdamW(FREE, beta1=0.8, beta2=0.95, weight_decay=0.1, **decays): central(
            "AdamW", False, lr=lr, betas=(0.8, 0.95), eps=1e-8, weight_decay=0.1
        ),
    }
    for algorithm, answer in expected.items():
        x = fedfw.simulate(
            typed(q, dtype), algorithm, rounds=rounds, eval_every=rounds, local_steps=K
        ).x
        assert torch.allclose(x, answer, atol=1e-12 if dtype == torch.float64 else 1e-5), algorithm


def test_the_shared_momentum_of_fedcm_is_the_running_average_of_gradients() -> None:
    """With one local step and everybody present it is gradient descent along m <- beta m + (1 -
    beta) gradient.
    """
    q, lr, beta = Quadratics.on("l2"), 0.05, 0.7
    x, m = q.start, torch.zeros(P, dtype=torch.float64)
    for _ in range(20):
        m = beta * m + (1 - beta) * q.gradients(x).sum(0)
        x = x - lr * m
    free = quadratic_problem(q.A, q.c, q.start)
    run = fedfw.simulate(free, fedfw.FedCM(FREE, lr=lr, momentum=beta), rounds=20, eval_every=20)
    assert torch.allclose(run.x, x, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("everyone", [True, False])
def test_the_steps_of_scaffold_are_those_that_are_written_out_here(
    everyone: bool, weights: str, dtype: torch.dtype
) -> None:
    """The paper's two vectors: models and control variates, whose means are taken apart from each
    other.
    """
    q, lr, K, rounds = weighted(weights, SETS["l2"]), 0.03, 4, 9
    A, c, w = q.A.to(dtype), q.c.to(dtype), q.w.to(dtype)

    xbar, shared, own = (
        q.start.to(dtype),
        torch.zeros(P, dtype=dtype),
        torch.zeros(q.n, P, dtype=dtype),
    )
    for t in range(1, rounds + 1):
        ends, renewed = torch.zeros(P, dtype=dtype), own.clone()
        who = sorted(set(attending(t, everyone, q.n)))
        for i in who:
            y = xbar
            for _ in range(K):
                y = y - lr * (A[i] @ (nearest(y) - c[i]) - own[i] + shared)
            renewed[i] = own[i] - shared + (xbar - y) / (K * lr)
            ends += w[i] * y / w[who].sum()
        own = renewed
        xbar, shared = nearest(ends), (w[:, None] * own).sum(0)
    x = run_of(q, dtype, fedfw.Scaffold(q.constraint, lr=lr), everyone, rounds, K).x
    assert torch.allclose(x, xbar, atol=1e-12 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_client_takes_the_oracle_steps_of_the_central_optimizer(dtype: torch.dtype) -> None:
    """With one local step each is Frank-Wolfe along a running average; LocalMuon's has no past
    then.
    """
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
    """FedMuon's server rebuilds the mean of the x_i from net atoms; here are the clients' steps,
    written out.
    """
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
    algorithm = fedfw.contrib.FedMuon(
        q.constraint, alignment=alpha, momentum=beta, schedule="linear-decay:0.3"
    )
    run = fedfw.simulate(q.problem, algorithm, rounds=rounds, eval_every=rounds, local_steps=K)
    assert torch.allclose(run.x, xbar, atol=1e-6)  # net atoms are rounded to float32


def test_local_muon_stays_where_clients_disagree_and_control_variates_move_it() -> None:
    """The oracle's bias: what is proven of LocalMuon, on the line."""
    two = fedfw.testing.two_quadratics()
    local, aligned, corrected = (
        float(fedfw.simulate(two, method("box:-1,1"), rounds=100, eval_every=100, local_steps=2).x)
        for method in (fedfw.contrib.LocalMuon, fedfw.contrib.FedMuon, fedfw.contrib.FedMuonCV)
    )
    assert abs(local) < 1e-6
    assert (
        aligned > 0.5
    )  # the shared momentum has the sign of the mean gradient, until clients' own are added
    assert corrected > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_that_no_gradients_have_do_not_spoil_the_steps_of_others(
    dtype: torch.dtype,
) -> None:
    """A huge m beside a v of zero would make all clients' next steps overflow, and their answers be
    refused for good.
    """
    algorithm, run = fedfw.FedAdamW(FREE, lr=0.1), Run(1, FREE, dtype)
    zero = torch.zeros(2, dtype=dtype)
    sent = {
        "update": dense(zero[None]),
        "m": dense(torch.tensor([[9e17, -9e17]], dtype=dtype)),
        "v": dense(-torch.ones(1, 2, dtype=dtype)),
    }
    decoded = {name: vector.dense() for name, vector in sent.items()}
    sums = Participants(1, 1, zero, [Upload(torch.arange(1), {}, sent, decoded)])
    rates = (Rates(0.1),) * 3

    def message(t: int, vectors: State) -> Message:
        return Message(t, vectors, rates, 0.1, [1.0], 1e-6)

    server = algorithm.init_server(run, zero)
    server = dict(algorithm.server_step(run, server, sums, message(1, {"xbar": zero})))
    server, vectors = algorithm.broadcast(run, server, zero, sums)

    class Flat:
        """Gradients of one client that are almost zero."""

        m = 1

        def gradient(self, x: Tensor, times: str = "w", full: bool = False) -> Tensor:
            return 1e-3 * torch.ones_like(x)

        def lmo(self, g: Tensor) -> Any:
            raise AssertionError("it projects")

    _, payload = algorithm.local_update(
        run, Client({}, {}), message(2, {"xbar": zero} | vectors), Flat()
    )
    assert payload.keys() == {"update", "m", "v"}
    assert all(bool((part.abs() < 10).all()) for part in payload.values())


# --- Fast-FedDA: the paper's sums beside our running average, where it rests and where it converges
# ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("everyone", [True, False])
def test_the_sums_of_the_paper_give_the_same_points(
    everyone: bool, K: int, weights: str, dtype: torch.dtype
) -> None:
    """The paper's two sums, of gradients and of points; absentees' sums are those of the server."""
    q, lr, strong, rounds = weighted(weights, SETS["l2"]), 0.04, 0.3, 12
    A, c, w, start = q.A.to(dtype), q.c.to(dtype), q.w.to(dtype), q.start.to(dtype)
    mu = strong / lr

    def point(g: torch.Tensor, points: torch.Tensor, steps: int) -> torch.Tensor:
        """The minimiser of <g, w> + sum_j mu/4 ||w - w_j||^2 + ||w - x^1||^2 / (2 lr) over the ball
        of radius 1.
        """
        best = (start / lr + mu / 2 * points - g) / (1 / lr + steps * mu / 2)
        return nearest(best)

    g, points = torch.zeros(P, dtype=dtype), torch.zeros(P, dtype=dtype)
    for t in range(1, rounds + 1):
        sums = []
        present = sorted(set(attending(t, everyone, q.n)))
        for i in present:
            own_g, own_points = g, points
            for k in range(K):
                x = point(own_g, own_points, (t - 1) * K + k)
                own_g, own_points = own_g + A[i] @ (x - c[i]), own_points + x
            sums.append(w[i] * torch.stack([own_g, own_points]))
        g, points = torch.stack(sums).sum(0) / w[present].sum()
    algorithm = fedfw.contrib.FastFedDA(q.constraint, lr=lr, strong=strong)
    run = run_of(q, dtype, algorithm, everyone, rounds, K)
    expected = point(g, points, rounds * K)
    assert torch.allclose(run.x, expected, atol=1e-12 if dtype == torch.float64 else 1e-5)


# --- The proximal augmented Lagrangian method: its steps written out, where it rests and where it
# converges ---


def minimised(value: Any, start: torch.Tensor) -> torch.Tensor:
    """The minimiser of a smooth strongly convex function, by torch's own optimizer."""
    x = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([x], max_iter=200, tolerance_grad=1e-13, tolerance_change=1e-16)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = value(x)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return x.detach()


LR, ETA, BETA, ROUNDS = 0.05, 0.3, 4.0, 7


@cache
def written_out(
    everyone: bool, every: int, K: int, weights: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The server's model and its multiplier after all rounds, (p,) each, in float64."""
    q, lr, eta, beta = weighted(weights, SETS["l2"]), LR, ETA, BETA
    A, c, w, n = q.A, q.c, q.w, q.n

    def far(x: torch.Tensor) -> torch.Tensor:
        """The square of the distance from the ball of radius 1."""
        return (x.norm() - 1).clamp(min=0).square()

    model = centre = q.start
    y = torch.zeros(P, dtype=torch.float64)
    x, z = q.start.repeat(n, 1), torch.zeros(n, P, dtype=torch.float64)
    share = 1 / ((n + 1) * beta)
    for t in range(1, ROUNDS + 1):
        for i in set(attending(t, everyone, n)):
            for _ in range(K):  # the linearised loss, with all else exact
                slope = n * w[i] * A[i] @ (x[i] - c[i])
                pulls = slope + n * share * (x[i] - centre) + z[i] + (x[i] - model) / eta
                x[i] = x[i] - pulls / (1 / lr + n * share + 1 / eta)
            z[i] = z[i] + (x[i] - model) / eta
        mean = (x + eta * z).mean(0)
        model = minimised(
            lambda v, mean=mean, centre=centre, y=y: (
                beta / 2 * far(v + y / beta)
                + share / 2 * (v - centre).square().sum()
                + (v - mean).square().sum() / (2 * eta)
            ),
            model,
        )
        if t % every == 0:
            y, centre = y + beta * (model - nearest(model + y / beta)), model
    return model, y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("everyone", [True, False])
def test_the_steps_are_those_that_are_written_out_here(
    everyone: bool, every: int, K: int, weights: str, dtype: torch.dtype
) -> None:
    """The server's problem is solved by an optimizer here, and by one projection there."""
    q = weighted(weights, SETS["l2"])
    model, y = written_out(everyone, every, K, weights)
    algorithm = fedfw.contrib.FedPAL(
        q.constraint, lr=LR, eta=ETA, beta=BETA, multiplier_every=every
    )
    seen: list[State] = []
    run = run_of(q, dtype, algorithm, everyone, ROUNDS, K, lambda s: seen.append(s.server.state))
    rough = 1e-7 if dtype == torch.float64 else 1e-4
    assert torch.allclose(seen[-1]["w"].double(), model, atol=rough)
    assert torch.allclose(seen[-1]["y"].double(), y, atol=10 * rough)
    assert torch.allclose(run.x.double(), nearest(model), atol=rough)
