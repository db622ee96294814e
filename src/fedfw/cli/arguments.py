"""Arguments of commands as data: a command lists its own, and one function adds them."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HELP = Path(__file__).with_name("help.json")
"""The table that scripts/help.py writes: the arguments of ``fedfw run``, and each method's own
options.
"""
OPTION = "option "
"""The prefix of argparse's destinations for options of a run; a command's own --tol or --out is
then another one.
"""
FREQUENT = (
    *("dataset", "data", "model", "clients", "partition"),
    *("algorithm", "constraint", "rounds", "local-steps", "batch-size", "participation"),
    *("tol", "seed", "device"),
)
"""Options of a run that the short help shows."""
_SHORT = 20
"""The number of options of a run from which on a command's help is shortened."""


class Argument(NamedTuple):
    """One argument: its flags, or its name, and the keywords of ``add_argument``."""

    flags: tuple[str, ...]
    details: dict[str, Any]


def argument(*flags: str, **details: Any) -> Argument:
    """Return an argument; parameters as for ``ArgumentParser.add_argument``."""
    return Argument(flags, details)


def adds(*arguments: Argument) -> Callable[[argparse.ArgumentParser], None]:
    """Return a function that adds arguments to a command's parser."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        for flags, details in arguments:
            parser.add_argument(*flags, **details)

    return add_arguments


def read_help() -> dict[str, Any]:
    """Return the table of `HELP`: ``run`` has arguments, ``methods`` the flags of each method."""
    table: dict[str, Any] = json.loads(HELP.read_text(encoding="utf-8"))
    return table


def shorten_help(parser: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    """Hide the rare options of a run in the help of a parser and its verbs.

    ``--help all`` shows every option, ``--algorithm NAME --help`` those of one method.
    """
    shown = {*FREQUENT, *read_help()["methods"].get(_typed_method(typed), [])}
    parsers = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers.extend(action.choices.values())
    for subparser in parsers:
        options = [action for action in subparser._actions if action.dest.startswith(OPTION)]
        if len(options) < _SHORT:
            continue
        subparser.usage = "%(prog)s [options]"
        if any(not action.option_strings for action in subparser._actions):
            subparser.usage = "%(prog)s [config] [options]"
        if "all" in typed:
            continue
        for action in subparser._actions:
            key = action.dest.removeprefix(OPTION)
            if action in options and key not in shown:
                action.help = argparse.SUPPRESS
        subparser.epilog = (
            f"All options: {subparser.prog} --help all. "
            f"Options of one method: {subparser.prog} --algorithm fedlmo --help."
        )


def _typed_method(typed: Sequence[str]) -> str:
    """Return the value of ``--algorithm`` among the words that were typed."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--algorithm", nargs="?", const="", default="")
    return str(parser.parse_known_args(typed)[0].algorithm).lower()


JSON = argument("--json", action="store_true", help="print one JSON object")
LAST_LINE = argument("--json", action="store_true", help="print one JSON object as the last line")
