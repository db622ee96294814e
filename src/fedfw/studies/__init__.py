"""Experiments that are run by name: the theory put to the test."""
