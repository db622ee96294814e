"""The ``fedfw`` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from fedfw._version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="fedfw", description="Federated Frank-Wolfe: train across clients inside a hard constraint set."
    )
    parser.add_argument("--version", action="version", version=f"fedfw {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    sets = commands.add_parser("sets", help="list the constraint sets, what their oracles cost and their atoms weigh")
    sets.add_argument("--shape", type=_shape, default=(10, 785), help="parameter shape, such as 10x784 (%(default)s)")
    sets.add_argument("--json", action="store_true", help="print one JSON object")

    commands.add_parser("demo", help="Frank-Wolfe on a small sparse regression: the gap closes, a few bytes a step")

    options = parser.parse_args(arguments)
    try:
        return _list_sets(options.shape, options.json) if options.command == "sets" else _demo()
    except ValueError as error:
        print(f"fedfw {options.command}: {error}", file=sys.stderr)
        return 2


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(side) for side in text.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected whole numbers joined by x, such as 10x784")
    return shape


def _list_sets(shape: tuple[int, ...], as_json: bool) -> int:
    from fedfw.report.sets_table import describe_sets, format_sets

    rows = describe_sets(shape)
    print(json.dumps({"shape": shape, "sets": rows}) if as_json else format_sets(shape, rows))
    return 0


def _demo() -> int:
    import torch

    from fedfw.sets import L1Ball

    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 1000, generator=generator)
    truth = torch.zeros(1000)
    truth[:5] = torch.tensor([3.0, -2.0, 2.0, -1.0, 2.0])
    targets = features @ truth
    constraint, x, sent = L1Ball(10.0), torch.zeros(1000), 0
    print("Sparse regression, 1,000 unknowns, 5 of them not zero, l1 ball of radius 10: min |Ax - b|^2 / 400")
    print("round       loss        gap   non-zeros   bytes sent   (dense gradients: 4,000 a round)")
    for t in range(1, 201):
        residual = features @ x - targets
        gradient = features.T @ residual / 200
        atom = constraint.lmo(gradient)
        gap = float(gradient @ x - atom.dot(gradient))
        sent += atom.nbytes
        if t in (1, 2, 5, 10, 20, 50, 100, 200):
            loss, support = float(residual.square().mean() / 2), int((x != 0).sum())
            print(f"{t:5d} {loss:10.4f} {gap:10.4f} {support:11d} {sent:12,d}")
        atom.step(x, 2 / (t + 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
