"""Callbacks around the rounds of a simulation; `fedfw.simulate(callbacks=...)` takes more of
them.
"""

from fedfw.simulation.callbacks.base import Callback, StopRun
from fedfw.simulation.callbacks.checkpoints import Checkpoints
from fedfw.simulation.callbacks.endings import Budget, EarlyStop
from fedfw.simulation.callbacks.evaluation import Evaluation
from fedfw.simulation.callbacks.progress import Progress

__all__ = [
    "Budget",
    "Callback",
    "Checkpoints",
    "EarlyStop",
    "Evaluation",
    "Progress",
    "StopRun",
]
