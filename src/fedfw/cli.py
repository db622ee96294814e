"""The ``fedfw`` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedfw._version import __version__
from fedfw.command.config import RunConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.execute(options)
    except (ValueError, OSError) as error:
        print(f"fedfw {options.command}: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedfw", description="Federated Frank-Wolfe: train across clients inside a hard constraint set."
    )
    parser.add_argument("--version", action="version", version=f"fedfw {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run", help="simulate a federated run; without arguments, on the digits that ship with scikit-learn"
    )
    run.add_argument("config", nargs="?", help="TOML file with the same keys as the flags; flags win")
    for option in fields(RunConfig):
        flag, help_ = "--" + option.name.replace("_", "-"), option.metadata["help"]
        if option.default is not None and option.default is not False:
            help_ += f" [{option.default}]"
        if option.type == "bool":
            run.add_argument(flag, action="store_true", default=None, help=help_)
        else:
            run.add_argument(flag, metavar="VALUE", help=help_)
    run.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    run.set_defaults(execute=_run)

    resume = commands.add_parser("resume", help="go on with an interrupted run")
    resume.add_argument("folder", type=Path, help="its run folder")
    resume.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    resume.set_defaults(execute=_resume)

    compare = commands.add_parser("compare", help="several runs in one table and one picture")
    compare.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="run folders")
    compare.add_argument("--out", type=Path, default=Path("compare.png"), help="the picture [%(default)s]")
    compare.set_defaults(execute=_compare)

    commands.add_parser("algorithms", help="list the algorithms").set_defaults(execute=_algorithms)

    sets = commands.add_parser("sets", help="list the constraint sets, what their oracles cost and their atoms weigh")
    sets.add_argument("--shape", type=_shape, default=(10, 785), help="parameter shape, such as 10x784 [10x785]")
    sets.add_argument("--json", action="store_true", help="print one JSON object")
    sets.set_defaults(execute=_sets)
    return parser


def _run(options: argparse.Namespace) -> int:
    from fedfw.command.run import start_run

    names = [option.name for option in fields(RunConfig)]
    flags: dict[str, Any] = {
        name.replace("_", "-"): value for name in names if (value := getattr(options, name)) is not None
    }
    return start_run(options.config, flags, options.json)


def _resume(options: argparse.Namespace) -> int:
    from fedfw.command.run import resume_run

    return resume_run(options.folder, options.json)


def _compare(options: argparse.Namespace) -> int:
    from fedfw.command.compare import compare_runs

    return compare_runs(options.folders, options.out)


def _algorithms(options: argparse.Namespace) -> int:
    from fedfw.algorithms import ALGORITHMS

    for name, cls in ALGORITHMS.items():
        document = sys.modules[cls.__module__].__doc__ or ""
        print(f"{name:15s} {document.splitlines()[0]}")
    return 0


def _sets(options: argparse.Namespace) -> int:
    from fedfw.report.sets_table import describe_sets, format_sets

    rows = describe_sets(options.shape)
    report = {"shape": options.shape, "sets": rows}
    print(json.dumps(report) if options.json else format_sets(options.shape, rows))
    return 0


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(side) for side in text.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected whole numbers joined by x, such as 10x784")
    return shape


if __name__ == "__main__":
    sys.exit(main())
