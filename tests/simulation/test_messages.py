"""One code path: clients and a server that only exchange bytes give what the simulator gives, and as many bytes."""

from __future__ import annotations

import pytest
import torch

import fedfw
from fedfw.algorithms.base import Plan, Upload
from fedfw.atoms import Mixture
from fedfw.atoms.base import read_framed
from fedfw.atoms.bits import Reader
from fedfw.atoms.mixture import mix
from fedfw.experiments.quadratics import P, Quadratics
from fedfw.problems.base import Oracle
from fedfw.simulation import Simulation
from fedfw.simulation.ledger import decode_down, encode_dense, encode_sum, encode_values
from fedfw.simulation.participation import Participation

SETS = {
    "l1": fedfw.L1Ball(1.0),
    "l2": fedfw.L2Ball(1.0),
    "ksparse": fedfw.KSparse(3, 0.5),
    "box": fedfw.Box(-0.5, 0.5),
    "product": fedfw.Product({"x": fedfw.L1Ball(1.0)}),
}


class ByteServer:
    """Holds xbar and its own copy of every x_i, rebuilt from the atoms it decoded; sends and counts real bytes."""

    def __init__(self, simulation: Simulation) -> None:
        self.plan: Plan = simulation.plan
        self.algorithm = simulation.algorithm
        start = simulation.problem.start
        self.server = self.algorithm.start_server(start)
        self.x = start.repeat(self.plan.n, 1)
        self.known = [None] * self.plan.n  # what each client last saw: (round, xbar)
        self.vectors = [dict[str, torch.Tensor]() for _ in range(self.plan.n)]  # further vectors, as each last saw them
        self.latest: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # and as they are, with when they changed
        self.step: tuple[float, float, torch.Tensor] | None = None

    def down(self, i: int, t: int) -> bytes:
        options = [encode_dense(self.server.xbar)]
        if self.known[i] is not None:
            seen, old = self.known[i]
            changed = (self.server.xbar != old).nonzero().flatten()
            options.append(encode_values(self.server.xbar, changed))
            if seen == t - 1 and self.step is not None:
                options.append(encode_sum(*self.step))
        return min(options, key=len)

    def note(self, t: int, vectors: dict[str, torch.Tensor]) -> None:
        """Which coordinates change in this round; one may change back later, and is sent all the same."""
        for name, vector in vectors.items():
            before, when = self.latest.get(name, (torch.zeros_like(vector), torch.zeros(P)))
            self.latest[name] = vector, torch.where(vector != before, t, when)

    def down_vector(self, i: int, name: str) -> bytes:
        vector, when = self.latest[name]
        options = [encode_dense(vector)]
        if self.known[i] is not None:
            options.append(encode_values(vector, (when > self.known[i][0]).nonzero().flatten()))
        self.vectors[i][name] = vector
        return min(options, key=len)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kind", ["fedfw", "fedfw+", "fedfw-sto"])
def test_exchanging_bytes_is_the_simulated_run(kind: str, name: str, participation: float) -> None:
    q = Quadratics.on("l2")
    algorithm = fedfw.ALGORITHMS[kind](SETS[name], penalty=0.05)
    rounds = 25
    run = fedfw.simulate(q.problem, algorithm, rounds=rounds, participation=participation, seed=3)

    blueprint = Simulation(q.problem, algorithm, fedfw.simulation.Options(rounds, participation, seed=3))
    plan, D = blueprint.plan, blueprint.constraint
    attends = Participation(participation, plan.n, 3)
    server = ByteServer(blueprint)
    clients = [algorithm.start_clients(blueprint.problem.start[None].clone()) for _ in range(plan.n)]
    received = [blueprint.problem.start] * plan.n
    for t in range(1, rounds + 1):
        who, up, down, uploads = attends(t), 0, 0, []
        if not len(who):
            continue
        server.server, message = algorithm.broadcast(plan, server.server, who, server.x[who], t)
        server.note(t, message.vectors)
        for i in who.tolist():
            data = server.down(i, t)
            down += len(data)
            vectors = {}
            for name_, vector in message.vectors.items():
                known = server.vectors[i].get(name_, torch.zeros_like(vector))
                sent_down = server.down_vector(i, name_)
                down += len(sent_down)
                vectors[name_] = decode_down(sent_down, known)
                assert torch.equal(vectors[name_], vector)
            received[i] = decode_down(data, received[i])
            assert torch.equal(received[i], server.server.xbar)
            server.known[i] = (t, server.server.xbar)  # type: ignore[call-overload]
            oracle = Oracle(q.problem.losses, q.problem.weights, torch.tensor([i]), lambda: None, t)
            own = fedfw.algorithms.Message(t, received[i], vectors)
            clients[i], atom, _ = algorithm.client_step(plan, clients[i], own, oracle, lambda g: D.lmo(g, batch=True))
            sent = atom[0].to_bytes()
            up += len(sent)
            arrived = fedfw.Atom.from_bytes(sent, D, (P,))
            assert D.accepts(arrived, (P,))
            uploads.append((i, arrived))
        before = server.x.clone()
        eta, _ = plan.mixing(t)
        total = torch.zeros(P, dtype=torch.float64)
        stacked = [Upload(torch.tensor([i]), atom, before[i : i + 1]) for i, atom in uploads]
        for i, atom in uploads:
            atom.step(server.x[i], eta)
            atom.add_sum_to(total)
            assert torch.equal(server.x[i], clients[i]["x"][0])  # the server's copy is the client's point, to the bit
        server.server = algorithm.server_step(plan, server.server, stacked, t)
        everyone = len(who) == plan.n
        sparse = name in ("l1", "ksparse", "product")
        server.step = (1 - eta, eta / plan.n, total) if everyone and sparse else None
        assert run.history[t - 1].bytes_up == up
        assert run.history[t - 1].bytes_down == down
    assert torch.allclose(server.server.xbar, run.x, atol=1e-12)


@pytest.mark.parametrize("name", ["l1", "l2", "nuclear", "product"])
def test_net_atoms_survive_their_bytes(name: str) -> None:
    shape = (24,)
    D = {
        "l1": fedfw.L1Ball(2.0),
        "l2": fedfw.L2Ball(2.0),
        "nuclear": fedfw.NuclearBall(2.0).bind(torch.nn.Linear(5, 4)),
        "product": fedfw.Product({"weight": fedfw.L2Ball(1.0), "*": fedfw.L1Ball(1.0)}).bind(torch.nn.Linear(5, 4)),
    }[name]
    generator = torch.Generator().manual_seed(0)
    weights = [0.5, 0.3, 0.2]
    atoms = [D.lmo(torch.randn(2, 24, generator=generator), batch=True) for _ in weights]
    net = mix(atoms, weights)
    dense = sum(w * atom.dense(torch.float64) for w, atom in zip(weights, atoms, strict=True))
    assert torch.allclose(net.dense(torch.float64), dense, atol=1e-6)
    assert bool(torch.as_tensor(D.contains(net.dense(torch.float64), batch=True)).all())
    data = net[1].to_bytes()
    assert net.nbytes == sum(len(net[i].to_bytes()) for i in range(2))
    back = read_framed(Reader(data), D.net_readers(shape, weights))
    assert torch.equal(back.dense(), net[1].dense())
    if name == "l1":
        assert isinstance(net, Mixture)
        assert int((net[0].dense() != 0).sum()) <= 3


def test_local_steps_are_the_same_steps_taken_one_by_one() -> None:
    q = Quadratics.on("l1", n=1)
    one = fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.0), rounds=30)
    three = fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.0), rounds=10, local_steps=3)
    assert torch.allclose(one.x, three.x, atol=1e-10)
    assert three.history[0].bytes_up < 3 * one.history[0].bytes_up + 2


def test_dense_exchange_is_counted_beside() -> None:
    q = Quadratics.on("l1")
    run = fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.05), rounds=3)
    assert run.history[0].bytes_dense == 2 * 8 * (1 + 8 * P)
    assert run.history[0].bytes_up == 8 * 2


def test_anchors_are_in_the_ledger() -> None:
    q = Quadratics.on("l1")
    run = fedfw.simulate(q.problem, fedfw.FedFWAnchored(q.constraint, anchor_every=4), rounds=8)
    dense = 8 * (1 + 8 * P)
    up = [r.bytes_up for r in run.history]
    assert up == [dense + 16, 16, 16, 16] * 2
    down = [r.bytes_down for r in run.history]
    assert down[0] == 2 * dense
    assert down[4] >= dense > down[3]
