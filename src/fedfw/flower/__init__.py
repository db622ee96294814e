"""Federated Frank-Wolfe on Flower: real processes, real connections, the same steps as in simulations.

``server_app`` and ``client_app`` need the extra ``fedfw[flower]``; the rest works without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedfw.flower.client import Client
from fedfw.flower.records import DeployedRecord, Deployment
from fedfw.flower.server import Coordinator
from fedfw.flower.task import Task

if TYPE_CHECKING:
    from fedfw.flower.apps import client_app, options_of, server_app

__all__ = [
    "Client",
    "Coordinator",
    "DeployedRecord",
    "Deployment",
    "Task",
    "client_app",
    "options_of",
    "server_app",
]


def __getattr__(name: str) -> Any:
    if name in ("client_app", "options_of", "server_app"):
        try:
            from fedfw.flower import apps
        except ModuleNotFoundError as error:
            raise ImportError(f"{name} needs Flower: pip install 'fedfw[flower]' ({error})") from None
        return getattr(apps, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
