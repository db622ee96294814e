"""The l1 ball's oracle, and steps to and sums of sparse atoms: one call of compiled code, or one kernel of a GPU each.

On NVIDIA GPUs the kernels are Triton's. A kernel takes two microseconds or more however little it does, its wait for
the one before it included. torch needs seven for the oracle, one of which, the argmax of a few rows, takes fifteen, six
for a sum in a fixed order and four for a step. On processors a call of torch takes some microseconds, too
(`compiled.c`). Results are the same to the bit.
"""

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from fedfw.linalg.compiled import ON_ONE_THREAD, REAL, compiled, may_be_handed_over

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton, no kernels: torch does the same
    triton = None

_BLOCK = 4096  # of a row that a program looks at in one go
_UP, _DOWN = np.int8(1), np.int8(-1)
_MOST_ENTRIES = 256
"""Of sparse atoms that one kernel of a GPU adds up: every coordinate looks at all of them."""


def largest_entries(g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first entry of the largest magnitude of each row (n, p).

    On the CPU torch would take several times as long as compiled code, or as numpy where there was no compiler.

    Returns
    -------
    tuple of Tensor
        Its index (n, 1); -1 where it is positive and else 1 (n, 1), int8; and a number (n,) that is finite where all
        of the row is.

    Examples
    --------
    >>> import torch
    >>> index, sign, _ = largest_entries(torch.tensor([[1.0, -5.0, 5.0], [2.0, 0.0, 1.0]]))
    >>> index.tolist(), sign.tolist()
    ([[1], [0]], [[1], [-1]])
    """
    if g.dtype in REAL and g.shape[1] > 0 and may_be_handed_over(g):
        n, p = g.shape
        index = torch.empty((n, 1), dtype=torch.int64, device=g.device)
        signs, checks = index.new_empty((n, 1), dtype=torch.int8), g.new_empty(n)
        assert compiled is not None
        found = index.data_ptr(), signs.data_ptr(), checks.data_ptr()
        compiled.select(g.data_ptr(), n, p, g.dtype is torch.float64, *found)
        return index, signs, checks
    if not g.is_cuda and not g.requires_grad:
        rows = g.numpy()
        places = np.abs(rows).argmax(1)  # a NaN or an infinity is the largest entry
        largest = rows[np.arange(len(rows)), places]
        arrays = places[:, None], np.where(largest > 0, _DOWN, _UP)[:, None], largest
        index, signs, checks = map(torch.from_numpy, arrays)
        return index, signs, checks
    n, p = g.shape
    plain = g.dtype in (torch.float32, torch.float64) and g.stride(1) == 1 and p < 2**31 - _BLOCK
    if triton is None or not plain or not g.is_cuda:
        index = g.abs().argmax(1, keepdim=True)
        checks = g.gather(1, index)
        return index, torch.where(checks > 0, -1, 1).to(torch.int8), checks.flatten()
    indices = torch.empty(n, 1, dtype=torch.int64, device=g.device)
    signs = torch.empty(n, 1, dtype=torch.int8, device=g.device)
    checks = torch.empty(n, dtype=g.dtype, device=g.device)
    with torch.cuda.device(g.device):  # Triton goes by the current one
        _select[(n,)](g, indices, signs, checks, p, g.stride(0), BLOCK=_BLOCK, num_warps=8)
    return indices, signs, checks


def scaled_signs(signs: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Signs, int8, times a number, in this type.

    Examples
    --------
    >>> import torch
    >>> scaled_signs(torch.tensor([[1, -1]], dtype=torch.int8), 3.0, torch.float64).tolist()
    [[3.0, -3.0]]
    """
    if dtype is not torch.float64 or signs.dtype is not torch.int8 or not may_be_handed_over(signs):
        return signs.to(dtype).mul_(scale)
    into = torch.empty_like(signs, dtype=dtype)
    assert compiled is not None
    compiled.scale(signs.data_ptr(), signs.numel(), into.data_ptr(), scale)
    return into


def can_add_entries(x: Tensor, indices: Tensor) -> bool:
    """Whether `add_entries` is for a vector x (p,) on a GPU, and `step_to_entries` for rows (n, p) there.

    The entries are those at indices (n, k).
    """
    return triton is not None and x.is_cuda and 0 < indices.numel() <= _MOST_ENTRIES and x.is_contiguous()


def stepped_to_entries(x: Tensor, indices: Tensor, values: Tensor, eta: float) -> Tensor:
    """(1 - eta) x + eta s, in float64 on a processor, for vectors s with these values at these indices, both (n, k).

    Examples
    --------
    >>> import torch
    >>> x, values = torch.ones(1, 2, dtype=torch.float64), torch.tensor([[4.0]], dtype=torch.float64)
    >>> stepped_to_entries(x, torch.tensor([[1]]), values, 0.5).tolist()
    [[0.5, 2.5]]
    """
    # torch computes larger ones on several threads.
    if x.numel() > ON_ONE_THREAD or not _are_entries(x, indices, values):
        return (x * (1 - eta)).scatter_add_(1, indices, values * eta)
    (n, p), into = x.shape, torch.empty_like(x)
    if indices.shape[0] != n:
        raise ValueError(f"entries of {indices.shape[0]} vectors, expected {n}")
    entries = indices.data_ptr(), values.data_ptr()
    assert compiled is not None
    compiled.step(x.data_ptr(), n, p, indices.shape[1], *entries, into.data_ptr(), eta)
    return into


def _are_entries(x: Tensor, indices: Tensor, values: Tensor) -> bool:
    """Whether compiled code is for x, and for entries with these values at these indices."""
    fit = x.dtype is values.dtype is torch.float64 and indices.dtype is torch.int64 and indices.shape == values.shape
    return fit and may_be_handed_over(x, indices, values)


def add_entries(x: Tensor, indices: Tensor, values: Tensor) -> None:
    """x (p,) += the sum of the vectors with these values at these indices, both (n, k), in their order."""
    if not x.is_cuda:
        if _are_entries(x, indices, values):
            assert compiled is not None
            compiled.add(x.data_ptr(), x.shape[0], indices.numel(), indices.data_ptr(), values.data_ptr())
            increment_version(x)  # as torch does: who differentiates must see that x was changed
        else:
            x.index_add_(0, indices.flatten(), values.flatten())
        return
    p, block = len(x), 256
    with torch.cuda.device(x.device):
        _add[(triton.cdiv(p, block),)](
            x, indices.contiguous(), values.contiguous(), p, indices.numel(), BLOCK=block, num_warps=4
        )


def step_to_entries(x: Tensor, indices: Tensor, values: Tensor, eta: Tensor) -> None:
    """x (n, p) <- (1 - eta) x + eta s for the vectors s with these values at these indices, both (n, k); eta (n, 1)."""
    (n, p), block = x.shape, 1024
    eta = eta.expand(n, 1)
    with torch.cuda.device(x.device):
        _step[(triton.cdiv(p, block), n)](
            *(x, indices.contiguous(), values.contiguous(), eta, p, indices.shape[1], eta.stride(0)),
            BLOCK=block,
            num_warps=4,
            enable_fp_fusion=False,  # a product is rounded before it is added, as torch does it
        )


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _select(g, indices, signs, checks, p, stride, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        g += row * stride
        places = tl.arange(0, BLOCK)
        largest = tl.full([BLOCK], -1.0, g.dtype.element_ty)
        first = tl.zeros([BLOCK], tl.int32)
        zeros = tl.zeros([BLOCK], g.dtype.element_ty)
        for begin in range(0, p, BLOCK):
            at = begin + places
            x = tl.load(g + at, mask=at < p, other=0.0)
            size = tl.where(at < p, tl.abs(x), -1.0)
            first = tl.where(size > largest, at, first)
            largest = tl.where(size > largest, size, largest)
            zeros += x * 0.0
        top = tl.max(largest, 0)
        index = tl.min(tl.where(largest == top, first, p - 1), 0)
        tl.store(indices + row, index.to(tl.int64))
        tl.store(signs + row, tl.where(tl.load(g + index) > 0, -1, 1).to(tl.int8))
        tl.store(checks + row, tl.sum(zeros, 0))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _add(x, indices, values, p, count, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], x.dtype.element_ty)
        for i in range(count):
            total += tl.where(at == tl.load(indices + i), tl.load(values + i), 0.0)
        before = tl.load(x + at, mask=at < p, other=0.0)
        tl.store(x + at, before + total, mask=at < p)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _step(x, indices, values, eta, p, k, stride_eta, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def]
        row = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        share = tl.load(eta + row * stride_eta)
        moved = tl.load(x + row * p + at, mask=at < p, other=0.0) * (1 - share)
        for i in range(k):
            more = share * tl.load(values + row * k + i)
            moved = tl.where(at == tl.load(indices + row * k + i), moved + more, moved)
        tl.store(x + row * p + at, moved, mask=at < p)
