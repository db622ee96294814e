"""The task that is trained. This is the file to change: put your model, your data and your
constraint set here.

The server and every client have the same copy. ``data`` is called on a client only, with that
client's number.
"""

from collections.abc import Mapping
from typing import Any

from fedfw.config import build_algorithm, completed, load, read_app_config, run_options
from fedfw.data import partition
from fedfw.deployment import Task
from fedfw.models import MODELS, make_model


def make_task(config: Mapping[str, Any]) -> Task:
    """Return the task of Flower's run configuration; its keys and defaults are in
    pyproject.toml.
    """
    settings = read_app_config(config)
    if settings.weights != "equal":
        raise ValueError(
            f'weights="{settings.weights}": no client has the numbers of samples of the others. '
            'Expected "equal", or a '
            "task with weights=[...] in federation/task.py"
        )
    data = load(settings)
    settings = completed(settings, data)
    kind = MODELS[settings.model]

    def own_data(client: int) -> Any:
        """Return a part of all data, which are here; a real client reads a file of its own
        instead.
        """
        clients = max(settings.clients, client + 1)
        parts = partition(settings.partition, data.train, clients, data.classes, settings.seed)
        return kind.samples(data.train.take(parts[client]))

    return Task(
        model=make_model(settings.model, data, settings.seed, settings.model_size),
        loss=kind.loss,
        algorithm=build_algorithm(settings),
        data=own_data,
        clients=settings.clients,
        options=run_options(settings),
        test=kind.samples(data.test.take()),
        convex=kind.convex,
        l2=settings.l2,
        per=kind.per,
        division=(
            f"{settings.dataset}, {settings.partition} for {settings.clients} clients, "
            f"seed {settings.seed}"
        ),
    )
