"""The properties of a model that make its losses simple: a linear layer behind layers that are not
trained, classes, and convexity.
"""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from torch import Tensor, fx, nn

from fedfw.problems.completion import MatrixCompletion
from fedfw.problems.known_losses import LossFunction, is_changed, is_convex
from fedfw.problems.modules import samples_at_once
from fedfw.problems.scores import is_plain


def linear_layer(model: nn.Module) -> nn.Linear | None:
    """Return a model's linear layer, if nothing else is trained and its outputs are the model's;
    None for other models.

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
    names_of_layer = {f"{name}.weight", f"{name}.bias"}
    direct_reads = [
        node for node in graph.nodes if node.op == "get_attr" and node.target in names_of_layer
    ]
    (result,) = (node.args[0] for node in graph.nodes if node.op == "output")
    return layer if len(calls) == 1 and not direct_reads and result is calls[0] else None


def features_of(model: nn.Module, layer: nn.Linear, inputs: Tensor) -> Tensor:
    """Return the inputs (m, f) of a model's linear layer for samples ``inputs`` (m, ...)."""
    if model is layer:
        return inputs
    at_once = samples_at_once(model, inputs)
    features: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, given: features.append(given[0]))
    try:
        with torch.no_grad():
            for piece in torch.split(inputs, at_once):
                model(piece)
    finally:
        handle.remove()
    return torch.cat(features)


def is_linear(model: nn.Module) -> bool:
    """Return whether a model's outputs are known to be linear in its parameters, sample by
    sample.
    """
    return linear_layer(model) is not None or is_plain(model, MatrixCompletion)


def softmax_classes(model: nn.Module, loss: LossFunction) -> int | None:
    """Return the number of classes of a softmax regression: one linear layer with cross-entropy;
    None for other models.
    """
    softmax = loss is nnf.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    layer = linear_layer(model)
    return layer.out_features if softmax and layer is not None else None


def declared_convex(model: nn.Module, loss: LossFunction) -> bool | None:
    """Return whether losses are convex in the parameters, by the model's own statement or its
    structure; None where that is not known.
    """
    declared = getattr(model, "convex", None)
    if isinstance(declared, bool):
        return declared
    if is_linear(model):
        return True if is_convex(loss) else None
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    # Products of several trained matrices are not convex in them.
    return False if len(matrices) > 1 else None
