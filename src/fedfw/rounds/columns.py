"""The part of a round that happens on few coordinates: where every client holds zero, nothing has
to be worked out.

Sparse atoms leave most coordinates of all points untouched. An algorithm that treats every
coordinate alone (`treats_coordinates_alone`) gives the same bits on the coordinates that
any client touched, in less time and memory. Columns are integers (w,); None stands for all
coordinates.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from fedfw.algorithms.contract import Algorithm, Message
from fedfw.atoms import Atom, Mixture, SparseAtom, SparseValues, TupleAtom, is_sparse
from fedfw.rounds.channels import REPORT, Sent


def on_columns(vector: Tensor, columns: Tensor | None) -> Tensor:
    """The entries (..., w) of vectors (..., p) at the columns.

    Examples
    --------
    >>> import torch
    >>> on_columns(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0])).tolist()
    [3.0, 1.0]
    """
    return vector if columns is None else vector[..., columns]


def spread_out(entries: Tensor, columns: Tensor | None, p: int) -> Tensor:
    """The vectors (..., p) that have these entries (..., w) at the columns and zeros elsewhere.

    Examples
    --------
    >>> import torch
    >>> spread_out(torch.tensor([3.0, 1.0]), torch.tensor([2, 0]), 4).tolist()
    [1.0, 0.0, 3.0, 0.0]
    """
    if columns is None:
        return entries
    vectors = entries.new_zeros(*entries.shape[:-1], p)
    vectors[..., columns] = entries
    return vectors


def narrow_message(message: Message, columns: Tensor | None) -> Message:
    """Return a message at the columns."""
    if columns is None:
        return message
    vectors = {name: vector[columns] for name, vector in message.vectors.items()}
    return replace(message, vectors=vectors)


def treats_coordinates_alone(algorithm: Algorithm) -> bool:
    """Return whether this very class says that its functions treat every coordinate alone, and
    leave it zero where points, atoms and vectors are zero.

    A class says so for itself by ``coordinatewise = True``: subclasses, which may change these
    functions, do not inherit it.
    """
    return bool(vars(type(algorithm)).get("coordinatewise", False))


def touched_by(sent: Sent) -> Tensor | None:
    """Return the coordinates that payloads name, some of them more than once; None for all."""
    points = [atoms for name, atoms in sent.items() if name != REPORT]
    if not all(is_sparse(atoms) for atoms in points):
        return None
    found = []
    for atoms in points:
        found += [indices.flatten() for _, indices, _ in _terms(atoms, torch.float32)]
    return torch.cat(found)


def narrow_sent(sent: Sent, place: Tensor, width: int, dtype: torch.dtype) -> Sent:
    """Return payloads of sparse atoms as vectors (m, width); see `narrow_atoms`."""
    points = {name: atoms for name, atoms in sent.items() if name != REPORT}
    return {name: narrow_atoms(atoms, place, width, dtype) for name, atoms in points.items()}


def narrow_atoms(atoms: Atom, place: Tensor, width: int, dtype: torch.dtype) -> Atom:
    """Sparse atoms as vectors (m, width), where coordinate j stands in column ``place[j]``; their
    steps keep the bits.

    Parameters
    ----------
    atoms : Atom
        A stack of m sparse atoms.
    place : Tensor
        (p,), integers.
    width : int
        How many columns there are.
    dtype : torch.dtype
        Of the points that they will move.
    """
    terms = list(_terms(atoms, dtype))
    parts = tuple(
        SparseValues(
            shape=(width,),
            batched=True,
            precision=dtype,
            indices=place[indices],
            values=values,
            scale=1.0,
        )
        for _, indices, values in terms
    )
    weights = tuple(share for share, _, _ in terms)
    return Mixture(shape=(width,), batched=True, precision=dtype, parts=parts, weights=weights)


def _terms(
    atom: Atom, dtype: torch.dtype, begin: int = 0, share: float = 1.0
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Return what a stack of sparse atoms adds up, in order: shares, and coordinates and values (m,
    k).
    """
    if isinstance(atom, Mixture):
        for part, weight in zip(atom.parts, atom.weights, strict=True):
            yield from _terms(part, dtype, begin, share * weight)
    elif isinstance(atom, TupleAtom):
        for part in atom.parts:
            yield from _terms(part, dtype, begin, share)
            begin += prod(part.shape)
    else:
        assert isinstance(atom, SparseAtom)
        indices, values = atom.entries(dtype)
        yield share, indices + begin, values
