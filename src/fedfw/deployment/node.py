"""The settings of a node, which its owner gives it and no server can set: ``--node-config`` of a
SuperNode.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from fedfw.deployment.messages import MOST_CLIENTS
from fedfw.options import check_options, nearest, option, options_of

SOURCE = "node-config"
_PAIR = re.compile(r"""\s*(\S+?)=('[^']*'|"[^"]*"|\S+)""")
NODE_TABLE, NODE_COLUMNS = "node-table", "node-columns"
"""The keys by which `make_task` finds the owner's table and the names of its columns."""
_OF_FLOWER = ("num-partitions",)
"""Keys that Flower's simulation gives to its nodes, and that clients do not need."""


@dataclass(frozen=True)
class NodeSettings:
    """Settings that a node's owner gives it.

    Examples
    --------
    >>> NodeSettings.read({"partition-id": 3, "state-dir": "/var/lib/fedfw"}).state_dir
    '/var/lib/fedfw'
    >>> NodeSettings.read({"partition-id": 3, "consnet": "/etc/fedfw/consent.toml"})
    Traceback (most recent call last):
        ...
    ValueError: node-config: unknown key 'consnet' (did you mean 'consent'?), expected partition-id,
    consent, state-dir, leaving, table, columns
    """

    partition_id: Annotated[
        int,
        option(
            "the client's number", ge=0, lt=MOST_CLIENTS, expected="the client's number, such as 0"
        ),
    ]
    consent: Annotated[
        str,
        option(
            "the file of what the data's owner allows",
            expected='a path in quotes, such as "/etc/fedfw/consent.toml"',
        ),
    ] = ""
    state_dir: Annotated[
        str,
        option(
            "the folder of the client's memory",
            expected='a path in quotes, such as "/etc/fedfw/state"',
        ),
    ] = ""
    leaving: Annotated[bool, option("the client takes part no more")] = False
    table: Annotated[
        str,
        option(
            "the owner's own .csv file, for an app that reads one",
            expected='a path in quotes, such as "/srv/data/patients.csv"',
        ),
    ] = ""
    columns: Annotated[
        str,
        option(
            "the owner's own names of columns, where they differ from the app's",
            expected='pairs in quotes, such as "age=AGE_YEARS,event=DIED"',
        ),
    ] = ""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def own_table(self) -> dict[str, str]:
        """Return the owner's table for `make_task`, by keys that no server sets."""
        return {NODE_TABLE: self.table, NODE_COLUMNS: self.columns}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Return the settings from Flower's node configuration.

        Parameters
        ----------
        config : mapping of str to object
            By their keys.

        Raises
        ------
        ValueError
            For an unknown key, a missing number, and values that are not allowed.
        """
        declared = {option.key: option for option in options_of(NodeSettings).values()}
        for key in config:
            if key not in (*declared, *_OF_FLOWER):
                raise ValueError(
                    f"{SOURCE}: unknown key {key!r}{nearest(key, declared)}, expected "
                    f"{', '.join(declared)}"
                )
        if "partition-id" not in config:
            raise ValueError(
                f"{SOURCE}: there is no partition-id, expected the client's number: partition-id=0"
            )
        return cls(
            **{
                option.name: option.check(config[key], SOURCE)
                for key, option in declared.items()
                if key in config
            }
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the settings from the text of ``--node-config``, as Flower reads it.

        Parameters
        ----------
        text : str
            ``KEY=VALUE`` with spaces between them; texts stand in quotes.

        Examples
        --------
        >>> NodeSettings.parse('partition-id=0 state-dir="/var/lib/my state"').state_dir
        '/var/lib/my state'
        """
        return cls.read(parse_node_config(text))


def parse_node_config(text: str) -> dict[str, Any]:
    """Return keys and values of a text such as ``partition-id=0
    consent="/etc/fedfw/consent.toml"``.

    Flower leaves out words that are no pairs; here they are refused.
    """
    settings: dict[str, Any] = {}
    rest = text.strip()
    while rest:
        pair = _PAIR.match(rest)
        if pair is None:
            raise ValueError(f"{SOURCE}: {rest!r}, expected KEY=VALUE, such as partition-id=0")
        try:
            settings |= tomllib.loads(f"{pair[1]} = {pair[2]}")
        except tomllib.TOMLDecodeError:
            raise ValueError(
                f"{SOURCE}: {pair[1]} = {pair[2]}, expected true or false, a number, or a text in "
                "quotes"
            ) from None
        rest = rest[pair.end() :].strip()
    return settings
