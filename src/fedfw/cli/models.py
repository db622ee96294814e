"""``fedfw models``: every model, and whether its losses are convex."""

import argparse

from fedfw.models import MODELS
from fedfw.report.tables import fitted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def execute(options: argparse.Namespace) -> int:
    """Print the table."""
    kinds = {True: "convex, smoothness known", False: "not convex"}
    print(fitted([(name, kinds[kind.convex], kind.summary) for name, kind in MODELS.items()]))
    return 0
