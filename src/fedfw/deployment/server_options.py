"""Which options of a run a server has set: those whose values are not the ones of the signed app.

A run's configuration comes from two sides. The app's own values lie in its ``pyproject.toml``,
which is signed with the rest of it. A server that starts the run may replace values, and no
signature covers those.
"""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.deployment.settings import DEPLOYMENT_KEYS, SIMULATED_ONLY
from fedfw.options import Option, options_of
from fedfw.presets import ProblemOptions
from fedfw.rounds.options import Options

DATA_OPTIONS = ("dataset", "data-dir", "target", "time", "client-column", "partition", "clients")
"""Options that say which data are read, and which part of them is a client's: no server may set
them.
"""
SEED = "seed"
"""The option by which data are divided, test data chosen and minibatches drawn: set by servers that
are allowed to.
"""
READING_OPTIONS = ("model", SEED)
"""Options that decide how data are read: targets as numbers or as classes, and which samples a
client has. Data may be readable with one value and not with another, so that under a budget no
server may set them.
"""
_SET_AND_ALGORITHM = ("algorithm", "constraint", "per-parameter")


@lru_cache
def run_options() -> dict[str, Option | None]:
    """Return the declarations of a run's options by their keys; None for the set's and the
    algorithm's keys, which are checked when their texts are parsed.
    """
    declarations: dict[str, Option | None] = {}
    for cls in (ProblemOptions, Options, *ALGORITHMS.values()):
        for declared in options_of(cls).values():
            # An option of Python alone has no form as text, so that no configuration holds it.
            if declared.textual and declared.key not in SIMULATED_ONLY:
                # Algorithms that share a key differ in its default alone; type and range are
                # checked here, so that any of their declarations will do.
                declarations.setdefault(declared.key, declared)
    declarations.update(dict.fromkeys(_SET_AND_ALGORITHM))
    return declarations


def default_options() -> tuple[str, ...]:
    """Return the keys that a server may set where an owner says nothing."""
    return tuple(sorted(key for key in run_options() if key not in (*DATA_OPTIONS, SEED)))


def settings_in(folder: Path) -> dict[str, Any] | None:
    """Return the run configuration in an app's folder; None where there is no app.

    Parameters
    ----------
    folder : Path
        Its ``pyproject.toml`` has the table ``[tool.flwr.app.config]``; tables in that are joined
        by dots, as Flower does it.
    """
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        app = project["tool"]["flwr"]["app"]
        return _flat(app.get("config", {}))
    # Besides no file and no TOML: tables that are missing, or are values of another type.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with keys joined by dots: {"a": {"b": 1}} as {"a.b": 1}."""
    joined: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            joined.update(_flat(value, f"{prefix}{key}."))
        else:
            joined[f"{prefix}{key}"] = value
    return joined


def set_by_server(config: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that a server has set, by their keys: those whose values are not
    the signed app's, without options of the deployment, which clients do not read.

    Parameters
    ----------
    config : mapping
        The run's configuration by keys.
    own : mapping
        The values of the signed app.
    """
    changed = {}
    for key, value in config.items():
        # With the types: True == 1 == 1.0, and an app may treat these as different values.
        unchanged = key in own and type(own[key]) is type(value) and own[key] == value
        if key not in DEPLOYMENT_KEYS and not unchanged:
            changed[key] = value
    return changed


def check_range(key: str, value: Any) -> None:
    """Refuse a value that no run could have; raises ValueError with what is expected."""
    declared = run_options().get(key)
    if declared is not None and value != "":
        declared.parse(value, "run configuration")
