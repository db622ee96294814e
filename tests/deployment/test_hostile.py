"""Hostile parties: clients that send poison, nodes that take other people's numbers, folders from
yesterday.
"""

import contextlib
import logging
import math
import random
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedfw
from fedfw.algorithms.rules import net_step
from fedfw.atoms import Atom, Dense, Mixture, TupleAtom
from fedfw.deployment import DeployedRecord, DeployedServer, Deployment, Task
from fedfw.deployment.messages import (
    MOST_CLIENTS,
    MOST_EXCHANGES,
    SCHEMA,
    Answer,
    Hello,
    Kind,
    Order,
)
from fedfw.errors import MessageError

from .loopback import Fields, Loopback, damaged, small_task

FEDFW = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)
PLUS = fedfw.FedFWPlus(fedfw.L1Ball(5.0), penalty=0.01)
BALL = fedfw.L2Ball(1.0)


def in_precision(task: Task, dtype: torch.dtype) -> Task:
    """The same task with a model and data of that type."""
    x, y = task.test

    def data(client: int) -> Any:
        samples, targets = task.data(client)
        return samples.to(dtype), targets

    return replace(task, model=task.model.to(dtype), data=data, test=(x.to(dtype), y))


def only_from(
    *hostile: int, change: Callable[[Answer], Answer]
) -> Callable[[int, Fields], list[Fields]]:
    return lambda client, fields: [
        change(Answer.of(fields)).fields() if client in hostile else fields
    ]


def feasible(server: DeployedServer) -> bool:
    """xbar is in the set, and the mean of the x_i that the server rebuilt."""
    points, xbar = (
        server.coordinator.memory.gather(torch.arange(len(server.roster)))["x"],
        server.xbar,
    )
    return server.task.constraint.contains(xbar, 1e-5) and torch.allclose(
        points.mean(0).to(xbar), xbar, atol=1e-5
    )


def next_round(loop: Loopback) -> DeployedRecord:
    """With everybody: who was sent away for what it had sent comes back at once."""
    for client in {0, 1, 2} - set(loop.server.roster.members):
        loop.server.meet(Hello(client))
    return loop.round()


# --- compressed payloads ---


NETWORK = fedfw.Product({"weight": fedfw.SpectralBall(0.5), "*": BALL})
COMPRESSED = {how: fedfw.FedLMO(NETWORK, compress=how) for how in ("bits:2", "bits:4", "bits:8")}
COMPRESSED |= {
    how: fedfw.FedPGD(fedfw.L1Ball(2.0), lr=0.1, compress=how)
    for how in ("topk:3", "rank:1", "atoms:1")
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("compress", COMPRESSED)
def test_a_spoilt_payload_is_decoded_or_refused_and_the_round_goes_on(
    compress: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Random bits of levels, scales and places leave the model in the set and memories right."""
    task = in_precision(small_task(COMPRESSED[compress], rounds=20), dtype)
    rng, server = np.random.default_rng(0), DeployedServer(task, Deployment(share_gradients=True))

    def spoilt(answer: Answer) -> Answer:
        data = bytearray(answer.payload)
        for at in rng.integers(0, min(len(data), 12), size=rng.integers(1, 4)):
            data[at] = rng.integers(256)
        cut = rng.integers(1, len(data) + 1) if rng.random() < 0.2 else len(data)
        return replace(answer, payload=bytes(data[:cut]))

    loop = Loopback(server, tmp_path, wire=only_from(0, 1, change=spoilt))
    refused = 0
    for _ in range(10):
        record = next_round(loop)
        refused += 3 - record.participants
        assert (record.invited, record.participants) == (3, 3 - sum(record.refused.values()))
        assert task.constraint.contains(server.xbar, 1e-5)
        for name, kept in server.coordinator.server.estimates.items():
            total = server.coordinator.memory.rows[f"h.{name}"].sum(0)
            assert torch.allclose(total, kept, rtol=1e-5, atol=1e-3 * float(total.abs().max()))
    assert refused > 0


# --- steps from curvature ---


@pytest.mark.parametrize(
    "told", [(math.nan, 1.0), (1.0, math.inf), (1e30, 1.0), (-1.0, -1e9), (0.0, 1e15), (1e15, 0.0)]
)
def test_what_a_client_tells_cannot_make_a_step_too_long(
    told: tuple[float, float], tmp_path: Path
) -> None:
    """Numbers that nobody's data have are refused, all others leave the step within its range."""
    task = small_task(replace(FEDFW, schedule="curvature"), rounds=12)
    server = DeployedServer(task, Deployment(tell_loss=True))

    def lying(answer: Answer) -> Answer:
        return replace(answer, payload=answer.payload[:-8] + np.array(told, "<f4").tobytes())

    loop = Loopback(server, tmp_path, wire=only_from(0, change=lying))
    refused = not all(abs(number) < 1e18 for number in told)
    for t in range(1, 13):
        record = loop.round()
        assert record.participants == (2 if refused else 3)
        assert 0 < record.eta <= 2 / (t + 1)
        assert feasible(server)


# --- mixtures ---


def cancelling(
    size: int, weights: tuple[float, ...], precision: torch.dtype, magnitude: float
) -> Mixture:
    """Two dense parts far outside of any set whose mixture is nearly zero, as its sum is worked
    out.
    """
    kind = np.float64 if precision == torch.float64 else np.float32
    second = torch.tensor(-(2.0 ** round(math.log2(magnitude))), dtype=precision)
    up = down = kind(float(-second * weights[1]) / weights[0])
    for _ in range(20):
        for one in (up, down):
            first = torch.tensor(one, dtype=precision)
            parts = tuple(
                Dense(shape=(size,), precision=precision, values=value.expand(1, size).contiguous())
                for value in (first, second)
            )
            mixture = Mixture(shape=(size,), precision=precision, parts=parts, weights=weights)
            if float(mixture.dense().norm()) < 0.5:
                return mixture
        up, down = np.nextafter(up, kind(np.inf)), np.nextafter(down, kind(0))
    raise AssertionError("nothing cancels")


@pytest.mark.parametrize("in_product", [False, True])
@pytest.mark.parametrize(
    ("model", "precision", "magnitude"),
    [
        (
            torch.float32,
            torch.float64,
            4e38,
        ),  # overflows the model's type: xbar was NaN from then on
        (torch.float32, torch.float32, 2.0**100),
        (torch.float64, torch.float64, 2.0**300),
    ],
)
def test_parts_of_a_mixture_are_accepted_one_by_one(
    model: torch.dtype, precision: torch.dtype, magnitude: float, in_product: bool, tmp_path: Path
) -> None:
    constraint: Any = fedfw.Product({"*": BALL}) if in_product else BALL
    task = in_precision(
        small_task(fedfw.FedFW(constraint, penalty=0.01), local_steps=2, rounds=10), model
    )
    loop = Loopback(DeployedServer(task), tmp_path)
    loop.run(2)  # in the first round the weight of a first local step may be zero
    size = len(task.start)

    def poison(answer: Answer) -> Answer:
        _, weights = net_step(loop.server.method.rule.rates({}, answer.t))
        sizes = [12, 3] if in_product else [size]
        pieces = tuple(cancelling(one, weights, precision, magnitude) for one in sizes)
        if in_product:
            pieces = tuple(
                replace(piece, shape=shape)
                for piece, shape in zip(pieces, [(3, 4), (3,)], strict=True)
            )
        atom: Atom = (
            TupleAtom(shape=(size,), precision=precision, parts=pieces) if in_product else pieces[0]
        )
        return replace(answer, payload=atom.to_bytes())

    loop.wire = only_from(2, change=poison)
    for _ in range(2):
        record = loop.round()
        assert (record.participants, record.refused) == (2, {"bad atom": 1})
    assert feasible(loop.server)


# --- a step that would spoil the model ---


@dataclass(frozen=True, eq=False)
class Careless(fedfw.L2Ball):
    """A set of somebody's own whose check of atoms lets everything through."""

    def accepts(self, atom: Atom, shape: tuple[int, ...], tol: float = 1e-6) -> bool:
        return True


def far_away(loop: Loopback, value: float) -> bytes:
    size = len(loop.server.task.start)
    return Dense(shape=(size,), values=torch.full((1, size), value)).to_bytes()


@pytest.mark.parametrize("value", [1e4, 3e38])
@pytest.mark.parametrize("algorithm", [fedfw.FedFW, fedfw.FedFWPlus])
def test_a_model_outside_of_the_set_is_not_kept(
    algorithm: Any, value: float, tmp_path: Path
) -> None:
    task = small_task(algorithm(Careless(1.0), penalty=0.01), rounds=20)
    loop = Loopback(DeployedServer(task, Deployment(out=tmp_path / "server")), tmp_path / "clients")
    loop.run(2)
    before = loop.server.xbar.clone()
    loop.wire = only_from(1, change=lambda answer: replace(answer, payload=far_away(loop, value)))
    record = loop.round()
    assert (record.participants, record.refused) == (0, {"spoilt round": 3})
    assert record.notes == [
        "the round is refused as a whole, because the model would leave the constraint set: "
        "without client 1 it would not"
    ]
    assert torch.equal(loop.server.xbar, before)
    resumed = DeployedServer(task, Deployment(out=tmp_path / "server", resume=True))
    assert torch.equal(resumed.xbar, before)
    loop.run(2)
    assert loop.server.roster.members == [0, 2]  # only who spoilt the rounds has left
    loop.wire = lambda client, fields: [fields]
    record = loop.round()
    assert (record.participants, record.refused) == (2, {})
    assert feasible(loop.server)


# --- whose number it is ---


def test_a_number_belongs_to_the_node_that_claimed_it_first(tmp_path: Path) -> None:
    task = small_task(PLUS, rounds=20)
    settings = Deployment(out=tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients")
    for client in range(3):
        loop.server.meet(Hello(client), f"key {client}")
    loop.run(3)
    for _ in range(2):  # in the process that bound it, and in one that was restored
        with pytest.raises(
            MessageError,
            match="impostor: stolen says it is client 0, whose number belongs to key 0",
        ):
            loop.server.meet(Hello(0), "stolen")
        with pytest.raises(
            MessageError, match="impostor: key 1 says it is client 5, and is client 1"
        ):
            loop.server.meet(Hello(5), "key 1")
        loop.server.meet(Hello(0), "key 0")
        loop.server = DeployedServer(task, replace(settings, resume=True))
    assert loop.round().participants == 3


def test_a_client_without_a_weight_is_refused() -> None:
    server = DeployedServer(replace(small_task(FEDFW), weights=(1.0, 2.0, 3.0)))
    server.meet(Hello(2))
    with pytest.raises(MessageError, match="client 3 has no weight: the task names 3"):
        server.meet(Hello(3))


def test_only_an_operator_gives_a_number_to_another_key(tmp_path: Path) -> None:
    task, settings = small_task(FEDFW, rounds=20), Deployment(out=tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients")
    for client in range(3):
        loop.server.meet(Hello(client), f"key {client}")
    loop.run(2)
    server = DeployedServer(task, replace(settings, resume=True, rebind="1"))
    server.meet(Hello(1), "new key")
    with pytest.raises(MessageError, match="impostor"):
        server.meet(Hello(2), "another new key")
    everybody = DeployedServer(task, replace(settings, resume=True, rebind="all"))
    for client in range(3):
        everybody.meet(Hello(client), f"new key {client}")
    with pytest.raises(ValueError, match="rebind"):
        Deployment(rebind="three")


# --- a server that was put back from an older copy ---


@pytest.mark.parametrize(
    "algorithm", [FEDFW, PLUS, fedfw.FedFWAnchored(fedfw.L1Ball(5.0), penalty=0.01, anchor_every=3)]
)
@pytest.mark.parametrize("participation", [1.0, 2])
def test_a_server_put_back_from_an_older_copy_goes_on(
    algorithm: fedfw.Algorithm, participation: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = small_task(algorithm, rounds=30, participation=participation)
    settings = Deployment(out=tmp_path / "server", share_gradients=True)
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients")
    loop.run(4)
    shutil.copytree(tmp_path / "server", tmp_path / "copy")
    loop.run(3)  # with an anchor, for whom there are any
    run = loop.server.run
    names = set()
    for attempt in ("first", "second"):  # the same copy again, after the first one has gone far
        shutil.copytree(tmp_path / "copy", tmp_path / attempt)
        loop.server = DeployedServer(task, replace(settings, out=tmp_path / attempt, resume=True))
        assert loop.server.t == 4
        with caplog.at_level(logging.WARNING, "fedfw"):
            later = [loop.round() for _ in range(5)]
        told = [note for record in later for note in record.notes]
        assert len(told) == 1
        assert "are ahead of this server, which was put back from an older copy" in told[0]
        assert told[0] in caplog.text
        wasted = [
            record.round
            for record in later
            if record.participants < record.invited or record.refused
        ]
        assert len(wasted) <= 2
        assert later[-1].participants > 0
        assert feasible(loop.server)
        names.add(loop.server.run)
        again = DeployedServer(task, replace(settings, out=tmp_path / attempt, resume=True))
        assert again.run == loop.server.run
    assert len(names | {run}) == 3


def test_nobody_can_talk_a_server_into_beginning_anew_twice(tmp_path: Path) -> None:
    """Clients can be ahead of a server only until they were counted by it; who lies afterwards is
    handed his memory.
    """
    task, settings = small_task(FEDFW, rounds=30), Deployment(out=tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients")

    def lie(answer: Answer) -> Answer:
        return Answer(answer.run, answer.t, answer.client, Kind.OUTDATED)

    loop.wire = only_from(1, change=lie)
    name = loop.server.run
    loop.run(2)
    assert loop.server.run == name
    loop.wire = lambda client, fields: [fields]
    loop.run(1)
    loop.server = DeployedServer(task, replace(settings, resume=True))
    loop.wire = only_from(1, change=lie)
    loop.run(1)
    name = loop.server.run
    loop.run(2)
    assert loop.server.run == name
    honest = [
        record.participants for record in loop.server.history if isinstance(record, DeployedRecord)
    ]
    assert honest[-2:] == [2, 2]


# --- Messages survive the wire, and nothing else gets through ---

NAMES = st.text("abcxyz", min_size=1, max_size=5)
ORDERS = st.builds(
    Order,
    run=NAMES,
    t=st.integers(1, 2**40),
    client=st.integers(0, MOST_CLIENTS - 1),
    n=st.integers(1, MOST_CLIENTS),
    weight=st.floats(1e-9, 1.0),
    counted=st.integers(0, 2**40),
    version=st.integers(1, 2**40),
    base=st.integers(0, 2**40),
    digest=st.binary(min_size=8, max_size=8),
    ask=NAMES,
    index=st.integers(0, MOST_EXCHANGES - 1),
    rate=st.none() | st.floats(1e-9, 1.0),
    penalty=st.none() | st.floats(0, 1),
    vectors=st.dictionaries(NAMES, st.binary(max_size=20), max_size=3),
    memory=st.dictionaries(NAMES, st.binary(max_size=20), max_size=3),
    report=st.booleans(),
)
ANSWERS = st.builds(
    Answer,
    run=NAMES,
    t=st.integers(1, 2**40),
    client=st.integers(0, MOST_CLIENTS - 1),
    kind=NAMES,
    payload=st.binary(max_size=50),
    digest=st.binary(min_size=8, max_size=8),
    loss=st.none() | st.floats(-1e17, 1e17),
)


@given(st.one_of(ORDERS, ANSWERS))
def test_fields_and_back(message: Order | Answer) -> None:
    fields = message.fields()
    assert all(type(value) in (int, float, str, bytes, bool) for value in fields.values())
    assert type(message).of(fields) == message


@given(ANSWERS, st.integers(0, 2**32))
def test_damage_is_noticed_or_harmless(answer: Answer, seed: int) -> None:
    fields = damaged(answer.fields(), random.Random(seed))
    with contextlib.suppress(MessageError):
        assert Answer.of(fields) != answer


def test_both_ends_refuse_another_wire_format_and_say_what_to_install() -> None:
    order = Order("run", 3, "step", 0, 2, 0.5, 0, 1, 0, b"12345678", {"xbar": b"0"})
    sentence = (
        f"wire format {SCHEMA + 1}, this end has {SCHEMA}: install the same version of fedfw on "
        "the server and on every client"
    )
    messages: list[Order | Answer | Hello] = [order, Answer("run", 3, 0, "step"), Hello(0)]
    for message in messages:
        assert message.fields()["schema"] == SCHEMA
        with pytest.raises(MessageError) as refused:
            type(message).of(message.fields() | {"schema": SCHEMA + 1})
        assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": 1}, "wire format 1, this end has 5: install the same version of fedfw"),
        ({"t": "3"}, "t='3': Input should be a valid integer"),
        ({"t": True}, "valid integer"),
        ({"t": -1}, "greater than or equal to 0"),
        ({"payload": [1, 2]}, "type list, expected one number, text or bytes"),
        ({"payload": "12"}, "valid bytes"),
        ({"loss": 1e308}, "less than"),
        ({"loss": math.nan}, "finite number|greater"),
        ({"loss": math.inf}, "finite number|less"),
        ({"surprise": 1}, "unknown fields"),
        ({"kind": None}, "kind"),
    ],
)
def test_what_is_no_answer_is_refused(change: dict[str, Any], told: str) -> None:
    fields = Answer("run", 3, 0, "step").fields() | change
    with pytest.raises(MessageError, match=told):
        Answer.of(fields)
    missing = Answer("run", 3, 0, "step").fields()
    del missing["run"]
    with pytest.raises(MessageError, match="there is no run"):
        Answer.of(missing)


@pytest.mark.parametrize("n", [0, -1, MOST_CLIENTS + 1, 2**52])
def test_an_order_for_so_many_clients_is_refused(n: int) -> None:
    """Minibatches are drawn for all clients at once, so their number is memory."""
    fields = Order("run", 1, "step", 0, n, 0.5, 0, 1, 0, b"").fields()
    with pytest.raises(
        MessageError, match=f"n={n}: Input should be (greater|less) than or equal to"
    ):
        Order.of(fields)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.binary(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=10,
)
KEYS = st.sampled_from(
    ["schema", "run", "t", "client", "n", "weight", "counted", "version", "base", "digest", "kind"]
)
OTHER_KEYS = st.sampled_from(
    ["vectors.x", "memory.", "payload", "loss", "number", "lr", "penalty", "leaving", "ask"]
)


@given(
    st.dictionaries(KEYS | OTHER_KEYS | st.text(max_size=9) | st.integers(), JUNK, max_size=20),
    st.booleans(),
)
def test_whatever_comes_in_is_a_message_or_refused(junk: dict[Any, Any], ours: bool) -> None:
    """Nothing but `MessageError` is raised, and what gets through can be sent again."""
    fields = junk | {"schema": SCHEMA} if ours else junk
    for kind in (Order, Answer, Hello):
        with contextlib.suppress(MessageError):
            message = kind.of(fields)
            assert kind.of(message.fields()) == message


@pytest.mark.parametrize("kind", [Order, Answer, Hello])
@pytest.mark.parametrize(
    "hostile",
    [
        {f"k{i}": 1 for i in range(10**5)},
        {f"vectors.k{i}": b"" for i in range(10**5)},
        {"k" * 10**6: 1},
        {"run": "k" * 10**6},
        {"t": [1.5] * 10**6},
        {"payload": [7] * 10**6},
        {"t": 10**5000},
        {"t": -(10**5000)},
        {"client": {"a": {"b": ["c"] * 10**6}}},
        {"kind": ("x",) * 10**6},
    ],
    ids=lambda hostile: next(iter(hostile))[:12],
)
def test_sizes_are_looked_at_first(kind: Any, hostile: dict[str, Any]) -> None:
    """A refusal takes next to no memory, and its text is short."""
    fields = {"schema": SCHEMA, "run": "run", "t": 3, "client": 0} | hostile
    tracemalloc.start()
    try:
        with pytest.raises(MessageError) as refused:
            kind.of(fields)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 300
