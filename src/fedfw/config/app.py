"""A deployed app's configuration: the table in its pyproject.toml, and a configuration from what
Flower read there.

The table holds every option of the one list, so an option that is declared somewhere reaches
deployments without another line. Flower has no null, so an empty text stands for an option that
is not given.
"""

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import tomlkit
from tomlkit.items import Table

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.config.run_config import (
    RunConfig,
    algorithm_class,
    algorithm_options,
    all_options,
    merge,
    owners,
)
from fedfw.deployment.settings import APP_DEFAULTS, DEPLOYMENT_KEYS, SIMULATED_ONLY, Deployment
from fedfw.models import is_own
from fedfw.options import Option, options_of

SOURCE = "run configuration"
_COLUMNS = 100


def help_of(declared: Option) -> str:
    """Return what an option does, with the algorithms that have it where not every run does."""
    names = owners(declared.name) if declared.name in algorithm_options() else []
    return f"{declared.help} ({', '.join(names)})" if names else declared.help


def default_of(declared: Option) -> str:
    """Return an option's default in words; algorithms with another one follow by name. An option
    that is not given at all has none.
    """
    default = declared.otherwise if declared.default is None else declared.default
    # Off, empty, or nothing in place of None.
    if default is False or default == "":
        return ""
    name = declared.name
    defaults = {owner: options_of(ALGORITHMS[owner])[name].default for owner in owners(name)}
    if name == "batch_size":  # an option of every run, whose default is the algorithm's
        defaults = {owner: algorithm.default_batch_size for owner, algorithm in ALGORITHMS.items()}
    others = (
        f"; {value} for {owner}" for owner, value in defaults.items() if value != declared.default
    )
    return f"{default}{''.join(others)}"


def app_options() -> dict[str, Option]:
    """Return the options of a configuration that a deployed app has, by name."""
    return {
        name: declared for name, declared in all_options().items() if name not in SIMULATED_ONLY
    }


def app_table() -> Table:
    """Return the table ``[tool.flwr.app.config]``: every option with its default, and its help as
    a comment above it.

    Examples
    --------
    >>> table = app_table()
    >>> table["rounds"], table["anchor-every"], table["tell-loss"]
    (5, '', False)
    """
    table = tomlkit.table()
    own = algorithm_options()
    sections = {
        "What is trained, and how.": {n: d for n, d in app_options().items() if n not in own},
        'Options of single algorithms; "" is the default of the algorithm.': {
            n: d for n, d in app_options().items() if n in own
        },
        "How it is deployed.": options_of(Deployment),
    }
    for title, declared in sections.items():
        table.add(tomlkit.comment(f"--- {title} ---"))
        for name, option in declared.items():
            usual = default_of(option) if name in own or option.default is None else ""
            text = f'{help_of(option)} ["" is {usual}]' if usual else help_of(option)
            for line in wrap(text, _COLUMNS, break_on_hyphens=False):
                table.add(tomlkit.comment(line))
            default = APP_DEFAULTS.get(name, None if name in own else option.default)
            table.add(option.key, "" if default is None else default)
    return table


def read_app_config(config: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a deployed app, from Flower's run configuration.

    Parameters
    ----------
    config : mapping
        The keys of the app's table. Those that say how the app is deployed are left out, and so are
        empty texts.

    Raises
    ------
    ValueError
        For unknown keys and values that are not allowed.

    Examples
    --------
    >>> read_app_config({"rounds": 3, "algorithm": "fedavg", "lr": "", "out": "/tmp/out"}).items()[
    ...     "rounds"
    ... ]
    3
    """
    given = {
        key: value for key, value in config.items() if key not in DEPLOYMENT_KEYS and value != ""
    }
    if "algorithm" in given and given.get("penalty") == APP_DEFAULTS["penalty"]:
        # The table's value is for the table's algorithm: one that has none, or a number of its
        # own, keeps to that.
        own = options_of(algorithm_class(str(given["algorithm"]))).get("penalty")
        if own is None or not isinstance(own.default, str):
            del given["penalty"]
    if is_own(str(given.get("model", ""))):
        raise ValueError(
            f"{SOURCE}: model = {given['model']!r} is code, and settings that travel do not say "
            "which code runs, "
            "expected a model of fedfw: an app has its own model in federation/task.py"
        )
    for key in SIMULATED_ONLY:
        if key in given:
            raise ValueError(f"{SOURCE}: {key} is for simulations: a deployment does not have it")
    return merge(RunConfig(), given, SOURCE)
