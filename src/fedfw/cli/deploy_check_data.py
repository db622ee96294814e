"""``fedfw deploy check-data``: an owner finds out whether the data fit an app, and lets them join."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw.cli.flags import add_flags, values_given
from fedfw.deployment.consent import CONSENT, STATE, Consent

DESCRIPTION = (
    "Read a client's data as an app does, on the owner's machine and whatever a server asks, and look whether they fit "
    "its model and its loss and are finite. Where they do, note it in the owner's folder: private runs take part with "
    "checked data alone. Run it again whenever the data change. An option that is given takes the place of the setting "
    "in the app's pyproject.toml. The app's code runs with your rights: check with apps that you have read."
)
_NOT_HERE = ("tol", "device", "eval_every", "weights")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The owner's folder, the app, and the client's number."""
    parser.add_argument("folder", type=Path, help=f"the owner's folder, which has {CONSENT}")
    parser.add_argument("--app", type=Path, required=True, metavar="FOLDER", help="the app, unpacked")
    parser.add_argument("--partition-id", type=int, default=0, metavar="N", help="the client's number [%(default)s]")
    parser.add_argument("--state-dir", type=Path, metavar="FOLDER", help="the client's memory [FOLDER/state]")
    add_flags(parser, without=_NOT_HERE)


def execute(options: argparse.Namespace) -> int:
    """Check the data, and say what was found."""
    from fedfw.deployment.data_checks import InvalidDataError, check_data
    from fedfw.deployment.flower.app_folder import AppFolder

    folder = options.folder.absolute()
    consent = Consent.read(folder / CONSENT)
    app = AppFolder.read(options.app)
    task = app.make_task(app.settings(values_given(options)))
    state = folder / STATE if options.state_dir is None else options.state_dir.absolute()
    try:
        found = check_data(task, options.partition_id, state, consent)
    except InvalidDataError as error:
        raise ValueError(f"{error}\nNothing was noted, and such data do not join a private run.") from None
    name = consent.data_set or f"client {options.partition_id}"
    print(f"The {found.samples} samples of {name} fit the app's model and loss, and all of them are finite.")
    print(f"{consent.checks(options.partition_id, state).path} notes it: private runs of this model take part with")
    print("these data, and with no others. Privacy is for each sample: rows of one person are protected one by one.")
    return 0
