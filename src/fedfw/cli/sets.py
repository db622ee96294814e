"""``fedfw sets``: every constraint set, what its oracle costs and its atoms weigh."""

import argparse
import json

from fedfw.report.sets_table import describe_sets, format_sets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shape of the parameters, and the form of the output."""
    parser.add_argument("--shape", type=parse_shape, default=(10, 785), help="parameter shape, such as 10x784 [10x785]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(options: argparse.Namespace) -> int:
    """Print the table."""
    rows = describe_sets(options.shape)
    report = {"shape": options.shape, "sets": rows}
    print(json.dumps(report) if options.json else format_sets(options.shape, rows))
    return 0


def parse_shape(text: str) -> tuple[int, ...]:
    """The shape that a text such as 10x784 stands for."""
    try:
        shape = tuple(int(side) for side in text.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected whole numbers joined by x, such as 10x784")
    return shape
