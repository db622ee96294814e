"""A bridge for Flower apps that exist already: a strategy for the ServerApp, and one function for the
ClientApp.

It protects no data from the server: `fedfw deploy` is for that. Needs ``pip install fedfw[flower]``.
"""

from fedfw.flower.client import frank_wolfe_step
from fedfw.flower.result import FrankWolfeResult, Traffic
from fedfw.flower.strategy import FrankWolfeStrategy

__all__ = ["FrankWolfeResult", "FrankWolfeStrategy", "Traffic", "frank_wolfe_step"]
