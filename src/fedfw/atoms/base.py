"""The interface that all atoms share, and the one-byte frame in front of an encoded atom."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.atoms.bits import Reader
from fedfw.atoms.floats import floats_to_bytes
from fedfw.errors import AtomError

if TYPE_CHECKING:
    from fedfw.sets.base import ConstraintSet, Shape

# The frame is one byte: format version (2 bits), precision (2 bits) and kind of atom (4 bits).
_VERSION = 1
_PRECISIONS = (torch.float32, torch.float16, torch.float64, torch.bfloat16)

ReadAtom = Callable[[Reader, torch.dtype], "Atom"]
"""A function that decodes the payload of one known kind of atom and adds what is not sent: shape,
radius and so on.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Atom(ABC):
    """A point of a constraint set in compact form, or a stack of n such points, one for each
    client.

    The linear minimization oracle of a set returns an extreme point, which usually has a short
    description: one coordinate and a sign for the l1 ball, two vectors for the nuclear-norm ball.
    An atom stores this description. It can be turned into bytes, which is what a client sends to
    the server, and it can be used in a Frank-Wolfe step without being made dense.

    Tensors that the methods take or return have *the value's shape*: ``shape`` for a single atom,
    ``(n, *shape)`` for a stack. ``len(atoms)`` is n, ``atoms[i]`` is the atom of client i, and a
    loop over a stack yields its atoms.

    Parameters
    ----------
    shape : tuple of int
        Shape of the parameter of which the atom is a value.
    batched : bool, default False
        Whether this is a stack. The tensors inside an atom always have a client axis, which has
        length one for a single atom.
    precision : torch.dtype, default torch.float32
        The precision in which the floating-point numbers of the atom are sent: float16, float32 or
        float64, and bfloat16 for vectors that were compressed.
    bound : Tensor or None, default None
        A true lower bound on the minimum of ``<g, u>`` over the set, for the g that the oracle was
        given, of shape (n,). It is None if ``<g, s>`` itself is that minimum, and for atoms that
        were decoded from bytes.

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.L1Ball(2.0)
    >>> atom = ball.lmo(torch.tensor([1.0, -3.0, 2.0]))
    >>> atom.kind, atom.dense().tolist(), atom.nbytes
    ('one-hot', [0.0, 2.0, 0.0], 2)
    >>> received = fedfw.Atom.from_bytes(atom.to_bytes(), ball, (3,))
    >>> received.step(torch.zeros(3), 0.5).tolist()
    [0.0, 1.0, 0.0]
    """

    tag: ClassVar[int]  # the number of the kind in the frame
    stacked: ClassVar[tuple[str, ...]]  # names of the tensors that have a client axis

    shape: Shape
    batched: bool = False
    precision: torch.dtype = torch.float32
    bound: Tensor | None = None

    # The methods that a kind of atom defines; tensors have the client axis n and one flat parameter
    # axis p.

    @abstractmethod
    def _dense(self, dtype: torch.dtype) -> Tensor:
        """Return the points as rows, (n, p)."""

    @abstractmethod
    def _dot(self, g: Tensor) -> Tensor:
        """Return inner products with the rows of g: (n, p) -> (n,), in float64."""

    @abstractmethod
    def _add(self, x: Tensor, weight: Tensor) -> None:
        """Add weight (n, 1) * s to x (n, p), in place."""

    def _add_sum(self, x: Tensor, weight: float) -> None:
        """Add weight * the sum of the stack's points to x (p,), in place."""
        x.add_(self._dense(x.dtype).sum(0), alpha=weight)

    def _payload(self) -> bytes:
        """Return the bytes of a stack of one, without the frame: by default its numbers."""
        return b"".join(floats_to_bytes(getattr(self, name)) for name in self.stacked)

    def _payload_nbytes(self) -> int:
        """Return the sum of the lengths of the n payloads, computed without building them."""
        return sum(getattr(self, name).nbytes for name in self.stacked)

    # The methods that users call.

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return the point itself, as a dense tensor.

        Parameters
        ----------
        dtype : torch.dtype, optional
            The dtype of the result: by default float32, or the precision of the atom if that is
            wider.

        Returns
        -------
        Tensor
            The point, in the value's shape.

        Examples
        --------
        >>> import torch, fedfw
        >>> fedfw.Simplex(1.0).lmo(
        ...     torch.tensor([[3.0, 1.0], [0.0, 2.0]]), batch=True
        ... ).dense().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        wide = torch.promote_types(self.precision, torch.float32)
        flat = self._dense(dtype or wide)
        if self.batched:
            return flat.reshape(len(self), *self.shape)
        return flat.reshape(self.shape)

    def dot(self, g: Tensor) -> Tensor:
        """Return the inner product of the point with a tensor.

        Parameters
        ----------
        g : Tensor
            A tensor in the value's shape.

        Returns
        -------
        Tensor
            A float64 scalar; for a stack one product per client, of shape (n,).

        Raises
        ------
        ValueError
            If g has another shape.

        Examples
        --------
        >>> import torch, fedfw
        >>> g = torch.tensor([1.0, -3.0])
        >>> float(fedfw.L1Ball(2.0).lmo(g).dot(g))
        -6.0
        """
        products = self._dot(self._rows(g.contiguous()))
        if self.batched:
            return products
        return products[0]

    def add_sum_to(self, x: Tensor, weight: float = 1.0) -> Tensor:
        """Add a multiple of the sum of a stack's points to one tensor, ``x <- x + weight (s_1 + ...
        + s_n)``, in place.

        Parameters
        ----------
        x : Tensor
            One contiguous tensor of the parameter's ``shape``; it is changed.
        weight : float, default 1.0
            The factor.

        Returns
        -------
        Tensor
            x.

        Raises
        ------
        ValueError
            If x has another shape.

        Examples
        --------
        >>> import torch, fedfw
        >>> atoms = fedfw.Simplex(1.0).lmo(torch.tensor([[3.0, 1.0], [0.0, 2.0]]), batch=True)
        >>> atoms.add_sum_to(torch.zeros(2), 0.5).tolist()
        [0.5, 0.5]
        """
        if tuple(x.shape) != self.shape:
            raise ValueError(f"expected one tensor of shape {self.shape}, got {tuple(x.shape)}")
        self._add_sum(x if x.ndim == 1 else x.view(-1), weight)
        return x

    def step(self, x: Tensor, eta: float | Tensor) -> Tensor:
        """Return the Frank-Wolfe step ``x <- (1 - eta) x + eta s``, in place.

        Parameters
        ----------
        x : Tensor
            A contiguous tensor in the value's shape; it is changed.
        eta : float or Tensor
            The step size, from 0 to 1; for a stack also one per client, of shape (n,).

        Returns
        -------
        Tensor
            x, which stays in the set if it was there.

        Raises
        ------
        ValueError
            If x has another shape.

        Examples
        --------
        >>> import torch, fedfw
        >>> fedfw.L1Ball(2.0).lmo(torch.tensor([1.0, -3.0])).step(torch.ones(2), 0.5).tolist()
        [0.5, 1.5]
        """
        return x.copy_(self.stepped(x, eta))

    def stepped(self, x: Tensor, eta: float | Tensor) -> Tensor:
        """Return the point after `step` as a new tensor: x stays as it is, and is read once.

        Parameters
        ----------
        x : Tensor
            A contiguous tensor in the value's shape.
        eta : float or Tensor
            The step size, from 0 to 1; for a stack also one per client, of shape (n,).

        Returns
        -------
        Tensor
            The point after the step, with the same bits as that of `step`.

        Raises
        ------
        ValueError
            If x has another shape.

        Examples
        --------
        >>> import torch, fedfw
        >>> x = torch.ones(2)
        >>> fedfw.L1Ball(2.0).lmo(torch.tensor([1.0, -3.0])).stepped(x, 0.5).tolist(), x.tolist()
        ([0.5, 1.5], [1.0, 1.0])
        """
        if isinstance(eta, Tensor):
            weight = eta.to(x).reshape(-1, 1)
        else:  # filled in on the device: the host does not wait for a copy
            weight = x.new_full((1, 1), eta)
        rows = self._rows(x) * (1 - weight)
        self._add(rows, weight)
        return rows.view(x.shape)

    @property
    def kind(self) -> str:
        """Return a short name of the kind of atom, for tables and messages, such as "one-hot" or
        "rank 1".
        """
        return type(self).__name__

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of `to_bytes`; for a stack the sum over its atoms."""
        return len(self) + self._payload_nbytes()

    def to_bytes(self) -> bytes:
        """Encode the atom: one byte with the format version, the precision and the kind, and then
        the payload.

        Returns
        -------
        bytes
            The encoding, which `from_bytes` decodes. What follows from the set and the shape is not
            part of it.

        Raises
        ------
        ValueError
            If this is a stack, whose atoms are encoded one by one.

        Examples
        --------
        >>> import torch, fedfw
        >>> len(fedfw.L1Ball(10.0).lmo(torch.ones(7850)).to_bytes())
        3
        """
        if self.batched:
            raise ValueError(
                f"a stack of {len(self)} atoms is encoded one by one: atoms[i].to_bytes()"
            )
        return self._frame() + self._payload()

    def _frame(self) -> bytes:
        """Return the byte in front of the payload."""
        return frame_of(self.precision, self.tag)

    @staticmethod
    def from_bytes(data: bytes, constraint: ConstraintSet, shape: Shape) -> Atom:
        """Decode an atom of ``constraint`` for a parameter of ``shape``.

        The result has the right form, but its numbers may still lie outside of the set;
        ``constraint.accepts`` checks that.

        Parameters
        ----------
        data : bytes
            The result of `to_bytes`.
        constraint : ConstraintSet
            The set whose oracle made the atom.
        shape : tuple of int
            Shape of the parameter.

        Returns
        -------
        Atom
            A single atom, without ``bound``.

        Raises
        ------
        AtomError
            If ``data`` is not the encoding of such an atom.

        Examples
        --------
        >>> import torch, fedfw
        >>> ball = fedfw.L1Ball(2.0)
        >>> atom = fedfw.Atom.from_bytes(ball.lmo(torch.tensor([1.0, -3.0])).to_bytes(), ball, (2,))
        >>> atom.dense().tolist(), ball.accepts(atom, (2,))
        ([0.0, 2.0], True)
        """
        reader = Reader(bytes(data))
        constraint._check_shape(tuple(shape))
        atom = read_framed(reader, constraint.readers(tuple(shape)))
        reader.finish()
        return atom

    def __len__(self) -> int:
        first: Tensor = getattr(self, self.stacked[0])
        return first.shape[0]  # a tensor's length takes torch several times as long

    def __getitem__(self, i: int) -> Self:
        """Return atom i of a stack, with its own bound; negative i count from the end."""
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"atom {i} of a stack of {n} atoms")
        row = slice(i % n, i % n + 1)
        bound = None
        if self.bound is not None:
            bound = self.bound[row]
        return replace(self, batched=False, bound=bound, **self._row(i % n))

    def _row(self, i: int) -> dict[str, Any]:
        """Return the fields that differ between the stack and its atom i."""
        return {name: getattr(self, name)[i : i + 1] for name in self.stacked}

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def _rows(self, x: Tensor) -> Tensor:
        """Return a view of x, which has the shape of this atom or stack, as rows (n, p)."""
        expected = self.shape
        if self.batched:
            expected = (len(self), *self.shape)
        if x.shape != expected:
            raise ValueError(
                f"expected a tensor of shape {expected} for this atom, got {tuple(x.shape)}"
            )
        if self.batched and len(expected) == 2:  # rows already, contiguous or not
            return x
        return x.view(len(self), prod(self.shape))


def frame_of(precision: torch.dtype, tag: int) -> bytes:
    """Return the byte in front of an atom of this precision and kind."""
    # Two bits for the version, two for the precision, four for the kind of atom.
    return bytes([_VERSION << 6 | _PRECISIONS.index(precision) << 4 | tag])


def structure(atom: Atom) -> tuple[Any, ...]:
    """Return the kinds of an atom and of its parts; atoms with equal structure can share a stack.

    Parameters
    ----------
    atom : Atom
        An atom or a stack.

    Returns
    -------
    tuple
        The class of the atom, followed by the structures of the atoms inside it, if it has any.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms.base import structure
    >>> structure(fedfw.L1Ball(1.0).lmo(torch.ones(3)))[0].__name__
    'SparseSigns'
    """
    return type(atom), *(structure(inner) for inner in _inside(atom))


def precisions(atom: Atom) -> set[torch.dtype]:
    """Return the precisions of an atom and of its parts, which say each for themselves how their
    numbers were sent.

    Parameters
    ----------
    atom : Atom
        An atom or a stack.

    Returns
    -------
    set of torch.dtype
        One precision or several.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms.base import precisions
    >>> precisions(fedfw.L2Ball(1.0).lmo(torch.ones(3), precision=torch.float64))
    {torch.float64}
    """
    return {atom.precision}.union(*(precisions(inner) for inner in _inside(atom)))


def _inside(atom: Atom) -> list[Atom]:
    """Return the atoms that a composite atom is made of; none for other kinds."""
    inner: list[Atom] = []
    for value in atom._row(0).values():  # an atom, a tuple of atoms, or no atom at all
        values = value if isinstance(value, tuple) else (value,)
        inner += [entry for entry in values if isinstance(entry, Atom)]
    return inner


def stack_atoms(atoms: Sequence[Atom]) -> Atom:
    """Combine single atoms of one kind to a stack; this is the inverse of ``stack[i]``.

    Parameters
    ----------
    atoms : sequence of Atom
        At least one single atom, all with the same `structure`.

    Returns
    -------
    Atom
        The stack, without ``bound``.

    Raises
    ------
    ValueError
        If the atoms are of different kinds, or one of them is a stack.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms.base import stack_atoms
    >>> ball = fedfw.L1Ball(1.0)
    >>> stack_atoms(
    ...     [ball.lmo(torch.tensor([1.0, 2.0])), ball.lmo(torch.tensor([-3.0, 2.0]))]
    ... ).dense().tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    first = atoms[0]
    if any(type(atom) is not type(first) or atom.batched for atom in atoms):
        raise ValueError(f"expected single atoms of one kind, got {[atom.kind for atom in atoms]}")
    rows = [atom._row(0) for atom in atoms]
    return replace(
        first,
        batched=True,
        bound=None,
        **{name: _stacked([row[name] for row in rows]) for name in rows[0]},
    )


def _stacked(values: Sequence[Any]) -> Any:
    """Return the fields of single atoms, combined along the client axis."""
    if isinstance(values[0], Tensor):
        return torch.cat(list(values))
    if isinstance(values[0], Atom):
        return stack_atoms(values)
    return tuple(_stacked(parts) for parts in zip(*values, strict=True))


def read_framed(reader: Reader, readers: Mapping[type[Atom], ReadAtom]) -> Atom:
    """Read a frame and the payload that follows it.

    Parameters
    ----------
    reader : Reader
        The bytes.
    readers : mapping from a subclass of Atom to ReadAtom
        The kinds that are allowed, each with the function that decodes its payload.

    Returns
    -------
    Atom
        A single atom.

    Raises
    ------
    AtomError
        If the version or the kind is not a known or allowed one, or the payload is invalid.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms.base import read_framed
    >>> from fedfw.atoms.bits import Reader
    >>> ball = fedfw.L1Ball(2.0)
    >>> data = ball.lmo(torch.tensor([1.0, -3.0])).to_bytes()
    >>> read_framed(Reader(data), ball.readers((2,))).dense().tolist()
    [0.0, 2.0]
    """
    # One byte: two bits of version, two of precision, and four that name the kind of atom.
    frame = reader.take(1)[0]
    version = frame >> 6
    precision = frame >> 4 & 3
    tag = frame & 15
    if version != _VERSION:
        raise AtomError(f"atom format version {version}, expected {_VERSION}")
    for kind, read in readers.items():
        if kind.tag == tag:
            return read(reader, _PRECISIONS[precision])
    raise AtomError(
        f"atom kind {tag} where {' or '.join(kind.__name__ for kind in readers)} was expected"
    )
