"""The contents of clients' replies, which are not trusted."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedfw.deployment.messages import TOO_LARGE
from fedfw.errors import MessageError
from fedfw.flower.agreement import RECORD

WEIGHT = "num-examples"
"""Flower's name for the number of samples by which metrics are averaged."""


def content_of(reply: Message) -> RecordDict:
    """Return a copy of a reply's content; raises `MessageError` where there is none."""
    if reply.has_error():
        raise MessageError(f"failed: {reply.error.reason}")
    return RecordDict(dict(reply.content))


def fields_of(content: RecordDict) -> dict[str, Any]:
    """Return the fields of fedfw's record, which has to be the only one."""
    record = content.get(RECORD)
    if not isinstance(record, ConfigRecord) or len(content) != 1:
        raise MessageError("undecodable: not one record of frank_wolfe_step")
    return dict(record)


def average_metrics(records: Iterable[MetricRecord]) -> MetricRecord:
    """Return the mean of every number over the records that have it, weighted by ``num-examples``;
    records without a positive weight are left out.

    Examples
    --------
    >>> first = MetricRecord({"acc": 0.5, "num-examples": 30})
    >>> second = MetricRecord({"acc": 0.9, "num-examples": 10})
    >>> dict(average_metrics([first, second]))
    {'acc': 0.6}
    """
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for record in records:
        weight = record.get(WEIGHT)
        if not isinstance(weight, int | float) or not 0 < weight < TOO_LARGE:
            continue
        for name, value in record.items():
            if name != WEIGHT and isinstance(value, int | float):
                sums[name] = sums.get(name, 0.0) + weight * value
                weights[name] = weights.get(name, 0.0) + weight
    return MetricRecord({name: total / weights[name] for name, total in sums.items()})
