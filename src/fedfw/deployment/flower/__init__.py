"""Flower's side of a deployment: its apps, its strategy, and a whole federation on one machine.

It needs the extra ``fedfw[flower]``.
"""

from typing import TYPE_CHECKING, Any

from fedfw.errors import missing_extra

if TYPE_CHECKING:
    from fedfw.deployment.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]


def __getattr__(name: str) -> Any:
    """Import an app when it is asked for; without Flower, the error says how to install it."""
    if name in __all__:
        try:
            from fedfw.deployment.flower import apps
        except ModuleNotFoundError as error:
            raise missing_extra(name, f"Flower ({error})", "flower") from None
        return getattr(apps, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
