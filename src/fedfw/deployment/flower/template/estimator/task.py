"""The task that is trained: a regression on the owners' tables, which pyproject.toml states.

The server and every client have the same copy. Each owner's rows are read on that owner's node
only.
"""

from collections.abc import Mapping
from typing import Any

from fedfw.config.estimators import estimator_task
from fedfw.deployment import Task


def make_task(config: Mapping[str, Any]) -> Task:
    """Return the task of Flower's run configuration; its keys and defaults are in
    pyproject.toml.
    """
    return estimator_task(config)
