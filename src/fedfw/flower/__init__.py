"""A bridge for Flower apps that exist already: a strategy for the ServerApp, and one function for
the ClientApp.

It protects no data from the server: `fedfw deploy` is for that. It needs the extra
``fedfw[flower]``.
"""

from fedfw.errors import missing_extra

try:
    from fedfw.flower.client import frank_wolfe_step
    from fedfw.flower.result import FrankWolfeResult, Traffic
    from fedfw.flower.strategy import FrankWolfeStrategy
except ModuleNotFoundError as error:
    raise missing_extra("fedfw.flower", f"Flower ({error})", "flower") from None

__all__ = ["FrankWolfeResult", "FrankWolfeStrategy", "Traffic", "frank_wolfe_step"]
