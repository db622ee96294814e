"""Atoms: points of a constraint set in compact form, and their encoding as bytes."""

from fedfw.atoms.base import Atom, ReadAtom
from fedfw.atoms.composite import Rearranged, TupleAtom
from fedfw.atoms.dense import Dense, DenseAtom, LowRank, SignVector, Vertex
from fedfw.atoms.mixture import Combination, Mixture, is_sparse, mix
from fedfw.atoms.quantised import Moved, Quantised
from fedfw.atoms.sparse import (
    GroupVector,
    Permutation,
    SparseAtom,
    SparseSigns,
    SparseValues,
    Zero,
)

__all__ = [
    "Atom",
    "Combination",
    "Dense",
    "DenseAtom",
    "GroupVector",
    "LowRank",
    "Mixture",
    "Moved",
    "Permutation",
    "Quantised",
    "ReadAtom",
    "Rearranged",
    "SignVector",
    "SparseAtom",
    "SparseSigns",
    "SparseValues",
    "TupleAtom",
    "Vertex",
    "Zero",
    "is_sparse",
    "mix",
]
