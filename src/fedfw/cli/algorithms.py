"""``fedfw algorithms``: every algorithm, in one line, with what the server learns."""

import argparse
import inspect

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.report.tables import fitted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def execute(options: argparse.Namespace) -> int:
    """Print the table."""
    rows = [("name", "what it does", "what clients share")]
    for name, cls in ALGORITHMS.items():
        paragraph = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
        summary = paragraph.partition(". ")[0].removesuffix(".")
        rows.append((name, summary, cls.shares or "atoms only"))
    print(fitted(rows))
    return 0
