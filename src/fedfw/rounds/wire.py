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
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.checks import Mask, on_host, other_bits
from fedfw.rounds.checkpoints import joined, part
from fedfw.rounds.vectors import (
    RATES_NBYTES,
    UNCHANGED,
    Encoding,
    Repeat,
    encoded,
    sparse_nbytes,
    whole_nbytes,
)

DIGEST_NBYTES = 8
NUMBER_NBYTES = 8
"""Evidence: a digest, and one number in float64."""
Versions = npt.NDArray[np.int64]


def digest(*vectors: Tensor) -> bytes:
    """Eight bytes by which two sides see that they hold the same vectors, each (p,)."""
    total = hashlib.sha256()
    for vector in vectors:
        total.update(vector.contiguous().cpu().numpy().tobytes())
    return total.digest()[:DIGEST_NBYTES]


def point_digest(x: Tensor, columns: Tensor | None = None) -> bytes:
    """Return eight bytes by which two sides check that they hold the same point, from its non-zero
    entries.

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
    nonzero = x.nonzero().flatten()
    places = nonzero if columns is None else columns[nonzero]
    order = places.argsort()
    return digest(places[order], x[nonzero][order])


def state_digest(vectors: Mapping[str, Tensor], columns: Tensor | None = None) -> bytes:
    """Return eight bytes by which two sides check that they hold the same shared state.

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


class Wire:
    """The messages to clients: it remembers which message last changed each coordinate of each
    vector.

    Parameters
    ----------
    like : Tensor
        A vector (p,) of the type in which both sides hold vectors.
    precision : torch.dtype, optional
        Of the run: what numbers travel in. By default that type.
    """

    def __init__(self, like: Tensor, precision: torch.dtype | None = None) -> None:
        """Begin with no message announced."""
        self._like = like
        self._precision = like.dtype if precision is None else precision
        self._wide = False
        """True if the model's numbers need the type in which it is held."""
        self.version = 0
        """The number of the last message that was announced."""
        # As announced; the model lies where the server keeps it.
        self._values: dict[str, Tensor] = {}
        # Further vectors as last announced, on the host; one not sent is zero.
        self._before: dict[str, Tensor] = {}
        self._marks: dict[str, Versions] = {}  # the message that last changed a coordinate
        self._steps: list[Mask] = []  # what changed in the model since the last message
        # The last step, for clients that hold this version.
        self._repeat: tuple[int, Encoding] | None = None
        # Encodings by the vector's name and the version that the client holds.
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
        """Note which coordinates a step changed in the model, and how clients can repeat it.

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
            nbytes = RATES_NBYTES + sparse_nbytes(on_host(support), precision.itemsize)
            self._repeat = (
                self.version,
                Encoding(nbytes, replace(repeat, precision=precision).write),
            )
        self._steps.append(on_host(changed))

    # --- messages ---

    def announce(self, vectors: Mapping[str, Tensor]) -> int:
        """Take in a new message with these vectors (p,), and return its version; a vector that is
        left out counts as zero.
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
            before = self._before.get(name, zero)
            after = vectors[name].cpu() if name in vectors else zero
            np.putmask(marks, on_host(other_bits(before, after)), self.version)
            self._before[name] = after.clone()
        # A step leads from the message before it to this one, for holders of that message alone.
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
        """Return the shortest encoding of a vector for a client that holds the message ``base``; 0
        stands for none.
        """
        x = self._values[name]
        precision = x.dtype if name == "xbar" and self._wide else self._precision
        if not base:
            return encoded(x, precision=precision)
        changed = self._marks[name] > base
        if not changed.any():
            return Encoding(1, lambda: bytes([UNCHANGED]))
        by_coordinates = encoded(x, changed, precision)
        if name == "xbar" and self._repeat is not None and self._repeat[0] == base:
            return min(by_coordinates, self._repeat[1], key=lambda encoding: encoding.nbytes)
        return by_coordinates

    def nbytes(self, bases: npt.ArrayLike) -> int:
        """Return the bytes of the last message for clients that hold the messages ``bases`` (m,),
        all together.
        """
        # Clients that hold the same message are sent the same bytes.
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
        """Return the tensors of a checkpoint: marks, versions and the last step's encoding."""
        marks = {name: torch.from_numpy(marks) for name, marks in self._marks.items()}
        saved = joined({"marks": marks, "before": self._before})
        saved |= {"version": torch.tensor(self.version), "wide": torch.tensor(self._wide)}
        saved["steps"] = (
            torch.from_numpy(np.logical_or.reduce(self._steps)) if self._steps else torch.zeros(0)
        )
        if self._repeat is not None:
            base, message = self._repeat
            saved["repeat"] = torch.tensor([base, message.nbytes])
            saved["repeat_message"] = torch.from_numpy(
                np.frombuffer(message.write(), np.uint8).copy()
            )
        return saved

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        saved = {name: value.cpu().clone() for name, value in state.items()}
        self._values = {}
        self._ready.clear()
        self.version = int(saved["version"])
        self._wide = bool(saved["wide"])
        self._steps = [saved["steps"].numpy()] if saved["steps"].numel() else []
        self._marks = {name: value.numpy() for name, value in part(saved, "marks").items()}
        self._before = part(saved, "before")
        self._repeat = None
        if "repeat_message" in saved:
            repeat_bytes = saved["repeat_message"].numpy().tobytes()
            self._repeat = (
                int(saved["repeat"][0]),
                Encoding(len(repeat_bytes), lambda: repeat_bytes),
            )
