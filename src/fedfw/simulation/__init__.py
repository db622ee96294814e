"""Running an algorithm with all clients on one machine."""

from fedfw.simulation.engine import Simulation, simulate
from fedfw.simulation.history import History, Record
from fedfw.simulation.options import Options
from fedfw.simulation.result import Run

__all__ = ["History", "Options", "Record", "Run", "Simulation", "simulate"]
