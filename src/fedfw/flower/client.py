"""The client's side of the bridge: one function that answers a message of the strategy."""

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import nn
from torch.utils.data import DataLoader, default_collate

from fedfw.deployment.messages import Answer, Kind, Order
from fedfw.flower.agreement import AGREEMENT, ARRAYS, METRICS, NODE, RECORD, read_agreement
from fedfw.flower.memory import BridgedClient
from fedfw.problems.known_losses import LossFunction

_START = "fedfw.start"
"""The model at the start, in a client's state."""
PARTITION = "partition-id"
"""Where Flower's apps say which part of the data a node has."""


def frank_wolfe_step(
    message: Message,
    context: Context,
    model: nn.Module,
    loss: LossFunction,
    data: Any,
    *,
    metrics: Mapping[str, float] | None = None,
    columns: Sequence[str] = (),
) -> Message:
    """Return a ClientApp's reply to a message of `FrankWolfeStrategy`.

    The step is the one of `fedfw.simulate`: a gradient at the shared or the client's own model, an
    atom of the set, and a step of the client's own state, which is kept in ``context.state``.

    Parameters
    ----------
    message : flwr.app.Message
        What Flower gives to a function under ``@app.train("fedfw")``.
    context : flwr.app.Context
        What it gives beside it; the client's memory is kept in ``context.state``.
    model : torch.nn.Module
        Of the same class as the server's; its parameters are replaced by those that the server
        sends, and it is left unchanged.
    loss : callable
        ``loss(outputs, targets)``, a mean over samples, as for `fedfw.Problem`; the same as on the
        server.
    data : DataLoader, dataset, or pair of tensors
        The client's samples, as for `fedfw.Problem`. How many of them a gradient has is the
        strategy's ``batch_size``, not that of a loader.
    metrics : mapping of str to float, optional
        The app's own numbers, which the strategy averages by samples.
    columns : (str, str), optional
        Names of inputs and targets, for datasets whose items are dictionaries.

    Returns
    -------
    flwr.app.Message
        The reply, for the function to return.

    Raises
    ------
    ValueError
        If the message is not one of `FrankWolfeStrategy`.
    MessageError
        If an order makes no sense. Flower sends the text of exceptions to the server.

    Examples
    --------
    In a ClientApp with a function ``load_data`` and a module ``Net``:

    >>> from fedfw.flower import frank_wolfe_step
    >>> def train_fedfw(msg, context):  # under @app.train("fedfw")
    ...     trainloader = load_data(context.node_config["partition-id"])
    ...     return frank_wolfe_step(msg, context, Net(), nn.CrossEntropyLoss(), trainloader)
    """
    content = message.content
    if RECORD not in content and NODE not in content:
        raise ValueError(
            f"a message with {sorted(content)}, expected one of fedfw.flower.FrankWolfeStrategy: "
            "the ServerApp has another strategy"
        )
    state = context.state
    if ARRAYS in content:
        state[_START] = content[ARRAYS]
    if AGREEMENT in content:
        state[AGREEMENT] = content[AGREEMENT]
    # The server sends both to a new client alone, so that they are kept with the client's memory.
    agreed = state.get(AGREEMENT)
    start = state.get(_START)
    order = Order.of(content[RECORD]) if RECORD in content else None
    if not isinstance(agreed, ConfigRecord) or not isinstance(start, ArrayRecord):
        assert order is not None  # a question carries all that it needs
        return _reply(message, Answer(order.run, order.t, order.client, Kind.LOST).fields())
    number = int(context.node_config.get(PARTITION, 0)) if order is None else order.client
    samples = _pairs(data, *columns) if columns else data
    loaded = copy.deepcopy(model).cpu()
    loaded.load_state_dict(start.to_torch_state_dict())
    task = read_agreement(str(agreed["text"])).task(loaded, loss, lambda _: samples)
    client = BridgedClient(task, number, state=state)
    if order is None:
        node = MetricRecord({"samples": client.samples})
        if PARTITION in context.node_config:
            node["partition"] = number
        return _reply(message, client.hello().fields(), {NODE: node})
    answer = client.answer(order, time.perf_counter())
    app_metrics = {} if metrics is None else {METRICS: MetricRecord(dict(metrics))}
    return _reply(message, answer.fields(), app_metrics)


def _pairs(data: Any, inputs: str, targets: str) -> tuple[Any, Any]:
    """Return two columns of a dataset whose items are dictionaries, as inputs and targets."""
    rows: Any = data.dataset if isinstance(data, DataLoader) else data
    x, y = default_collate([(row[inputs], row[targets]) for row in rows])
    return x, y


def _reply(
    message: Message, fields: dict[str, Any], more: Mapping[str, MetricRecord] | None = None
) -> Message:
    content = RecordDict({RECORD: ConfigRecord(fields), **(more or {})})
    return Message(content=content, reply_to=message)
