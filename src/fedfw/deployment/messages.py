"""Messages: orders from the server and answers from clients, as flat fields that any transport
can carry.

A message is a dictionary of whole numbers, floats, strings and bytes. Everything that comes in is
checked here before anybody looks at it: first its size, by the limits below, then every field by
its type and range. Nothing is ever unpickled.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Self, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedfw.errors import MessageError
from fedfw.rounds.wire import NUMBER_NBYTES

SCHEMA = 5
"""Version of messages and of what both sides store: one that differs is refused."""

Fields = dict[str, Any]

# --- limits: no honest message comes near them ---

MOST_FIELDS = 64
"""Fields of a message, the vectors in it included."""
MOST_LETTERS = 200
"""Characters of a field's name, and of a text."""
MOST_BYTES = 2**32
"""Bytes of all values of a message together; a server that has the model allows fewer."""
MOST_CLIENTS = 10**6
"""Clients are numbered below this."""
TOO_LARGE = 1e18
"""Numbers reach this neither in a message nor in a vector, so that sums of them do not overflow
float32.
"""

Text = Annotated[str, Field(max_length=MOST_LETTERS)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Positive = Annotated[int, Field(ge=1, lt=2**53)]
Number = Annotated[float, Field(gt=-TOO_LARGE, lt=TOO_LARGE)]
Magnitude = Annotated[float, Field(ge=0, lt=TOO_LARGE)]
ClientNumber = Annotated[int, Field(ge=0, lt=MOST_CLIENTS)]
ClientCount = Annotated[int, Field(ge=1, le=MOST_CLIENTS)]


def require(holds: object, failure: str) -> None:
    """Raise `MessageError` where something does not hold of a message."""
    if not holds:
        raise MessageError(failure)


def refuse_oversized(received: Mapping[str, Any], most_bytes: int = MOST_BYTES) -> None:
    """Raise `MessageError` for a message that is longer than honest ones are; lists and the like
    are not looked into.

    Parameters
    ----------
    received : mapping
        What came in.
    most_bytes : int
        How many bytes its values may have together.

    Examples
    --------
    >>> refuse_oversized({"t": 3, "payload": b"123"}, most_bytes=1000)
    >>> try:
    ...     refuse_oversized({"payload": b"123"}, most_bytes=2)
    ... except MessageError as error:
    ...     print(error)
    oversized: 3 bytes, expected at most 2
    """
    if len(received) > MOST_FIELDS:
        raise MessageError(f"oversized: {len(received)} fields, expected at most {MOST_FIELDS}")
    size = 0
    for name, value in received.items():
        if type(name) is not str or len(name) > MOST_LETTERS:
            raise MessageError(
                f"oversized: a field's name, expected a text of at most {MOST_LETTERS} characters"
            )
        if type(value) not in (bool, int, float, str, bytes):
            raise MessageError(
                f"{name!r}: a value of type {type(value).__name__}, expected one number, text or "
                "bytes"
            )
        if type(value) is str and len(value) > MOST_LETTERS:
            raise MessageError(
                f"oversized: {name!r} has {len(value)} characters, expected at most {MOST_LETTERS}"
            )
        # Python's integers have no limit; transports carry at most 64 bits.
        if type(value) is int and value.bit_length() > 64:
            raise MessageError(
                f"oversized: {name!r} is a number of {value.bit_length()} bits, expected at most 64"
            )
        size += len(value) if isinstance(value, str | bytes) else 8  # a number has 8 bytes
    if size > most_bytes:
        raise MessageError(f"oversized: {size} bytes, expected at most {most_bytes}")


MOST_EXCHANGES = 16
"""A round has fewer exchanges."""


def serial_of(t: int, index: int) -> int:
    """Return the number of an exchange among all of a run, by which both ends name states.

    Examples
    --------
    >>> serial_of(1, 0), serial_of(1, 1), serial_of(2, 0)
    (16, 17, 32)
    """
    return MOST_EXCHANGES * t + index


def round_of(serial: int) -> int:
    """Return the round of an exchange."""
    return serial // MOST_EXCHANGES


class Kind(StrEnum):
    """Labels of answers of a client that takes no part; other answers have the exchange's label."""

    LOST = "lost"  # its memory is not the one that the order goes on from
    LEAVING = "leaving"  # it takes part no more
    OUTDATED = "outdated"  # the order is of a round that this client has left behind
    REFUSED = "refused"  # the owner of its data does not allow this; the payload is a `Refusal`


_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@lru_cache
def _validators(cls: Any) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(cls, include_extras=True)
    return {name: TypeAdapter(kind, config=_STRICT) for name, kind in hints.items()}


@dataclass(frozen=True)
class _Checked:
    """To fields and back; ``vectors``-like dictionaries of bytes are flattened as ``name.key``."""

    def fields(self) -> Fields:
        """Return the fields that are sent, with the schema; a dictionary becomes a field for each
        of its keys, and None is left out.
        """
        sent: Fields = {"schema": SCHEMA}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, dict):
                sent |= {f"{item.name}.{key}": inner for key, inner in value.items()}
            elif value is not None:
                sent[item.name] = value.value if isinstance(value, StrEnum) else value
        return sent

    @classmethod
    def of(cls, received: Mapping[str, Any]) -> Self:
        """Return the message of fields that `fields` made; raises `MessageError` for a missing, an
        unknown or a wrong field, and for another schema.
        """
        refuse_oversized(received)
        unread = dict(received)
        if unread.pop("schema", None) != SCHEMA:
            raise MessageError(
                f"wire format {repr(received.get('schema'))[:40]}, this end has {SCHEMA}: "
                "install the same version of fedfw on the server and on every client"
            )
        values: Fields = {}
        kind: Any = cls
        validators = _validators(kind)
        for item in fields(cls):
            if item.default_factory is dict:
                prefix = f"{item.name}."
                value: Any = {
                    key.removeprefix(prefix): unread.pop(key)
                    for key in list(unread)
                    if key.startswith(prefix)
                }
            elif item.name in unread:
                value = unread.pop(item.name)
            elif item.default is MISSING:
                raise MessageError(f"there is no {item.name}")
            else:
                continue  # the dataclass has its default
            try:
                values[item.name] = validators[item.name].validate_python(value)
            except ValidationError as error:
                reason = error.errors(include_input=False, include_url=False)[0]["msg"]
                raise MessageError(f"{item.name}={repr(value)[:40]}: {reason}") from None
        if unread:
            raise MessageError(f"unknown fields {[str(name)[:40] for name in sorted(unread)[:5]]}")
        return cls(**values)


@dataclass(frozen=True)
class Order(_Checked):
    """From the server to one client.

    Parameters
    ----------
    run : str
        Names the training: clients keep their memory by it.
    t, index : int
        The round, and which of its exchanges this is.
    ask : str
        The label of that exchange.
    client, n, weight : int, int, float
        Its number, how many clients there are, and its w_i.
    counted : int
        The last exchange in which this client's answer was counted (`serial_of`), 0 for none. The
        client commits or rolls back by it.
    version, base : int
        The number of the message in this order, and the number of the message that its vectors
        refer to; 0 for none.
    digest : bytes
        Stands for the bits of the message's vectors.
    vectors : dict of str to bytes
        The message's vectors, such as xbar and c, in the encodings of `fedfw.rounds.wire`.
    memory : dict of str to bytes
        What the client is to hold before the step, where the server has another one: after a loss
        and for a newcomer.
    penalty, lr : float
        For clients whose own task leaves these numbers open.
    rate : float
        The number from which a client works out its step sizes, where its own task does not say
        them (`StepRule.to_send`).
    report : bool
        Whether to report w_i f_i(xbar) and the certificate's number.
    """

    run: Text
    t: Positive
    ask: Text
    client: ClientNumber
    n: ClientCount
    weight: Annotated[float, Field(gt=0, le=1)]
    counted: Count
    version: Positive
    base: Count
    digest: bytes
    vectors: dict[str, bytes] = field(default_factory=dict)
    index: Annotated[int, Field(ge=0, lt=MOST_EXCHANGES)] = 0
    memory: dict[str, bytes] = field(default_factory=dict)
    penalty: Magnitude | None = None
    lr: Magnitude | None = None
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    report: bool = False

    @property
    def payload_nbytes(self) -> int:
        """Return what tables quote: vectors, memory and the number for step sizes."""
        number = 0 if self.rate is None else NUMBER_NBYTES
        return number + sum(map(len, (*self.vectors.values(), *self.memory.values())))

    @property
    def serial(self) -> int:
        """Return the number of the exchange."""
        return serial_of(self.t, self.index)

    @property
    def evidence_nbytes(self) -> int:
        """Return what lets the client check what it was sent."""
        return len(self.digest)


@dataclass(frozen=True)
class Answer(_Checked):
    """From a client to the server.

    Parameters
    ----------
    run, t, client
        Of the order.
    kind : str
        The label of the exchange, or a `Kind`.
    payload : bytes
        The atom's encoding, or a vector.
    digest : bytes
        Stands for the shared state that the client holds before the exchange, so that the server
        sees that both hold the same.
    loss, number : float
        w_i f_i(xbar) and the certificate's number, where they are reported. Where gradients at xbar
        are gathered, the number is w_i f_i(xbar), lowered by what rounding can hide.
    convex : bool
        False from a client that saw that its loss is not convex; it then reports no number.
    """

    run: Text
    t: Count
    client: ClientNumber
    kind: Text
    payload: bytes = b""
    digest: bytes = b""
    loss: Number | None = None
    number: Number | None = None
    convex: bool | None = None

    @property
    def evidence_nbytes(self) -> int:
        """Return the fields by which the server checks the answer and proves the bound."""
        return len(self.digest) + NUMBER_NBYTES * sum(
            value is not None for value in (self.loss, self.number)
        )


@dataclass(frozen=True)
class Hello(_Checked):
    """A client's introduction, sent when the server sees a node for the first time.

    Parameters
    ----------
    client : int
        Its number.
    leaving : bool
        Whether it takes part no more.
    gradient_norm, smoothness : float
        ||grad f_i|| at the start and L_i, where the task's penalty or step size is to be worked out
        from them.
    """

    client: ClientNumber
    leaving: bool = False
    gradient_norm: Magnitude | None = None
    smoothness: Magnitude | None = None
