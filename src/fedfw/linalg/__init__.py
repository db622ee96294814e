"""Numerics shared by oracles and projections."""
