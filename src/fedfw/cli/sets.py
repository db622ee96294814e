"""``fedfw sets``: every constraint set, what its oracle costs and its atoms weigh."""

import argparse
import math

import torch

from fedfw.cli.arguments import adds, argument
from fedfw.report.tables import fitted, wrapped
from fedfw.sets.base import parameters_of
from fedfw.sets.registry import SETS


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the shape that a text such as 10x784 stands for."""
    try:
        shape = tuple(int(side) for side in text.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}, expected whole numbers joined by x, such as 10x784"
        )
    return shape


SHAPE = argument(
    "--shape",
    type=parse_shape,
    default=(10, 785),
    help="parameter shape, such as 10x784 [10x785]",
)
add_arguments = adds(SHAPE)
_HEADER = ("set", "definition", "oracle", "projection", "atom", "bytes", "flags")


def execute(options: argparse.Namespace) -> int:
    """Print the table, with an example atom for parameters of the shape where a set has one."""
    shape = options.shape
    size = math.prod(shape)
    rows = [_HEADER]
    notes = []
    for name, entry in SETS.items():
        atom = nbytes = "-"
        try:
            example = entry.example(shape)
            gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            minimizer = example.lmo(gradient)
            atom = minimizer.kind
            nbytes = f"{len(minimizer.to_bytes()):,}"
        except ValueError as error:
            notes.append(wrapped(f"  {name}: {error}", indent="    "))
        flags = ["polytope"] if entry.cls.is_polytope else []
        if entry.strongly_convex:
            flags.append("strongly convex")
        form = f"{name}:{','.join(parameters_of(entry.cls))}".removesuffix(":")
        costs = (entry.oracle_cost, entry.projection_cost)
        rows.append((form, entry.summary, *costs, atom, nbytes, " ".join(flags)))
    print(
        wrapped(
            f"Constraint sets for a parameter of shape {'x'.join(map(str, shape))} (p = {size:,}; "
            f"dense float32: {4 * size:,} bytes). Costs are orders of operations."
        )
    )
    print(f"\n{fitted(rows, right=(5,))}")
    if notes:
        print("\n".join(["", "No example at this shape:", *notes]))
    return 0
