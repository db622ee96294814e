"""The bridge without an example: nodes that come, go and forget, and what is refused."""

from typing import Any

import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader

import fedfw
from fedfw.errors import MessageError, NobodyTrainedError
from fedfw.flower import FrankWolfeResult, FrankWolfeStrategy, frank_wolfe_step
from fedfw.flower.agreement import Agreement, read_agreement
from fedfw.rounds.options import Options
from tests.flower.grid import Grid, make_grid, simulated
from tests.table import zero_layer

FEDFW = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)
LOSS = nn.CrossEntropyLoss()


def data_of(client: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's random samples, another number of them for each."""
    generator = torch.Generator().manual_seed(client)
    count = 20 + 4 * client
    inputs = torch.randn(count, 4, generator=generator).to(dtype) + client % 3
    return inputs, torch.randint(0, 3, (count,), generator=generator)


def app_of(**more: Any) -> ClientApp:
    """Return a ClientApp whose model begins elsewhere than the server's."""
    app = ClientApp()

    @app.train("fedfw")
    def train(message: Message, context: Context) -> Message:
        data = data_of(int(context.node_config["partition-id"]))
        model = nn.Linear(4, 3, dtype=torch.float64)
        return frank_wolfe_step(message, context, model, LOSS, data, **more)

    return app


def start_arrays() -> ArrayRecord:
    return ArrayRecord(zero_layer(4, 3, torch.float64).state_dict())


def run_bridge(
    grid: Grid, algorithm: fedfw.Algorithm = FEDFW, rounds: int = 6, **more: Any
) -> FrankWolfeResult:
    """Return what a run on a grid ends with."""
    strategy = FrankWolfeStrategy(algorithm, zero_layer(4, 3, torch.float64), LOSS, **more)
    return strategy.start(grid, start_arrays(), rounds)


def reference(algorithm: fedfw.Algorithm, rounds: int, **more: Any) -> fedfw.Run:
    """Return the same run of `fedfw.simulate`."""
    clients = [data_of(k) for k in range(3)]
    return simulated(zero_layer(4, 3, torch.float64), clients, algorithm, rounds, **more)


def assert_same(result: FrankWolfeResult, run: fedfw.Run) -> None:
    expected = run.model.state_dict()
    found = result.arrays.to_torch_state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert result.traffic.payload_up == run.history.total("bytes_up")
    assert result.traffic.payload_down == run.history.total("bytes_down")


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (FEDFW, {}),
        (FEDFW, {"local_steps": 2, "batch_size": 5, "seed": 3}),
        (FEDFW, {"participation": 0.6, "seed": 1}),
        (fedfw.FedFWPlus("l2:3", momentum=0.9), {}),
        (fedfw.FedFWAnchored("l1:5"), {}),
        (fedfw.FedAvg(fedfw.Product({"*": fedfw.L2Ball(2.0)}), lr=0.1, compress="topk:3"), {}),
    ],
    ids=["fedfw", "batches", "participation", "fedfw+", "anchored", "fedavg"],
)
def test_a_run_has_the_bits_and_bytes_of_the_simulation(
    algorithm: fedfw.Algorithm, options: dict[str, Any]
) -> None:
    result = run_bridge(make_grid(app_of(), 3), algorithm, **options)
    assert_same(result, reference(algorithm, 6, **options))


def test_clients_prove_a_lower_bound() -> None:
    algorithm = fedfw.FedFW("l1:0.3", penalty=0.01, momentum=0.0)
    result = run_bridge(make_grid(app_of(), 3), algorithm, 40)
    run = reference(algorithm, 400)
    assert result.lower_bound is not None
    assert 0.5 < result.lower_bound <= run.history[-1].loss
    assert result.gap is not None
    assert result.gap < 0.2
    assert "above the optimum" in repr(result)


def test_clients_count_by_their_samples() -> None:
    result = run_bridge(make_grid(app_of(), 3), weights="samples")
    clients = [data_of(k) for k in range(3)]
    start = zero_layer(4, 3, torch.float64)
    problem = fedfw.Problem(start, LOSS, clients, weights="samples", separate=True)
    assert_same(result, fedfw.simulate(problem, FEDFW, rounds=6))


def test_a_node_that_forgot_everything_goes_on() -> None:
    grid = make_grid(app_of(), 3)

    def forget(node: int, reply: Message) -> list[Message]:
        if node == 99 and len(grid.sent) == 11:
            del grid.states[node]
        return [reply]

    grid.change = forget
    result = run_bridge(grid, rounds=8)
    absent = [record.round for record in result.history if record.participants < 3]
    restored = [record.round for record in result.history if record.restored]
    assert len(absent) == len(restored) == 1
    assert restored[0] == absent[0] + 1
    assert result.history[-1].drift < 1e-12


def test_a_lost_answer_is_undone() -> None:
    grid = make_grid(app_of(), 3)
    grid.change = lambda node, reply: [] if len(grid.sent) == 8 else [reply]
    result = run_bridge(grid)
    assert [record.participants for record in result.history].count(2) == 1
    assert result.history[-1].drift < 1e-12


def test_a_node_that_comes_later_joins_and_one_with_a_known_partition_replaces_it() -> None:
    grid = make_grid(app_of(), 2)

    def change(node: int, reply: Message) -> list[Message]:
        if len(grid.sent) == 8:
            grid.nodes[50] = {"partition-id": 2, "num-partitions": 3}
        if len(grid.sent) == 14:
            grid.nodes[51] = grid.nodes.pop(100)
        return [reply]

    grid.change = change
    result = run_bridge(grid, rounds=8)
    assert [client for record in result.history for client in record.joined] == [2]
    assert {client for record in result.history for client in record.restored} == {0}
    assert result.history[-1].participants == 3
    assert result.history[-1].drift < 1e-12


def test_what_fails_or_lies_is_refused_and_the_others_go_on() -> None:
    grid = make_grid(app_of(), 3)

    def change(node: int, reply: Message) -> list[Message]:
        if node == 99 and len(grid.sent) > 3 and reply.has_content():
            fields = dict(reply.content["fedfw"])
            fields["payload"] = bytes(fields["payload"]) + b"?"
            reply.content["fedfw"] = ConfigRecord(fields)
        if node == 98 and len(grid.sent) > 3:
            failed = Message(Error(0, "out of memory"), reply_to=grid.sent[-1])
            failed.metadata.__dict__["_src_node_id"] = node
            return [failed]
        return [reply]

    grid.change = change
    result = run_bridge(grid, rounds=2)
    assert [record.participants for record in result.history] == [1, 1]
    assert result.history[0].refused == {"bad atom": 1, "failed": 1}
    broken = make_grid(app_of(), 2)
    broken.change = lambda node, reply: []
    with pytest.raises(NobodyTrainedError, match="first question: it is not reachable"):
        run_bridge(broken)
    strange = make_grid(app_of(columns=("x", "y")), 2)
    strange.nodes = {1: {}, 2: {}}
    with pytest.raises(NobodyTrainedError, match="failed: "):
        run_bridge(strange)


def test_metrics_of_the_app_are_averaged_by_samples() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        model = nn.Linear(4, 3, dtype=torch.float64)
        own = {"k": float(k), "num-examples": 10.0**9, **({"odd": [1.0]} if k else {"odd": 2.0})}
        return frank_wolfe_step(message, context, model, LOSS, data_of(k), metrics=own)

    result = run_bridge(make_grid(app, 3), rounds=1, action="")
    assert result.train_metrics_clientapp[1]["k"] == pytest.approx((24 + 2 * 28) / (20 + 24 + 28))
    assert result.train_metrics_clientapp[1]["odd"] == 2.0


def test_loaders_and_dictionaries_give_all_samples_in_order() -> None:
    app = ClientApp()

    @app.train("fedfw")
    def train(message: Message, context: Context) -> Message:
        inputs, targets = data_of(int(context.node_config["partition-id"]))
        rows = [{"x": x, "y": int(y), "id": 0} for x, y in zip(inputs, targets, strict=True)]
        loader = DataLoader(rows, batch_size=7, shuffle=True, drop_last=True)
        model = nn.Linear(4, 3, dtype=torch.float64)
        return frank_wolfe_step(message, context, model, LOSS, loader, columns=("x", "y"))

    assert_same(run_bridge(make_grid(app, 3)), reference(FEDFW, 6))


@pytest.mark.parametrize(
    "constraint",
    [fedfw.L1Ball(0.1), fedfw.KSparse(3, 0.2), fedfw.Product({"a*": "l2:1", "*": "box:-1,2"})],
)
def test_an_agreement_is_the_same_after_its_text(constraint: Any) -> None:
    algorithm = fedfw.FedFWPlus(constraint, penalty=0.1, momentum=0.3)
    agreed = Agreement(algorithm, Options(rounds=3, batch_size=5, participation=0.5), 4, True, 0.1)
    read = read_agreement(agreed.to_text())
    assert read.to_text() == agreed.to_text()
    assert repr(read) == repr(agreed)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"algorithm": "x"}', "[" * 100_000])
def test_other_texts_are_no_agreement(text: str) -> None:
    with pytest.raises(MessageError, match="cannot be read"):
        read_agreement(text)


def test_what_clients_cannot_be_sent_is_refused_at_once() -> None:
    hull = fedfw.Hull(torch.eye(15))
    with pytest.raises(ValueError, match="cannot be sent to clients as text"):
        FrankWolfeStrategy(fedfw.FedFW(hull), nn.Linear(4, 3), LOSS)
    with pytest.raises(ValueError, match='expected "equal" or "samples"'):
        FrankWolfeStrategy(FEDFW, nn.Linear(4, 3), LOSS, weights="size")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="local_steps=0"):
        FrankWolfeStrategy(FEDFW, nn.Linear(4, 3), LOSS, local_steps=0)


def test_a_message_of_another_strategy_is_refused() -> None:
    message = Message(
        RecordDict({"metrics": MetricRecord({"a": 1})}), dst_node_id=1, message_type="train"
    )
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(ValueError, match="another strategy"):
        frank_wolfe_step(message, context, nn.Linear(4, 3), LOSS, data_of(0))


def test_a_strategy_is_for_one_run_and_does_not_wait_for_ever() -> None:
    grid = make_grid(app_of(), 3)
    strategy = FrankWolfeStrategy(FEDFW, zero_layer(4, 3, torch.float64), LOSS)
    strategy.start(grid, start_arrays(), 1)
    with pytest.raises(ValueError, match="a new one for each run"):
        strategy.start(grid, start_arrays(), 1)
    lonely = FrankWolfeStrategy(FEDFW, zero_layer(4, 3, torch.float64), LOSS)
    with pytest.raises(TimeoutError, match="min_available_nodes=2"):
        lonely.start(make_grid(app_of(), 1), start_arrays(), 1, timeout=0.1)


class Shift(nn.Module):
    """Adds a buffer, as a normalisation with fixed statistics does."""

    by: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.by)


def test_frozen_parameters_and_buffers_are_the_servers() -> None:
    def network() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 6), Shift(), nn.Linear(6, 3)).double()
        net[0].requires_grad_(False)
        return net

    app = ClientApp()

    @app.train("fedfw")
    def train(message: Message, context: Context) -> Message:
        data = data_of(int(context.node_config["partition-id"]))
        return frank_wolfe_step(message, context, network(), LOSS, data)

    torch.manual_seed(0)
    start = network()
    start[1].by += 0.5
    strategy = FrankWolfeStrategy(FEDFW, network(), LOSS)
    result = strategy.start(make_grid(app, 3), ArrayRecord(start.state_dict()), 3)
    run = simulated(start, [data_of(k) for k in range(3)], FEDFW, 3)
    assert_same(result, run)
