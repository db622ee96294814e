"""Atoms as vectors of small integers, so that sums of them are exact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.atoms import Atom, Permutation, SignVector, SparseSigns, Zero
from fedfw.secure_sums.errors import EncodingError
from fedfw.secure_sums.ring import Ring
from fedfw.sets import (
    Birkhoff,
    Box,
    CappedSimplex,
    ConstraintSet,
    Hypersimplex,
    KSparse,
    L1Ball,
    LinfBall,
    Simplex,
)

Shape = tuple[int, ...]


class Encoded(NamedTuple):
    """An atom as integers."""

    integers: Tensor
    """(p,) int64; (n, p) for a stack of atoms."""
    scale: float
    """The constant: the atom is ``scale * integers``. For a `Box` it is 1, and the integers are
    where the atom is at its upper bound."""
    low: int
    """The least integer that an atom of the set has."""
    high: int
    """The largest one."""


class Encoding(ABC):
    """How values of one kind become integers from 0 to ``span``, and sums of them become values."""

    low: int
    high: int
    step: int = 1
    """All integers of a value are ``low`` plus a multiple of it."""

    @property
    def span(self) -> int:
        """Return the largest number that is sent for one value."""
        return (self.high - self.low) // self.step

    def ring(self, count: int) -> Ring:
        """Return the ring for sums of ``count`` values."""
        return Ring.for_sum(count, self.span)

    def to_numbers(self, integers: Tensor) -> npt.NDArray[np.int64]:
        """Return integers (p,) of one value as the numbers from 0 to ``span`` that are summed."""
        numbers: npt.NDArray[np.int64] = ((integers - self.low) // self.step).cpu().numpy()
        return numbers

    def to_integers(self, total: npt.NDArray[np.int64], count: int) -> Tensor:
        """Return the sum (p,) of ``count`` values' integers from the sum of their numbers."""
        return torch.from_numpy(total) * self.step + count * self.low

    @abstractmethod
    def decode(self, total: npt.NDArray[np.int64], count: int) -> Tensor:
        """Return the sum (p,) of ``count`` values in float64 from the sum of their numbers."""


class AtomEncoding(Encoding):
    """The exact encoding of the atoms of one set.

    Parameters
    ----------
    constraint : ConstraintSet
        An l1 or linf ball, a box, a simplex, a capped simplex, a hypersimplex, a k-sparse ball or
        the Birkhoff polytope.
    shape : tuple of int
        Of the parameter.

    Raises
    ------
    EncodingError
        If the atoms of the set are not integers times a constant.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.secure_sums import AtomEncoding
    >>> ball = fedfw.L1Ball(0.1)
    >>> encoding = AtomEncoding(ball, (3,))
    >>> atoms = [ball.lmo(torch.tensor(g)) for g in ([3.0, 0.0, 1.0], [2.0, 1.0, 0.0])]
    >>> total = sum(encoding.to_numbers(encoding.encode(atom).integers) for atom in atoms)
    >>> total.tolist(), encoding.decode(total, 2).tolist(), encoding.ring(10).bits
    ([0, 2, 2], [-0.2, 0.0, 0.0], 5)
    """

    def __init__(self, constraint: ConstraintSet, shape: Shape) -> None:
        self.constraint, self.shape = constraint, tuple(shape)
        kind = type(constraint)
        constraint._check_shape(self.shape)
        self.low, self.high = 0, 1
        if kind in (L1Ball, KSparse):
            self.low = -1
        elif kind is LinfBall:
            self.low, self.step = -1, 2
        elif kind not in (Box, Simplex, CappedSimplex, Hypersimplex, Birkhoff):
            raise EncodingError(f"atoms of {constraint!r} are not integers times a constant")

    @property
    def scale(self) -> float:
        """Return the constant of the atoms; 1 for a box."""
        return float(getattr(self.constraint, "r", 1.0)) if not self._is_box else 1.0

    @property
    def _is_box(self) -> bool:
        return isinstance(self.constraint, Box)

    def encode(self, atom: Atom) -> Encoded:
        """Return the integers of an atom of the set.

        Parameters
        ----------
        atom : Atom
            A single one, or a stack.

        Returns
        -------
        Encoded
            Its integers and their range.

        Raises
        ------
        EncodingError
            If it is no atom of the set.
        """
        if tuple(atom.shape) != self.shape:
            raise EncodingError(f"an atom of shape {atom.shape}, expected {self.shape}")
        integers = self._integers(atom)
        if not atom.batched:
            integers = integers[0]
        return Encoded(integers, self.scale, self.low, self.high)

    def decode(self, total: npt.NDArray[np.int64], count: int) -> Tensor:
        """Return the sum of ``count`` atoms.

        Parameters
        ----------
        total : array
            The sum of their numbers, int64 of shape (p,).
        count : int
            How many atoms.

        Returns
        -------
        Tensor
            float64 of shape (p,): the scale times the sum of integers. For a box it is
            ``lo * (count - k) + hi * k`` where k of the atoms are at the upper bound.
        """
        integers = self.to_integers(total, count).double()
        if isinstance(self.constraint, Box):
            lo, hi = self.constraint._bounds()
            return lo * (count - integers) + hi * integers
        return self.scale * integers

    def accepts(self, total: npt.NDArray[np.int64], count: int) -> bool:
        """Return whether a sum can be one of ``count`` atoms of the set: whether their mean lies in
        it. A single wrong atom that the others make up for does not show.

        Parameters
        ----------
        total : array
            The sum of numbers (p,).
        count : int
            How many atoms.

        Returns
        -------
        bool
            True if the mean lies in the set.
        """
        if total.min() < 0 or total.max() > count * self.span:
            return False
        mean = self.decode(total, count) / count
        return bool(self.constraint.contains(mean.reshape(self.shape)))

    def _integers(self, atom: Atom) -> Tensor:
        """Return the integers (n, p) of a stack."""
        count = prod(self.shape)
        if isinstance(atom, SparseSigns):
            entries = min(getattr(self.constraint, "k", 1), count)
            wrong = (
                atom.scale != self.scale
                or atom.signed != (self.low < 0)
                or atom.indices.shape[1] != entries
            )
            if wrong or not isinstance(self.constraint, (L1Ball, KSparse, Simplex, Hypersimplex)):
                raise EncodingError(f"the atom is none of {self.constraint!r}")
            zeros = torch.zeros(len(atom), count, dtype=torch.int64, device=atom.indices.device)
            return zeros.scatter_(1, atom.indices, atom.signs.to(torch.int64))
        if isinstance(atom, Zero) and isinstance(self.constraint, CappedSimplex):
            return torch.zeros(len(atom), count, dtype=torch.int64)
        if isinstance(atom, Permutation) and isinstance(self.constraint, Birkhoff):
            side = self.shape[0]
            cells = torch.arange(side, device=atom.columns.device) * side + atom.columns
            zeros = torch.zeros(len(atom), count, dtype=torch.int64, device=cells.device)
            return zeros.scatter_(1, cells, 1)
        if isinstance(atom, SignVector) and isinstance(self.constraint, (LinfBall, Box)):
            at_hi = atom.at_hi.to(torch.int64)
            return at_hi if self._is_box else 2 * at_hi - 1
        raise EncodingError(f"an atom of kind {atom.kind!r} is none of {self.constraint!r}")


def encode(atom: Atom, constraint: ConstraintSet) -> Encoded:
    """Return an atom as integers, its constant, and the range of the integers.

    Parameters
    ----------
    atom : Atom
        A single one, or a stack.
    constraint : ConstraintSet
        The set that it is an atom of.

    Returns
    -------
    Encoded
        Integers (p,), scale, low and high.

    Raises
    ------
    EncodingError
        If the set has no such encoding, or it is no atom of the set.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.secure_sums import encode
    >>> encode(fedfw.L1Ball(0.5).lmo(torch.tensor([1.0, -3.0])), fedfw.L1Ball(0.5))
    Encoded(integers=tensor([0, 1]), scale=0.5, low=-1, high=1)
    """
    return AtomEncoding(constraint, tuple(atom.shape)).encode(atom)


@dataclass(frozen=True)
class FixedPointGrid(Encoding):
    """Real vectors, rounded to multiples of a step.

    Parameters
    ----------
    bound : float
        The largest magnitude of an entry; a larger one is refused.
    quantum : float
        The step of the grid: a power of two, so that sums of grid points are exact in float64.

    Raises
    ------
    EncodingError
        If the step is no power of two, or the range has more than 2^40 points.

    Notes
    -----
    Rounding moves an entry by at most half a step, so a mean of n vectors moves by at most half a
    step, too. That can leave a constraint set.

    Examples
    --------
    >>> import torch
    >>> from fedfw.secure_sums import FixedPointGrid
    >>> grid = FixedPointGrid(bound=2.0, quantum=2.0**-8)
    >>> x = torch.tensor([0.5, -1.3])
    >>> numbers = grid.to_numbers(grid.encode(x))
    >>> grid.decode(numbers, 1).tolist(), grid.ring(10).bits
    ([0.5, -1.30078125], 14)
    """

    bound: float
    quantum: float

    def __post_init__(self) -> None:
        if not (isfinite(self.quantum) and self.quantum > 0):
            raise EncodingError(f"quantum={self.quantum}, expected a power of two")
        if np.frexp(self.quantum)[0] != 0.5:
            raise EncodingError(f"quantum={self.quantum}, expected a power of two")
        if not self.quantum <= self.bound <= self.quantum * 2.0**39:
            raise EncodingError(f"bound={self.bound}, expected 1 to 2^39 steps of {self.quantum}")

    @property
    def high(self) -> int:  # type: ignore[override]
        """Return the number of steps up to the bound."""
        return int(self.bound / self.quantum)

    @property
    def low(self) -> int:  # type: ignore[override]
        """Return the number of steps down to the lower bound, negative."""
        return -self.high

    def encode(self, x: Tensor) -> Tensor:
        """Return the nearest grid points of the entries of ``x`` as integers, int64.

        Raises
        ------
        EncodingError
            If an entry is beyond the bound, or not a number.
        """
        steps = (x.double() / self.quantum).round()
        if not bool((steps.abs() <= self.high).all()):
            raise EncodingError(f"an entry is beyond the bound {self.bound} of the grid")
        return steps.to(torch.int64)

    def decode(self, total: npt.NDArray[np.int64], count: int) -> Tensor:
        """Return the sum of ``count`` vectors of grid points, exact in float64."""
        return self.to_integers(total, count).double() * self.quantum
