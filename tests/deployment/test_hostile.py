"""Hostile parties: clients that send poison, nodes that take other people's numbers, folders from yesterday."""

from __future__ import annotations

import logging
import math
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedfw
from fedfw.atoms import Atom, Dense, Mixture, TupleAtom
from fedfw.deployment import DeployedRecord, DeployedServer, Deployment, Task
from fedfw.deployment.messages import Answer, Hello, Kind
from fedfw.errors import MessageError, NobodyTrainedError
from fedfw.lipschitz import MaxMin
from tests.processes import run_python

from .loopback import Fields, Loopback, small_task

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


def only_from(*hostile: int, change: Callable[[Answer], Answer]) -> Callable[[int, Fields], list[Fields]]:
    return lambda client, fields: [change(Answer.of(fields)).fields() if client in hostile else fields]


def feasible(server: DeployedServer) -> bool:
    """xbar is in the set, and the mean of the x_i that the server rebuilt."""
    points, xbar = server.coordinator.memory.gather(torch.arange(len(server.roster)))["x"], server.xbar
    return server.task.constraint.contains(xbar, 1e-5) and torch.allclose(points.mean(0).to(xbar), xbar, atol=1e-5)


def next_round(loop: Loopback) -> DeployedRecord:
    """With everybody: who was sent away for what it had sent comes back at once."""
    for client in {0, 1, 2} - set(loop.server.roster.members):
        loop.server.meet(Hello(client))
    return loop.round()


# --- compressed payloads ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("compress", ["bits:2", "bits:4", "bits:8"])
def test_a_compressed_payload_cannot_take_the_model_out_of_the_set(
    compress: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Random bits of levels and scales are shrunk into the set or refused, and the others' round goes on."""
    D = fedfw.Product({"weight": fedfw.SpectralBall(0.5), "*": BALL})
    task = in_precision(small_task(fedfw.FedLMO(D, compress=compress), rounds=30), dtype)
    rng, server = np.random.default_rng(0), DeployedServer(task, Deployment(share_gradients=True))

    def spoilt(answer: Answer) -> Answer:
        data = bytearray(answer.payload)
        for at in rng.integers(2, 12, size=rng.integers(1, 4)):  # of the net atom: its frames, scales and levels
            data[at] = rng.integers(256)
        return replace(answer, payload=bytes(data))

    loop = Loopback(server, tmp_path, wire=only_from(0, 1, change=spoilt))
    refused = 0
    for _ in range(15):
        record = next_round(loop)
        refused += 3 - record.participants
        assert (record.invited, record.participants) == (3, 3 - sum(record.refused.values()))
        assert task.constraint.contains(server.xbar, 0.0 if dtype is torch.float32 else 1e-12)
    assert 0 < refused < 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("compress", ["topk:3", "randk:3", "sign", "rank:1", "atoms:1"])
def test_a_compressed_gradient_is_decoded_or_refused_and_the_round_goes_on(
    compress: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    algorithm = fedfw.FedPGD(fedfw.L1Ball(2.0), lr=0.1, compress=compress)
    task = in_precision(small_task(algorithm, rounds=20), dtype)
    rng, server = np.random.default_rng(0), DeployedServer(task, Deployment(share_gradients=True))

    def spoilt(answer: Answer) -> Answer:
        data = bytearray(answer.payload)
        for at in rng.integers(0, len(data), size=rng.integers(1, 4)):
            data[at] = rng.integers(256)
        return replace(answer, payload=bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.3 else data))

    loop = Loopback(server, tmp_path, wire=only_from(0, 1, change=spoilt))
    refused = 0
    for _ in range(10):
        record = next_round(loop)
        refused += 3 - record.participants
        assert (record.invited, record.participants) == (3, 3 - sum(record.refused.values()))
        assert task.constraint.contains(server.xbar, 1e-5)
        total = server.coordinator.memory.rows["h"].sum(0)  # of all that have taken part
        kept = server.coordinator.server.vectors["h"]
        assert bool(kept.isfinite().all())
        assert torch.allclose(total, kept, rtol=1e-5, atol=1e-3 * float(total.abs().max()))
    assert refused > 0


# --- steps from curvature ---


@pytest.mark.parametrize(
    "told", [(math.nan, 1.0), (1.0, math.inf), (1e30, 1.0), (-1.0, -1e9), (0.0, 1e15), (1e15, 0.0)]
)
def test_what_a_client_tells_cannot_make_a_step_too_long(told: tuple[float, float], tmp_path: Path) -> None:
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
        assert record.eta is not None
        assert 0 < record.eta <= 2 / (t + 1)
        assert feasible(server)


def test_a_client_refuses_a_step_size_that_its_task_does_not_have(tmp_path: Path) -> None:
    paced = replace(FEDFW, schedule="curvature")
    for algorithm, settings, eta in ((FEDFW, Deployment(), 0.5), (paced, Deployment(tell_loss=True), None)):
        loop = Loopback(DeployedServer(small_task(algorithm), settings), tmp_path / algorithm.name)
        order = loop.server.open({0})[0]
        with pytest.raises(MessageError, match="expected one where and only where the server works it out"):
            loop.client(0).handle(replace(order, eta=eta))


def test_a_server_that_may_not_be_told_numbers_does_not_ask_for_them() -> None:
    with pytest.raises(ValueError, match="tell-loss says that clients may send such numbers"):
        DeployedServer(small_task(replace(FEDFW, schedule="curvature")))
    assert not small_task(replace(FEDFW, schedule="auto")).resolved().tells


# --- mixtures ---


def cancelling(size: int, weights: tuple[float, ...], precision: torch.dtype, magnitude: float) -> Mixture:
    """Two dense parts far outside of any set whose mixture is nearly zero, as its sum is worked out."""
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
        (torch.float32, torch.float64, 4e38),  # overflows the model's type: xbar was NaN from then on
        (torch.float32, torch.float32, 2.0**100),
        (torch.float64, torch.float64, 2.0**300),
    ],
)
def test_parts_of_a_mixture_are_accepted_one_by_one(
    model: torch.dtype, precision: torch.dtype, magnitude: float, in_product: bool, tmp_path: Path
) -> None:
    constraint: Any = fedfw.Product({"*": BALL}) if in_product else BALL
    task = in_precision(small_task(fedfw.FedFW(constraint, penalty=0.01), local_steps=2, rounds=10), model)
    loop = Loopback(DeployedServer(task), tmp_path)
    loop.run(2)  # in the first round the weight of a first local step may be zero
    size = len(task.start)

    def poison(answer: Answer) -> Answer:
        _, weights = loop.server.plan.mixing(answer.t)
        sizes = [12, 3] if in_product else [size]
        pieces = tuple(cancelling(one, weights, precision, magnitude) for one in sizes)
        if in_product:
            pieces = tuple(replace(piece, shape=shape) for piece, shape in zip(pieces, [(3, 4), (3,)], strict=True))
        atom: Atom = TupleAtom(shape=(size,), precision=precision, parts=pieces) if in_product else pieces[0]
        return replace(answer, payload=atom.to_bytes())

    loop.wire = only_from(2, change=poison)
    for _ in range(2):
        record = loop.round()
        assert (record.participants, record.refused) == (2, {"bad atom": 1})
    assert feasible(loop.server)


@pytest.mark.parametrize("constraint", [BALL, fedfw.L1Ball(5.0), fedfw.Product({"*": fedfw.LinfBall(1.0)})])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_honest_nets_of_local_steps_are_accepted(constraint: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    task = in_precision(small_task(fedfw.FedFW(constraint, penalty=0.01), local_steps=3, rounds=10), dtype)
    loop = Loopback(DeployedServer(task), tmp_path)
    loop.run(4)
    assert [record.participants for record in loop.server.history] == [3] * 4
    assert feasible(loop.server)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_compressed_contribution_is_read_or_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    """Random bits, too few and too many bytes and huge scales: the others' round goes on, and memories agree after."""
    algorithm = fedfw.FedFWAnchored(fedfw.L1Ball(5.0), penalty=0.01, anchor_every=2, compress="bits:8")
    task = in_precision(small_task(algorithm, rounds=40), dtype)
    rng = np.random.default_rng(0)
    loop = Loopback(DeployedServer(task, Deployment(share_gradients=True)), tmp_path)
    refused = asked = 0
    for _ in range(16):
        for client, order in loop.server.ask_for_sums({0, 1, 2}).items():
            answer = loop.ask(order)
            if client > 0:
                data = bytearray(answer.payload)
                for at in rng.integers(0, len(data), 3):
                    data[at] = rng.integers(0, 256)
                kinds = [bytes(data), answer.payload[:-1], answer.payload + b"?", b"", b"\xff" * len(data)]
                spoilt, asked = kinds[asked % 5], asked + 1
                refused += loop.server.take(client, replace(answer, payload=spoilt).fields()) is not None
            else:
                assert loop.server.take(client, answer.fields()) is None
        for client, order in loop.server.open({0, 1, 2}).items():
            loop.server.take(client, loop.ask(order).fields())
        record = loop.server.close()
        assert record.participants == 3 - sum(record.refused.values())
        assert feasible(loop.server)
    assert asked == 16
    assert refused >= 9
    known = loop.server.coordinator.memory.gather(torch.arange(3))
    assert all(bool(values.isfinite().all()) for values in known.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "algorithm",
    [
        fedfw.FedLMO(fedfw.SpectralBall(2.0)),
        fedfw.contrib.FedMuon(BALL),
        fedfw.contrib.FedMuonCV(BALL),
        fedfw.FedAdamW(BALL, lr=0.01),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_honest_vectors_beside_an_answer_are_not_oversized(algorithm: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    """A model of 2,010 parameters: with one local step the vectors are most of an answer."""

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(client)
        return torch.randn(6, 200, generator=generator), torch.arange(6)

    task = in_precision(
        replace(small_task(algorithm, rounds=4), model=torch.nn.Linear(200, 10), data=data, test=data(3)), dtype
    )
    loop = Loopback(DeployedServer(task, Deployment(share_gradients=True)), tmp_path)
    loop.run(2)
    assert [(record.participants, record.refused) for record in loop.server.history] == [(3, {})] * 2


def test_atoms_wider_than_the_model_are_refused(tmp_path: Path) -> None:
    loop = Loopback(DeployedServer(small_task(fedfw.FedFW(BALL, penalty=0.01), rounds=10)), tmp_path)
    size = len(loop.server.task.start)
    wide = BALL.lmo(torch.ones(size, dtype=torch.float64), precision=torch.float64)
    loop.wire = only_from(0, change=lambda answer: replace(answer, payload=wide.to_bytes()))
    assert loop.round().refused == {"bad atom": 1}


@pytest.mark.parametrize("factor", [1 + 9e-7, 1 + 1e-5, 1.5, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_client_lifts_a_network_above_its_lipschitz_constant(
    factor: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    """One client sends atoms that are too large, by as little as is accepted or by more."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), MaxMin(), torch.nn.Linear(8, 3))
    algorithm = fedfw.FedFW(fedfw.LipschitzNet(1.0), penalty=0.01)
    task = in_precision(replace(small_task(algorithm, rounds=10), model=network), dtype)
    loop = Loopback(DeployedServer(task), tmp_path)
    shape = (len(task.start),)

    def enlarged(answer: Answer) -> Answer:
        atom = Atom.from_bytes(answer.payload, task.constraint, shape)
        assert isinstance(atom, TupleAtom)
        parts = tuple(replace(p, values=p.values * factor) if isinstance(p, Dense) else p for p in atom.parts)
        return replace(answer, payload=replace(atom, parts=parts).to_bytes())

    loop.wire = only_from(2, change=enlarged)
    assert loop.round().participants == (3 if factor < 1 + 1e-6 else 2)
    for _ in range(3):
        assert fedfw.lipschitz_bound(loop.server.model) <= 1.0
        loop.round()


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
def test_a_model_outside_of_the_set_is_not_kept(algorithm: Any, value: float, tmp_path: Path) -> None:
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


def test_nobody_is_named_where_several_spoil_a_round(tmp_path: Path) -> None:
    loop = Loopback(DeployedServer(small_task(fedfw.FedFW(Careless(1.0), penalty=0.01), rounds=20)), tmp_path)
    loop.wire = lambda client, fields: [
        fields if client == 0 else replace(Answer.of(fields), payload=far_away(loop, 1e4)).fields()
    ]
    assert "no one client alone is to blame" in loop.round().notes[0]


# --- whose number it is ---


def test_a_number_belongs_to_the_node_that_claimed_it_first(tmp_path: Path) -> None:
    task = small_task(PLUS, rounds=20)
    settings = Deployment(out=tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients")
    for client in range(3):
        loop.server.meet(Hello(client), f"key {client}")
    loop.run(3)
    for _ in range(2):  # in the process that bound it, and in one that was restored
        with pytest.raises(MessageError, match="impostor: stolen says it is client 0, whose number belongs to key 0"):
            loop.server.meet(Hello(0), "stolen")
        with pytest.raises(MessageError, match="impostor: key 1 says it is client 5, and is client 1"):
            loop.server.meet(Hello(5), "key 1")
        loop.server.meet(Hello(0), "key 0")
        loop.server = DeployedServer(task, replace(settings, resume=True))
    assert loop.round().participants == 3


def test_a_number_stays_its_owners_after_it_has_left(tmp_path: Path) -> None:
    loop = Loopback(DeployedServer(small_task(FEDFW, rounds=20)), tmp_path)
    for client in range(3):
        loop.server.meet(Hello(client), f"key {client}")
    loop.leaving = {2}
    loop.round()
    assert loop.server.roster.members == [0, 1]
    with pytest.raises(MessageError, match="impostor"):
        loop.server.meet(Hello(2), "stolen")
    loop.leaving = set()
    loop.server.meet(Hello(2), "key 2")
    record = loop.round()
    assert (record.participants, record.joined) == (3, [2])


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
        wasted = [record.round for record in later if record.participants < record.invited or record.refused]
        assert len(wasted) <= 2
        assert later[-1].participants > 0
        assert feasible(loop.server)
        names.add(loop.server.run)
        again = DeployedServer(task, replace(settings, out=tmp_path / attempt, resume=True))
        assert again.run == loop.server.run
    assert len(names | {run}) == 3


def test_nobody_can_talk_a_server_into_beginning_anew_twice(tmp_path: Path) -> None:
    """Clients can be ahead of a server only until they were counted by it; who lies afterwards is handed his memory."""
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
    honest = [record.participants for record in loop.server.history if isinstance(record, DeployedRecord)]
    assert honest[-2:] == [2, 2]


# --- silence ---


def test_who_never_answers_has_left_by_default_and_may_come_back(tmp_path: Path) -> None:
    task = replace(small_task(FEDFW, rounds=20), weights=(0.5, 0.25, 0.25))
    loop = Loopback(DeployedServer(task), tmp_path)
    loop.run(1)
    loop.gone = {2}
    assert [loop.round().invited for _ in range(4)] == [3, 3, 3, 2]
    loop.gone = set()
    loop.server.meet(Hello(2))
    record = loop.round()
    assert (record.participants, record.joined) == (3, [2])
    assert feasible(loop.server)
    with pytest.raises(MessageError, match="client 3 has no weight"):
        loop.server.meet(Hello(3))


def test_a_run_in_which_nobody_was_counted_ends_with_an_error(tmp_path: Path) -> None:
    loop = Loopback(DeployedServer(small_task(FEDFW, rounds=3), Deployment(out=tmp_path / "server")), tmp_path / "c")
    loop.wire = lambda client, fields: [fields | {"t": 99}]
    loop.run(3)
    with pytest.raises(NobodyTrainedError, match=r"no answer .* in 3 rounds: .*; refused were .*wrong round"):
        loop.server.finish()
    assert not (tmp_path / "server" / "model.pt").exists()


@pytest.mark.parametrize("how", ["farewell", "silence"])
def test_a_run_that_everybody_left_ends_with_an_error(how: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    task, settings = small_task(FEDFW, rounds=8), Deployment(out=tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients")
    loop.run(2)
    loop.leaving, loop.gone = ({0, 1, 2}, set()) if how == "farewell" else (set(), {0, 1, 2})
    loop.run(4)
    for server in (loop.server, DeployedServer(task, replace(settings, resume=True))):
        with pytest.raises(NobodyTrainedError, match="everybody had left after round 2 of 6"):
            server.finish()
        request.getfixturevalue("no_plots")  # one picture of such a run is enough
    assert (tmp_path / "server" / "model.pt").exists()  # of the two rounds that counted
    loop.leaving, loop.gone = set(), set()
    loop.run(2)  # whoever had said farewell has forgotten all, and says so first
    loop.server.finish()


# --- the server's folder ---


def test_what_the_server_keeps_is_its_own(tmp_path: Path) -> None:
    """Checkpoints hold everybody's x_i: nobody else reads them, and no second process writes them."""
    task, settings = small_task(FEDFW, rounds=5), Deployment(out=tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients")
    loop.run(2)
    kept = [path for path in (tmp_path / "server").iterdir() if path.is_file()]
    assert len(kept) == 4  # two checkpoints, the history and the lock
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    code = "import sys; from pathlib import Path; from fedfw.rounds.folders import RunFolder\n"
    code += "RunFolder(Path(sys.argv[1]), resume=True)"
    other = ["-c", code, str(tmp_path / "server")]
    refused = run_python(other, check=False)
    assert f"ValueError: {tmp_path / 'server'} is in use by another process ({os.getpid()})" in refused.stderr
    loop.server.finish()
    run_python(other)


@pytest.mark.filterwarnings("ignore:.*going back to the one before it")
def test_a_server_without_a_whole_checkpoint_does_not_forget_whose_numbers_there_are(tmp_path: Path) -> None:
    task, settings = small_task(FEDFW, rounds=5), Deployment(out=tmp_path)
    Loopback(DeployedServer(task, settings), tmp_path / "clients").run(2)
    for path in tmp_path.glob("checkpoint-*"):
        path.write_bytes(b"junk")
    with pytest.raises(ValueError, match=f"no checkpoint in {tmp_path} is whole"):
        DeployedServer(task, replace(settings, resume=True))
