"""What is trained. This is the file to change: put your model, your data and your constraint set here.

The server and every client have the same copy. ``data`` is called on a client only, with that client's number.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedfw
from fedfw.data import load_data, partition
from fedfw.flower import Task, options_of
from fedfw.models import MODELS, make_model
from fedfw.tasks import usual_model


def make_task(config: Mapping[str, Any]) -> Task:
    """From Flower's run configuration, whose keys and defaults are in pyproject.toml."""
    clients, seed = config["clients"], config["seed"]
    data = load_data(config["dataset"], Path(config["data-dir"]) if config["data-dir"] else None, clients, seed)
    name = config["model"] or usual_model(data)
    kind = MODELS[name]

    def own_data(client: int) -> Any:
        """Here everybody has all data and takes a part; a real client reads a file of its own instead."""
        parts = partition(config["partition"], data.train, max(clients, client + 1), data.classes, seed)
        return kind.samples(data.train.take(parts[client]))

    return Task(
        model=make_model(name, data, seed),
        loss=kind.loss,
        algorithm=make_algorithm(config),
        data=own_data,
        clients=clients,
        options=options_of(config),
        test=kind.samples(data.test.take()),
        convex=kind.convex,
    )


def make_algorithm(config: Mapping[str, Any]) -> fedfw.Algorithm:
    """The algorithm with its constraint set."""
    constraint = fedfw.parse_set(config["constraint"])
    if config["per-parameter"]:
        constraint = fedfw.Product({"*": constraint})
    if config["algorithm"] == "fedavg":
        return fedfw.FedAvg(constraint, lr=config["lr"])
    return fedfw.ALGORITHMS[config["algorithm"]](
        constraint, penalty=config["penalty"], momentum=config["momentum"], schedule=config["schedule"] or None
    )
