"""Clients and servers that talk: the same steps as in simulations, whatever carries the
messages.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfw.deployment.client import Client
    from fedfw.deployment.consent import Consent
    from fedfw.deployment.records import DeployedRecord
    from fedfw.deployment.server import DeployedServer
    from fedfw.deployment.settings import Deployment
    from fedfw.deployment.task import Task
    from fedfw.deployment.terms import DataBudget

__all__ = [
    "Client",
    "Consent",
    "DataBudget",
    "DeployedRecord",
    "DeployedServer",
    "Deployment",
    "Task",
]
_HOMES = {
    "Client": "client",
    "Consent": "consent",
    "DataBudget": "terms",
    "DeployedRecord": "records",
    "DeployedServer": "server",
    "Deployment": "settings",
    "Task": "task",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: the hub does without torch."""
    if name in _HOMES:
        return getattr(import_module(f"fedfw.deployment.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
