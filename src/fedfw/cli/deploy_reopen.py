"""``fedfw deploy reopen``: an owner looks why a promise was closed, and lets the client take orders again."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw.deployment.consent import CONSENT, STATE, Consent
from fedfw.deployment.store import FAILURES

DESCRIPTION = (
    "Say why a private client takes no orders, and let it take orders again. A client closes its promise when an "
    "error or a limit strikes in the middle of an order, because a server must not learn from failures: each closing "
    "may have told it one bit. Find the cause first: --look only looks. The ledger, the budget and the runs stay as "
    "they are."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The owner's folder, and whether to look only."""
    parser.add_argument("folder", type=Path, help=f"the owner's folder, which has {CONSENT}")
    parser.add_argument("--partition-id", type=int, default=0, metavar="N", help="the client's number [%(default)s]")
    parser.add_argument("--state-dir", type=Path, metavar="FOLDER", help="the client's memory [FOLDER/state]")
    parser.add_argument("--look", action="store_true", help="say why it is closed, and change nothing")


def execute(options: argparse.Namespace) -> int:
    """Say what closed the promise, and open it; the status is 1 where it is closed and stays so."""
    folder = options.folder.absolute()
    consent = Consent.read(folder / CONSENT)
    state = folder / STATE if options.state_dir is None else options.state_dir.absolute()
    promise = consent.promise(options.partition_id, state)
    closing = promise.settle() if options.look else promise.reopen()
    name = consent.data_set or f"client {options.partition_id}"
    if closing is None:
        print(f"The promise of {name} is open: nothing to do.")
        return 0
    print(f"The promise of {name} was closed on {closing.since}, at {closing.order}:")
    print(f"  {closing.reason}")
    if (state / FAILURES).exists():
        print(f"{state / FAILURES} has the details.")
    if options.look:
        print("It takes no order until you run this command without --look.")
        return 1
    print("It takes orders again.")
    return 0
