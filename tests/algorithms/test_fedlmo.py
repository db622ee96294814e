"""FedLMO: a transcription of its equations, feasibility, memory, bytes, and parties that cheat."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.algorithms import Message
from fedfw.atoms import TupleAtom
from fedfw.deployment import DeployedServer, Deployment, Task
from fedfw.problems.quadratics import quadratic_problem, random_quadratics
from fedfw.simulation import Simulation
from tests.deployment.loopback import OPEN, Loopback, small_task

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
    "server": {"oracle_at": "server"},
    "server without correction": {"oracle_at": "server", "correction": False},
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
    q: Quadratic, D: fedfw.ConstraintSet, who: list[list[int]], K: int, options: dict[str, Any]
) -> Tensor:
    """The equations at the top of the file, client by client, in float64 where they are added up."""
    beta, corrects = options.get("momentum", 0.9), options.get("correction", True)
    every, at_server = options.get("renew_every", 1), options.get("oracle_at") == "server"
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

    algorithm = fedfw.FedLMO(D, **options)
    participation = ATTENDANCE[attendance]
    often = {"rounds": T, "local_steps": K, "participation": participation, "eval_every": T}
    run = fedfw.simulate(q.problem, algorithm, callbacks=watch, **often)
    expected = by_hand(q, D, who, K, options)
    assert torch.allclose(run.x.double(), expected, atol=1e-4 if dtype is torch.float32 else 1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_model_stays_in_the_set_and_the_control_variates_add_up(
    variant: str, name: str, dtype: torch.dtype
) -> None:
    q, D = Quadratic(dtype, UNEQUAL), SETS[name]
    w = N * torch.tensor(UNEQUAL, dtype=torch.float64)[:, None]

    def watch(simulation: Simulation) -> None:
        assert D.contains(simulation.xbar, 1e-6)
        assert simulation.clients["x"].shape == (N, 0)
        if "total" in simulation.server.vectors:
            state = simulation.clients
            rough = 1e-9 if dtype is torch.float64 else 1e-4
            total, seen = (w * state["c"]).sum(0), (w * state["visited"]).sum()
            assert torch.allclose(simulation.server.vectors["total"], total.double(), atol=rough)
            assert torch.allclose(
                simulation.server.vectors["seen"].double(), seen.double(), atol=rough
            )

    algorithm = fedfw.FedLMO(D, schedule="convex", **VARIANTS[variant])
    often = {"rounds": 25, "local_steps": 2, "participation": 0.5, "eval_every": 25}
    fedfw.simulate(q.problem, algorithm, callbacks=watch, **often)


@cache
def far_apart(**options: Any) -> tuple[float, float]:
    """Clients whose own optima lie far apart, two of six a round: F - F* after 400 rounds, and at
    the start.
    """
    q, D = Quadratic(torch.float64), fedfw.L1Ball(1.0)
    optimum = fedfw.solve(q.problem, D, tol=1e-9)
    algorithm = fedfw.FedLMO(D, schedule="convex", **options)
    run = fedfw.simulate(
        q.problem, algorithm, rounds=400, local_steps=3, participation=2, eval_every=400
    )
    begin = float(q.problem.value_and_gradient(q.problem.start)[0])
    assert run.history[-1].loss is not None
    return run.history[-1].loss - optimum.value, begin - optimum.value


@pytest.mark.parametrize("options", [{}, {"momentum": 0.0}, {"renew_every": 4, "momentum": 0.0}])
def test_convex_problems_are_solved_whoever_takes_part(options: dict[str, Any]) -> None:
    left, begin = far_apart(**options)
    assert left < 0.01 * begin
    without, _ = far_apart(correction=False)
    assert without > 3 * left


def test_what_travels_is_what_the_options_say() -> None:
    q = Quadratic(torch.float32)

    def up(**options: Any) -> list[int]:
        algorithm = fedfw.FedLMO(fedfw.L2Ball(1.0), **options)
        run = fedfw.simulate(q.problem, algorithm, rounds=4, participation=1.0)
        return [record.bytes_up // N for record in run.history]

    vector = 1 + 4 * P
    assert up() == [1 + 3 * vector] * 4
    assert up(momentum=0.0) == up(correction=False) == [1 + 2 * vector] * 4
    assert up(momentum=0.0, correction=False) == up(oracle_at="server") == [vector] * 4
    assert up(renew_every=2, momentum=0.5) == [1 + 2 * vector, vector, 1 + 2 * vector, vector]


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="renew_every=3, expected 1 with oracle_at='server'"):
        fedfw.FedLMO(fedfw.L2Ball(1.0), oracle_at="server", renew_every=3)


# --- deployed ---

NETWORK = fedfw.Product({"weight": fedfw.SpectralBall(2.0), "*": fedfw.LinfBall(1.0)})


@pytest.mark.parametrize("variant", ["default", "server", "lazy"])
def test_weights_lost_disks_and_leavers(variant: str, tmp_path: Path) -> None:
    """Clients of different weight; one loses its disk and is handed its control variate, one leaves
    for good.
    """
    algorithm = fedfw.FedLMO(fedfw.L2Ball(5.0), **VARIANTS[variant])
    task = replace(small_task(algorithm, rounds=8), weights=(1.0, 2.0, 5.0))
    loop = Loopback(DeployedServer(task, Deployment(share_gradients=True)), tmp_path)
    loop.run(2)
    for lost in tmp_path.glob("*/client-1*"):
        lost.unlink()
    loop.run(4)
    assert [record.participants for record in loop.server.history] == [3, 3, 2, 3, 3, 3]
    assert loop.server.history[3].restored == [1]  # type: ignore[attr-defined]
    clients = [task.data(i) for i in range(3)]
    problem = fedfw.Problem(task.model, task.loss, clients, test=task.test, weights=task.weights)
    run = fedfw.simulate(
        problem,
        algorithm,
        rounds=8,
        participation=lambda t: [0, 2] if t == 3 else [0, 1, 2],
        callbacks=lambda simulation: simulation.t == 6,
    )
    assert torch.equal(loop.server.xbar, run.x)
    loop.server.release(2)
    server, rows = (
        loop.server.coordinator.server,
        loop.server.coordinator.memory.gather(torch.arange(2)),
    )
    shares = torch.tensor([2 / 3, 4 / 3], dtype=torch.float64)[:, None]
    assert torch.allclose(server.vectors["total"], (shares * rows["c"]).sum(0), atol=1e-6)
    loop.run(2)
    assert task.constraint.contains(loop.server.xbar, 1e-6)


def cheats(payload: bytes, how: str, task: Task, server: DeployedServer) -> bytes:
    """What a hostile client sends in place of an honest parcel."""
    sent = task.decode(payload, server.plan, Message(server.t + 1, server.xbar))
    assert isinstance(sent, TupleAtom)
    atom, *rest = sent.parts
    if how == "atom outside":
        bad = [
            replace(part, values=part.values * 3) if hasattr(part, "values") else part
            for part in atom.parts
        ]  # type: ignore[attr-defined]
        return replace(sent, parts=(replace(atom, parts=tuple(bad)), *rest)).to_bytes()
    if how == "vector missing":
        return replace(sent, parts=(atom, *rest[:-1])).to_bytes()
    if how == "vector too long":
        return payload + payload[-4:]
    value = {"infinite": torch.inf, "not a number": torch.nan, "huge": 1e38}[how]
    vectors = [replace(part, values=torch.full_like(part.values, value)) for part in rest]  # type: ignore[attr-defined]
    return replace(sent, parts=(atom, *vectors)).to_bytes()


@pytest.mark.parametrize(
    "how", ["atom outside", "vector missing", "vector too long", "infinite", "not a number", "huge"]
)
def test_a_cheating_client_is_refused_and_the_model_stays_in_the_set(
    how: str, tmp_path: Path
) -> None:
    task = small_task(fedfw.FedLMO(NETWORK), rounds=6, local_steps=2)
    server = DeployedServer(task, Deployment(share_gradients=True))

    def wire(client: int, fields: dict[str, Any]) -> list[dict[str, Any]]:
        if client == 1:
            fields = fields | {"payload": cheats(fields["payload"], how, task, server)}
        return [fields]

    loop = Loopback(server, tmp_path, wire, consent=OPEN)
    for _ in range(3):
        record = loop.round()
        assert record.participants == 2
        assert sum(record.refused.values()) == 1
        assert task.constraint.contains(server.xbar, 1e-6)
