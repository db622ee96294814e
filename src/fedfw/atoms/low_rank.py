"""Atoms of matrix sets: a few pairs of vectors instead of a matrix."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedfw.atoms.base import Atom
from fedfw.atoms.bits import Reader
from fedfw.atoms.floats import floats_to_bytes, read_floats


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

    def _scaled_u(self, dtype: torch.dtype) -> Tensor:
        """Return the left vectors times ``scale``, and over ||u||^2 if symmetric, computed in
        float64.
        """
        u = self.u.double() * self.scale
        if self.symmetric:
            u = u / self.u.double().square().sum((1, 2), keepdim=True).clamp(
                min=torch.finfo(torch.float64).tiny
            )
        return u.to(dtype)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return (self._scaled_u(dtype) @ self.v.to(dtype).mT).flatten(1)

    def _dot(self, g: Tensor) -> Tensor:
        rows = self.u.shape[1]
        columns = self.v.shape[1]
        products = (g.view(-1, rows, columns) @ self.v.to(g.dtype)).double() * self._scaled_u(
            torch.float64
        )
        return products.sum((1, 2))

    def _add(self, x: Tensor, weight: Tensor) -> None:
        rows = self.u.shape[1]
        columns = self.v.shape[1]
        u = self._scaled_u(x.dtype) * weight[:, :, None]
        x.view(-1, rows, columns).baddbmm_(u, self.v.to(x.dtype).mT)

    def _add_sum(self, x: Tensor, weight: float) -> None:
        rows = self.u.shape[1]
        columns = self.v.shape[1]
        u = self._scaled_u(x.dtype)
        v = self.v.to(x.dtype)
        # (side, n k)
        left = u.transpose(0, 1).flatten(1)
        right = v.transpose(0, 1).flatten(1)
        x.view(rows, columns).addmm_(left, right.T, alpha=weight)

    def _payload(self) -> bytes:
        return floats_to_bytes(self.u) + (b"" if self.symmetric else floats_to_bytes(self.v))

    def _payload_nbytes(self) -> int:
        numbers = self.u.numel() + (0 if self.symmetric else self.v.numel())
        return numbers * self.u.element_size()
