"""What a round is, for the simulator and for a deployment."""
