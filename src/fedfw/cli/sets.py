"""``fedfw sets``: every constraint set, what its oracle costs and its atoms weigh."""

import argparse
import json
from typing import Any

import torch

from fedfw.cli.arguments import JSON, adds, argument
from fedfw.report.tables import fitted, wrapped
from fedfw.sets.base import Shape, parameters_of
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


add_arguments = adds(
    argument(
        "--shape",
        type=parse_shape,
        default=(10, 785),
        help="parameter shape, such as 10x784 [10x785]",
    ),
    JSON,
)


def execute(options: argparse.Namespace) -> int:
    """Print the table."""
    rows = [_describe(name, options.shape) for name in SETS]
    report = {"shape": options.shape, "sets": rows}
    print(json.dumps(report) if options.json else _format_sets(options.shape, rows))
    return 0


def _describe(name: str, shape: Shape) -> dict[str, Any]:
    """Return a set's line of the table, with an example atom for parameters of this shape where the
    set has one.
    """
    entry = SETS[name]
    cls = entry.cls
    row: dict[str, Any] = {
        "name": name,
        "class": cls.__name__,
        "parameters": list(parameters_of(cls)),
        "definition": entry.summary,
        "oracle": entry.oracle_cost,
        "projection": entry.projection_cost,
        "polytope": cls.is_polytope,
        "strongly_convex": entry.strongly_convex,
        "example": None,
        "atom": None,
        "bytes": None,
        "diameter": None,
        "note": "",
    }
    try:
        example = entry.example(shape)
        atom = example.lmo(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
        return row | {
            "example": repr(example),
            "atom": atom.kind,
            "bytes": len(atom.to_bytes()),
            "diameter": example.diameter(shape),
        }
    except ValueError as error:
        return row | {"note": str(error)}


def _format_sets(shape: Shape, rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    table = [("set", "definition", "oracle", "projection", "atom", "bytes", "flags")]
    table += [
        (
            ":".join([row["name"], *([",".join(row["parameters"])] if row["parameters"] else [])]),
            row["definition"],
            row["oracle"],
            row["projection"],
            row["atom"] or "-",
            "-" if row["bytes"] is None else f"{row['bytes']:,}",
            " ".join(
                flag for flag in ("polytope", "strongly convex") if row[flag.replace(" ", "_")]
            ),
        )
        for row in rows
    ]
    notes = [
        wrapped(f"  {row['name']}: {row['note']}", indent="    ") for row in rows if row["note"]
    ]
    size = torch.Size(shape).numel()
    title = (
        f"Constraint sets for a parameter of shape {'x'.join(map(str, shape))} (p = {size:,}; "
        f"dense float32: {4 * size:,} bytes). Costs are orders of operations."
    )
    footer = ["", "No example at this shape:", *notes] if notes else []
    lines = [wrapped(title), "", fitted(table, right=(5,)), *footer]
    return "\n".join(lines)
