"""Models of several inputs, and models that return an object with ``logits``.

Several inputs become the columns of one tensor, so that they are stored, drawn and sent to a device
as other inputs are. A hook before the model takes that tensor apart, one behind it takes the
logits.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class SplitInputs:
    """A hook before a model, which takes a tensor (m, columns) apart into several inputs.

    Parameters
    ----------
    names : tuple of str, optional
        Of a dictionary's entries; None for a tuple.
    shapes, dtypes : tuple
        Of each input of a sample; a dtype of None is that of the tensor.
    as_keywords : bool
        Whether a dictionary's entries are keywords of ``forward``, and not its one argument.
    """

    names: tuple[str, ...] | None
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype | None, ...]
    as_keywords: bool = False

    def __call__(
        self, model: nn.Module, args: tuple[Tensor], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of ``forward``: the tensor's columns, split
        into the inputs with their shapes and dtypes.
        """
        (packed,) = args
        pieces = torch.split(packed, [prod(shape) for shape in self.shapes], 1)
        inputs = []
        for piece, shape, dtype in zip(pieces, self.shapes, self.dtypes, strict=True):
            # Without a dtype of its own an input keeps that of the packed tensor.
            inputs.append(piece.reshape(len(packed), *shape).to(dtype or packed.dtype))
        if self.names is None:
            return tuple(inputs), keywords
        named = dict(zip(self.names, inputs, strict=True))
        if self.as_keywords:
            return (), named
        return (named,), keywords


def pack_inputs(
    inputs: Mapping[str, Any] | tuple[Any, ...], owner: str, dtype: torch.dtype
) -> tuple[Tensor, SplitInputs]:
    """Return several inputs (m, ...) as one tensor (m, columns), and the hook that splits it."""
    names = tuple(inputs) if isinstance(inputs, Mapping) else None
    parts = tuple(inputs.values()) if isinstance(inputs, Mapping) else inputs
    columns = []
    for part in parts:
        if not isinstance(part, Tensor) or part.is_sparse_csr or part.ndim == 0:
            raise ValueError(
                f"{owner}: expected each of several inputs to be a dense tensor or array"
            )
        packed = part.reshape(len(part), -1).to(dtype)
        if not part.is_floating_point() and not torch.equal(packed.to(part.dtype), part.flatten(1)):
            raise ValueError(
                f"{owner}: one of several inputs has a whole number that {dtype} does not hold, "
                "expected smaller ones, or a model in float64"
            )
        columns.append(packed)
    sizes = [len(packed) for packed in columns]
    if len(set(sizes)) != 1:
        raise ValueError(f"{owner}: several inputs of {sizes} samples, expected equally many")
    shapes = tuple(tuple(part.shape[1:]) for part in parts)
    dtypes = tuple(None if part.is_floating_point() else part.dtype for part in parts)
    return torch.cat(columns, 1), SplitInputs(names, shapes, dtypes)


def split_inputs(model: nn.Module, split: SplitInputs) -> None:
    """Let a model take its several inputs as one tensor.

    A dictionary's entries are keywords of ``forward`` where it has such.
    """
    as_keywords = False
    if split.names is not None:
        try:
            inspect.signature(model.forward).bind(**dict.fromkeys(split.names))
            as_keywords = True
        except TypeError:
            pass  # forward takes the dictionary itself
    model.register_forward_pre_hook(replace(split, as_keywords=as_keywords), with_kwargs=True)


def take_logits(model: nn.Module, args: tuple[Any, ...], outputs: Any) -> Any:
    """Return the ``logits`` of a model's outputs; a hook behind a model."""
    return outputs.logits


def remove_adapters(model: nn.Module) -> None:
    """Let a model take and return again what it did when it was passed to a problem."""
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(hook, SplitInputs) or hook is take_logits:
                del hooks[key]
                model._forward_pre_hooks_with_kwargs.pop(key, None)
