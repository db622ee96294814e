"""Running an algorithm with all clients on one machine."""

from fedfw.rounds.options import Options
from fedfw.rounds.records import History, Record
from fedfw.simulation.callbacks import Callback, CSVLogger, MLflowLogger, StopRun, TensorBoardLogger
from fedfw.simulation.result import Run
from fedfw.simulation.saved import SavedRun, load_run
from fedfw.simulation.simulator import Simulation, simulate

__all__ = [
    "CSVLogger",
    "Callback",
    "History",
    "MLflowLogger",
    "Options",
    "Record",
    "Run",
    "SavedRun",
    "Simulation",
    "StopRun",
    "TensorBoardLogger",
    "load_run",
    "simulate",
]
