"""The ``fedfw`` command: finds the file of the command that is called, and turns errors into one
line.

A command's file is imported only when that command is called: ``fedfw --help`` does not wait for
torch. It has two functions, ``add_arguments(parser)`` and ``execute(options)``, which returns the
exit status; a command with verbs sets such a function for each of them.
"""

import argparse
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module

from fedfw._version import __version__
from fedfw.cli.arguments import Argument, adds, read_help, shorten_help
from fedfw.environment import refuse_unknown_variables
from fedfw.options import nearest
from fedfw.terminal import escape_controls

COMMANDS = {
    "run": (
        "fedfw.cli.run",
        "simulate a federated run; without arguments on the digits that scikit-learn has",
    ),
    "resume": ("fedfw.cli.resume", "continue an interrupted run"),
    "compare": ("fedfw.cli.compare", "show several runs in one table and one picture"),
    "tune": (
        "fedfw.cli.tune",
        "search a small grid of choices on held-out training data; writes a file for run",
    ),
    "solve": (
        "fedfw.cli.solve",
        "find the central optimum F* that residuals are measured against, with proof",
    ),
    "advise": ("fedfw.cli.advise", "say which method to use, why, and what was measured"),
    "deploy": ("fedfw.cli.deploy", "run on Flower: real processes and encrypted connections"),
    "privacy": (
        "fedfw.cli.privacy",
        "say what a promise of differential privacy costs: the noise, and eps by rounds",
    ),
    "data": ("fedfw.cli.data", "list, get and show the data sets"),
    "algorithms": ("fedfw.cli.listings", "list the algorithms and what their clients share"),
    "models": ("fedfw.cli.listings", "list the models"),
    "sets": (
        "fedfw.cli.sets",
        "list the constraint sets, what their oracles cost and their atoms weigh",
    ),
}
"""Every command of the library by its name: the module that has it, and its line of help."""
LABORATORY = {
    "reproduce": "compute the paper's tables and figures, and more, in one report",
    "attack": "search for the clients' images in what they send, as a curious server could",
    "bench": "time rounds beside a loop over clients, hand-batched PyTorch and other frameworks",
}
"""Commands of the package fedfw-reproduction, with their help; its entry points name the modules.
"""
ENTRY_POINTS = "fedfw.commands"
LINES = "\n"
"""Of the characters that are not printable, errors and notes may have this one."""
SHARED = ("run", "resume", "tune", "reproduce")
"""Commands that divide their work among the processes that torchrun starts; others would do all of
it in each.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What was typed after ``fedfw``; by default from ``sys.argv``.

    Returns
    -------
    int
        The exit status: 2 for what is refused, 130 for an interrupt.
    """
    typed = sys.argv[1:] if arguments is None else list(arguments)
    # The options before a command, --help and --version, have no values.
    command = next((word for word in typed if not word.startswith("-")), "")
    python_way = warnings.formatwarning
    warnings.formatwarning = partial(_notice, command)
    try:
        refuse_unknown_variables()
        options = _parsed(typed, command)
        return int(options.do(options))
    except (ValueError, OSError, ImportError) as error:
        print(f"fedfw {command}: {escape_controls(str(error), keep=LINES)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nfedfw {command}: interrupted", file=sys.stderr)
        return 130
    finally:
        warnings.formatwarning = python_way


@contextmanager
def _quick_end(command: str) -> Iterator[None]:
    """Exit at once on an interrupt while modules are imported: torch does not survive an exception
    there.
    """

    def end(*signal_and_frame: object) -> None:
        """End the process; by calls of the system alone, which are safe in a signal handler."""
        os.write(2, f"\nfedfw {command}: interrupted\n".encode())
        os._exit(130)

    # Another handler belongs to the program that imports fedfw; other threads can set none.
    has_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    replaces = has_default and threading.current_thread() is threading.main_thread()
    if replaces:
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if replaces:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _notice(command: str, message: Warning | str, *where: object) -> str:
    """Return a warning as one line that says nothing of source files."""
    return f"fedfw {command}: note: {escape_controls(str(message), keep=LINES)}\n"


def _module_of(command: str) -> str:
    """Return the module of a command; one of the laboratory is looked up among the installed entry
    points.
    """
    if command in COMMANDS:
        return COMMANDS[command][0]
    # Imported here: reading the metadata of installed packages takes longer than the rest of this
    # module.
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS, name=command):
        return point.value
    raise ImportError(
        f"{command} belongs to the package fedfw-reproduction, which is not installed; "
        "in a clone of fedfw's repository run: pip install ./reproduction"
    )


def _add_arguments(parser: argparse.ArgumentParser, command: str, typed: list[str]) -> None:
    """Add the arguments of the command that was typed, and of its verb: others are not imported."""
    wants_help = not {"-h", "--help"}.isdisjoint(typed)
    if wants_help and command == "run":  # its help must not wait for torch
        adds(*(Argument(tuple(flags), details) for flags, details in read_help()["run"]))(parser)
        shorten_help(parser, typed)
        return
    with _quick_end(command):
        module = import_module(_module_of(command))
        parser.set_defaults(do=getattr(module, "execute", None), parser=parser)
        words = [word for word in typed if not word.startswith("-")]
        module.add_arguments(parser, *(words[1:2] if hasattr(module, "VERBS") else []))
    shorten_help(parser, typed)


def _parsed(typed: list[str], command: str) -> argparse.Namespace:
    """Parse a command line; only the chosen command's arguments are declared, because importing
    them all takes seconds.
    """
    parser = argparse.ArgumentParser(
        prog="fedfw",
        description="Federated Frank-Wolfe: train across clients inside a hard constraint set.",
    )
    parser.add_argument("--version", action="version", version=f"fedfw {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listed = {name: help_ for name, (_, help_) in COMMANDS.items()} | LABORATORY
    if command and command not in listed:
        parser.error(
            f"unknown command {command!r}{nearest(command, listed)}, expected one of "
            f"{', '.join(listed)}"
        )
    if command and command not in SHARED and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error(
            f"{command} does not divide its work among processes, expected it to be started "
            "without torchrun"
        )
    for name, help_ in listed.items():
        commands.add_parser(name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.")
    if command:
        _add_arguments(commands.choices[command], command, typed)
    options, unknown = parser.parse_known_args(typed)
    if unknown:
        flags = options.parser._option_string_actions
        close = nearest(unknown[0].partition("=")[0], flags)
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{close}")
    given = [word.partition("=")[0] for word in typed if word.startswith("--")]
    for flag in given:
        if given.count(flag) > 1:  # argparse would take the last value and drop the others
            options.parser.error(f"{flag} is given {given.count(flag)} times, expected once")
    return options


if __name__ == "__main__":
    sys.exit(main())
