"""The client's side of the bridge: one function that answers a message of the strategy."""

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedfw.deployment.messages import Answer, Kind, Order
from fedfw.flower.agreement import (
    AGREEMENT,
    ARRAYS,
    METRICS,
    NODE,
    RECORD,
    Agreement,
    read_agreement,
)
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
    message, context
        What Flower gives to a function under ``@app.train("fedfw")``.
    model : torch.nn.Module
        Of the same class as the server's; its parameters are replaced by those that the server
        sends, and it is left unchanged.
    loss : callable
        ``loss(outputs, targets)``, a mean over samples, as for `fedfw.Problem`; the same as on the
        server.
    data : DataLoader, dataset, or pair of tensors
        The client's samples. Of a loader the dataset and ``collate_fn`` are used: how many samples
        a gradient has is the strategy's ``batch_size``.
    metrics : mapping of str to float, optional
        The app's own numbers, which the strategy averages by samples.
    columns : (str, str), optional
        Names of inputs and targets, for loaders whose batches are dictionaries.

    Returns
    -------
    flwr.app.Message

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
    agreed = state.get(AGREEMENT)
    start = state.get(_START)
    order = Order.of(content[RECORD]) if RECORD in content else None
    if not isinstance(agreed, ConfigRecord) or not isinstance(start, ArrayRecord):
        assert order is not None  # a question carries all that it needs
        return _reply(message, Answer(order.run, order.t, order.client, Kind.LOST).fields())
    agreement = read_agreement(str(agreed["text"]))
    number = int(context.node_config.get(PARTITION, 0)) if order is None else order.client
    client = _client(agreement, number, state, _loaded(model, start), loss, data, columns)
    if order is None:
        node = MetricRecord({"samples": client.samples})
        if PARTITION in context.node_config:
            node["partition"] = number
        return _reply(message, client.hello().fields(), {NODE: node})
    began = time.perf_counter()
    answer = client.answer(order, began)
    own = {} if metrics is None else {METRICS: MetricRecord(dict(metrics))}
    return _reply(message, answer.fields(), own)


def _client(
    agreement: Agreement,
    number: int,
    state: RecordDict,
    model: nn.Module,
    loss: LossFunction,
    data: Any,
    columns: Sequence[str],
) -> BridgedClient:
    """Return the client of an agreement, with its own model, loss and data."""
    task = agreement.task(model, loss, lambda _: read_samples(data, columns))
    return BridgedClient(task, number, state=state)


def _loaded(model: nn.Module, start: ArrayRecord) -> nn.Module:
    """Return a copy of a model on the CPU, with the parameters and buffers of the start."""
    copied = copy.deepcopy(model).cpu()
    copied.load_state_dict(start.to_torch_state_dict())
    return copied


def _reply(
    message: Message, fields: dict[str, Any], more: Mapping[str, MetricRecord] | None = None
) -> Message:
    content = RecordDict({RECORD: ConfigRecord(fields), **(more or {})})
    return Message(content=content, reply_to=message)


def read_samples(data: Any, columns: Sequence[str] = ()) -> Any:
    """Return the samples of a loader, all of them and in the dataset's order, as a pair of tensors;
    anything else as it is.

    Examples
    --------
    >>> pairs = [(torch.tensor([1.0 * k]), k) for k in range(3)]
    >>> inputs, targets = read_samples(DataLoader(pairs, batch_size=2, shuffle=True))
    >>> inputs.tolist(), targets.tolist()
    ([[0.0], [1.0], [2.0]], [0, 1, 2])
    """
    if not isinstance(data, DataLoader):
        return data
    loader = DataLoader(data.dataset, data.batch_size or 1, collate_fn=data.collate_fn)
    batches = [_pair(batch, columns) for batch in loader]
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def _pair(batch: Any, columns: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a batch."""
    if isinstance(batch, Mapping):
        if len(columns) != 2:
            raise ValueError(
                f"batches are dictionaries with {sorted(batch)}: columns names the inputs and the "
                'targets, such as columns=("img", "label")'
            )
        return batch[columns[0]], batch[columns[1]]
    inputs, targets = batch
    return inputs, targets
