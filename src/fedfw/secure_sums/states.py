"""The states of client and server between messages, and their encoding.

The encoding of values is JSON: integers, true and false are themselves, a string is bytes in
hexadecimal digits, and lists and mappings carry a letter in front.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from enum import IntEnum
from typing import Any, Self

from fedfw.secure_sums.errors import MalformedMessageError


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return ["m", *([_plain(key), _plain(item)] for key, item in value.items())]
    if isinstance(value, (list, tuple)):
        return ["l", *(_plain(item) for item in value)]
    if is_dataclass(value):
        return ["r", *(_plain(getattr(value, field.name)) for field in fields(value))]
    if value is None or isinstance(value, int):
        return value
    raise TypeError(f"a state cannot hold {type(value).__name__}")


def _restored(value: Any) -> Any:
    if isinstance(value, str):
        return bytes.fromhex(value)
    if not isinstance(value, list):
        return value
    tag, *items = value
    if tag == "m":
        return {_restored(key): _restored(item) for key, item in items}
    if tag == "r":
        return CurrentRound(*(_restored(item) for item in items))
    return tuple(_restored(item) for item in items)


class State:
    """The base class of both states."""

    def to_bytes(self) -> bytes:
        """Return the state as bytes, which hold secrets.

        Returns
        -------
        bytes
            JSON.
        """
        values = {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)  # type: ignore[arg-type]
        }
        return json.dumps(values).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the state that `to_bytes` encoded.

        Parameters
        ----------
        data : bytes
            What was kept.

        Returns
        -------
        State
            An equal one.

        Raises
        ------
        MalformedMessageError
            If the bytes are no state of this kind.
        """
        try:
            values = json.loads(data)
            return cls(**{name: _restored(value) for name, value in values.items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise MalformedMessageError(f"damaged state: {error}") from None


@dataclass(frozen=True)
class CurrentRound:
    """A client's round under way: for whom it masked, the shares that it holds (both secrets' one
    after the other, by dealer), and the list that it signed.
    """

    number: int
    dealers: tuple[bool, ...]
    shares: dict[int, bytes]
    survivors: tuple[bool, ...] | None = None


@dataclass
class ClientState(State):
    """A client's private memory.

    Parameters
    ----------
    serial : int
        The serial number of the journal when the state was changed last.
    terms : bytes
        The encoded terms of the batch.
    value : bytes
        The client's part of the batch's randomness.
    commitments : bytes
        The message that named the members, until their values are known.
    members, openings
        As for `Batch`.
    secrets : dict
        By round: key seed of the masks, key seed of the envelopes, and self-mask seed.
    records : dict
        By round, then by neighbour: rows of a `KeyRecord`.
    own_shares : dict
        By round: the client's shares of its own secrets.
    dealt : bool
        Whether it has dealt its shares.
    current : CurrentRound or None
        The round under way.
    request, reply : bytes
        The hash of the last message, and the answer to it.
    """

    serial: int = 0
    terms: bytes = b""
    value: bytes = b""
    commitments: bytes = b""
    members: tuple[int, ...] = ()
    openings: tuple[bytes, ...] = ()
    secrets: dict[int, tuple[bytes, bytes, bytes]] = field(default_factory=dict)
    records: dict[int, dict[int, bytes]] = field(default_factory=dict)
    own_shares: dict[int, bytes] = field(default_factory=dict)
    dealt: bool = False
    current: CurrentRound | None = None
    request: bytes = b""
    reply: bytes = b""


class Phase(IntEnum):
    """The messages that the server waits for."""

    COMMIT = 0
    OPEN = 1
    PUBLISH = 2
    DEAL = 3
    IDLE = 4
    UPLOAD = 5
    AGREE = 6
    REVEAL = 7


@dataclass
class ServerState(State):
    """The server's memory of a batch.

    Parameters
    ----------
    phase : int
        What it waits for; see `Phase`.
    commitments : dict
        By client: digest and signature.
    members, openings
        As for `Batch`; the openings by client.
    records : dict
        By round, then by client: rows of a `KeyRecord`.
    sealed : dict
        By round, then by dealer: the encrypted shares by holder.
    counters : dict
        By client: one more than the last round of which there is an upload.
    number : int
        The round under way.
    dealers, survivors : tuple of bool
        Of the round under way.
    uploads : dict
        By client: masked numbers and signature.
    signatures : dict
        By client, of the list of survivors.
    reveals : dict
        By client: the shares that it revealed, by dealer.
    """

    phase: int = Phase.COMMIT
    commitments: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    members: tuple[int, ...] = ()
    openings: dict[int, bytes] = field(default_factory=dict)
    records: dict[int, dict[int, bytes]] = field(default_factory=dict)
    sealed: dict[int, dict[int, dict[int, bytes]]] = field(default_factory=dict)
    counters: dict[int, int] = field(default_factory=dict)
    number: int = 0
    dealers: tuple[bool, ...] = ()
    survivors: tuple[bool, ...] = ()
    uploads: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    signatures: dict[int, bytes] = field(default_factory=dict)
    reveals: dict[int, dict[int, bytes]] = field(default_factory=dict)
