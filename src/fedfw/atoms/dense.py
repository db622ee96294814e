"""Atoms with a value at every coordinate, and those of matrix sets: a few pairs of vectors instead
of a matrix.
"""

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedfw.atoms.base import Atom
from fedfw.atoms.bits import Reader, byte_width, pack_bits, read_bits, read_integer, write_integer
from fedfw.atoms.floats import floats_to_bytes, read_floats


@dataclass(frozen=True, eq=False, kw_only=True)
class DenseAtom(Atom):
    """Base class of the atoms that give a value for all p coordinates; they differ in `_dense`
    only.

    Parameters
    ----------
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms import DenseAtom
    >>> isinstance(fedfw.LinfBall(1.0).lmo(torch.ones(3)), DenseAtom)
    True
    """

    def _dot(self, g: Tensor) -> Tensor:
        return (g.double() * self._dense(torch.float64)).sum(1)

    def _add(self, x: Tensor, weight: Tensor) -> None:
        x.addcmul_(self._dense(x.dtype), weight)


@dataclass(frozen=True, eq=False, kw_only=True)
class Dense(DenseAtom):
    """A dense vector times a number; all of its entries are sent.

    Parameters
    ----------
    values : Tensor
        The vectors, of shape (n, p), in the precision of the atom.
    scale : float, default 1.0
        The factor, usually the radius of the set, which is not sent.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import Dense
    >>> Dense(shape=(2,), values=torch.tensor([[0.5, 1.0]]), scale=4.0).dense().tolist()
    [2.0, 4.0]
    """

    tag: ClassVar[int] = 5
    kind: ClassVar[str] = "dense"
    stacked: ClassVar[tuple[str, ...]] = ("values",)

    values: Tensor  # (n, p) in the atom's precision
    scale: float = 1.0

    @classmethod
    def read(
        cls, reader: Reader, precision: torch.dtype, *, shape: tuple[int, ...], scale: float
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        values = read_floats(reader, (1, prod(shape)), precision)
        return cls(shape=shape, precision=precision, values=values, scale=scale)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return self.values.to(dtype) * self.scale

    def _add(self, x: Tensor, weight: Tensor) -> None:
        x.addcmul_(self.values, weight * self.scale)

    def _add_sum(self, x: Tensor, weight: float) -> None:
        x.add_(self.values.sum(0, dtype=x.dtype), alpha=weight * self.scale)


@dataclass(frozen=True, eq=False, kw_only=True)
class SignVector(DenseAtom):
    """A corner of a box; one bit per coordinate says whether it is at its upper or at its lower
    bound.

    Parameters
    ----------
    at_hi : Tensor
        Whether a coordinate is at its upper bound: bool, of shape (n, p).
    lo, hi : Tensor
        The bounds, float64, of shape () or (p,); they are not sent.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import SignVector
    >>> lo, hi = torch.tensor(-1.0), torch.tensor(2.0)
    >>> SignVector(
    ...     shape=(3,), at_hi=torch.tensor([[True, False, True]]), lo=lo, hi=hi
    ... ).dense().tolist()
    [2.0, -1.0, 2.0]
    """

    tag: ClassVar[int] = 6
    kind: ClassVar[str] = "sign vector"
    stacked: ClassVar[tuple[str, ...]] = ("at_hi",)

    at_hi: Tensor  # (n, p) bool
    lo: Tensor  # float64, () or (p,)
    hi: Tensor  # float64, () or (p,)

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        lo: Tensor,
        hi: Tensor,
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        bits = torch.from_numpy(read_bits(reader, prod(shape)).astype(bool))
        return cls(shape=shape, precision=precision, at_hi=bits[None], lo=lo, hi=hi)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        lo, hi = (bound.to(self.at_hi.device, dtype) for bound in (self.lo, self.hi))
        return torch.where(self.at_hi, hi, lo)

    def _payload(self) -> bytes:
        return pack_bits(self.at_hi[0].cpu().numpy().astype(np.uint8))

    def _payload_nbytes(self) -> int:
        return len(self) * ((prod(self.shape) + 7) // 8)


@dataclass(frozen=True, eq=False, kw_only=True)
class Vertex(DenseAtom):
    """One row of a matrix of vertices that server and clients both hold; only the number of the row
    is sent.

    Parameters
    ----------
    index : Tensor
        Numbers of the rows, integers of shape (n,).
    vertices : Tensor
        The vertices, float64, of shape (count, p).
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import Vertex
    >>> atom = Vertex(
    ...     shape=(2,), index=torch.tensor([1]), vertices=torch.tensor([[0.0, 0.0], [2.0, 1.0]])
    ... )
    >>> atom.dense().tolist(), atom.nbytes
    ([2.0, 1.0], 2)
    """

    tag: ClassVar[int] = 7
    kind: ClassVar[str] = "vertex index"
    stacked: ClassVar[tuple[str, ...]] = ("index",)

    index: Tensor  # (n,) int64
    vertices: Tensor  # (vertices, p) float64

    @classmethod
    def read(
        cls, reader: Reader, precision: torch.dtype, *, shape: tuple[int, ...], vertices: Tensor
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        index = torch.tensor([read_integer(reader, len(vertices))])
        return cls(shape=shape, precision=precision, index=index, vertices=vertices)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return self.vertices.to(self.index.device)[self.index].to(dtype)

    def _payload(self) -> bytes:
        return write_integer(int(self.index[0]), len(self.vertices))

    def _payload_nbytes(self) -> int:
        return len(self) * byte_width(len(self.vertices))


@dataclass(frozen=True, eq=False, kw_only=True)
class LowRank(Atom):
    """The matrix ``scale * u v'`` of rank k, where ' denotes the transpose; u and v are sent.

    If ``symmetric``, v is u, k is 1 and only u is sent. Sender and receiver both divide the matrix
    by ``||u||^2``, so that rounding u does not change the trace.

    Parameters
    ----------
    u : Tensor
        Left vectors, of shape (n, rows, k), in the precision of the atom.
    v : Tensor
        Right vectors, of shape (n, columns, k), in the precision of the atom.
    scale : float
        The factor, which is the radius of the set and is not sent.
    symmetric : bool, default False
        Whether the matrix is ``scale * u u' / ||u||^2``.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import LowRank
    >>> u, v = torch.tensor([[[1.0], [0.0]]]), torch.tensor([[[0.0], [1.0], [0.0]]])
    >>> LowRank(shape=(2, 3), u=u, v=v, scale=5.0).dense().tolist()
    [[0.0, 5.0, 0.0], [0.0, 0.0, 0.0]]
    """

    tag: ClassVar[int] = 8
    stacked: ClassVar[tuple[str, ...]] = ("u", "v")

    u: Tensor  # (n, rows, k) in the atom's precision
    v: Tensor  # (n, columns, k) in the atom's precision
    scale: float
    symmetric: bool = False

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        rows: int,
        columns: int,
        k: int,
        scale: float,
        symmetric: bool = False,
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        u = read_floats(reader, (1, rows, k), precision)
        if symmetric:
            v = u
        else:
            v = read_floats(reader, (1, columns, k), precision)
        return cls(shape=shape, precision=precision, u=u, v=v, scale=scale, symmetric=symmetric)

    @property
    def kind(self) -> str:
        return f"rank {self.u.shape[2]}"

    def _matrices(self, x: Tensor) -> Tensor:
        """Return rows (n, p) as views of matrices, (n, rows, columns)."""
        return x.view(-1, self.u.shape[1], self.v.shape[1])

    def _scaled_u(self, dtype: torch.dtype) -> Tensor:
        """Return the left vectors u (n, rows, k) times ``scale``; for a symmetric matrix, whose
        trace is ``scale``, also divided by ||u||^2. Computed in float64.
        """
        u = self.u.double() * self.scale
        if self.symmetric:  # rounding leaves u with a norm near 1; the clamp is for u = 0
            u = u / self.u.double().square().sum((1, 2), keepdim=True).clamp(
                min=torch.finfo(torch.float64).tiny
            )
        return u.to(dtype)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return (self._scaled_u(dtype) @ self.v.to(dtype).mT).flatten(1)

    def _dot(self, g: Tensor) -> Tensor:
        """Return <u v^T, g> (n,) as the sum of (g v) * u: the product u v^T is never formed."""
        products = (self._matrices(g) @ self.v.to(g.dtype)).double()
        return (products * self._scaled_u(torch.float64)).sum((1, 2))

    def _add(self, x: Tensor, weight: Tensor) -> None:
        u = self._scaled_u(x.dtype) * weight[:, :, None]
        self._matrices(x).baddbmm_(u, self.v.to(x.dtype).mT)

    def _add_sum(self, x: Tensor, weight: float) -> None:
        """Add the sum of all n low-rank matrices to x by one matrix product of their factors side
        by side.
        """
        # (side, n k)
        left = self._scaled_u(x.dtype).transpose(0, 1).flatten(1)
        right = self.v.to(x.dtype).transpose(0, 1).flatten(1)
        self._matrices(x)[0].addmm_(left, right.T, alpha=weight)

    def _payload(self) -> bytes:
        return floats_to_bytes(self.u) + (b"" if self.symmetric else floats_to_bytes(self.v))

    def _payload_nbytes(self) -> int:
        entries = self.u.numel() + (0 if self.symmetric else self.v.numel())
        return entries * self.u.element_size()
