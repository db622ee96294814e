"""The wire: one piece of code decides how a vector is written, writes it, and counts what it
weighs.

The simulator asks for the count, a deployed server for the bytes; both come from the same decision
(`Encoding`). What travels is counted in two ways. The *payload* is what tables quote: atoms,
vectors and models. The *evidence* is what lets the two sides check each other and prove things:
digests, losses and the certificate's numbers.

Payload down. A vector goes to a client in the shortest of these forms:

- whole: all p numbers;
- changed: the coordinates that differ from what this client holds, with their new values. A client
  that holds nothing yet holds zeros;
- repeated: for the model only, the sum of the last round's atoms with two rates, from which a
  client that holds the model before that round repeats the server's step. Only where everyone took
  part and atoms are sparse. It is the sum: nobody receives another client's atom;
- unchanged: one byte, where this client holds it already.

Payload up. An atom in its own encoding, or a vector whole.

Every message that the server announces has a number, its *version*, and the server knows which
version each client holds. Version 0 stands for a client that holds nothing.

Numbers travel in the precision of the run. Some vectors are held in float64 on both sides of a
float32 run (`fedfw.rounds.downlink` says why). Their values are float32 numbers and travel
as such, but for the model after a step that clients repeat: its values are float64 numbers, which
takes eight bytes each where they have to be sent.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.algorithms.contract import Affine
from fedfw.atoms.bits import (
    Indices,
    Reader,
    fixed_nbytes,
    index_set_nbytes,
    read_index_set,
    write_index_set,
)
from fedfw.atoms.floats import floats_to_bytes, read_floats
from fedfw.checks import Mask, bits_of, on_host, other_bits
from fedfw.errors import AtomError
from fedfw.rounds.checkpoints import joined, part

WHOLE, CHANGED, REPEATED, UNCHANGED = 0, 1, 2, 3
_IN_FLOAT64 = 4
"""Added to the form of a vector whose numbers travel in float64; else they travel in float32."""
DIGEST_NBYTES = 8
NUMBER_NBYTES = 8
"""Evidence: a digest, and one number in float64."""
_NO_BITS = np.empty(0, np.uint8)
_RATES_NBYTES = 16
Versions = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Encoding:
    """How one vector goes to one client: the number of bytes, and the function that writes them."""

    nbytes: int
    write: Callable[[], bytes]


def narrowest(x: Tensor) -> torch.dtype:
    """float32 where it holds all numbers of x (p,) exactly, else float64; it looks at the numbers."""
    return torch.float32 if torch.equal(x.float().double(), x.double()) else torch.float64


def whole_nbytes(like: Tensor, precision: torch.dtype | None = None) -> int:
    """Return what a vector like (p,) weighs when it travels whole, in its own type or in another
    precision.
    """
    return 1 + like.shape[0] * (like.dtype if precision is None else precision).itemsize


def whole(x: Tensor, precision: torch.dtype | None = None) -> Encoding:
    """x (p,) with all of its numbers, in a precision that holds them; by default the type of x."""
    precision = x.dtype if precision is None else precision
    return Encoding(
        whole_nbytes(x, precision),
        lambda: bytes([WHOLE | _flag(precision)]) + _values(x, precision),
    )


def encoded(
    x: Tensor, changed: Mask | None = None, precision: torch.dtype | None = None
) -> Encoding:
    """x (p,) whole, or by the coordinates that the receiver does not hold, whichever is shorter.

    Parameters
    ----------
    x : Tensor
        (p,).
    changed : array, optional
        (p,) of bool: where x differs from what the receiver holds. By default where x is not zero,
        for a receiver that holds nothing.
    precision : torch.dtype, optional
        One that holds the numbers of x; by default its type.
    """
    changed = on_host(other_bits(x.detach())) if changed is None else changed
    precision = x.dtype if precision is None else precision
    nbytes = _sparse_nbytes(changed, precision.itemsize)
    if nbytes >= whole_nbytes(x, precision):
        return whole(x, precision)
    places = np.flatnonzero(changed)
    at = torch.from_numpy(places)
    flag = CHANGED | _flag(precision)
    return Encoding(nbytes, lambda: bytes([flag]) + _sparse(places, x.cpu()[at], len(x), precision))


def _flag(precision: torch.dtype) -> int:
    return _IN_FLOAT64 if precision is torch.float64 else 0


def _values(x: Tensor, precision: torch.dtype) -> bytes:
    """The numbers of x (k,) as bytes."""
    narrow = x.to(precision)
    assert torch.equal(bits_of(narrow.to(x.dtype)), bits_of(x)), (
        "numbers that do not fit the precision they travel in"
    )
    return floats_to_bytes(narrow)


def decoded(data: bytes, known: Tensor) -> Tensor:
    """The vector (p,) that ``data`` stands for at a receiver that holds ``known`` (p,).

    Raises
    ------
    AtomError
        For bytes that are no encoding.
    """
    reader = Reader(data)
    first = reader.take(1)[0]
    form, dtype = first & ~_IN_FLOAT64, torch.float64 if first & _IN_FLOAT64 else torch.float32
    p = len(known)
    if form == WHOLE:
        x = read_floats(reader, (p,), dtype).to(known.dtype)
    elif form == CHANGED:
        indices, values = _read_sparse(reader, p, dtype)
        x = known.clone()
        x[indices] = values.to(known.dtype)
    elif form == REPEATED:
        keep, scale = np.frombuffer(reader.take(_RATES_NBYTES), "<f8").tolist()
        if not (math.isfinite(keep) and math.isfinite(scale)):
            raise AtomError(f"rates {keep} and {scale} of a step, expected finite numbers")
        indices, values = _read_sparse(reader, p, dtype)
        total = torch.zeros_like(known)
        total[indices] = values.to(known.dtype)
        x = Affine(keep, scale, total).apply(known)
    elif first == UNCHANGED:
        x = known.clone()
    else:
        raise AtomError(f"form {first} of a vector, expected 0 to 6")
    reader.finish()
    return x


def decoded_alone(data: bytes, like: Tensor) -> Tensor:
    """The vector (p,) of ``data`` that refers to nothing the receiver holds; raises `AtomError`."""
    if not data or data[0] & ~_IN_FLOAT64 not in (WHOLE, CHANGED):
        raise AtomError("expected a vector that is whole or given by its coordinates")
    return decoded(data, torch.zeros_like(like))


def digest(*vectors: Tensor) -> bytes:
    """Eight bytes by which two sides see that they hold the same vectors, each (p,)."""
    total = hashlib.sha256()
    for vector in vectors:
        total.update(vector.contiguous().cpu().numpy().tobytes())
    return total.digest()[:DIGEST_NBYTES]


def point_digest(x: Tensor, columns: Tensor | None = None) -> bytes:
    """Eight bytes by which two sides see that they hold the same point, from its non-zero entries.

    Parameters
    ----------
    x : Tensor
        (p,), or the entries (w,) at the columns of a point that is zero elsewhere.
    columns : Tensor, optional
        (w,), integers in any order.

    Examples
    --------
    >>> import torch
    >>> whole_point, entries = torch.tensor([0.0, 2.0, 0.0, 1.0]), torch.tensor([1.0, 2.0])
    >>> point_digest(whole_point) == point_digest(entries, torch.tensor([3, 1]))
    True
    """
    x = x.detach().cpu()
    at = x.nonzero().flatten()
    places = at if columns is None else columns[at]
    order = places.argsort()
    return digest(places[order], x[at][order])


def state_digest(vectors: Mapping[str, Tensor], columns: Tensor | None = None) -> bytes:
    """Return eight bytes by which two sides see that they hold the same shared state.

    Parameters
    ----------
    vectors : mapping of str to Tensor
        (p,) each; or the entries (w,) at the columns of vectors that are zero elsewhere.
    columns : Tensor, optional
        (w,), integers in any order.
    """
    total = hashlib.sha256()
    for name in sorted(vectors):
        total.update(name.encode() + point_digest(vectors[name], columns))
    return total.digest()[:DIGEST_NBYTES]


def _sparse(places: Indices, values: Tensor, p: int, precision: torch.dtype) -> bytes:
    return (
        len(places).to_bytes(4, "big")
        + write_index_set(places, p, _NO_BITS)
        + _values(values, precision)
    )


def _sparse_nbytes(mask: Mask, itemsize: int) -> int:
    """Return what the numbers weigh at these places (p,), with where they belong."""
    k, p = int(np.count_nonzero(mask)), len(mask)
    places = fixed_nbytes(k, p, 0)
    if places is None:
        places = index_set_nbytes(np.flatnonzero(mask)[None], p, 0)
    return 1 + 4 + places + k * itemsize


def _read_sparse(reader: Reader, p: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    k = int.from_bytes(reader.take(4), "big")
    if k > p:
        raise AtomError(f"{k} coordinates of {p}")
    indices, _ = read_index_set(reader, p, k, 0)
    return torch.from_numpy(indices), read_floats(reader, (k,), dtype)


@dataclass(frozen=True, eq=False)
class Repeat:
    """A step xbar <- keep xbar + scale total with a sparse ``total`` (p,), which clients can
    repeat.
    """

    keep: float
    scale: float
    total: Tensor
    precision: torch.dtype | None = None
    """One that holds the numbers of the total; by default its type."""

    def write(self) -> bytes:
        """The message that says so."""
        total, precision = self.total.cpu(), self.precision or self.total.dtype
        places = np.flatnonzero(on_host(other_bits(total)))
        rates = np.array([self.keep, self.scale], "<f8").tobytes()
        values = total[torch.from_numpy(places)]
        return (
            bytes([REPEATED | _flag(precision)])
            + rates
            + _sparse(places, values, len(total), precision)
        )


class Wire:
    """What goes down: remembers which message last changed each coordinate of each vector.

    Parameters
    ----------
    like : Tensor
        A vector (p,) of the type in which both sides hold vectors.
    precision : torch.dtype, optional
        Of the run: what numbers travel in. By default that type.
    """

    def __init__(self, like: Tensor, precision: torch.dtype | None = None) -> None:
        self._like, self._precision = like, like.dtype if precision is None else precision
        self._wide = False
        """Whether the model's numbers need the type in which it is held."""
        self.version = 0
        """The number of the last message that was announced."""
        self._values: dict[
            str, Tensor
        ] = {}  # as announced; the model lies where the server keeps it
        self._before: dict[
            str, Tensor
        ] = {}  # further vectors as last announced, on the host; one not sent is zero
        self._marks: dict[str, Versions] = {}  # the message that last changed a coordinate
        self._steps: list[Mask] = []  # what changed in the model since the last message
        self._repeat: tuple[int, Encoding] | None = (
            None  # the last step, for clients that hold this version
        )
        self._ready: dict[tuple[str, int], Encoding] = {}

    @property
    def dense_nbytes(self) -> int:
        """Return what one vector weighs when it travels whole."""
        return whole_nbytes(self._like, self._precision)

    # --- what happened to the model since the last message ---

    def stepped(
        self,
        changed: Tensor | Mask,
        support: Tensor | Mask | None = None,
        repeat: Repeat | None = None,
        *,
        wide: Tensor | Mask | None = None,
    ) -> None:
        """Note what a step did to the model.

        Parameters
        ----------
        changed : Tensor or array
            (p,) of bool: which coordinates changed.
        support : Tensor or array, optional
            (p,) of bool: where the sum of the atoms is not zero, for steps that clients can repeat.
        repeat : Repeat, optional
            That step.
        wide : Tensor or array, optional
            (p,) of bool: where that sum needs float64.
        """
        self._wide = support is not None and self._like.dtype is not self._precision
        self._repeat = None
        # Clients cannot repeat a step where something else changed the model, too.
        if support is not None and repeat is not None and self.version and not self._steps:
            precision = (
                torch.float64 if wide is not None and on_host(wide).any() else self._precision
            )
            nbytes = _RATES_NBYTES + _sparse_nbytes(on_host(support), precision.itemsize)
            self._repeat = (
                self.version,
                Encoding(nbytes, replace(repeat, precision=precision).write),
            )
        self._steps.append(on_host(changed))

    # --- messages ---

    def announce(self, vectors: Mapping[str, Tensor]) -> int:
        """A new message with these vectors (p,); returns its version. One that is left out counts
        as zero.
        """
        self.version += 1
        for name in {**self._before, **vectors}:
            if name not in self._marks:
                self._marks[name] = np.zeros(len(self._like), np.int64)
            marks = self._marks[name]
            if name == "xbar":
                for changed in self._steps:
                    np.putmask(marks, changed, self.version)
                continue
            zero = torch.zeros(len(self._like), dtype=self._like.dtype)
            before, after = (
                self._before.get(name, zero),
                vectors[name].cpu() if name in vectors else zero,
            )
            np.putmask(marks, on_host(other_bits(before, after)), self.version)
            self._before[name] = after.clone()
        if self._repeat is not None and self._repeat[0] != self.version - 1:
            self._repeat = None
        self._steps = []
        self._values = dict(vectors)
        self._ready.clear()
        return self.version

    def encoding(self, name: str, base: int) -> Encoding:
        """How a vector of the last message goes to a client that holds the message ``base``; 0 for
        none.
        """
        if (name, base) not in self._ready:
            self._ready[name, base] = self._decide(name, base)
        return self._ready[name, base]

    def _decide(self, name: str, base: int) -> Encoding:
        x = self._values[name]
        precision = x.dtype if name == "xbar" and self._wide else self._precision
        if not base:
            return encoded(x, precision=precision)
        changed = self._marks[name] > base
        if not changed.any():
            return Encoding(1, lambda: bytes([UNCHANGED]))
        found = encoded(x, changed, precision)
        if name == "xbar" and self._repeat is not None and self._repeat[0] == base:
            return min(found, self._repeat[1], key=lambda encoding: encoding.nbytes)
        return found

    def nbytes(self, bases: npt.ArrayLike) -> int:
        """Return what the last message weighs for clients that hold the messages ``bases`` (m,), all
        together.
        """
        counts = Counter(np.asarray(bases).tolist())
        return sum(
            count * self.encoding(name, base).nbytes
            for base, count in counts.items()
            for name in self._values
        )

    def write(self, base: int) -> dict[str, bytes]:
        """The last message for a client that holds the message ``base``."""
        return {name: self.encoding(name, base).write() for name in self._values}

    # --- checkpoints ---

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""
        marks = {name: torch.from_numpy(marks) for name, marks in self._marks.items()}
        held = joined({"marks": marks, "before": self._before})
        held |= {"version": torch.tensor(self.version), "wide": torch.tensor(self._wide)}
        held["steps"] = (
            torch.from_numpy(np.logical_or.reduce(self._steps)) if self._steps else torch.zeros(0)
        )
        if self._repeat is not None:
            base, message = self._repeat
            held["repeat"] = torch.tensor([base, message.nbytes])
            held["repeat_message"] = torch.from_numpy(
                np.frombuffer(message.write(), np.uint8).copy()
            )
        return held

    def load(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        held = {name: value.cpu().clone() for name, value in state.items()}
        self._values = {}
        self._ready.clear()
        self.version, self._wide = int(held["version"]), bool(held["wide"])
        self._steps = [held["steps"].numpy()] if held["steps"].numel() else []
        self._marks = {name: value.numpy() for name, value in part(held, "marks").items()}
        self._before = part(held, "before")
        self._repeat = None
        if "repeat_message" in held:
            message = held["repeat_message"].numpy().tobytes()
            self._repeat = int(held["repeat"][0]), Encoding(len(message), lambda: message)
