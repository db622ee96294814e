"""Arguments of commands as data: a command lists its own, and one function adds them."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple


class Argument(NamedTuple):
    """One argument: its flags, or its name, and what argparse is given of it."""

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


JSON = argument("--json", action="store_true", help="print one JSON object")
LAST_LINE = argument("--json", action="store_true", help="print one JSON object as the last line")
