"""What travels: orders from the server and answers from clients, as flat fields that any transport can carry.

A message is a dictionary of whole numbers, floats, strings and bytes. Everything that comes in is checked here before
anybody looks at it, and nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedfw.errors import MessageError
from fedfw.rounds.wire import NUMBER_NBYTES

SCHEMA = 3
"""Version of messages and of what both sides store: one that differs is refused."""

Fields = dict[str, Any]


class Ask(StrEnum):
    """What a client is asked for."""

    STEP = "step"  # a round's step: an atom, or a vector
    SUM = "sum"  # its contribution to a gathered sum


class Kind(StrEnum):
    """What a client answers."""

    STEP = "step"
    SUM = "sum"
    LOST = "lost"  # its memory is not the one that the order goes on from
    LEAVING = "leaving"  # it takes part no more
    OUTDATED = "outdated"  # the order is of a round that this client has left behind


_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@lru_cache
def _validators(cls: Any) -> dict[str, TypeAdapter[Any]]:
    return {name: TypeAdapter(kind, config=_STRICT) for name, kind in get_type_hints(cls).items()}


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
                found[item.name] = value.value if isinstance(value, StrEnum) else value
        return found

    @classmethod
    def of(cls, received: Mapping[str, Any]) -> Self:
        """The inverse; raises `MessageError` for anything else."""
        left = dict(received)
        if left.pop("schema", None) != SCHEMA:
            raise MessageError(f"schema {received.get('schema')!r}, expected {SCHEMA}")
        values: Fields = {}
        kind: Any = cls
        validators = _validators(kind)
        for item in fields(cls):
            if item.default_factory is dict:
                prefix = f"{item.name}."
                value: Any = {key.removeprefix(prefix): left.pop(key) for key in list(left) if key.startswith(prefix)}
            elif item.name in left:
                value = left.pop(item.name)
                if value is None:
                    raise MessageError(f"{item.name} is empty")
            elif item.default is MISSING:
                raise MessageError(f"there is no {item.name}")
            else:
                continue
            try:
                values[item.name] = validators[item.name].validate_python(value)
            except ValidationError as error:
                reason = error.errors(include_input=False, include_url=False)[0]["msg"]
                raise MessageError(f"{item.name}={str(value)[:40]!r}: {reason}") from None
        if left:
            raise MessageError(f"unknown fields {[str(name)[:40] for name in sorted(left)[:5]]}")
        return cls(**values)


@dataclass(frozen=True)
class Order(_Checked):
    """From the server to one client.

    Parameters
    ----------
    run : str
        Names the training: clients keep their memory by it.
    t : int
        The round.
    client, n, weight : int, int, float
        Its number, how many clients there are, and its w_i.
    counted : int
        The last round in which this client's answer was counted, 0 for none. The client commits or rolls back by it.
    version, base : int
        The number of the message in this order, and the number of the message that its vectors refer to; 0 for none.
    digest : bytes
        Stands for the bits of the message's vectors.
    vectors : dict of str to bytes
        The message's vectors, such as xbar and ybar, in the encodings of `fedfw.rounds.wire`.
    mean : bytes
        The mean of a gathered sum; empty in rounds without one.
    memory : dict of str to bytes
        What the client is to hold before the step, where the server knows better: after a loss and for a newcomer.
    penalty, lr : float
        For clients whose own task leaves these numbers open.
    ask : str
        An `Ask`.
    tell : bool
        Whether to report w_i f_i(xbar) and the certificate's number.
    """

    run: str
    t: int
    client: int
    n: int
    weight: float
    counted: int
    version: int
    base: int
    digest: bytes
    vectors: dict[str, bytes] = field(default_factory=dict)
    mean: bytes = b""
    memory: dict[str, bytes] = field(default_factory=dict)
    penalty: float | None = None
    lr: float | None = None
    ask: str = Ask.STEP.value
    tell: bool = False

    @property
    def payload_nbytes(self) -> int:
        """What tables quote: vectors and memory."""
        return len(self.mean) + sum(map(len, (*self.vectors.values(), *self.memory.values())))

    @property
    def evidence_nbytes(self) -> int:
        """What lets the client check what it was sent."""
        return len(self.digest)


@dataclass(frozen=True)
class Answer(_Checked):
    """From a client to the server.

    Parameters
    ----------
    run, t, client
        Of the order.
    kind : str
        A `Kind`.
    payload : bytes
        The atom's encoding, or a vector.
    digest : bytes
        Stands for the x_i that the client holds before the round, so that the server sees that both hold the same.
    loss, number : float
        w_i f_i(xbar) and the certificate's number, where they are reported.
    """

    run: str
    t: int
    client: int
    kind: str
    payload: bytes = b""
    digest: bytes = b""
    loss: float | None = None
    number: float | None = None

    @property
    def evidence_nbytes(self) -> int:
        """What lets the server check and prove things."""
        return len(self.digest) + NUMBER_NBYTES * sum(value is not None for value in (self.loss, self.number))


@dataclass(frozen=True)
class Hello(_Checked):
    """What a client says of itself when the server sees a node for the first time.

    Parameters
    ----------
    client : int
        Its number.
    leaving : bool
        Whether it takes part no more.
    steepness, smoothness : float
        ||grad f_i|| at the start and L_i, where the task's penalty or step size is to be worked out from them.
    """

    client: int
    leaving: bool = False
    steepness: float | None = None
    smoothness: float | None = None
