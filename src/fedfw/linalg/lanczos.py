"""Lanczos steps on G'G, which build an orthonormal basis and a tridiagonal matrix whose eigenvalues
approach G'G's.

On a processor `lanczos.c` beside this file takes them, which reads G once a step and not twice. It
is compiled when fedfw is installed; where there was no compiler, and on other devices, products of
torch do the same.
"""

from types import ModuleType

import torch
from torch import Tensor

_compiled: ModuleType | None
try:
    from fedfw.linalg import _lanczos as _compiled
except ImportError:  # no compiler: torch does the same
    _compiled = None


def advance(
    g: Tensor, basis: Tensor, first: int, last: int, diagonal: Tensor, beside: Tensor
) -> None:
    """Take the Lanczos steps ``first`` to ``last - 1`` in place: step k fills in vector k + 1 of
    the basis, and column k of ``diagonal`` and ``beside``.

    G'G times vector k is made orthogonal to the last two vectors, which in exact arithmetic makes
    it orthogonal to all, and then, against rounding errors, to all vectors. It is scaled to norm
    one, or is zero where the Krylov space is exhausted.

    Parameters
    ----------
    g : Tensor
        The matrices, of shape (n, rows, columns).
    basis : Tensor
        Shape (n, steps + 1, columns), of g's type; its first ``first + 1`` vectors are read.
    first, last : int
        ``0 <= first <= last <= steps``.
    diagonal, beside : Tensor
        The entries on and beside the diagonal of the tridiagonal matrices, each of shape (n,
        steps), float64. Step k fills in column k of both.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.lanczos import advance
    >>> basis, on, off = (
    ...     torch.zeros(1, 3, 2),
    ...     torch.zeros(1, 2).double(),
    ...     torch.zeros(1, 2).double(),
    ... )
    >>> basis[0, 0] = torch.tensor([0.6, 0.8])
    >>> advance(torch.diag(torch.tensor([3.0, 1.0]))[None], basis, 0, 2, on, off)
    >>> tridiagonal = on[0].diag() + off[0, :1].diag(1) + off[0, :1].diag(-1)
    >>> [round(value, 5) for value in torch.linalg.eigvalsh(tridiagonal).tolist()]
    [1.0, 9.0]
    """
    everything = (g, basis, diagonal, beside)
    if _compiled is not None and g.numel() > 0 and all(map(_is_plain, everything)):
        for matrix, vectors, on, off in zip(*everything, strict=True):
            outputs = (vectors.data_ptr(), first, last, on.data_ptr(), off.data_ptr())
            _compiled.steps(matrix.data_ptr(), *matrix.shape, g.dtype is torch.float64, *outputs)
        return
    for k in range(first, last):
        on, off = _step(g, basis, k)
        diagonal[:, k] = on.squeeze(1)
        beside[:, k] = off.squeeze(1)


def _is_plain(x: Tensor) -> bool:
    """Return whether a tensor is numbers in the host's memory, one behind the other, and nothing
    else.
    """
    fits = type(x) is Tensor and x.is_cpu and x.dtype in (torch.float32, torch.float64)
    return fits and x.is_contiguous() and not (x.requires_grad or x.is_neg() or x._is_zerotensor())


def _step(g: Tensor, basis: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Take Lanczos step k with torch's products: write vector k + 1 of the basis, and return the
    entries on and beside the diagonal, each of shape (n, 1).
    """
    w = torch.bmm(g.mT, torch.bmm(g, basis[:, k].unsqueeze(2)))
    recent = basis[:, max(k - 1, 0) : k + 1]
    everything = basis[:, : k + 1]
    parts = torch.bmm(recent, w)
    w = torch.baddbmm(w, recent.mT, parts, alpha=-1)
    w = torch.baddbmm(w, everything.mT, torch.bmm(everything, w), alpha=-1).squeeze(2)
    beta = torch.linalg.vector_norm(w, dim=1, keepdim=True)
    # After the Krylov space is exhausted only rounding noise is left, which must not become a
    # direction.
    beta = beta * (beta > 32 * torch.finfo(g.dtype).eps * torch.linalg.vector_norm(parts, dim=1))
    basis[:, k + 1] = torch.where(beta > 0, w / beta, 0.0)
    return parts[:, -1], beta
