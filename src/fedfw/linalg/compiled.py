"""Compiled code for processors (`compiled.c`), where there was a compiler when fedfw was installed; else None."""

from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

compiled: ModuleType | None
try:
    from fedfw.linalg import _compiled as compiled
except ImportError:  # no compiler: torch and numpy do the same
    compiled = None

_transforms, _modes = torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack
_recording = torch._C._get_tracing_state
REAL = (torch.float32, torch.float64)
"""The types of numbers that compiled code is for."""
ON_ONE_THREAD = 2**15
"""Numbers up to which torch, too, computes on one thread."""


def may_be_handed_over(*tensors: Tensor) -> bool:
    """Whether there is compiled code that can be given the addresses of these tensors."""
    # Where torch looks at every operation, to transform, fake, differentiate or record it, compiled code would escape.
    if compiled is None or _transforms() or _modes() or forward_ad._current_level >= 0 or _recording() is not None:
        return False
    for one in tensors:  # numbers in the host's memory, one behind the other, and nothing else
        if type(one) is not Tensor or not one.is_cpu or not one.is_contiguous():
            return False
        if one.requires_grad or one.is_neg() or one._is_zerotensor():
            return False
    return True
