"""``fedfw algorithms``: every algorithm, in one line, with what the server learns."""

import argparse
import inspect

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.report.tables import aligned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def execute(options: argparse.Namespace) -> int:
    """Print the table."""
    rows = [("name", "what it does", "what clients share")]
    for name, cls in ALGORITHMS.items():
        summary = (inspect.getdoc(cls) or "").partition("\n")[0]
        rows.append((name, summary, cls.contract.shares or "atoms only"))
    print(aligned(rows))
    return 0
