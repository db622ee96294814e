"""The two Flower apps, made from a function that states the task."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fedfw.deployment.client import Client, answer_order, answer_refusal
from fedfw.deployment.consent import Consent
from fedfw.deployment.flower.strategy import RECORD, FedFWStrategy, content
from fedfw.deployment.limits import LimitError
from fedfw.deployment.messages import Hello, Order
from fedfw.deployment.node import NodeSettings
from fedfw.deployment.obeyed import NotedSettings, given_in_table, validate_settings
from fedfw.deployment.refusal import RefusedError
from fedfw.deployment.server import DeployedServer
from fedfw.deployment.server_options import settings_in
from fedfw.deployment.settings import DEPLOYMENT_KEYS, Deployment
from fedfw.deployment.store import FAILURES, note_failure, state_folder
from fedfw.deployment.task import Task
from fedfw.environment import read_variable, refuse_unknown_variables
from fedfw.options import options_of, parse_table
from fedfw.rounds.files import write_atomically

Config = Mapping[str, Any]
"""Flower's run configuration: the keys of the app's pyproject.toml."""
MakeTask = Callable[[Config], Task]
Handler = Callable[[Message, Context], Message]
FAILED = "the client failed; the log of failures on its node says why"
"""All that the server learns of an exception, whose own text may hold a value of the data."""


class ClientFailedError(RuntimeError):
    """Raised by a client in place of any exception, because Flower sends its type and its text to
    the server.
    """


def deployment_of(config: Config) -> Deployment:
    """Return how the task is deployed, from the run configuration; an empty text stands for an
    option that is not given.
    """
    given = {key: value for key, value in config.items() if key in DEPLOYMENT_KEYS and value != ""}
    return Deployment(**parse_table(options_of(Deployment).values(), given, "run configuration"))


def server_app(make_task: MakeTask) -> ServerApp:
    """Return the ServerApp of a task.

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
        """Run the rounds that are left, and write the results."""
        began = time.time()
        task = task_of(make_task, context.run_config)
        settings = deployment_of(context.run_config)
        server = DeployedServer(task, settings)
        rounds_left = server.task.options.rounds - server.t
        if rounds_left > 0:
            strategy = FedFWStrategy(server)
            # Flower's own arrays stay empty: orders hold the model.
            strategy.start(grid, ArrayRecord(), rounds_left, strategy.round_seconds)
        server.finish()
        if settings.folder is not None:
            done = {"run": server.run, "rounds": server.t, "seconds": time.time() - began}
            write_atomically(settings.folder / "done.json", json.dumps(done).encode(), private=True)

    return app


def task_of(make_task: MakeTask, config: Config) -> Task:
    """Return the task of an app with these settings; settings that were given and that it does not
    have are refused.

    A setting that no task shows, such as the data set, may be read with the data, which this server
    does not have: it is noted in the log where make_task did not read it.
    """
    settings = NotedSettings(config)
    task = make_task(settings)
    given = dict.fromkeys(given_in_table(config), "run configuration")
    for sentence in validate_settings(task, config, given):
        log(WARNING, "run configuration: %s", sentence)
    for key in settings.unread(given):
        log(WARNING, "run configuration: %s is not read by the app's make_task", key)
    return task


def client_app(make_task: MakeTask, mods: list[Any] | None = None) -> ClientApp:
    """Return the ClientApp of a task.

    It reads the node's own configuration, which the server cannot set: ``partition-id`` is the
    client's number, ``consent`` the file of what the data's owner allows (or $FEDFW_CONSENT;
    without it atoms alone are sent), ``state-dir`` the folder of its memory, and ``leaving`` says
    that it takes part no more. ``table`` and ``columns``, the owner's file and the names of its
    columns, reach ``make_task`` as ``node-table`` and ``node-columns``.

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
    signed_settings = settings_of(make_task)

    @app.query()
    @_hide_exceptions
    def hello(message: Message, context: Context) -> Message:
        """Answer who the node is, and the numbers of its data where its owner allows them; a
        refusal is logged on the node alone.
        """
        node, consent = _of_node(context)
        introduction = Hello(node.partition_id, node.leaving)
        if consent.privacy is not None and consent.privacy.required:
            # The node introduces itself without numbers, and does not read its data.
            return _reply(message, introduction.fields())
        try:
            _check_settings(node, consent, signed_settings, context)
            with consent.limits.enforced():
                introduction = _client(make_task, node, consent, context).hello()
        except (RefusedError, LimitError):
            _note_failure(_folder(context))
        return _reply(message, introduction.fields())

    @app.train()
    @_hide_exceptions
    def train(message: Message, context: Context) -> Message:
        """Answer an order, or refuse it before data are read."""
        began = time.perf_counter()
        order = Order.of(content(message))
        node, consent = _of_node(context)
        folder = _folder(context)
        try:
            _check_settings(node, consent, signed_settings, context)
        except RefusedError as refused:  # before the task is built and data are read
            return _reply(
                message, answer_refusal(order, node.partition_id, folder, refused, began).fields()
            )
        answer = answer_order(
            order,
            lambda: _client(make_task, node, consent, context),
            number=node.partition_id,
            folder=folder,
            consent=consent,
            began=began,
        )
        return _reply(message, answer.fields())

    return app


def settings_of(make_task: MakeTask) -> dict[str, Any]:
    """Return the run configuration that an app itself has, in the ``pyproject.toml`` above its
    task's module.

    On a node that file was signed with the rest of the app. Where there is none, nothing is the
    app's own: then every option counts as set by the server.
    """
    module = sys.modules.get(getattr(make_task, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    folders = [] if file is None else Path(file).absolute().parents
    found = (settings_in(folder) for folder in folders)
    return next((settings for settings in found if settings is not None), {})


def _hide_exceptions(handler: Handler) -> Handler:
    """Return the same handler; its exceptions are written to the node's log and raised as one that
    says nothing.
    """

    @wraps(handler)
    def discreet(message: Message, context: Context) -> Message:
        """Handle a message; an exception is logged on the node, and another without its text leaves
        it.
        """
        try:
            return handler(message, context)
        except Exception:
            with suppress(Exception):  # what cannot be written down must not get out either
                _note_failure(_folder(context))
        raise ClientFailedError(FAILED)  # out here it has no cause that could be sent

    return discreet


def _note_failure(folder: Path) -> None:
    """Write the exception to the owner's log; where that fails, too, the executor's log names the
    file.

    The text of the exception goes nowhere else.
    """
    try:
        note_failure(folder)
    except Exception as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        print(
            f"fedfw: {folder / FAILURES} cannot be written ({reason})", file=sys.stderr, flush=True
        )


def _check_settings(
    node: NodeSettings, consent: Consent, own: Mapping[str, Any], context: Context
) -> None:
    """Raise `RefusedError` for settings of a run that the owner does not let a server set."""
    if not node.leaving:
        consent.check_settings(context.run_config, own)


def _client(make_task: MakeTask, node: NodeSettings, consent: Consent, context: Context) -> Client:
    task = make_task(dict(context.run_config) | node.own_table)
    return Client(task, node.partition_id, state_folder(node.state_dir), node.leaving, consent)


def _folder(context: Context) -> Path:
    """Return the folder of the log of failures, also where the node's settings are refused."""
    return state_folder(str(context.node_config.get("state-dir", "")))


def _of_node(context: Context) -> tuple[NodeSettings, Consent]:
    """Return what a node's owner says of it, and what may be done with its data.

    The owner's file is never named by the run's configuration: that is the server's.
    """
    refuse_unknown_variables()
    node = NodeSettings.read(context.node_config)
    path = node.consent or read_variable("FEDFW_CONSENT")
    return node, Consent.read(path) if path else Consent()


def _reply(message: Message, fields: dict[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=message)
