"""``fedfw deploy init-node``: the file by which an owner says what may be done with the data, and an empty ledger."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw.deployment.consent import CONSENT, STATE, Consent, DataBudget

DESCRIPTION = (
    "Write an owner's file of consent, with an explanation of every line, an empty ledger of private releases and a "
    "folder for the client's memory. Nobody else can read them. By default atoms may be sent, and nothing else."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, the data's name and their budget."""
    parser.add_argument("folder", type=Path, help="where the node's keys are, or a new folder")
    parser.add_argument("--data-set", required=True, metavar="NAME", help="your name for the data, such as clinic-7")
    parser.add_argument("--eps", type=float, help="the data's budget over all runs; runs without privacy are refused")
    parser.add_argument("--delta", type=float, help="the delta of that budget")


def execute(options: argparse.Namespace) -> int:
    """Write the files, and say how the node is started with them."""
    if (options.eps is None) != (options.delta is None):
        raise ValueError("--eps and --delta belong together: a budget has both")
    if not options.data_set:
        raise ValueError(f"--data-set={options.data_set!r}, expected letters, digits, '-' and '_'")
    budget = None if options.eps is None else DataBudget(options.eps, options.delta)
    consent = Consent(options.data_set, privacy=budget)
    folder = options.folder.absolute()
    try:
        path = consent.write(folder)
    except FileExistsError:
        raise ValueError(f"{folder / CONSENT} exists already: edit it, or give another folder") from None
    print(f"{path} says what this node may do with {options.data_set}: read it, and change what you like.")
    print(f"{consent.ledger(0, folder).path} will have every private release: keep it for as long as the data.")
    if budget is not None:
        print("Before private runs, and whenever the data have changed, check them as the app reads them:")
        print(f"  fedfw deploy check-data {folder} --app FOLDER")
    print("Start the node with them, beside what docs/deployment.md gives it:")
    print(f"""  fedfw deploy node ... --node-config 'partition-id=0 consent="{path}" state-dir="{folder / STATE}"'""")
    return 0
