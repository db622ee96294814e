"""Running an algorithm with all clients on one machine."""

from fedfw.simulation.engine import Options, Run, Simulation, simulate
from fedfw.simulation.history import History, Record

__all__ = ["History", "Options", "Record", "Run", "Simulation", "simulate"]
