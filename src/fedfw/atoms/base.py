"""What every atom can do, and the one-byte frame it travels in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.atoms.bits import Reader
from fedfw.errors import AtomError

if TYPE_CHECKING:
    from fedfw.sets.base import ConstraintSet, Shape

# Frame: version (2 bits), precision (2 bits), kind (4 bits).
_VERSION = 1
_PRECISIONS = (torch.float32, torch.float16, torch.float64)

ReadAtom = Callable[[Reader, torch.dtype], "Atom"]
"""Reads one payload whose kind is known; the set fills in what does not travel (shape, radius, k ...)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Atom(ABC):
    """A compact point of a constraint set, or a stack of n of them, one a client.

    Tensors inside always have the leading client axis; a single atom is a stack of one with ``batched=False``.
    "``shape`` of a value" below means ``shape`` for one atom and ``(n, *shape)`` for a stack.

    Parameters
    ----------
    shape
        Shape of the parameter that the atom is a value of.
    batched
        Whether this is a stack. ``atoms[i]`` is client i's atom.
    precision
        What the floating-point part travels in: float32, float16 or float64.
    bound
        (n,) a true lower bound on ``min <g, u>`` over the set for the g that the oracle was given. None when
        ``<g, s>`` itself is that minimum, and for atoms that came over a wire.
    """

    tag: ClassVar[int]
    stacked: ClassVar[tuple[str, ...]]

    shape: Shape
    batched: bool = False
    precision: torch.dtype = torch.float32
    bound: Tensor | None = None

    # What a kind of atom says of itself; x and the results have the client axis and a flat parameter axis p.

    @abstractmethod
    def _dense(self, dtype: torch.dtype) -> Tensor:
        """(n, p)."""

    @abstractmethod
    def _dot(self, g: Tensor) -> Tensor:
        """(n, p) -> (n,), in float64."""

    @abstractmethod
    def _add(self, x: Tensor, weight: Tensor) -> None:
        """X (n, p) += weight (n, 1) * s, in place."""

    def _add_sum(self, x: Tensor, weight: float) -> None:
        """x (p,) += weight * the sum of the stack's points, in place."""
        x.add_(self._dense(x.dtype).sum(0), alpha=weight)

    @abstractmethod
    def _payload(self) -> bytes:
        """The bytes of a stack of one, without the frame."""

    @abstractmethod
    def _payload_nbytes(self) -> int:
        """Sum of the lengths of the n payloads, without building them."""

    # What users call.

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The point itself, in ``shape`` of a value.

        ``dtype`` is float32, or the precision the atom travels in where that is wider.
        """
        wide = torch.promote_types(self.precision, torch.float32)
        flat = self._dense(dtype or wide)
        return flat.reshape(len(self), *self.shape) if self.batched else flat.reshape(self.shape)

    def dot(self, g: Tensor) -> Tensor:
        """Inner product with ``g`` in ``shape`` of a value: a scalar, or (n,) for a stack; in float64."""
        products = self._dot(self._rows(g.contiguous()))
        return products if self.batched else products[0]

    def add_to(self, x: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        """X <- x + weight * s, in place, touching only the coordinates where s is not zero.

        ``x`` is contiguous, in ``shape`` of a value; ``weight`` is a number or, for a stack, (n,).
        """
        rows = self._rows(x)
        self._add(rows, torch.as_tensor(weight, dtype=x.dtype, device=x.device).reshape(-1, 1))
        return x

    def add_sum_to(self, x: Tensor, weight: float = 1.0) -> Tensor:
        """x <- x + weight * (s_1 + ... + s_n), in place, for one x of the parameter's ``shape``."""
        if tuple(x.shape) != self.shape:
            raise ValueError(f"expected one tensor of shape {self.shape}, got {tuple(x.shape)}")
        self._add_sum(x.view(-1), weight)
        return x

    def step(self, x: Tensor, eta: float | Tensor) -> Tensor:
        """The Frank-Wolfe step x <- (1 - eta) x + eta s, in place."""
        rows = self._rows(x)
        eta = torch.as_tensor(eta, dtype=x.dtype, device=x.device).reshape(-1, 1)
        rows.mul_(1 - eta)
        self._add(rows, eta)
        return x

    @property
    def kind(self) -> str:
        """Name of the kind, for people."""
        return type(self).__name__

    @property
    def nbytes(self) -> int:
        """Length of `to_bytes`, summed over a stack."""
        return len(self) + self._payload_nbytes()

    def to_bytes(self) -> bytes:
        """The encoding: one byte that says what follows, then the payload."""
        if self.batched:
            raise ValueError(f"a stack of {len(self)} atoms is encoded one by one: atoms[i].to_bytes()")
        return self._frame() + self._payload()

    def _frame(self) -> bytes:
        return bytes([_VERSION << 6 | _PRECISIONS.index(self.precision) << 4 | self.tag])

    @staticmethod
    def from_bytes(data: bytes, constraint: ConstraintSet, shape: Shape) -> Atom:
        """Decode an atom of ``constraint`` for a parameter of ``shape``.

        Raises
        ------
        AtomError
            If ``data`` is anything but the encoding of such an atom. Whether its values lie in the set is asked
            with ``constraint.accepts``.
        """
        reader = Reader(bytes(data))
        constraint._check_shape(tuple(shape))
        atom = read_framed(reader, constraint.readers(tuple(shape)))
        reader.finish()
        return atom

    def __len__(self) -> int:
        first: Tensor = getattr(self, self.stacked[0])
        return len(first)

    def __getitem__(self, i: int) -> Self:
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"atom {i} of a stack of {n}")
        row = slice(i % n, i % n + 1)
        bound = None if self.bound is None else self.bound[row]
        return replace(self, batched=False, bound=bound, **self._row(i % n))

    def _row(self, i: int) -> dict[str, Any]:
        """What differs between the stack and its atom i."""
        return {name: getattr(self, name)[i : i + 1] for name in self.stacked}

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def _rows(self, x: Tensor) -> Tensor:
        expected = (len(self), *self.shape) if self.batched else self.shape
        if tuple(x.shape) != expected:
            raise ValueError(f"expected a tensor of shape {expected} for this atom, got {tuple(x.shape)}")
        return x.view(len(self), prod(self.shape))


def structure(atom: Atom) -> tuple[Any, ...]:
    """The kinds of an atom and of its parts: equal ones can share a stack."""
    values = [v for value in atom._row(0).values() for v in (value if isinstance(value, tuple) else (value,))]
    return type(atom), *(structure(value) for value in values if isinstance(value, Atom))


def stack_atoms(atoms: Sequence[Atom]) -> Atom:
    """Single atoms of one kind as a stack: the inverse of ``stack[i]``."""
    first = atoms[0]
    if any(type(atom) is not type(first) or atom.batched for atom in atoms):
        raise ValueError(f"expected single atoms of one kind, got {[atom.kind for atom in atoms]}")
    rows = [atom._row(0) for atom in atoms]
    return replace(first, batched=True, bound=None, **{name: _stacked([row[name] for row in rows]) for name in rows[0]})


def _stacked(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Tensor):
        return torch.cat(list(values))
    if isinstance(values[0], Atom):
        return stack_atoms(values)
    return tuple(_stacked(parts) for parts in zip(*values, strict=True))


def read_framed(reader: Reader, readers: Mapping[type[Atom], ReadAtom]) -> Atom:
    """Read a frame and the payload behind it, of one of the kinds in ``readers``."""
    frame = reader.take(1)[0]
    version, precision, tag = frame >> 6, frame >> 4 & 3, frame & 15
    if version != _VERSION:
        raise AtomError(f"atom format version {version}, expected {_VERSION}")
    if precision >= len(_PRECISIONS):
        raise AtomError(f"unknown precision {precision}")
    for kind, read in readers.items():
        if kind.tag == tag:
            return read(reader, _PRECISIONS[precision])
    raise AtomError(f"atom kind {tag} where {' or '.join(kind.__name__ for kind in readers)} was expected")
