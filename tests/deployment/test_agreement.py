"""The deployment's server and clients give the bits of the simulator."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn

import fedfw
from fedfw import ContradictionError
from fedfw.config import RunConfig, build_algorithm, build_problem, completed
from fedfw.config.build import load
from fedfw.cpu.softmax import is_compiled
from fedfw.deployment import DeployedServer, Deployment, Task
from fedfw.deployment.flower.template.federation.task import make_task
from fedfw.rounds.options import Options
from tests.table import L1, L2, METHODS

from .loopback import Loopback, problem_of, small_task


def enough_rounds(algorithm: fedfw.Algorithm) -> int:
    """The first round and two that begin with what the one before has left.

    Anchors and renewed control variates come again within five rounds, and a round follows them;
    those that the gap places come once.
    """
    return (
        5 if hasattr(algorithm, "anchor_every") or getattr(algorithm, "renew_every", 1) > 1 else 3
    )


UNEQUAL = (0.1, 0.7, 1.3)
"""Weights whose sum is rounded."""


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("participation", "local_steps", "weights"),
    [(1.0, 1, None), (2, 2, UNEQUAL)],
    ids=["plain", "two of three with local steps and unequal weights"],
)
def test_same_bits_as_simulated(
    name: str, participation: float, local_steps: int, weights: Any, tmp_path: Path
) -> None:
    """Bits of the model, and bytes in all four counters, counted from what really went over the
    wire.
    """
    algorithm = METHODS[name]
    at_server = algorithm.name in ("frank-wolfe", "fedpgd")
    options = {
        "rounds": enough_rounds(algorithm),
        "batch_size": 5 if name == "FedFW-sto" else None,
        "local_steps": 1 if at_server else local_steps,
        "participation": 1.0 if name == "Frank-Wolfe, steps from curvature" else participation,
    }
    task = replace(small_task(algorithm, **options), weights=weights)
    loop = Loopback(
        DeployedServer(task, Deployment(share_gradients=True, tell_loss=True)), tmp_path
    )
    run = fedfw.simulate(problem_of(task), algorithm, **options)
    for simulated in run.history:
        record = loop.round()
        orders = [order for orders in loop.sent.values() for order in orders]
        sent = {
            "bytes_down": sum(order.payload_nbytes for order in orders),
            "evidence_down": sum(order.evidence_nbytes for order in orders),
            "bytes_up": sum(len(answer.payload) for answer in loop.answered),
            "evidence_up": sum(answer.evidence_nbytes for answer in loop.answered),
        }
        loop.sent, loop.answered = {}, []
        for counter, nbytes in sent.items():
            assert getattr(record, counter) == nbytes == getattr(simulated, counter), counter
        assert record.accuracy == simulated.accuracy
        assert record.drift < 1e-6 or weights
    assert torch.equal(loop.server.xbar, run.x)
    if weights and algorithm.weighted:  # else the same few atoms may come out
        equal = fedfw.simulate(problem_of(replace(task, weights=None)), algorithm, **options)
        assert not torch.allclose(equal.x, run.x, atol=1e-3)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.cat([left, right], 1))
        return scores


def pretrained() -> nn.Module:
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()).requires_grad_(False)
    return nn.Sequential(body, nn.Linear(6, 3)).eval()


OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Any]]] = {
    "frozen features": (pretrained, lambda x: x),
    "sparse samples": (lambda: nn.Linear(4, 3), lambda x: csr_matrix(x.relu().numpy())),
    "several inputs": (TwoInputs, lambda x: {"left": x[:, :1], "right": x[:, 1:]}),
}


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("name", OWN)
def test_models_and_data_of_ones_own_have_the_bits_of_the_simulation(
    name: str, batch_size: int | None, tmp_path: Path
) -> None:
    make, form = OWN[name]
    torch.manual_seed(0)
    plain = small_task(fedfw.FedFWPlus(L1, penalty=0.1), rounds=3, batch_size=batch_size)

    def data(client: int) -> Any:
        inputs, targets = plain.data(client)
        return form(inputs), targets

    task = replace(plain, model=make(), data=data, test=data(100))
    run = fedfw.simulate(problem_of(task), task.algorithm, rounds=3, batch_size=batch_size)
    loop = Loopback(DeployedServer(task, Deployment(tell_loss=True)), tmp_path)
    for simulated in run.history:
        record = loop.round()
        assert record.accuracy == simulated.accuracy
    assert torch.equal(loop.server.xbar, run.x)


def test_texts_as_targets_are_refused_where_clients_are_apart() -> None:
    task = small_task(fedfw.FedFW(L1))
    with pytest.raises(ValueError, match="number differently"):
        task.problem((torch.zeros(3, 4), ["a", "b", "a"]))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: nn.Linear(4, 3),
    "perceptron": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "GELU": lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3)
    ),
}


def task_of_unequal_clients(
    model: str, algorithm: fedfw.Algorithm, dtype: torch.dtype, seed: int, **options: Any
) -> Task:
    """Four clients with 1 to 37 samples each."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 38, (5,), generator=generator).tolist()

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        own, size = torch.Generator().manual_seed(100 * seed + client), sizes[min(client, 4)]
        inputs = torch.randn(size, 4, generator=own, dtype=dtype) + client % 3
        return inputs, torch.randint(0, 3, (size,), generator=own)

    torch.manual_seed(seed)
    module = MODELS[model]().to(dtype)
    return Task(
        module, torch.nn.functional.cross_entropy, algorithm, data, 4, options=Options(**options)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", MODELS)
def test_same_bits_for_clients_of_unequal_sizes(
    model: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Every kind of model, whether atoms are sent or dense vectors, which show every last bit of a
    gradient.
    """
    cases: list[tuple[fedfw.Algorithm, dict[str, Any]]] = [
        (fedfw.FedFW(L2, penalty=0.05), {}),
        (fedfw.FedFWAnchored(L1, penalty=0.01, anchor_every=2, momentum=0.5), {"participation": 2}),
        (fedfw.FedAvg(L2, lr=0.3), {"local_steps": 2}),
        (fedfw.Scaffold(L2, lr=0.3), {"participation": 3, "batch_size": 4}),
        (fedfw.FedLMO(L2), {"local_steps": 2}),
    ]
    for seed, (algorithm, options) in enumerate(cases):
        task = task_of_unequal_clients(
            model, algorithm, dtype, seed, rounds=3, eval_every=3, **options
        )
        loop = Loopback(
            DeployedServer(task, Deployment(share_gradients=True)), tmp_path / str(seed)
        )
        loop.run(3)
        run = fedfw.simulate(problem_of(task), algorithm, rounds=3, eval_every=3, **options)
        assert torch.equal(loop.server.xbar, run.x.flatten()), algorithm


@pytest.mark.skipif(not is_compiled(), reason="the gradient of softmax regression was not compiled")
def test_softmax_regression_in_float32_has_the_bits_whoever_shares_a_call(tmp_path: Path) -> None:
    for seed, algorithm in enumerate((fedfw.FedFW(L2, penalty=0.05), fedfw.FedAvg(L2, lr=0.3))):
        task = task_of_unequal_clients(
            "softmax", algorithm, torch.float32, seed, rounds=4, eval_every=4
        )
        loop = Loopback(
            DeployedServer(task, Deployment(share_gradients=True)), tmp_path / str(seed)
        )
        loop.run(4)
        clients = [task.data(i) for i in range(4)]
        together = fedfw.Problem(task.model, task.loss, clients)
        assert not together.separate
        assert torch.equal(
            loop.server.xbar, fedfw.simulate(together, algorithm, rounds=4, eval_every=4).x
        )


def test_told_losses_and_bounds(tmp_path: Path) -> None:
    task = small_task(METHODS["FedFW+"], rounds=6)
    quiet, telling = (
        Loopback(DeployedServer(task, Deployment(tell_loss=tell)), tmp_path / str(tell))
        for tell in (False, True)
    )
    quiet.run(6)
    telling.run(6)
    run = fedfw.simulate(problem_of(task), task.algorithm, rounds=6)
    assert torch.equal(quiet.server.xbar, telling.server.xbar)
    assert all(
        r.loss is None and r.lower_bound is None and r.gap is None for r in quiet.server.history
    )
    told = [r.loss for r in telling.server.history]
    assert told[:-1] == pytest.approx([r.loss for r in run.history][:-1])
    assert told[-1] is None
    optimum = fedfw.solve(problem_of(task), task.algorithm.constraint, tol=1e-3).value
    assert telling.server.coordinator.best_bound <= optimum + 1e-9


def test_numbers_need_consent_in_a_new_folder_even_if_it_is_to_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with pytest.raises(ValueError, match="give a number"):
        DeployedServer(
            small_task(fedfw.FedFW(L1)), Deployment(out=tmp_path / "server", resume=True)
        )


@pytest.mark.parametrize(
    "algorithm", [fedfw.FedFW(L1), fedfw.FedFWPlus(L2, momentum=0.9), fedfw.FedAvg(L1)]
)
def test_automatic_numbers_come_from_one_number_of_each_client(
    algorithm: fedfw.Algorithm, tmp_path: Path
) -> None:
    """With clients' consent "auto" gives the simulator's number, and so its bits; without it is
    refused.
    """
    with pytest.raises(ValueError, match="give a number"):
        DeployedServer(small_task(algorithm))
    task = small_task(algorithm, rounds=4)
    settings = Deployment(tell_loss=True, out=tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path)
    loop.greet()
    loop.run(2)
    loop.server = DeployedServer(
        task, replace(settings, resume=True)
    )  # a restarted server keeps the number
    loop.run(2)
    run = fedfw.simulate(problem_of(task), algorithm, rounds=4, eval_every=4)
    assert loop.server.algorithm == run.algorithm
    assert torch.equal(loop.server.xbar, run.x)


# --- A deployed training that refutes its lower bound goes on without one, and says so at the end
# ---

pytestmark = [
    pytest.mark.usefixtures("no_plots"),
    pytest.mark.filterwarnings("ignore:the model's parameters lie outside"),
]
FLOATS = [torch.float32, torch.float64]
ROUNDS = 6
Loss = Callable[[Tensor, Tensor], Tensor]


def waves(outputs: Tensor, targets: Tensor) -> Tensor:
    """Not convex."""
    return (torch.cos(outputs) + 2).mean()


def mirrored(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets of -1 and 1 make waves that cancel: only their mean is convex."""
    return (3 * targets * torch.cos(2 * outputs) + outputs.square()).mean()


def task_of(loss: Loss, algorithm: Any, dtype: torch.dtype, **more: Any) -> Task:
    """Three clients, or as many as are given, with one parameter."""
    model = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    torch.nn.init.constant_(model.weight, 0.4)

    def data(client: int) -> tuple[Tensor, Tensor]:
        sign = 1.0 if client % 2 else -1.0
        return torch.ones(2, 1, dtype=dtype), torch.full((2, 1), sign, dtype=dtype)

    options = {"clients": 3, "options": Options(rounds=ROUNDS), "convex": True} | more
    return Task(model, loss, algorithm, data, **options)


def server_of(task: Task, **settings: Any) -> DeployedServer:
    return DeployedServer(task, Deployment(tell_loss=True, share_gradients=True, **settings))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("method", ["fedfw", "fedfw+", "fedfw-anchored"])
def test_no_bound_is_reported_that_losses_refute(
    method: str,
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    task = task_of(waves, fedfw.ALGORITHMS[method]("linf:4", penalty=0.01, momentum=0.0), dtype)
    loop = Loopback(server_of(task, out=tmp_path / "server"), tmp_path)
    loop.run(ROUNDS)
    server = loop.server
    assert len(server.history) == ROUNDS  # numbers of clients do not end a training
    assert server.coordinator.best_bound is None
    assert all(record.lower_bound is None for record in server.history)
    assert sum(server.bound.refuted in record.notes for record in server.history) == 1
    assert "convex" in server.bound.refuted
    with pytest.raises(ContradictionError, match=r"^round \d+: "):
        server.finish()
    folder = tmp_path / "server"
    assert (folder / "model.pt").exists()  # the model is as good as it was
    lines = (folder / "history.jsonl").read_text().splitlines()
    assert all(json.loads(line)["lower_bound"] is None for line in lines)


@pytest.mark.parametrize("dtype", FLOATS)
def test_clients_see_for_themselves_that_their_losses_are_not_convex(
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    task = task_of(mirrored, fedfw.FedFW("linf:2", penalty=0.01, momentum=0.0), dtype, clients=2)
    loop = Loopback(server_of(task), tmp_path)
    loop.run(ROUNDS)
    assert "the losses of clients [" in loop.server.bound.refuted
    refused = [answer for answer in loop.answered if answer.convex is False]
    assert refused
    assert all(answer.number is None and answer.payload for answer in refused)
    logs = "".join(path.read_text() for path in tmp_path.rglob("*.log.jsonl"))
    assert "without a certificate, because round" in logs
    assert "the value of one of its own tangents" in logs


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_client_says_nothing_that_it_was_not_asked_for(
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    task = task_of(mirrored, fedfw.FedFW("linf:2", penalty=0.01, momentum=0.0), dtype, clients=2)
    quiet = Loopback(DeployedServer(task), tmp_path)
    quiet.run(ROUNDS)
    assert all(answer.convex is None for answer in quiet.answered)
    assert quiet.server.bound.refuted == ""

    def lies(client: int, fields: dict[str, Any]) -> list[dict[str, Any]]:
        return [fields | {"convex": False, "loss": -1e17}]

    unasked = Loopback(
        DeployedServer(small_task(fedfw.FedFW("l1:5", penalty=0.01))),
        tmp_path,
        lies,
    )
    unasked.run(2)
    assert unasked.server.bound.refuted == ""


def test_a_client_that_lies_takes_the_bound_away_and_no_more(tmp_path: Path) -> None:
    task = small_task(fedfw.FedFW("l1:5", penalty=0.01), rounds=6)

    def lies(client: int, fields: dict[str, Any]) -> list[dict[str, Any]]:
        return [fields | {"loss": -1e17} if client == 1 and "loss" in fields else fields]

    honest = Loopback(server_of(task), tmp_path / "honest")
    lying = Loopback(server_of(task), tmp_path / "lying", lies)
    honest.run(6)
    lying.run(6)
    assert torch.equal(honest.server.xbar, lying.server.xbar)
    assert honest.server.bound.refuted == ""
    assert honest.server.coordinator.best_bound is not None
    assert lying.server.bound.refuted
    assert lying.server.coordinator.best_bound is None


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_restarted_server_keeps_what_it_saw(dtype: torch.dtype, tmp_path: Path) -> None:
    task = task_of(waves, fedfw.FedFW("linf:4", penalty=0.01, momentum=0.0), dtype)
    straight = Loopback(server_of(task), tmp_path / "straight")
    straight.run(ROUNDS)
    settings: dict[str, Any] = {"out": tmp_path / "server"}
    loop = Loopback(server_of(task, **settings), tmp_path)
    for _ in range(ROUNDS):  # it is killed after every round
        loop.round()
        before = loop.server
        loop.server = server_of(task, **settings, resume=True)
        assert loop.server.bound.refuted == before.bound.refuted
        assert loop.server.bound.state()["losses"] == before.bound.state()["losses"]
        assert loop.server.coordinator.best_bound == before.coordinator.best_bound
    assert loop.server.bound.refuted == straight.server.bound.refuted != ""
    with pytest.raises(ContradictionError):
        loop.server.finish()


def test_losses_of_other_clients_are_another_sum(tmp_path: Path) -> None:
    """When a client has left, what was proven and what was seen of the last sum is void."""
    task = small_task(fedfw.FedFW("l1:5", penalty=0.01), rounds=8)
    loop = Loopback(server_of(task), tmp_path)
    loop.run(3)
    assert loop.server.bound.state()["losses"]
    loop.leaving.add(1)
    loop.round()
    assert not loop.server.bound.state()["losses"]
    loop.run(3)
    assert loop.server.bound.refuted == ""
    assert loop.server.coordinator.best_bound is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["fedfw", "fedfw-anchored"])
def test_a_deployed_bound_has_weights_in_float64(
    method: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """(x - 30000)^2 on [-1, 1]: with weights of 1/3 in float32 the bound is 27 above the optimum."""
    model = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    torch.nn.init.zeros_(model.weight)
    sample = torch.ones(1, 1, dtype=dtype), torch.full((1, 1), 30000.0, dtype=dtype)
    algorithm = fedfw.ALGORITHMS[method]("l2:1", penalty=1.0, momentum=0.0)
    task = Task(
        model,
        torch.nn.functional.mse_loss,
        algorithm,
        lambda client: sample,
        3,
        options=Options(rounds=12),
    )
    loop = Loopback(
        DeployedServer(task, Deployment(tell_loss=True, share_gradients=True)), tmp_path
    )
    loop.run(12)
    bound, optimum = loop.server.coordinator.best_bound, 29999.0**2
    assert bound is not None
    assert optimum * (1 - 1e-6) <= bound <= optimum * (1 + 1e-14)


def test_the_default_algorithm_is_alike_from_everywhere() -> None:
    """The command line without a name, with the name, and Python; a deployment with "auto" has the
    simulator's numbers anyway.
    """
    data = load(RunConfig())
    ends = []
    for config in (RunConfig.of(rounds=5), RunConfig.of(rounds=5, algorithm="fedfw+")):
        chosen = completed(config, data)
        problem = build_problem(chosen, data)
        ends.append(fedfw.simulate(problem, build_algorithm(chosen), rounds=5))
    default = fedfw.FedFWPlus("ksparse:k=65,r=1")
    python = fedfw.simulate(fedfw.load_problem("digits"), default, rounds=5)
    for run in ends:
        assert run.algorithm == python.algorithm
        assert torch.equal(run.x, python.x)
    settings = {"algorithm": "fedfw+", "constraint": "ksparse:k=65,r=1", "rounds": 5}
    deployed = make_task(settings | {"clients": python.problem.n}).algorithm
    assert deployed == default
