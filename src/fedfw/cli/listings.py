"""``fedfw algorithms`` and ``fedfw models``: every one of them by its name, in one line."""

import argparse
import inspect

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.cli.arguments import adds
from fedfw.models import MODELS
from fedfw.report.tables import fitted

_KINDS = {True: "convex, smoothness known", False: "not convex"}
add_arguments = adds()


def execute(options: argparse.Namespace) -> int:
    """Print the table of ``fedfw models`` or of ``fedfw algorithms``: a row each, with the first
    sentence of an algorithm's docstring; return the exit status.
    """
    if options.command == "models":
        print(fitted([(name, _KINDS[kind.convex], kind.summary) for name, kind in MODELS.items()]))
        return 0
    rows = [("name", "what it does", "what clients share")]
    for name, cls in ALGORITHMS.items():
        paragraph = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
        summary = paragraph.partition(". ")[0].removesuffix(".")
        rows.append((name, summary, cls.shares or "atoms only"))
    print(fitted(rows))
    return 0
