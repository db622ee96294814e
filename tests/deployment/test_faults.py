"""Whatever happens to messages, clients and the server: no step is lost or taken twice, xbar is the
mean of the x_i.
"""

import copy
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw.deployment import Client, DeployedRecord, DeployedServer, Deployment
from fedfw.deployment.messages import Answer, Hello, Kind, serial_of
from fedfw.deployment.store import ClientStore
from fedfw.errors import MessageError, NonFiniteError
from fedfw.rounds.vectors import Repeat, whole
from fedfw.schedules import convex

from .loopback import Fields, Loopback, Weather, problem_of, small_task

FEDFW = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)
PLUS = fedfw.FedFWPlus(fedfw.NuclearBall(5.0), penalty=0.01)


def start(
    folder: Path, algorithm: fedfw.Algorithm = FEDFW, clients: int = 3, **settings: object
) -> Loopback:
    task = small_task(algorithm, clients, rounds=1000)
    return Loopback(DeployedServer(task, Deployment(**settings)), folder / "clients")  # type: ignore[arg-type]


def events(loop: Loopback, client: int) -> list[str]:
    log = ClientStore(loop.folder, loop.server.run, client).path.with_suffix(".log.jsonl")
    return [json.loads(line)["event"] for line in log.read_text().splitlines()]


# --- clients ---


def test_a_step_that_was_not_counted_is_undone(tmp_path: Path) -> None:
    loop = start(tmp_path)
    loop.run(2)
    loop.wire = lambda client, fields: [] if client == 1 else [fields]
    record = loop.round()
    assert (record.participants, record.invited) == (2, 3)
    loop.wire = lambda client, fields: [fields]
    record = loop.round()
    assert (record.participants, record.refused, record.drift < 1e-6) == (3, {}, True)
    assert events(loop, 1)[-1] == "undone, then stepped"
    attended = fedfw.simulate(
        problem_of(loop.server.task),
        replace(
            FEDFW, schedule=convex()
        ),  # the server planned with everyone, the function's p would be less
        rounds=4,
        participation=lambda t: [0, 2] if t == 3 else [0, 1, 2],
    )
    assert torch.allclose(loop.server.xbar, attended.x, atol=1e-6)


@pytest.mark.parametrize(
    "algorithm", [FEDFW, PLUS, fedfw.FedFWPlus(fedfw.L2Ball(5.0), penalty=0.01, momentum=0.9)]
)
def test_a_client_without_its_disk_is_handed_its_memory(
    algorithm: fedfw.Algorithm, tmp_path: Path
) -> None:
    loop = start(tmp_path, algorithm)
    loop.run(3)
    ClientStore(loop.folder, loop.server.run, 2).forget()
    assert loop.round().refused == {"lost": 1}
    record = loop.round()
    assert (record.participants, record.restored, record.refused) == (3, [2], {})
    assert loop.round().restored == []
    assert all(
        record.drift < 1e-6 for record in loop.server.history if isinstance(record, DeployedRecord)
    )


def test_a_client_whose_point_differs_is_set_right(tmp_path: Path) -> None:
    loop = start(tmp_path)
    loop.run(2)
    store = ClientStore(loop.folder, loop.server.run, 1)
    memory = store.load()
    moved = replace(memory.last, state=memory.last.state | {"x": memory.last.state["x"] + 1})
    store.save(replace(memory, pending=(moved,)))
    assert loop.round().refused == {"diverged": 1}
    assert loop.round().restored == [1]


def test_a_client_refuses_what_is_not_for_it_and_names_its_nan(tmp_path: Path) -> None:
    loop = start(tmp_path)
    order = loop.server.open({0, 1, 2})[0]
    with pytest.raises(MessageError, match="for client 0 came to client 1"):
        loop.client(1).handle(order)
    with pytest.raises(MessageError, match="asked for 'data'"):
        loop.client(0).handle(replace(order, ask="data"))
    for run in ("../elsewhere", ".hidden", "", "\u00e9" * 200, "a b"):
        with pytest.raises(ValueError, match="expected letters a to z, digits"):
            loop.client(0).handle(replace(order, run=run))
    task = loop.server.task
    broken = replace(
        task, data=lambda client: (torch.full((36, 4), math.nan), torch.arange(36) % 2)
    )
    with pytest.raises(NonFiniteError, match="round 1: NaN or infinity at client 2"):
        Client(broken, 2, tmp_path).handle(replace(order, client=2))


# --- who is there ---


@pytest.mark.parametrize("algorithm", [FEDFW, PLUS])
def test_newcomers_enter_at_the_mean_and_leavers_take_their_share(
    algorithm: fedfw.Algorithm, tmp_path: Path
) -> None:
    loop = start(tmp_path, algorithm)
    loop.run(3)
    before = loop.server.xbar.clone()
    loop.server.meet(Hello(7))
    assert torch.allclose(loop.server.xbar, before, atol=1e-6)
    record = loop.round({0, 1, 2, 7})
    assert (record.participants, record.joined, record.restored) == (4, [7], [])
    loop.leaving = {1}
    record = loop.round()
    assert (record.participants, record.left) == (3, [1])
    assert loop.server.roster.members == [0, 2, 7]
    assert record.drift < 1e-6
    record = loop.round()
    assert (record.participants, record.refused) == (3, {})
    if algorithm is PLUS:
        coordinator = loop.server.coordinator
        known = coordinator.memory.gather(torch.arange(3))
        assert torch.allclose(coordinator.server.state["ybar"], known["y"].mean(0), atol=1e-6)


def test_who_is_away_for_long_has_left(tmp_path: Path) -> None:
    loop = start(tmp_path, leave_after=3)
    loop.run(2)
    for _ in range(4):
        assert (
            loop.round({0, 1}).left == []
        )  # nobody waits for a node that is not connected, and it may be starting
    loop.gone = {2}
    for _ in range(3):
        record = loop.round()
    loop.gone = set()
    assert record.left == [2]
    assert loop.server.roster.members == [0, 1]
    loop.server.meet(Hello(2))
    record = loop.round({0, 1, 2})
    assert (record.participants, record.joined, record.drift < 1e-6) == (
        3,
        [2],
        True,
    )  # not from its old memory


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize(
    "algorithm", [FEDFW, PLUS, fedfw.FedAvg(fedfw.L2Ball(1.0), lr=0.1)], ids=lambda a: a.name
)
@pytest.mark.parametrize("far", [1 + 1e-4, 1.1, 1e6, math.nan], ids=str)
def test_a_model_outside_of_its_set_is_not_written(
    algorithm: fedfw.Algorithm, far: float, tmp_path: Path
) -> None:
    """What no check of a round has found is found at the end; what rounding did is projected."""
    folder = tmp_path / "server"
    loop = start(tmp_path, algorithm, out=folder, share_gradients=True)
    loop.run(2)
    coordinator = loop.server.coordinator
    edge = algorithm.constraint.bind(loop.server.task.model).lmo(coordinator.server.xbar).dense()
    state = coordinator.server.state | {"xbar": far * edge}
    coordinator.server = replace(coordinator.server, state=state)
    if far > 1.01 or math.isnan(far):
        with pytest.raises(
            fedfw.InfeasibleError, match=r"the final model (lies outside|has a NaN)"
        ):
            loop.server.finish()
        assert not (folder / "model.pt").exists()
        return
    loop.server.finish()
    written = torch.load(folder / "model.pt", weights_only=True)
    x = torch.cat([value.flatten() for value in written.values()])
    assert loop.server.task.constraint.contains(x)
    assert torch.allclose(x, edge.to(x), atol=1e-2)


# --- hostile input ---


def _hostile(change: Callable[[Answer], Answer | Fields]) -> Callable[[int, Fields], list[Fields]]:
    def wire(client: int, fields: Fields) -> list[Fields]:
        changed = change(Answer.of(fields)) if client == 0 else fields
        return [changed.fields() if isinstance(changed, Answer) else changed]

    return wire


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: replace(a, t=a.t - 1), "wrong round"),
        (lambda a: replace(a, run="another"), "wrong run or client"),
        (lambda a: replace(a, client=1), "wrong run or client"),
        (lambda a: replace(a, kind="sum"), "wrong kind"),
        (lambda a: replace(a, payload=a.payload + b"0"), "bad atom"),
        (lambda a: replace(a, payload=b""), "bad atom"),
        (lambda a: replace(a, payload=b"0" * 10**5), "oversized"),
        (lambda a: replace(a, digest=b"12345678"), "diverged"),
        (lambda a: a.fields() | {"schema": 99}, "undecodable"),
        (lambda a: {"payload": "import os"}, "undecodable"),
    ],
)
def test_what_is_wrong_is_refused_and_the_round_goes_on(
    change: Callable[[Answer], Answer | Fields], reason: str, tmp_path: Path
) -> None:
    refuse_in_a_round(start(tmp_path), change, reason)


@pytest.mark.parametrize(
    "vector",
    [
        whole(torch.full((15,), math.inf)),
        Repeat(math.nan, 1.0, torch.ones(15)),
        whole(torch.full((15,), 3e38)),
    ],
    ids=["not finite", "a sum", "too large"],
)
def test_vectors_that_would_spoil_a_sum_are_refused(vector: Any, tmp_path: Path) -> None:
    loop = start(tmp_path, fedfw.FedAvg(fedfw.L1Ball(5.0), lr=0.5))
    refuse_in_a_round(loop, lambda a: replace(a, payload=vector.write()), "bad atom")


def refuse_in_a_round(
    loop: Loopback, change: Callable[[Answer], Answer | Fields], reason: str
) -> None:
    """Let client 0 send something else in the third round, which goes on without it."""
    loop.run(2)
    loop.wire = _hostile(change)
    record = loop.round()
    assert record.refused == {reason: 1}
    assert record.participants == 2
    assert record.drift < 1e-6
    assert loop.server.xbar.isfinite().all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vectors": {}}, "without the model"),
        ({"vectors": {"xbar": b"", "secret": b""}}, "secret"),
        ({"t": 0}, "at least 1 of each"),
        ({"n": 0}, "at least 1 of each"),
        ({"version": -1}, "at least 1 of each"),
        ({"weight": -1.0}, "expected one in"),
        ({"weight": 0.0}, "expected one in"),
        ({"weight": math.nan}, "expected one in"),
        ({"weight": 2.0}, "expected one in"),
        ({"ask": "sum"}, "asked for 'sum', expected step"),
        ({"index": 1}, "exchange 1 of the round"),
        ({"index": 15}, "exchange 15 of the round"),
        ({"counted": serial_of(1, 0)}, "counted already"),
        ({"counted": 10**9}, "counted already"),
        ({"rate": 0.5}, "a step size of 0.5"),
        ({"memory": {"d": b""}}, "no server can compute"),
        ({"memory": {"seen": b""}}, "no server can compute"),
    ],
)
def test_a_client_refuses_orders_that_no_honest_server_sends(
    change: dict[str, object], reason: str, tmp_path: Path
) -> None:
    loop = start(tmp_path)
    order = loop.server.open({0, 1, 2})[0]
    with pytest.raises(MessageError, match=reason):
        loop.client(0).handle(replace(order, **change))  # type: ignore[arg-type]


ANCHORED = fedfw.FedFWAnchored(fedfw.L1Ball(5.0), penalty=0.01, anchor_every=2)


def held_by_clients(loop: Loopback) -> dict[str, torch.Tensor]:
    """What the clients' own disks hold by the server's account, a row a member."""
    rows = []
    for client in loop.server.roster.members:
        stored = ClientStore(loop.folder, loop.server.run, client).load()
        step = stored.at(loop.server.roster.counted[client])
        rows.append(step.state)
    return {name: torch.cat([row[name] for row in rows]) for name in ("x", "c", "anchored")}


@pytest.mark.parametrize("compress", ["none", "topk:3"])
@pytest.mark.parametrize("gradient_at", ["xbar", "own"])
def test_clients_that_drop_out_behind_an_anchor_keep_their_share_of_the_sum(
    gradient_at: Any, compress: str, tmp_path: Path
) -> None:
    """Their anchor counts from the moment it arrived; when they are back they undo the step that
    was not counted, and go on from the anchor.
    """
    loop = start(
        tmp_path,
        replace(ANCHORED, gradient_at=gradient_at, compress=compress),
        share_gradients=True,
    )
    lost: set[int] = set()
    loop.wire = lambda client, fields: [] if client in lost else [fields]
    for t in range(1, 12):
        missing = {t % 3} if t % 4 else set()
        loop.gone = missing if t % 2 else set()  # never asked for a step
        lost = missing - loop.gone  # or asked, and the answer is lost
        online = {0, 1, 2} - ({(t + 1) % 3} if t % 3 == 0 else set())
        record = loop.round(online)
        assert record.drift < 1e-6
        assert_anchors_add_up(loop)
    loop.gone = lost = set()
    loop.round()
    loop.round()
    known = loop.server.coordinator.memory.gather(torch.arange(3))
    own = held_by_clients(loop)
    assert all(torch.equal(known[name], own[name]) for name in own)
    assert any("undone, then stepped" in events(loop, client) for client in range(3))
    assert not any("restored" in events(loop, client) for client in range(3))


def assert_anchors_add_up(loop: Loopback) -> None:
    server, memory = loop.server.coordinator.server, loop.server.coordinator.memory
    known = memory.gather(torch.arange(memory.n))
    total = torch.tensor(
        [math.fsum(column) for column in known["c"].double().T.tolist()], dtype=torch.float64
    )
    assert torch.allclose(memory.n * server.state["c"], total, rtol=1e-14, atol=1e-15)
    anchored = float(known["anchored"].sum())
    assert memory.n * float(server.state["anchored"]) == pytest.approx(anchored, abs=1e-12)
    method, run = loop.server.method, loop.server.coordinator.run
    _, sent = method.algorithm.broadcast(run, server.state, server.held, None)
    assert torch.allclose(sent["c"], total / anchored, rtol=1e-12)


def test_the_sum_of_anchors_is_of_the_clients_that_there_are(tmp_path: Path) -> None:
    """One that joins has no anchor, one that leaves takes its own along, one that lost its disk
    gets it back.
    """
    loop = start(tmp_path, ANCHORED, share_gradients=True)
    loop.run(3)
    loop.server.meet(Hello(7))
    assert_anchors_add_up(loop)
    assert 4 * float(loop.server.coordinator.server.state["anchored"]) == pytest.approx(3)
    record = loop.round({0, 7})  # without an anchor: the newcomer steps along its own gradient
    assert (record.participants, record.refused) == (2, {})
    ClientStore(loop.folder, loop.server.run, 2).forget()
    record = loop.round({0, 2, 7})
    assert record.refused == {"lost": 1}
    record = loop.round({0, 2, 7})
    assert (record.participants, record.restored) == (3, [2])
    assert_anchors_add_up(loop)
    loop.leaving = {1}
    record = loop.round()
    assert record.left == [1]
    assert_anchors_add_up(loop)
    loop.run(3)
    known = loop.server.coordinator.memory.gather(torch.arange(3))
    own = held_by_clients(loop)
    assert all(torch.equal(known[name], own[name]) for name in own)


@pytest.mark.parametrize(
    ("algorithm", "held"),
    [
        (fedfw.FedLMO(fedfw.L2Ball(5.0)), "c"),
        (fedfw.FedAvg(fedfw.L2Ball(5.0), lr=0.5, compress="topk:3"), "h.update"),
    ],
    ids=["control variates", "memories"],
)
def test_sums_are_weighted_and_of_the_clients_that_there_are(
    algorithm: fedfw.Algorithm, held: str, tmp_path: Path
) -> None:
    task = replace(small_task(algorithm, rounds=8), weights=(1.0, 2.0, 5.0))
    loop = Loopback(DeployedServer(task, Deployment(share_gradients=True)), tmp_path)
    loop.run(2)
    loop.server.release(2)
    coordinator = loop.server.coordinator
    shares = torch.tensor([[2 / 3], [4 / 3]], dtype=torch.float64)
    total = (shares * coordinator.memory.gather(torch.arange(2))[held]).sum(0)
    server = coordinator.server
    found = 2 * server.state["c"] if held == "c" else server.estimates["update"]
    assert torch.allclose(found.double(), total, atol=1e-6)
    assert float(total.abs().max()) > 1e-3


def test_an_order_behind_a_sum_needs_a_contribution(tmp_path: Path) -> None:
    """A client that has none, or one of another round, is handed its memory and loses no step."""
    loop = start(tmp_path, ANCHORED, share_gradients=True)
    loop.round()
    gathered, order = loop.sent[0]
    assert (gathered.ask, gathered.index, gathered.counted) == ("sum", 0, 0)
    assert (order.ask, order.index, order.counted) == ("step", 1, gathered.serial)
    later = replace(order, t=3, counted=serial_of(3, 0))
    assert loop.client(0).handle(later).kind == "lost"
    record = loop.round()
    assert (record.participants, record.refused) == (3, {})


def test_losses_that_float64_cannot_work_out_prove_nothing_at_an_anchor(tmp_path: Path) -> None:
    single = torch.eye(3)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nnf.cross_entropy(outputs @ single, targets)

    task = replace(small_task(ANCHORED, rounds=3), loss=loss)
    settings = Deployment(share_gradients=True)
    loop = Loopback(DeployedServer(replace(task, convex=True), settings), tmp_path / "convex")
    with pytest.raises(ValueError, match="state convex=False in the task"):
        loop.round()
    loop = Loopback(DeployedServer(replace(task, convex=False), settings), tmp_path / "other")
    assert loop.round().participants == 3


def test_late_copies_of_both_orders_of_a_round_get_the_stored_answers(tmp_path: Path) -> None:
    """A server that is restarted within a round asks for both again, and loses nothing."""
    loop = start(tmp_path, ANCHORED, share_gradients=True)
    loop.run(2)
    loop.round()
    given = [answer for answer in loop.answered if answer.client == 0]
    (gathered, order), answers = loop.sent[0][-2:], given[-2:]
    assert (gathered.ask, order.ask) == ("sum", "step")
    before = ClientStore(loop.folder, loop.server.run, 0).path.read_bytes()
    assert loop.client(0).handle(gathered) == answers[0]
    assert loop.client(0).handle(order) == answers[1]
    assert events(loop, 0)[-2:] == ["repeated", "repeated"]
    assert ClientStore(loop.folder, loop.server.run, 0).path.read_bytes() == before
    record = loop.round()
    assert (record.participants, record.refused) == (3, {})
    assert loop.client(0).handle(gathered).kind == "outdated"


def test_strangers_and_replays_are_refused(tmp_path: Path) -> None:
    loop = start(tmp_path)
    loop.run(1)
    loop.wire = lambda client, fields: [fields, fields]
    assert loop.round().refused == {"replayed": 3}
    orders = loop.server.open({0, 1})
    answer = loop.ask(orders[0]).fields()
    assert loop.server.take(None, answer) == "unknown sender"
    assert loop.server.take(2, answer) == "unknown sender"  # was not asked in this round
    assert loop.server.take(1, answer) is not None  # somebody else's
    farewell = Answer(orders[0].run, orders[0].t, 0, Kind.LEAVING).fields()
    assert loop.server.take(0, farewell) is None
    assert loop.server.take(0, answer) == "replayed"  # after its farewell


@pytest.mark.parametrize("hostile", [1, 2])
def test_hostile_clients_move_the_mean_by_no_more_than_their_share(
    hostile: int, tmp_path: Path
) -> None:
    n, rounds = 5, 6
    loop = start(tmp_path, clients=n)
    task, chance = loop.server.task, torch.Generator().manual_seed(0)
    diameter = task.constraint.diameter((len(task.start),))
    for t in range(1, rounds + 1):
        orders = loop.server.open(set(range(n)))
        twin = copy.deepcopy(loop.server)  # what the same round gives if all are honest
        for client, order in orders.items():
            answer = loop.ask(order)
            assert twin.take(client, answer.fields()) is None
            if client < hostile:
                g = torch.randn(len(task.start), generator=chance)
                answer = replace(answer, payload=task.constraint.lmo(g).to_bytes())
            assert loop.server.take(client, answer.fields()) is None
        assert max(twin.close().drift, loop.server.close().drift) < 1e-6
        apart = float((loop.server.xbar - twin.xbar).norm())
        assert apart <= hostile / n * loop.server.method.rule.rates({}, t)[0].eta * diameter * (
            1 + 1e-5
        )
        loop.server.roster.needs_resync |= set(
            range(hostile)
        )  # they hold other points than were counted


# --- everything at once ---


@pytest.mark.deployment
def test_soak(tmp_path: Path) -> None:
    """10 clients, 1,000 rounds, answers lost, late, doubled, out of order and damaged, disks and
    the server dying.
    """
    chance = random.Random(0)
    task = small_task(PLUS, 10, rounds=1000, participation=0.8)
    settings = Deployment(
        out=tmp_path / "server", leave_after=0
    )  # in such weather everybody is away now and then
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients", Weather(chance))
    for _ in range(1000):
        if chance.random() < 0.02:
            ClientStore(loop.folder, loop.server.run, chance.randrange(10)).forget()
        if chance.random() < 0.02:
            loop.server = DeployedServer(task, replace(settings, resume=True))
        if loop.sent and chance.random() < 0.1:  # an old order is delivered again
            old = chance.choice(chance.choice(list(loop.sent.values())))
            loop.client(old.client).handle(old)
        loop.gone = {client for client in range(10) if chance.random() < 0.05}
        online = {client for client in range(10) if chance.random() < 0.95}
        record = loop.round(online)
        assert record.drift < 1e-4  # rounding, over a thousand steps in float32
        assert loop.server.task.constraint.contains(loop.server.xbar, 1e-4)
    server = loop.server
    assert len(server.history) == 1000
    assert server.history.total("participants") > 4000
    for row, client in enumerate(server.roster.members):
        memory = ClientStore(loop.folder, server.run, client).load()
        if memory is None:
            continue
        own = memory.at(server.roster.counted[client])
        assert own is not None or client in server.roster.needs_resync
        if own is not None and client not in server.roster.needs_resync:
            assert torch.equal(own.state["x"][0], server.coordinator.memory.rows["x"][row])
    refused = [r.refused for r in server.history if isinstance(r, DeployedRecord)]
    assert {"replayed", "wrong round", "undecodable", "lost"} <= {
        reason for reasons in refused for reason in reasons
    }
