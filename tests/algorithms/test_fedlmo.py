"""FedLMO: a transcription of its equations, feasibility, memory, bytes, and parties that cheat."""

from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.problems.quadratics import quadratic_problem, random_quadratics
from fedfw.simulation import Simulation

N, P = 6, 9
DTYPES = [torch.float32, torch.float64]
SETS = {"l1": fedfw.L1Ball(1.0), "l2": fedfw.L2Ball(1.0), "box": fedfw.Box(-0.5, 0.5)}
ATTENDANCE: dict[str, Any] = {
    "everyone": 1.0,
    "two": 2,
    "given": lambda t: [] if t % 4 == 0 else [t % N, (t + 2) % N],
}
UNEQUAL = tuple(i / 21 for i in range(1, N + 1))
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "no momentum": {"momentum": 0.0},
    "no correction": {"correction": False},
    "lazy": {"momentum": 0.5, "renew_every": 3},
    "server": {},
    "server without correction": {"correction": False},
}


class Quadratic:
    """Clients with different curvatures and centres."""

    def __init__(self, dtype: torch.dtype, weights: tuple[float, ...] | None = None) -> None:
        A, c = random_quadratics(N, P, 10.0, 3.0, 0)
        self.A, self.c, self.weights = A.to(dtype), c.to(dtype), weights
        self.problem = quadratic_problem(self.A, self.c, torch.zeros(P, dtype=dtype), weights, True)

    def gradient(self, i: int, x: Tensor) -> Tensor:
        return self.A[i] @ (x - self.c[i])


def by_hand(
    q: Quadratic,
    D: fedfw.ConstraintSet,
    who: list[list[int]],
    K: int,
    options: dict[str, Any],
    at_server: bool,
) -> Tensor:
    """The equations at the top of the files, client by client, in float64 where they are added up."""
    beta, corrects = options.get("momentum", 0.9), options.get("correction", True)
    every = options.get("renew_every", 1)
    w = torch.tensor(q.weights or (1 / N,) * N, dtype=torch.float64)
    x, m = torch.zeros(P, dtype=torch.float64), None
    own: dict[int, Tensor] = {}
    T = len(who)
    for t, present in enumerate(who, 1):
        eta = 0.1 * (1 - (t - 1) / T)
        if not present:
            continue
        share = {i: float(w[i] / w[present].sum()) for i in present}
        c = None
        if own and corrects:
            c = sum(w[i] * own[i] for i in own) / sum(w[i] for i in own)  # type: ignore[assignment]
        ends, momenta, renewed = {}, {}, {}
        for i in present:
            z, mine, raw = x.clone(), None if every > 1 else m, []
            for _ in range(K):
                g = q.gradient(i, z.to(q.A.dtype)).double()
                raw.append(g)
                if corrects and i in own and c is not None:
                    g = g - own[i] + c
                if not at_server:
                    mine = g if mine is None else beta * mine + (1 - beta) * g
                    s = D.lmo(mine.to(q.A.dtype), tol=1e-6).dense(torch.float64)
                    z = (1 - eta / K) * z + eta / K * s
            ends[i], momenta[i] = z, g if at_server else mine
            renewed[i] = torch.stack(raw).mean(0) if every == 1 else raw[0]
        if at_server:
            g = sum(share[i] * momenta[i] for i in present)  # type: ignore[assignment, operator, misc]
            m = g if m is None else beta * m + (1 - beta) * g
            x = (1 - eta) * x + eta * D.lmo(m.to(q.A.dtype), tol=1e-6).dense(torch.float64)
        else:
            x = sum(share[i] * ends[i] for i in present)  # type: ignore[assignment]
            m = sum(share[i] * momenta[i] for i in present)  # type: ignore[assignment, operator, misc]
        if (t - 1) % every == 0:
            own |= renewed
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", [None, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("attendance", ATTENDANCE)
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_its_equations(
    variant: str, attendance: str, weights: Any, dtype: torch.dtype
) -> None:
    q, D, options = Quadratic(dtype, weights), SETS["l2"], VARIANTS[variant]
    T, K, who = 12, 3, []

    def watch(simulation: Simulation) -> None:
        who.append(simulation.now.who.tolist())

    at_server = variant.startswith("server")
    method = fedfw.ServerLMO if at_server else fedfw.FedLMO
    algorithm = method(D, **options)
    participation = ATTENDANCE[attendance]
    often = {"rounds": T, "local_steps": K, "participation": participation, "eval_every": T}
    run = fedfw.simulate(q.problem, algorithm, callbacks=watch, **often)
    expected = by_hand(q, D, who, K, options, at_server)
    assert torch.allclose(run.x.double(), expected, atol=1e-4 if dtype is torch.float32 else 1e-9)


def test_what_travels_is_what_the_options_say() -> None:
    q = Quadratic(torch.float32)

    def up(method: Any = fedfw.FedLMO, **options: Any) -> list[int]:
        algorithm = method(fedfw.L2Ball(1.0), **options)
        run = fedfw.simulate(q.problem, algorithm, rounds=4, participation=1.0)
        return [record.bytes_up // N for record in run.history]

    vector = 1 + 4 * P
    assert up() == [1 + 3 * vector] * 4
    assert up(momentum=0.0) == up(correction=False) == [1 + 2 * vector] * 4
    assert up(momentum=0.0, correction=False) == up(fedfw.ServerLMO) == [vector] * 4
    assert up(renew_every=2, momentum=0.5) == [1 + 2 * vector, vector, 1 + 2 * vector, vector]
