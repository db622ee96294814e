"""What travels: orders from the server and answers from clients, as flat fields that any transport can carry.

A message is a dictionary of whole numbers, floats, strings and bytes. Everything that comes in is checked here before
anybody looks at it, and nothing is ever unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor

from fedfw.errors import AtomError, MessageError
from fedfw.simulation.ledger import DENSE, VALUES, decode_down, encode_dense, encode_values

SCHEMA = 1
"""Version of messages and of what both sides store: one that differs is refused."""

Fields = dict[str, Any]

STEP, GRADIENT = "step", "gradient"
"""What a client is asked for: a round's atom, or (anchored FedFW alone) its gradient at xbar."""
ATOM, LOST, LEAVING, OUTDATED = "atom", "lost", "leaving", "outdated"
"""What a client answers: its atom; that its memory does not fit; that it goes; that it was asked too late."""


@dataclass(frozen=True)
class _Checked:
    """To fields and back; ``vectors``-like dictionaries of bytes are flattened as ``name.key``."""

    def fields(self) -> Fields:
        """What is sent; what is None or empty is left out."""
        found: Fields = {"schema": SCHEMA}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, dict):
                found |= {f"{item.name}.{key}": inner for key, inner in value.items()}
            elif value is not None:
                found[item.name] = value
        return found

    @classmethod
    def of(cls, received: Mapping[str, Any]) -> Self:
        """The inverse; raises `MessageError` for anything else."""
        left = dict(received)
        if left.pop("schema", None) != SCHEMA:
            raise MessageError(f"schema {received.get('schema')!r}, expected {SCHEMA}")
        values: Fields = {}
        for item in fields(cls):
            kind = str(item.type)
            if kind.startswith("dict"):
                inner = {key.partition(".")[2]: left.pop(key) for key in list(left) if key.startswith(item.name + ".")}
                if not all(type(value) is bytes for value in inner.values()):
                    raise MessageError(f"{item.name} holds something else than bytes")
                values[item.name] = inner
            elif item.name in left:
                values[item.name] = _of_kind(item.name, left.pop(item.name), kind)
            elif item.default is MISSING:
                raise MessageError(f"there is no {item.name}")
        if left:
            raise MessageError(f"unknown fields {sorted(left)[:5]}")
        return cls(**values)


def _of_kind(name: str, value: Any, kind: str) -> Any:
    expected = kind.removesuffix(" | None")
    if type(value).__name__ != expected or (expected == "float" and not math.isfinite(value)):
        raise MessageError(f"{name}={str(value)[:40]!r}, expected {expected}")
    return value


@dataclass(frozen=True)
class Order(_Checked):
    """From the server to one client.

    Parameters
    ----------
    run
        Names the training: clients keep their memory by it.
    t
        The round.
    client, n, weight
        Its number, how many there are, and its w_i.
    counted
        The last round in which this client's atom was counted, 0 for none. The client commits or rolls back by it.
    model
        xbar, whole or as what changed since the order of round ``counted``; ``model_digest`` stands for its bits.
    vectors
        Further vectors of the round, such as ybar.
    memory
        What the client is to hold before the step, where the server knows better: after a loss, for a newcomer, after
        an anchor. Otherwise empty.
    ask
        ``step`` or ``gradient``.
    tell
        Whether to tell f_i(xbar) and the certificate's number.
    """

    run: str
    t: int
    client: int
    n: int
    weight: float
    counted: int
    model: bytes
    model_digest: bytes
    vectors: dict[str, bytes] = field(default_factory=dict)
    memory: dict[str, bytes] = field(default_factory=dict)
    ask: str = STEP
    tell: bool = False

    @property
    def nbytes(self) -> int:
        """What is not framing."""
        return len(self.model) + sum(map(len, (*self.vectors.values(), *self.memory.values())))


@dataclass(frozen=True)
class Answer(_Checked):
    """From a client to the server.

    ``digest`` is of the x_i it holds before the round, so that the server sees that both hold the same. ``payload`` is
    the atom's encoding, or the gradient.
    """

    run: str
    t: int
    client: int
    kind: str
    payload: bytes = b""
    digest: bytes = b""
    loss: float | None = None
    number: float | None = None


@dataclass(frozen=True)
class Hello(_Checked):
    """What a client says of itself when the server sees a node for the first time."""

    client: int
    leaving: bool = False


def encode_vector(x: Tensor) -> bytes:
    """x (p,), whole or by the coordinates that are not zero, whichever is shorter."""
    whole, places = encode_dense(x), x.nonzero().flatten()
    if len(places) == len(x):
        return whole
    return min(whole, encode_values(x, places), key=len)


def decode_vector(data: bytes, like: Tensor) -> Tensor:
    """The inverse of `encode_vector`; raises `AtomError`."""
    if data[:1] not in (bytes([DENSE]), bytes([VALUES])):
        raise AtomError("a vector goes whole or by its coordinates")
    return decode_down(data, torch.zeros_like(like))
