"""Softmax regression's losses and gradients on a processor, from one pass over the samples in
compiled code.

`softmax.c` beside this file is compiled when fedfw is installed. Where there was no compiler,
batched products of torch do the same (`fedfw.problems.linear`); results agree to some 1e-6.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import prod
from types import ModuleType

import torch
from torch import Tensor

_compiled: ModuleType | None
try:
    from fedfw.cpu import _softmax as _compiled
except ImportError:  # no compiler, no kernel
    _compiled = None

_WORTH_A_THREAD = 2**24
"""Products of a feature and a weight, some milliseconds of work, below which no further thread is
started.
"""


def is_compiled() -> bool:
    """Return whether there was a compiler when fedfw was installed."""
    return _compiled is not None


def is_compiled_for(inputs: Tensor, targets: Tensor, sizes: Tensor) -> bool:
    """Return whether the compiled code is there, and is for samples (n, m, ...), classes (n, m) and
    sizes (n,) like these.
    """
    numbers = all(
        tensor.dtype is torch.int64 and tensor.is_contiguous() for tensor in (targets, sizes)
    )
    fits = inputs.dtype is torch.float32 and inputs.device.type == "cpu" and inputs.is_contiguous()
    return is_compiled() and numbers and fits and inputs.numel() > 0


def softmax_gradient(
    inputs: Tensor,
    targets: Tensor,
    sizes: Tensor,
    rows: Tensor,
    picks: Tensor | None,
    x: Tensor,
    classes: int,
    bias: bool,
    factors: float | Tensor,
    values: Tensor,
    gradients: Tensor,
) -> None:
    """Fill the mean losses ``values`` (b,) of some clients and their ``gradients`` (b, p), times
    factors, in float32.

    Parameters
    ----------
    inputs, targets, sizes : Tensor
        (n, m, ...) and (n, m): samples of n clients, of which the first (n,) are theirs; see
        `is_compiled_for`.
    rows : Tensor
        (b,): which of the clients.
    picks : Tensor or None
        (b, batch): the numbers of the samples that are looked at; None for all.
    x : Tensor
        (b, p): a point for each of them, in float32 or float64: the weights (c, f), flattened, and
        perhaps a bias (c,).
    classes : int
        c.
    bias : bool
        Whether points have one.
    factors : float or Tensor
        One, or (b,).
    values, gradients : Tensor
        To be filled, contiguous; no gradients are worked out where these are empty.

    Raises
    ------
    ValueError
        For shapes that do not fit, targets that are no classes, and picks that are no samples.
    """
    b, p = x.shape
    stacked = inputs.shape[0]
    most = inputs.shape[1]
    f = prod(inputs.shape[2:])
    with_gradients = gradients.numel() > 0
    # The kernel gets addresses alone: shapes are checked here.
    if not rows.shape == values.shape == (b,) or p != classes * (f + bias):
        expected_shape = f"({rows.shape[0]}, {classes * (f + bias)})"
        raise ValueError(
            f"points of shape {tuple(x.shape)}, expected {expected_shape}: one for each client"
        )
    if not (rows.is_contiguous() and values.is_contiguous() and gradients.is_contiguous()):
        raise ValueError(
            "rows, values or gradients that do not lie together, expected contiguous tensors"
        )
    if x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    if x.stride(1) != 1:
        x = x.contiguous()
    samples = most
    chosen = 0
    if picks is not None:
        if picks.shape[0] != b:
            raise ValueError(
                f"picks of shape {tuple(picks.shape)}, expected a row for each of {b} clients"
            )
        samples = picks.shape[1]
        picks = picks.to(torch.int64).contiguous()
        chosen = picks.data_ptr()
    factors = torch.as_tensor(factors, dtype=torch.float64).expand(b).contiguous()
    assert _compiled is not None
    parts = max(1, -(-samples // _compiled.PART))
    losses = values
    slopes = gradients
    if parts > 1:
        losses = values.new_empty(b, parts)
        # Each part of the samples has sums of its own, which are added up below.
        slopes = gradients.new_empty(b if with_gradients else 0, parts, p)
    arguments = (
        *(stacked, most, inputs.data_ptr(), targets.data_ptr()),
        *(rows.data_ptr(), sizes.data_ptr(), chosen, samples, parts),
        *(x.data_ptr(), x.stride(0), x.dtype is torch.float64, classes, f, bias),
        # 1.0: the factor of the losses; 0 as an address: no gradients.
        *(1.0, factors.data_ptr(), losses.data_ptr(), slopes.data_ptr() if with_gradients else 0),
    )
    _in_threads(b * parts, b * samples * f * classes, arguments, rows)
    if parts > 1:
        for into, sums_of_parts in ((values, losses), (gradients, slopes))[: 1 + with_gradients]:
            # Without gradients only the values are summed: the slice leaves out the second pair.
            into.copy_(sums_of_parts[:, 0])
            # Parts are added in order: a client's bits do not depend on the other clients' parts.
            for part in range(1, parts):
                into += sums_of_parts[:, part]


def _in_threads(job_count: int, work: int, arguments: Sequence[float], rows: Tensor) -> None:
    """Run the compiled code on all ``job_count``, on as many threads as the ``work``, in products
    of a feature and a weight, is worth; refuse what it found invalid.
    """
    assert _compiled is not None
    compute_gradients = _compiled.gradients
    threads = min(torch.get_num_threads(), job_count, 1 + work // _WORTH_A_THREAD)
    if threads <= 1:
        invalid_positions = [compute_gradients(0, job_count, *arguments)]
    else:
        ends = [job_count * i // threads for i in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            results = pool.map(
                lambda bounds: compute_gradients(*bounds, *arguments), pairwise(ends)
            )
            invalid_positions = list(results)
    # -1 where all jobs of a thread were valid.
    invalid_clients = [rows[position].item() for position in invalid_positions if position >= 0]
    if invalid_clients:
        raise ValueError(
            f"the client in row {invalid_clients[0]} has targets, picks or a size that there are "
            "not"
        )
