"""The parts of a round, for the simulator and for a deployment."""
