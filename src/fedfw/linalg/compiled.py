"""Compiled code for processors (`compiled.c`), where there was a compiler when fedfw was installed; else None."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

compiled: ModuleType | None
try:
    from fedfw.linalg import _compiled as compiled
except ImportError:  # no compiler: torch and numpy do the same
    compiled = None

REAL = (torch.float32, torch.float64)
"""The types of numbers that compiled code is for."""
ON_ONE_THREAD = 2**15
"""Numbers up to which torch, too, computes on one thread."""


def may_be_handed_over(*tensors: Tensor) -> bool:
    """Whether there is compiled code that can be given the addresses of these tensors."""
    return compiled is not None and all(map(_is_plain, tensors))


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.requires_grad
