"""Flags from the one list of options, and a configuration from a file and flags."""

import argparse
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.cli.arguments import OPTION, Argument, argument
from fedfw.config import RunConfig, all_options, merge
from fedfw.config.app import default_of, help_of
from fedfw.config.run_config import algorithm_options, is_stored, read_table
from fedfw.models import is_own
from fedfw.options import Option
from fedfw.ranks import Ranks, join_ranks

FILE = argument("config", nargs="?", help="TOML file with the same keys as the flags; flags win")
"""A configuration file."""


def flags_of(
    names: Collection[str] | None = None,
    without: Collection[str] = (),
    *,
    declared: Mapping[str, Option] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> list[Argument]:
    """Return a command-line flag for each option, with its help and default.

    Parameters
    ----------
    names, without : collection of str
        Only the options of these names, and none of these names.
    declared : mapping of str to Option, optional
        The options; by default all those of a run's configuration.
    defaults : mapping, optional
        Defaults of this command that differ from what was declared, for the help.
    """
    arguments = []
    for name, option in (all_options() if declared is None else declared).items():
        if name in without or not (names is None or name in names):
            continue
        flag = f"--{option.key}"
        default = (defaults or {}).get(name) or default_of(option)
        help_ = f"{help_of(option)} [{default}]" if default else help_of(option)
        details: dict[str, Any] = {"metavar": "VALUE"}
        if option.is_flag and option.default is True:
            flag = f"--no-{option.key}"
            details = {"action": "store_const", "const": "false"}
            help_ = f"without {help_.removesuffix(' [True]')}"  # the default is on
        elif option.is_flag:
            details = {"action": "store_const", "const": "true"}
        dest = f"{OPTION}{option.key}"
        # argparse formats help texts with %, which is written as %%.
        arguments.append(argument(flag, dest=dest, help=help_.replace("%", "%%"), **details))
        if name == "dataset":
            table_help = "your own .csv or .npz file: short for --dataset table:PATH"
            table = {"metavar": "PATH", "type": "table:{}".format, "help": table_help}
            arguments.append(argument("--data", dest=dest, **table))
    return arguments


def values_given(
    options: argparse.Namespace, declared: Mapping[str, Option] | None = None
) -> dict[str, Any]:
    """Return the values of the flags that were typed, checked, by the keys of their options."""
    values = {}
    for option in (all_options() if declared is None else declared).values():
        text = getattr(options, f"{OPTION}{option.key}", None)  # None for a flag that is not given
        if text is not None:
            values[option.key] = option.parse(text, "command line")
    return values


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes of a command that torchrun started; the first one prints for all."""
    with join_ranks() as ranks:
        if not ranks.first:
            warnings.simplefilter("ignore")
        yield ranks


def validate_code(source: str, stored: object, typed: str | None) -> None:
    """Refuse a user's own model that a file names, unless the user typed a model, too: a file must
    not run code.
    """
    if typed is None and is_own(str(stored or "")):
        raise ValueError(
            f"{source}: model = {stored!r} is code, which does not run because a file says so, "
            f"expected it to be typed as well: --model {stored}"
        )


def configured(options: argparse.Namespace, takes: Collection[str] | None = None) -> RunConfig:
    """Return the configuration from the file and the flags; of an option in both, the flag counts.

    What a file says for its own algorithm is not taken over when a flag names another algorithm.

    Parameters
    ----------
    options : argparse.Namespace
        What was typed.
    takes : collection of str, optional
        The names of the options that the command uses; by default all. A user's file with another
        one is refused. Of a file that fedfw wrote, which has all options of a run, the others are
        left out, and a line says so.
    """
    flags = values_given(options)
    file = options.config
    table = {} if file is None else read_table(Path(file))
    if hasattr(options, "out") and "out" in table:
        out = Path(table.pop("out"))
        options.out = options.out or out
    validate_code(str(file), table.get("model"), flags.get("model"))
    if takes is not None:
        table = _only(table, takes, Path(str(file)), str(options.command))
    chosen = flags.get("algorithm", "").lower()
    if chosen in ALGORITHMS and table.get("algorithm", chosen) != chosen:
        # The default batch size depends on the algorithm, like an option of its own.
        of_algorithm = {option.key for option in algorithm_options().values()} | {"batch-size"}
        dropped = ", ".join(key for key in table if key in of_algorithm)
        if dropped:
            print(
                f"{file} is for {table['algorithm']}, so these are not taken over to {chosen}: "
                f"{dropped}",
                file=sys.stderr,
            )
        table = {key: value for key, value in table.items() if key not in of_algorithm}
    return merge(merge(RunConfig(), table, str(file)), flags, "command line")


def keys_given(options: argparse.Namespace) -> set[str]:
    """Return the keys of the options that a user has given: flags, and what stands in a file of the
    user's own.
    """
    given = set(values_given(options))
    if options.config is not None and not is_stored(Path(options.config)):
        given |= set(read_table(Path(options.config)))
    return given


def _only(
    table: Mapping[str, Any], takes: Collection[str], file: Path, command: str
) -> dict[str, Any]:
    """Return the part of a file's table that a command uses: other options are refused in a user's
    file, and left out with a line on stderr of a file that fedfw wrote for a run.
    """
    names_by_key = {option.key: name for name, option in all_options().items()}
    unused = [key for key in table if key in names_by_key and names_by_key[key] not in takes]
    if unused and not is_stored(file):
        raise ValueError(
            f"{file}: {command} does not use {', '.join(unused)}, expected a file without"
        )
    if unused:
        print(f"{file} is of a run; {command} does not use {', '.join(unused)}", file=sys.stderr)
    return {key: value for key, value in table.items() if key not in unused}
