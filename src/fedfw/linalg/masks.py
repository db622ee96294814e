"""Which entries of a vector differ from another's, or do not fit a precision.

On a processor a mask is an array of numpy, which one call of compiled code fills where there is any: rounds of tiny
models are made of calls, and torch's cost most.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.checks import bits_of
from fedfw.linalg.compiled import REAL, compiled, may_be_handed_over

Mask = npt.NDArray[np.bool_]
_INTEGERS = {torch.float16: np.int16, torch.float32: np.int32, torch.float64: np.int64}


def other_bits(x: Tensor, y: Tensor | None = None) -> Tensor | Mask:
    """Where the bits of x differ from those of y, which has its shape; by default from those of zeros.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([0.0, -0.0, 1.0])
    >>> other_bits(x).tolist(), other_bits(x, torch.tensor([0.0, -0.0, 2.0])).tolist()
    ([False, True, True], [False, False, True])
    """
    if not x.is_cpu:
        return bits_of(x) != (0 if y is None else bits_of(y))
    dtype, alike = x.dtype, y is None or (y.dtype is x.dtype and y.shape == x.shape)
    if dtype in REAL and alike and may_be_handed_over(*(x,) if y is None else (x, y)):
        mask: Mask = np.empty(x.shape, np.bool_)
        assert compiled is not None
        other = 0 if y is None else y.data_ptr()
        compiled.differ(x.data_ptr(), other, dtype is torch.float64, mask.size, mask)
        return mask
    bits = x.numpy().view(_INTEGERS[dtype])
    differ: Mask = bits != (0 if y is None else y.numpy().view(_INTEGERS[y.dtype]))
    return differ


def beyond_float32(x: Tensor) -> Tensor | Mask:
    """Where float32 does not hold the numbers of x exactly; as `other_bits` gives it.

    Examples
    --------
    >>> import torch
    >>> beyond_float32(torch.tensor([0.5, 0.1], dtype=torch.float64)).tolist()
    [False, True]
    """
    if not x.is_cpu:
        return x.float() != x
    if x.dtype is torch.float64 and may_be_handed_over(x):
        mask: Mask = np.empty(x.shape, np.bool_)
        assert compiled is not None
        compiled.beyond(x.data_ptr(), mask.size, mask)
        return mask
    numbers = x.numpy()
    with np.errstate(all="ignore"):  # what float32 cannot hold may be infinite or zero there
        differ: Mask = numbers.astype(np.float32) != numbers
    return differ


def on_host(mask: Tensor | Mask) -> Mask:
    """Such a mask on the host; of a tensor it is a copy, because a GPU's next replay overwrites what this one gave.

    Examples
    --------
    >>> import torch
    >>> on_host(torch.tensor([True, False]))
    array([ True, False])
    """
    if isinstance(mask, np.ndarray):
        return mask
    copied: Mask = mask.cpu().numpy().copy()
    return copied
