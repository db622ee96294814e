"""A federation in one process: the real server and the real clients, with a message layer that may
misbehave.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nnf

import fedfw
from fedfw.deployment import Client, Consent, DeployedRecord, DeployedServer, Task
from fedfw.deployment.messages import Answer, Hello, Order
from fedfw.deployment.server_options import SEED, default_options
from fedfw.deployment.terms import ALL_SETS, SHARES
from fedfw.simulation import Options
from tests.table import zero_layer

Fields = dict[str, Any]
OPEN = Consent(
    share=SHARES,
    sets=(ALL_SETS,),
    seeded_noise=True,
    options=(*default_options(), SEED),
    least_samples=1,
    most_local_steps=1000,
    most_rounds=10**6,
)
"""Everything that the server asks for is answered."""

SAMPLES = 36
"""Of each client of `small_task`."""


def small_task(
    algorithm: fedfw.Algorithm,
    clients: int = 3,
    features: int = 4,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Task:
    """Softmax regression on a few random samples, as many as owners ask for, other ones for each
    client.
    """

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(client)
        inputs = torch.randn(SAMPLES, features, generator=generator).to(dtype) + client % 3
        return inputs, torch.randint(0, 3, (SAMPLES,), generator=generator)

    return Task(
        zero_layer(features, 3, dtype),
        nnf.cross_entropy,
        algorithm,
        data,
        clients,
        options=Options(**options),
        test=data(100),
    )


def problem_of(task: Task) -> fedfw.Problem:
    """The same problem for the simulator, with every client's gradient as the client alone computes
    it.
    """
    samples = [task.data(i) for i in range(task.clients)]
    return fedfw.Problem(
        task.model, task.loss, samples, test=task.test, weights=task.weights, separate=True
    )


@dataclass
class Loopback:
    """Every message goes through its fields, as over a wire."""

    server: DeployedServer
    folder: Path
    wire: Callable[[int, Fields], list[Fields]] = lambda client, fields: [fields]
    """What of an answer arrives, and how often."""
    gone: set[int] = field(default_factory=set)
    sent: dict[int, list[Order]] = field(default_factory=dict)
    answered: list[Answer] = field(default_factory=list)
    leaving: set[int] = field(default_factory=set)
    consent: Consent = OPEN

    def client(self, number: int) -> Client:
        """A new process, as Flower starts one for each message: only the disk remembers."""
        return Client(self.server.task, number, self.folder, number in self.leaving, self.consent)

    def greet(self) -> None:
        """Every client says who it is."""
        for number in range(self.server.task.clients):
            self.server.meet(Hello.of(self.client(number).hello().fields()))

    def ask(self, order: Order) -> Answer:
        self.sent.setdefault(order.client, []).append(order)
        answer = Answer.of(self.client(order.client).handle(Order.of(order.fields())).fields())
        self.answered.append(answer)
        return answer

    def round(self, online: set[int] | None = None) -> DeployedRecord:
        online = set(self.server.roster.members) if online is None else online
        orders = self.server.open(online)
        while orders and not self.server.is_last_exchange:
            for client, order in orders.items():
                self.server.take(client, self.ask(order).fields())
            orders = self.server.next_exchange()
        for client, order in orders.items():
            if client not in self.gone:
                for fields in self.wire(client, self.ask(order).fields()):
                    self.server.take(client, fields)
        return self.server.close()

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.round()


@dataclass
class Weather:
    """Faults by a seed: lost, repeated, late and damaged answers."""

    chance: random.Random
    late: list[tuple[int, Fields]] = field(default_factory=list)

    def __call__(self, client: int, fields: Fields) -> list[Fields]:
        arrived = [late for owner, late in self.late if owner == client]
        self.late = [(owner, late) for owner, late in self.late if owner != client]
        fate = self.chance.random()
        if fate < 0.1:
            return arrived
        if fate < 0.2:
            self.late.append((client, fields))
            return arrived
        if fate < 0.3:
            return [*arrived, fields, fields]
        if fate < 0.4:
            return [*arrived, damaged(fields, self.chance)]
        return [*arrived, fields]


def damaged(fields: Fields, chance: random.Random) -> Fields:
    """The same message with something broken in it."""
    broken = dict(fields)
    name = chance.choice(sorted(broken))
    value = broken[name]
    broken[name] = {
        bytes: lambda: bytes(b ^ 1 << chance.randrange(8) for b in value) + b"?",
        int: lambda: value + chance.choice((-1, 1, 10**9)),
        str: lambda: value + "?",
        float: lambda: float("nan"),
    }[type(value)]()
    return broken


def put_behind_a_link(path: Path) -> None:
    """Move a file or folder away, with a symbolic link in its place."""
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


def replace_by_a_pipe(path: Path) -> None:
    """Put a pipe in the place of a file."""
    path.unlink()
    os.mkfifo(path)
