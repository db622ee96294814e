"""Numerical routines that oracles and projections share."""
