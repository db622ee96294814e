"""Commands of an owner of data: ``fedfw deploy init-node``, ``check-data`` and ``reopen``."""

import argparse
from pathlib import Path

from fedfw.cli.arguments import adds, argument
from fedfw.cli.flags import flags_of, values_given
from fedfw.deployment import data_checks
from fedfw.deployment.consent import CONSENT, STATE, Consent
from fedfw.deployment.node import NodeSettings
from fedfw.deployment.reveals import LEAK_TABLE, PROMISE_SENTENCE, SAMPLES_SENTENCE
from fedfw.deployment.store import FAILURES
from fedfw.deployment.terms import USUAL_SETS, DataBudget

_NOT_CHECKED = ("tol", "polish", "device", "eval_every", "weights")
"""Options of a run that have nothing to do with the data of one client."""
_CLIENT = (
    argument("folder", type=Path, help=f"the owner's folder, which has {CONSENT}"),
    argument(
        "--partition-id", type=int, default=0, metavar="N", help="the client's number [%(default)s]"
    ),
    argument("--state-dir", type=Path, metavar="FOLDER", help="the client's memory [FOLDER/state]"),
)
"""The owner's folder, and what names a client in it."""


add_init_node_arguments = adds(
    argument("folder", type=Path, help="where the node's keys are, or a new folder"),
    argument(
        "--data-set", required=True, metavar="NAME", help="your name for the data, such as clinic-7"
    ),
    argument(
        "--eps",
        type=float,
        help="the data's budget over all runs; runs without privacy are refused",
    ),
    argument("--delta", type=float, help="the delta of that budget"),
    argument(
        "--sets",
        nargs="+",
        default=USUAL_SETS,
        metavar="SET",
        help=f"sets that may be used [{' '.join(USUAL_SETS)}]",
    ),
)


def init_node(options: argparse.Namespace) -> int:
    """Write an owner's file of consent, with an explanation of every line, an empty ledger of
    private releases and a folder for the client's memory. No other user can read them. By default
    atoms of sets that say little may be sent, and nothing else. It prints what each choice reveals.
    """
    if (options.eps is None) != (options.delta is None):
        raise ValueError("--eps and --delta belong together: a budget has both")
    if not options.data_set:
        raise ValueError("--data-set is empty, expected a name of letters, digits, '-' and '_'")
    budget = None if options.eps is None else DataBudget(options.eps, options.delta)
    consent = Consent(options.data_set, sets=tuple(options.sets), privacy=budget)
    folder = options.folder.absolute()
    try:
        path = consent.write(folder)
    except FileExistsError:
        raise ValueError(
            f"{folder / CONSENT} exists already: edit it, or give another folder"
        ) from None
    checked = ""
    if budget is not None:
        checked = f"""\
Before private runs, and whenever the data have changed, check them as the app reads them:
  fedfw deploy check-data {folder} --app FOLDER
"""
    node_config = f'partition-id=0 consent="{path}" state-dir="{folder / STATE}"'
    print(
        f"""\
{path} says what this node may do with {options.data_set}: read it, and change what you like.

{LEAK_TABLE}

{SAMPLES_SENTENCE} {PROMISE_SENTENCE}
Allowed here: {", ".join(consent.share)} of the sets {", ".join(consent.sets)},
of {consent.least_samples} or more samples, {consent.most_local_steps} local steps a round,
{consent.most_rounds} rounds over all runs.

{consent.ledger(0, folder).path} will have every private release: keep it for as long as the data.
{checked}Start the node with them, beside what docs/deployment.md gives it:
  fedfw deploy node ... --node-config '{node_config}'"""
    )
    return 0


add_check_data_arguments = adds(
    *_CLIENT,
    argument("--app", type=Path, required=True, metavar="FOLDER", help="the app, unpacked"),
    argument("--table", default="", metavar="FILE", help="the node's own table, as in its config"),
    argument("--columns", default="", metavar="PAIRS", help="its names of columns: age=AGE,..."),
    *flags_of(without=_NOT_CHECKED),
)


def check_data(options: argparse.Namespace) -> int:
    """Read a client's data as an app does, on the owner's machine and whatever a server asks, and
    look whether they fit its model and its loss and are finite. Where they do, note it in the
    owner's folder: private runs take part with checked data alone. Run it again whenever the data
    change. An option that is given takes the place of the setting in the app's pyproject.toml. The
    app's code runs with your rights: check with apps that you have read.
    """
    from fedfw.deployment.flower.app_folder import AppFolder

    consent, state, name = _client(options)
    app = AppFolder.read(options.app)
    node = NodeSettings(options.partition_id, table=options.table, columns=options.columns)
    task = app.make_task(app.settings(values_given(options)) | node.own_table)
    try:
        check = data_checks.check_data(task, options.partition_id, state, consent)
    except data_checks.InvalidDataError as error:
        raise ValueError(
            f"{error}\nNothing was noted, and such data do not join a private run."
        ) from None
    noted = consent.checks(options.partition_id, state).path
    print(
        f"""\
The {check.samples} samples of {name} fit the app's model and loss, and all of them are finite.
{noted} notes it: private runs of this model take part with
these data, and with no others. Privacy is for each sample: rows of one person are protected one by
one."""
    )
    return 0


add_reopen_arguments = adds(
    *_CLIENT,
    argument("--look", action="store_true", help="say why it is closed, and change nothing"),
)


def reopen(options: argparse.Namespace) -> int:
    """Say why a private client takes no orders, and let it take orders again. A client closes its
    promise when an error or a limit strikes in the middle of an order, because a server must not
    learn from failures: each closing may have revealed one bit. Find the cause first: --look only
    looks, and its status is 1 where the promise is closed. The ledger, the budget and the runs stay
    as they are.
    """
    consent, state, name = _client(options)
    promise = consent.promise(options.partition_id, state)
    closing = promise.settle() if options.look else promise.reopen()
    if closing is None:
        print(f"The promise of {name} is open: nothing to do.")
        return 0
    print(
        f"The promise of {name} was closed on {closing.since}, at {closing.order}:\n  "
        f"{closing.reason}"
    )
    if (state / FAILURES).exists():
        print(f"{state / FAILURES} has the details.")
    if options.look:
        print("It takes no order until you run this command without --look.")
        return 1
    print("It takes orders again.")
    return 0


def _client(options: argparse.Namespace) -> tuple[Consent, Path, str]:
    """Return what the owner allows, the folder of the client's memory, and the name of the data."""
    folder = options.folder.absolute()
    consent = Consent.read(folder / CONSENT)
    state = folder / STATE if options.state_dir is None else options.state_dir.absolute()
    return consent, state, consent.data_set or f"client {options.partition_id}"
