"""A run's configuration: every option that a run can have, by one name, in one flat list.

The options are not declared here. Those of the problem stand in `fedfw.presets.ProblemOptions`,
those of a run in `fedfw.rounds.options.Options`, and an algorithm's own in its class. This file
puts them together and turns them into flags, keys of TOML files and keys of a deployed app.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

import tomlkit
import torch

from fedfw._version import __version__
from fedfw.algorithms.contract import Algorithm
from fedfw.algorithms.registry import ALGORITHMS
from fedfw.options import Option, nearest, option, options_of, parse_table
from fedfw.presets import ProblemOptions
from fedfw.privacy import Privacy
from fedfw.rounds.options import Options

VERSION_KEY = "fedfw"
"""The key of a stored configuration that says which version wrote it."""


@dataclass(frozen=True)
class AlgorithmChoice:
    """Which algorithm runs, on which set."""

    algorithm: Annotated[
        str | None,
        option(
            "algorithm; see 'fedfw algorithms'",
            otherwise="fedfw+",
            expected="an algorithm's name",
        ),
    ] = None
    constraint: Annotated[
        str | None,
        option(
            "constraint set, such as l1:10 or ksparse:k=79,r=1; see 'fedfw sets'",
            otherwise="ksparse:k=65,r=1 for digits, else l1:30; networks l2:10 each; completion "
            "nuclear:500",
            expected="a set such as l1:10",
        ),
    ] = None
    per_parameter: Annotated[
        bool, option("one set for each parameter tensor instead of one for all")
    ] = False


@dataclass(frozen=True)
class RunConfig(Options, AlgorithmChoice, ProblemOptions):
    """The configuration of a run; None means the default that the option's help says.

    Parameters
    ----------
    own : tuple of pairs
        The algorithm's own options that were given, by name. `of` and `having` take them as plain
        keywords.

    Examples
    --------
    >>> config = RunConfig.of(dataset="digits", rounds=10, momentum=0.9)
    >>> config.rounds, config.own
    (10, (('momentum', 0.9),))
    >>> RunConfig.of(rounds=0)
    Traceback (most recent call last):
        ...
    ValueError: rounds=0, expected a whole number of at least 1 and at most 1000000000
    """

    own: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Return a configuration from the names of options, the algorithms' own included; None for
        what is left open.
        """
        return cls().having(**values)

    def having(self, **values: Any) -> Self:
        """Return the configuration with other values, those of algorithms' options in ``own``; None
        leaves an option open.
        """
        listed = options_of(RunConfig)
        plain = {name: value for name, value in values.items() if name in listed}
        # What is no option of every run is one of an algorithm, or unknown.
        own = dict(self.own) | {name: value for name, value in values.items() if name not in listed}
        for name in own:
            if name not in algorithm_options():
                raise TypeError(
                    f"no option {name!r}{nearest(name, [*listed, *algorithm_options()])}"
                )
        return replace(
            self, **plain, own=tuple(sorted((n, v) for n, v in own.items() if v is not None))
        )

    def get(self, name: str) -> Any:
        """Return the value of an option, the algorithms' own included; None where it is open."""
        return getattr(self, name) if name in options_of(RunConfig) else dict(self.own).get(name)

    def items(self) -> dict[str, Any]:
        """Return the options that are not open, by their keys, as text, numbers or truth values."""
        found = {declared.key: self.get(name) for name, declared in all_options().items()}
        return {key: _written(key, value) for key, value in found.items() if value is not None}

    def to_toml(self) -> str:
        """Return the configuration as TOML, with the version that wrote it."""
        return tomlkit.dumps({VERSION_KEY: __version__, **self.items()})


def _written(key: str, value: Any) -> Any:
    """Return a value in a type of TOML: a truth value, a number, a text or a list; a value without
    such a form is refused.
    """
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Privacy):
        return value.text
    if isinstance(value, Path | torch.device):
        return str(value)
    if hasattr(value, "tolist"):  # a tensor or an array
        return value.tolist()
    if isinstance(value, list | tuple):
        return list(value)
    raise ValueError(f"{key} = {value!r} cannot be written to a file, expected text or numbers")


def algorithm_options() -> dict[str, Option]:
    """Return the options of all algorithms, by name; of an option that several algorithms have, the
    first declaration: the others differ in the default alone, for which see `default_of`.
    """
    declarations: dict[str, Option] = {}
    for cls in ALGORITHMS.values():
        for name, declared in options_of(cls).items():
            declarations.setdefault(name, declared)
    return declarations


def owners(name: str) -> list[str]:
    """Return the names of the algorithms that have an option."""
    return [key for key, cls in ALGORITHMS.items() if name in options_of(cls)]


def all_options() -> dict[str, Option]:
    """Return every option that can be written as text, by name: the problem's, the run's, the
    algorithms'.
    """
    listed = {**options_of(RunConfig), **algorithm_options()}
    return {name: declared for name, declared in listed.items() if declared.textual}


def algorithm_class(name: str) -> type[Algorithm]:
    """Return an algorithm by its name; an unknown one is refused with the nearest there is."""
    if name not in ALGORITHMS:
        close = nearest(name.lower(), ALGORITHMS)
        raise ValueError(
            f"unknown algorithm {name!r}{close}, expected one of {', '.join(ALGORITHMS)}"
        )
    return ALGORITHMS[name]


# --- reading ---


def merge(config: RunConfig, table: Mapping[str, Any], source: str) -> RunConfig:
    """Return the configuration with the given keys changed; ``source`` says where they stood."""
    return config.having(**parse_table(all_options().values(), table, source))


def _parse_file(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file as it stands."""
    if not path.is_file():
        raise ValueError(f"no configuration file {path}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no TOML file: {error}") from None


def is_stored(path: Path) -> bool:
    """Return whether fedfw wrote the file, with every option of a run, rather than a user with
    those that matter.
    """
    return VERSION_KEY in _parse_file(path)


def read_table(path: Path) -> dict[str, Any]:
    """Return the keys and values of a TOML file, without the version that wrote it."""
    return {key: value for key, value in _parse_file(path).items() if key != VERSION_KEY}


def read_config(path: Path) -> RunConfig:
    """Return a configuration from a TOML file; unknown keys and wrong types are refused."""
    return merge(RunConfig(), read_table(path), str(path))


def run_options(config: RunConfig) -> Options:
    """Return how the run goes: the part of the configuration beside problem and algorithm."""
    return Options(**{f.name: getattr(config, f.name) for f in fields(Options)})
