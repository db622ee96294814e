"""Write src/fedfw/cli/help.json: the arguments of ``fedfw run`` and each method's own options, so
that help is shown before torch is imported.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.cli import run
from fedfw.cli.arguments import HELP
from fedfw.options import options_of


def described(action: argparse.Action) -> tuple[list[str], dict[str, Any]]:
    """Return an argument's flags and the keywords that its help shows."""
    shown = {"help": action.help, "metavar": action.metavar, "choices": action.choices}
    details = {name: value for name, value in shown.items() if value is not None}
    if not action.option_strings:
        return [action.dest], {**details, "nargs": action.nargs}
    details["dest"] = action.dest
    if action.nargs == 0:
        return [*action.option_strings], {**details, "action": "store_true"}
    return [*action.option_strings], details


def table() -> dict[str, Any]:
    """Return the arguments of ``fedfw run``, and the keys of each method's options by its name."""
    parser = argparse.ArgumentParser(add_help=False)
    run.add_arguments(parser)
    methods = {
        name: [option.key for option in options_of(cls).values()]
        for name, cls in ALGORITHMS.items()
    }
    return {"run": [described(action) for action in parser._actions], "methods": methods}


if __name__ == "__main__":
    HELP.write_text(json.dumps(table(), indent=1) + "\n", encoding="utf-8")
