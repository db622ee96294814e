"""Write src/fedfw/cli/help.json: the arguments of ``fedfw run``, so that its help is shown before
torch is imported.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from fedfw.cli import run
from fedfw.cli.main import HELP


def described(action: argparse.Action) -> tuple[list[str], dict[str, Any]]:
    """Return an argument's flags and the keywords that its help shows."""
    shown = {"help": action.help, "metavar": action.metavar, "choices": action.choices}
    details = {name: value for name, value in shown.items() if value is not None}
    if not action.option_strings:
        return [action.dest], {**details, "nargs": action.nargs}
    if action.nargs == 0:
        return [*action.option_strings], {**details, "action": "store_true"}
    return [*action.option_strings], details


def kept() -> dict[str, list[tuple[list[str], dict[str, Any]]]]:
    """Return the arguments of each command whose help is kept."""
    parser = argparse.ArgumentParser(add_help=False)
    run.add_arguments(parser)
    return {"run": [described(action) for action in parser._actions]}


if __name__ == "__main__":
    HELP.write_text(json.dumps(kept(), indent=1) + "\n", encoding="utf-8")
