"""Properties of a model beside its parameters: its several inputs, its outputs' form, and whether
it is a linear layer behind layers that are not trained.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedfw.problems.known_losses import is_changed
from fedfw.problems.linear import is_plain
from fedfw.problems.modules import samples_at_once
from fedfw.problems.samples import Parts, tried


@dataclass(frozen=True)
class SplitInputs:
    """A hook before a model: it takes one tensor apart into the model's several inputs."""

    parts: Parts
    keywords: bool

    def __call__(
        self, model: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split the packed inputs into the model's several ones, by position or by name."""
        (packed,) = args
        inputs = self.parts.split(packed)
        if self.parts.names is None:
            return inputs, keywords
        named = dict(zip(self.parts.names, inputs, strict=True))
        return ((), named) if self.keywords else ((named,), keywords)


class TakeLogits:
    """A hook behind a model: it gives the outputs' ``logits`` to a loss of torch."""

    def __call__(self, model: nn.Module, args: tuple[Any, ...], outputs: Any) -> Any:
        return getattr(outputs, "logits", outputs)


def split_inputs(model: nn.Module, parts: Parts) -> None:
    """Let a model take several inputs as one tensor.

    A dictionary's entries are keywords of ``forward`` where it has such; else the dictionary is its
    one argument.
    """
    keywords = parts.names is not None
    if parts.names is not None:
        try:
            inspect.signature(model.forward).bind(**dict.fromkeys(parts.names))
        except TypeError:
            keywords = False
    model.register_forward_pre_hook(SplitInputs(parts, keywords), with_kwargs=True)


def take_logits(model: nn.Module, inputs: Tensor) -> None:
    """Let a model give the ``logits`` of its outputs, where they have such; tried on inputs."""
    outputs = tried(model, inputs)
    if not isinstance(outputs, Tensor) and isinstance(getattr(outputs, "logits", None), Tensor):
        model.register_forward_hook(TakeLogits())


def remove_adapters(model: nn.Module) -> None:
    """Give a model the inputs and outputs that its user gave it."""
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(hook, SplitInputs | TakeLogits):
                del hooks[key]
                model._forward_pre_hooks_with_kwargs.pop(key, None)


def linear_layer(model: nn.Module) -> nn.Linear | None:
    """Return the linear layer that is all that is trained of a model, and whose outputs are the
    model's; None for other models.

    The model's graph is looked at, in which the layer is called once, at the end. A model whose
    path depends on its numbers has no graph.

    Examples
    --------
    >>> import torch
    >>> linear_layer(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)))
    Linear(in_features=4, out_features=3, bias=True)
    >>> linear_layer(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())) is None
    True
    """
    if isinstance(model, nn.Linear) and is_plain(model, nn.Linear):
        return model
    owners = [
        (name, module)
        for name, module in model.named_modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]
    if len(owners) != 1 or any(is_changed(module) for module in model.modules()):
        return None
    ((name, layer),) = owners
    if not (isinstance(layer, nn.Linear) and is_plain(layer, nn.Linear)):
        return None
    try:
        graph = fx.Tracer().trace(model)
    except Exception:  # the user's code, which may fail in any way for what is no tensor
        return None
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target == name]
    own = {f"{name}.weight", f"{name}.bias"}
    reads = [node for node in graph.nodes if node.op == "get_attr" and node.target in own]
    (result,) = (node.args[0] for node in graph.nodes if node.op == "output")
    return layer if len(calls) == 1 and not reads and result is calls[0] else None


def features_of(model: nn.Module, layer: nn.Linear, inputs: Tensor) -> Tensor:
    """Return what a model gives its linear layer, for the samples ``inputs`` (m, ...)."""
    if model is layer:
        return inputs
    at_once = samples_at_once(model, inputs)
    found: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    try:
        with torch.no_grad():
            for piece in torch.split(inputs, at_once):
                model(piece)
    finally:
        handle.remove()
    return torch.cat(found)
