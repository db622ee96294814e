"""Parcels: atoms with vectors beside them, which travel as one thing."""

import math
from collections.abc import Mapping
from functools import partial

from torch import Tensor

from fedfw.atoms import Atom, Dense, TupleAtom
from fedfw.compression import Readers


def parcel(sent: Atom, vectors: Mapping[str, Tensor | Atom]) -> Atom:
    """A stack of m atoms with vectors (m, ...) beside them, dense or encoded as atoms, as one thing to send.

    Examples
    --------
    >>> import torch, fedfw
    >>> atoms = fedfw.L1Ball(1.0).lmo(torch.eye(3), batch=True)
    >>> parcel(atoms, {"m": torch.ones(3, 3)}).kind
    'one-hot + dense'
    """
    if not vectors:
        return sent
    parts = [
        vector
        if isinstance(vector, Atom)
        else Dense(shape=(vector.shape[1],), batched=True, precision=vector.dtype, values=vector)
        for vector in vectors.values()
    ]
    size = sum(math.prod(part.shape) for part in (sent, *parts))
    return TupleAtom(shape=(size,), batched=True, precision=sent.precision, parts=(sent, *parts))


def parcel_readers(
    first: Readers | None, beside: Mapping[str, int], p: int, encoded: Mapping[str, Readers] | None = None
) -> Readers:
    """The functions that decode what `parcel` makes.

    Parameters
    ----------
    first : mapping from a subclass of Atom to ReadAtom, or None
        Those that decode the atom; None where it is a dense vector as well.
    beside : mapping of str to int
        The vectors beside it, by name, and their lengths.
    p : int
        The length of the atom.
    encoded : mapping, optional
        The functions that decode those vectors that are not dense, by name.
    """

    def vector(size: int) -> Readers:
        return {Dense: partial(Dense.read, shape=(size,), scale=1.0)}

    first = vector(p) if first is None else first
    if not beside:
        return first
    own = encoded or {}
    parts = [first, *(own.get(name) or vector(size) for name, size in beside.items())]
    return {TupleAtom: partial(TupleAtom.read, shape=(p + sum(beside.values()),), parts=parts)}
