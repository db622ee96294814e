"""The two Flower apps, made from a function that states the task."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedfw.deployment.client import Client, answer_order
from fedfw.deployment.consent import Consent
from fedfw.deployment.flower.strategy import RECORD, FedFWStrategy, content
from fedfw.deployment.messages import Hello, Order
from fedfw.deployment.server import DeployedServer
from fedfw.deployment.settings import Deployment
from fedfw.deployment.store import note_failure, state_folder
from fedfw.deployment.task import Task
from fedfw.options import options_of
from fedfw.rounds.files import write_atomically

Config = Mapping[str, Any]
"""Flower's run configuration: the keys of the app's pyproject.toml."""
MakeTask = Callable[[Config], Task]
Handler = Callable[[Message, Context], Message]
FAILED = "the client failed; the log of failures on its node says why"
"""All that the server learns of an exception, whose own text may hold a value of the data."""


class ClientFailedError(RuntimeError):
    """What a client raises in place of any exception, because Flower sends its type and its text to the server."""


def deployment_of(config: Config) -> Deployment:
    """How it is deployed, from the run configuration; an empty text stands for an option that is not given."""
    values = {}
    for name, declared in options_of(Deployment).items():
        value = config.get(declared.key, "")
        if value != "":
            values[name] = declared.parse(value, "run configuration")
    return Deployment(**values)


def server_app(make_task: MakeTask) -> ServerApp:
    """The ServerApp of a task.

    Parameters
    ----------
    make_task : callable
        From Flower's run configuration to the `Task`.

    Returns
    -------
    flwr.serverapp.ServerApp
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        began = time.time()
        server = DeployedServer(make_task(config), deployment_of(config))
        left = server.task.options.rounds - server.t
        if left > 0:
            FedFWStrategy(server).start(grid, ArrayRecord(), left, server.settings.round_timeout)
        server.finish()
        if server.settings.folder is not None:
            done = {"run": server.run, "rounds": server.t, "seconds": time.time() - began}
            write_atomically(server.settings.folder / "done.json", json.dumps(done).encode())

    return app


def client_app(make_task: MakeTask, mods: list[Any] | None = None) -> ClientApp:
    """The ClientApp of a task.

    It reads the node's own configuration, which the server cannot set: ``partition-id`` is the client's number,
    ``consent`` the file of what the data's owner allows (or $FEDFW_CONSENT; without it atoms alone are sent),
    ``state-dir`` the folder of its memory, and ``leaving`` says that it takes part no more.

    Parameters
    ----------
    make_task : callable
        From Flower's run configuration to the `Task`.
    mods : list, optional
        Flower's functions around every message.

    Returns
    -------
    flwr.clientapp.ClientApp
    """
    app = ClientApp(mods=mods)

    @app.query()
    @_discreet
    def hello(message: Message, context: Context) -> Message:
        budget = _consent(context).privacy
        if budget is not None and budget.required:  # it says nothing of its data, and so does not read them
            return _reply(message, Hello(_number(context), _is_leaving(context)).fields())
        return _reply(message, _client_of(make_task, context).hello().fields())

    @app.train()
    @_discreet
    def train(message: Message, context: Context) -> Message:
        began = time.perf_counter()
        answer = answer_order(
            Order.of(content(message)),
            lambda: _client_of(make_task, context),
            number=_number(context),
            folder=_folder(context),
            consent=_consent(context),
            began=began,
        )
        return _reply(message, answer.fields())

    return app


def _discreet(handler: Handler) -> Handler:
    """The same handler, whose exceptions are written to the node's log and raised as one that says nothing."""

    @wraps(handler)
    def discreet(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception:
            with suppress(Exception):  # what cannot be written down must not get out either
                note_failure(_folder(context))
        raise ClientFailedError(FAILED)  # out here it has no cause that could be told

    return discreet


def _client_of(make_task: MakeTask, context: Context) -> Client:
    config = tuple(sorted(context.run_config.items()))
    return _client(make_task, config, _number(context), _folder(context), _is_leaving(context), _consent(context))


@lru_cache(maxsize=64)  # Flower's simulation keeps processes; a deployment starts one for each message
def _client(
    make_task: MakeTask,
    config: tuple[tuple[str, Any], ...],
    number: int,
    folder: Path,
    leaving: bool,
    consent: Consent,
) -> Client:
    return Client(make_task(dict(config)), number, folder, leaving, consent)


def _is_leaving(context: Context) -> bool:
    return bool(context.node_config.get("leaving", False))


def _folder(context: Context) -> Path:
    return state_folder(str(context.node_config.get("state-dir", "")))


def _consent(context: Context) -> Consent:
    """The owner's file, never named by the run's configuration: that is the server's."""
    path = str(context.node_config.get("consent", "")) or os.environ.get("FEDFW_CONSENT", "")
    return Consent.read(path) if path else Consent()


def _number(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise ValueError(f'partition-id={number!r} in --node-config, expected the client\'s number: "partition-id=0"')
    return number


def _reply(message: Message, fields: dict[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=message)
