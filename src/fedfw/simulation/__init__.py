"""Running an algorithm with all clients on one machine."""

from fedfw.rounds.options import Options
from fedfw.rounds.records import History, Record
from fedfw.simulation.callbacks import Callback, StopRun
from fedfw.simulation.entry import simulate
from fedfw.simulation.result import Run
from fedfw.simulation.saved import SavedRun, load_run
from fedfw.simulation.simulator import Simulation

__all__ = [
    "Callback",
    "History",
    "Options",
    "Record",
    "Run",
    "SavedRun",
    "Simulation",
    "StopRun",
    "load_run",
    "simulate",
]
