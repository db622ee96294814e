"""The two Flower apps, made from a function that states the task."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedfw.flower.client import Client
from fedfw.flower.messages import Hello, Order
from fedfw.flower.records import Deployment
from fedfw.flower.server import Coordinator
from fedfw.flower.store import state_folder
from fedfw.flower.strategy import RECORD, FedFWStrategy, content
from fedfw.flower.task import Task
from fedfw.privacy import Privacy
from fedfw.simulation.files import write_atomically
from fedfw.simulation.options import Options

Config = Mapping[str, Any]
"""Flower's run configuration: the keys of the app's pyproject.toml."""
MakeTask = Callable[[Config], Task]


def options_of(config: Config) -> Options:
    """Rounds, participation, local steps, batch size (0 for all), evaluations and seed from the run configuration."""
    return Options(
        rounds=config["rounds"],
        participation=config["participation"],
        local_steps=config["local-steps"],
        batch_size=config["batch-size"] or None,
        privacy=Privacy.parse(str(config["privacy"])) if config["privacy"] else None,
        eval_every=config["eval-every"],
        seed=config["seed"],
    )


def deployment_of(config: Config) -> Deployment:
    """How it is deployed, from the run configuration."""
    return Deployment(
        Path(config["out"]).expanduser() if config["out"] else None,
        config["run-name"],
        config["resume"],
        config["tell-loss"],
        config["share-gradients"],
        config["leave-after"],
    )


def server_app(make_task: MakeTask) -> ServerApp:
    """The ServerApp of a task."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        began = time.time()
        coordinator = Coordinator(make_task(config), deployment_of(config))
        strategy = FedFWStrategy(coordinator, float(config["round-timeout"]), float(config["start-timeout"]))
        left = coordinator.task.options.rounds - coordinator.t
        if left > 0:
            strategy.start(grid, ArrayRecord(), left, float(config["round-timeout"]))
        coordinator.finish()
        if coordinator.settings.out is not None:
            done = {"run": coordinator.run, "rounds": coordinator.t, "seconds": time.time() - began}
            write_atomically(coordinator.settings.out / "done.json", json.dumps(done).encode())

    return app


def client_app(make_task: MakeTask, mods: list[Any] | None = None) -> ClientApp:
    """The ClientApp of a task; ``partition-id`` of the node's configuration is the client's number.

    ``mods`` are Flower's: functions around every message.
    """
    app = ClientApp(mods=mods)

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return _reply(message, Hello(_number(context), bool(context.node_config.get("leaving", False))).fields())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        began = time.perf_counter()
        node = context.node_config
        folder, leaving = state_folder(str(node.get("state-dir", ""))), bool(node.get("leaving", False))
        one = _client(make_task, tuple(sorted(context.run_config.items())), _number(context), folder, leaving)
        return _reply(message, one.handle(Order.of(content(message)), began).fields())

    return app


@lru_cache(maxsize=64)  # Flower's simulation keeps processes; a deployment starts one for each message
def _client(
    make_task: MakeTask, config: tuple[tuple[str, Any], ...], number: int, folder: Path, leaving: bool
) -> Client:
    return Client(make_task(dict(config)), number, folder, leaving)


def _number(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise ValueError(f'partition-id={number!r} in --node-config, expected the client\'s number: "partition-id=0"')
    return number


def _reply(message: Message, fields: dict[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=message)
