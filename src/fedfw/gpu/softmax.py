"""Softmax regression's loss and gradient from one pass over the samples, on NVIDIA GPUs with
Triton.

Two batched products read all samples twice from memory. Here a program takes a block of samples,
works out its scores and their softmax, and multiplies again while the block is still in the cache.
Each program adds its blocks to a sum of its own, and those are added up afterwards, always in the
same order: runs repeat to the bit. Results agree with the batched products to about 1e-6.

Tensor cores multiply numbers of 11 binary digits. A number is therefore split into the nearest of
these and the rest, which takes three products. They add up without rounding to nearest, so that no
more than a block's terms are left to them.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # no Triton, no kernel: the batched products do the same
    triton = None

_CLASSES = 16  # the least that a product of tiles takes
# The fastest of what was tried on an H200 with 10 x 6,000 x 784 samples, see docs/performance.md.
_ROWS = 128
_CHUNK = 64
_PROGRAMS = 520
_WARPS = 4
_STAGES = 3
_PARTS, _COLUMNS = 64, 64  # programs' sums that are added up at once, and how many numbers of them


def can_fuse(A: Tensor, classes: int, targets: Tensor) -> bool:
    """Return whether the fused kernel supports samples A (b, m, f) with class numbers (b, m), and
    has enough samples to be faster than batched products.
    """
    if triton is None or not A.is_cuda or torch.cuda.get_device_capability(A.device) < (8, 0):
        return False
    m, f = A.shape[1:]
    # At least 8 blocks of samples, and a client's entries are indexed by 32-bit integers.
    fits = classes <= _CLASSES and m >= 8 * _ROWS and m * f < 2**31 and A.stride(2) == 1
    return (
        fits
        and A.dtype == torch.float32
        and targets.shape == A.shape[:2]
        and targets.is_contiguous()
    )


def fused_softmax_gradient(
    A: Tensor, targets: Tensor, x: Tensor, classes: int, values: Tensor, gradients: Tensor
) -> None:
    """Fill the mean losses ``values`` (b,) and their ``gradients`` (b, p), for samples A (b, m, f)
    at points x (b, p).

    A point is the weights (c, f), flattened, and perhaps a bias (c,).
    """
    b, m, f = A.shape
    c = classes
    split = classes * f
    # Rows of weights that begin at multiples of 16 load faster.
    W, bias = (x[:, :split].contiguous(), x[:, split:])
    # b clients share the programs; each of a client's programs takes `blocks` blocks of its
    # samples.
    programs = max(1, min(-(-m // _ROWS), _PROGRAMS // b))
    blocks = -(-m // (_ROWS * programs))
    p = x.shape[1]
    # p gradient entries and the loss, rounded up to a multiple of 16.
    width = -(-(p + 1) // 16) * 16
    # Each program's gradient, followed by its loss.
    sums = torch.empty(b, programs, width, device=A.device)
    copies = _has_copy_engine(A)
    samples = TensorDescriptor.from_tensor(A, [1, _ROWS, _CHUNK]) if copies else A
    with torch.cuda.device(A.device):  # Triton goes by the current one
        _kernel[(b * programs,)](
            # Without a bias, x is a placeholder that is not read.
            *(samples, targets, W, bias if bias.numel() else x, sums),
            *(m, f, c, programs, blocks, 1 / m, p, width),
            *(A.stride(0), A.stride(1), split, x.stride(0)),
            HAS_BIAS=bool(bias.numel()),
            ROWS=_ROWS,
            CHUNK=_CHUNK,
            CHUNKS=-(-f // _CHUNK),
            CLASSES=_CLASSES,
            COPIES=copies,
            ONE=blocks == 1,
            num_warps=_WARPS,
            num_stages=_STAGES,
        )
        _add_up[(triton.cdiv(p + 1, _COLUMNS), b)](
            *(sums, values, gradients, programs, p, width, gradients.stride(0)),
            PARTS=_PARTS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )


def _has_copy_engine(A: Tensor) -> bool:
    """Return whether the device brings blocks of A to its cores by itself: Hopper and newer, for
    rows at multiples of 16.
    """
    aligned = A.data_ptr() % 16 == 0 and A.stride(0) % 4 == 0 and A.stride(1) % 4 == 0
    return aligned and torch.cuda.get_device_capability(A.device) >= (9, 0)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _head(a):  # type: ignore[no-untyped-def]
        """The nearest numbers of 11 binary digits."""
        bits = a.to(tl.int32, bitcast=True)
        return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _kernel(  # type: ignore[no-untyped-def]
        A,
        y,
        W,
        bias,
        sums,
        m,
        f,
        c,
        each,
        blocks,
        share,
        p,
        width,
        stride_ab,
        stride_am,
        stride_w,
        stride_b,
        HAS_BIAS: tl.constexpr,
        ROWS: tl.constexpr,
        CHUNK: tl.constexpr,
        CHUNKS: tl.constexpr,
        CLASSES: tl.constexpr,
        COPIES: tl.constexpr,
        ONE: tl.constexpr,
    ) -> None:
        """Write one program's partial sums: the gradient (c, f), the bias's gradient (c,) and the
        loss of every ``each``-th block of one client's samples, times ``share``, into its row of
        ``sums``.
        """
        program = tl.program_id(0)
        client, part = program // each, program % each
        chunk, classes, rows = tl.arange(0, CHUNK), tl.arange(0, CLASSES), tl.arange(0, ROWS)
        in_classes = classes < c
        if not COPIES:
            A += client.to(tl.int64) * stride_ab
        W += client.to(tl.int64) * stride_w
        y += client.to(tl.int64) * m
        row_of_sums = sums + program.to(tl.int64) * width
        offset = tl.zeros([CLASSES], tl.float32)
        if HAS_BIAS:
            offset = tl.load(
                bias + client.to(tl.int64) * stride_b + classes, mask=in_classes, other=0.0
            )
        total_r = tl.zeros([CLASSES], tl.float32)
        total_loss = tl.zeros([ROWS], tl.float32)
        for block in range(blocks):
            begin = (block * each + part) * ROWS
            row = begin + rows
            is_sample = row < m
            scores = tl.zeros([ROWS, CLASSES], tl.float32)
            for k in range(CHUNKS):
                column = k * CHUNK + chunk
                if COPIES:
                    a = A.load([client, begin, k * CHUNK]).reshape(ROWS, CHUNK)
                else:
                    inside = is_sample[:, None] & (column < f)[None, :]
                    a = tl.load(
                        A + row[:, None] * stride_am + column[None, :], mask=inside, other=0.0
                    )
                w = tl.load(
                    W + column[:, None] + classes[None, :] * f,
                    mask=(column < f)[:, None] & in_classes[None, :],
                    other=0.0,
                )
                # a w = high heavy + (a - high) heavy + high (w - heavy), up to the product of both
                # rests.
                high, heavy = _head(a), _head(w)
                more = tl.dot(high, w - heavy, input_precision="tf32")
                more = tl.dot(a - high, heavy, acc=more, input_precision="tf32")
                scores += tl.dot(high, heavy, acc=more, input_precision="tf32")
            scores = tl.where(in_classes[None, :], scores + offset[None, :], -float("inf"))
            target = tl.load(y + row, mask=is_sample, other=0)
            highest = tl.max(scores, 1)
            powers = tl.exp(scores - highest[:, None])
            total_powers = tl.sum(powers, 1)
            is_target = classes[None, :] == target[:, None]
            target_scores = tl.sum(tl.where(is_target, scores, 0.0), 1)
            r = powers / total_powers[:, None] - tl.where(is_target, 1.0, 0.0)
            r = tl.where(is_sample[:, None] & in_classes[None, :], r * share, 0.0)
            total_r += tl.sum(r, 0)
            total_loss += tl.where(is_sample, tl.log(total_powers) + highest - target_scores, 0.0)
            heavy = _head(r)
            # r' a in the same three products; light is the rest of r.
            light, heavy = tl.trans(r - heavy), tl.trans(heavy)
            for k in range(CHUNKS):  # the block's samples come from the cache this time
                column = k * CHUNK + chunk
                if COPIES:
                    a = A.load([client, begin, k * CHUNK]).reshape(ROWS, CHUNK)
                else:
                    inside = is_sample[:, None] & (column < f)[None, :]
                    a = tl.load(
                        A + row[:, None] * stride_am + column[None, :], mask=inside, other=0.0
                    )
                high = _head(a)
                more = tl.dot(light, high, input_precision="tf32")
                more = tl.dot(heavy, a - high, acc=more, input_precision="tf32")
                more = tl.dot(heavy, high, acc=more, input_precision="tf32")
                place = row_of_sums + classes[:, None] * f + column[None, :]
                inside_weights = in_classes[:, None] & (column < f)[None, :]
                if not ONE:
                    more += tl.load(place, mask=inside_weights & (block > 0), other=0.0)
                tl.store(place, more, mask=inside_weights)
        if HAS_BIAS:
            tl.store(row_of_sums + c * f + classes, total_r, mask=in_classes)
        tl.store(row_of_sums + p, tl.sum(total_loss, 0) * share)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _add_up(  # type: ignore[no-untyped-def]
        sums,
        values,
        gradients,
        each,
        p,
        width,
        stride_g,
        PARTS: tl.constexpr,
        COLUMNS: tl.constexpr,
    ) -> None:
        """Add up the programs' partial sums of one client, always in the same order."""
        client = tl.program_id(1).to(tl.int64)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        sums += client * each * width
        total = tl.zeros([COLUMNS], tl.float32)
        for begin in range(0, each, PARTS):
            part = begin + tl.arange(0, PARTS)
            there = (part < each)[:, None] & (column <= p)[None, :]
            total += tl.sum(
                tl.load(sums + part[:, None] * width + column[None, :], mask=there, other=0.0), 0
            )
        tl.store(gradients + client * stride_g + column, total, mask=column < p)
        tl.store(values + client + column * 0, total, mask=column == p)
