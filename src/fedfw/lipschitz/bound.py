"""The Lipschitz constant of a network: a proven upper bound, layer by layer."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from fedfw.errors import NonFiniteError
from fedfw.lipschitz.layers import Residual
from fedfw.lipschitz.norms import convolution_bound, matrix_bound, shared_windows

OfWeights = Callable[[str, "nn.Linear | nn.Conv2d"], float]
"""The constant of a layer with weights, from its name and the layer."""


def lipschitz_bound(model: nn.Module) -> float:
    """Return a proven upper bound on how far a network stretches the l2 distance between two
    inputs.

    For all inputs x and y of any size, ``||model(x) - model(y)|| <= lipschitz_bound(model) ||x -
    y||`` in exact arithmetic. It is the product of the layers' constants, and 1 plus that of the
    body for a `Residual`.

    Parameters
    ----------
    model : nn.Module
        An `nn.Sequential`, possibly nested, or a single layer, of: `nn.Linear`; `nn.Conv2d` with
        zero padding; ReLU, ReLU6, LeakyReLU, Tanh, Sigmoid; MaxPool2d, AvgPool2d,
        AdaptiveAvgPool2d to one pixel; Flatten, Unflatten, Identity, Dropout in evaluation mode,
        where it does nothing; the layers of `fedfw.lipschitz`; modules of one's own with a number
        ``lipschitz``, which is believed.

    Returns
    -------
    float
        The bound, worked out in float64 with its rounding errors added.

    Raises
    ------
    ValueError
        If no bound is known for a layer; the message names it.
    NonFiniteError
        If a weight is a NaN or an infinity.

    Examples
    --------
    >>> import torch, fedfw
    >>> layer = torch.nn.Linear(2, 2)
    >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> round(fedfw.lipschitz_bound(torch.nn.Sequential(layer, torch.nn.ReLU(), layer)), 6)
    16.0
    """
    for name, module in model.named_modules():
        # Training mode drops values at random and scales the others up.
        if isinstance(module, nn.Dropout) and module.training and module.p > 0:
            raise _refusal(
                name,
                module,
                f"it drops values at random with p={module.p} in training: call model.eval()",
            )
    return network_constant(model, weights_constant)


def network_constant(model: nn.Module, of_weights: OfWeights) -> float:
    """Return the constant of a network whose layers with weights have the constants
    ``of_weights(name, layer)``.

    Parameters
    ----------
    model : nn.Module
        As for `lipschitz_bound`.
    of_weights : callable
        Called for every linear and convolutional layer. Dropout counts as in evaluation mode.

    Examples
    --------
    >>> import torch
    >>> layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    >>> network_constant(layers, lambda name, layer: 3.0)
    9.0
    """

    def constant(name: str, module: nn.Module) -> float:
        """Return the Lipschitz constant of a module, which is refused if none is known; recursive:
        a Sequential's is the product over its layers.
        """
        if _changed(module):
            raise _refusal(
                name, module, "it has hooks or a forward of its own, which may do anything"
            )
        inner = f"{name}." if name else ""  # the prefix of its layers' names
        if isinstance(module, nn.Sequential) and _is(module, nn.Sequential):
            # named_children() leaves out a layer that stands there again.
            layers = module._modules.items()
            return math.prod(
                constant(inner + key, layer) for key, layer in layers if layer is not None
            )
        if isinstance(module, Residual) and _is(module, Residual):  # x + body(x)
            return 1 + constant(inner + "body", module.body)
        try:
            if not (_is(module, nn.Linear) or _is(module, nn.Conv2d)):
                return _of_plain(module)
            layer = _padded(module)
        except ValueError as error:
            raise _refusal(name, module, str(error)) from None
        return of_weights(name, layer)

    return constant("", model)


def _padded(layer: Any) -> nn.Linear | nn.Conv2d:
    """Return a linear or convolutional layer unchanged; refuse a padding for which no bound is
    known, and a weight that is computed anew with other values at each use.
    """
    computed = parametrize.is_parametrized(layer, "weight")
    # The weight is read twice: a parametrization that changes it gives another value each time.
    if computed and not torch.equal(layer.weight.nan_to_num(), layer.weight.nan_to_num()):
        raise ValueError(
            "its weight changes with every use, as with spectral_norm in training: call "
            "model.eval()"
        )
    if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
        raise ValueError(f"padding_mode={layer.padding_mode!r}, expected 'zeros'")
    weighted: nn.Linear | nn.Conv2d = layer
    return weighted


def flattening_factor(layer: nn.Linear | nn.Conv2d) -> float:
    """Return a factor f such that the norm of a layer is at most f times that of its weights as a
    matrix (out x everything else).
    """
    if isinstance(layer, nn.Linear):
        return 1.0
    return math.sqrt(shared_windows(layer.kernel_size, layer.stride, layer.dilation))


def weights_constant(name: str, layer: nn.Linear | nn.Conv2d) -> float:
    """Return an upper bound on the l2 operator norm of a linear layer or a convolution."""
    weight = layer.weight.detach().double()
    if not bool(weight.isfinite().all()):
        raise NonFiniteError(f"layer {name or 'of the model'}: NaN or infinity in its weights", ())
    if isinstance(layer, nn.Conv2d):
        return convolution_bound(weight, layer.stride, layer.dilation, layer.groups)
    size = float(weight.abs().max())
    if size:  # `matrix_bound` needs entries that are neither huge nor tiny
        return size * matrix_bound(weight / size)
    return 0.0


def _is(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module does what this kind does: a subclass may, unless it computes its
    outputs in another way.
    """
    steps = ("__call__", "_wrapped_call_impl", "_call_impl", "forward", "_conv_forward", "__iter__")
    return isinstance(module, kind) and all(
        getattr(type(module), s, s) is getattr(kind, s, s) for s in steps
    )


def _changed(module: nn.Module) -> bool:
    own = vars(module)
    for_all = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    replaced = "forward" in own or "_conv_forward" in own or "_call_impl" in own
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"] or for_all or replaced)


def _refusal(name: str, module: nn.Module, why: str) -> ValueError:
    """Return the error that names a layer without a known bound, and why."""
    layer = f"layer {name}" if name else "the model"
    return ValueError(
        f"{layer} ({type(module).__name__}): no bound on its Lipschitz constant is known: {why}"
    )


def _of_plain(module: nn.Module) -> float:
    """Return the Lipschitz constant of a layer without weights: by a rule for its class, or the
    number ``lipschitz`` that it declares; refuse any other layer.
    """
    for kind, rule in _PLAIN.items():
        if _is(module, kind):
            return rule(module)
    declared = _declared(module)
    if isinstance(declared, int | float) and math.isfinite(declared) and declared >= 0:
        return float(declared)
    known = ", ".join(
        kind.__name__ for kind in (nn.Sequential, nn.Linear, nn.Conv2d, *_PLAIN, Residual)
    )
    raise ValueError(f"expected {known}, or a module with a number `lipschitz`")


def _declared(module: nn.Module) -> Any:
    """Return the attribute ``lipschitz`` of a module; None if it has none, or inherits it from a
    class with another ``forward``, of which alone it was said.
    """
    cls = type(module)
    on_instance = "lipschitz" in vars(module)
    declaring = next((kind for kind in cls.__mro__ if "lipschitz" in vars(kind)), cls)
    if not on_instance and vars(declaring).get("forward", cls.forward) is not cls.forward:
        return None
    return getattr(module, "lipschitz", None)


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _max_pool(layer: Any) -> float:
    """Return sqrt(m) as the constant of max pooling, where a pixel lies in at most m windows: a
    maximum changes by at most the l2 change of its window.
    """
    if layer.return_indices:
        raise ValueError(
            "return_indices=True, expected False: places of maxima are not outputs of bounded "
            "change"
        )
    kernel, stride, dilation = map(_pair, (layer.kernel_size, layer.stride, layer.dilation))
    return math.sqrt(shared_windows(kernel, stride, dilation))


def _average_pool(layer: Any) -> float:
    """Return the constant of average pooling, which is a convolution with equal weights of each
    channel alone.
    """
    kernel = _pair(layer.kernel_size)
    stride = _pair(layer.stride)
    if layer.ceil_mode or (_pair(layer.padding) != (0, 0) and not layer.count_include_pad):
        raise ValueError(
            "windows at the border have fewer pixels, expected ceil_mode=False and "
            "count_include_pad=True"
        )
    divisor = layer.divisor_override or math.prod(kernel)
    return convolution_bound(torch.full((1, 1, *kernel), 1 / divisor, dtype=torch.float64), stride)


def _mean_pool(layer: Any) -> float:
    """Return the mean of n pixels has the constant 1 / sqrt(n), and n is at least 1."""
    if _pair(layer.output_size) != (1, 1):
        raise ValueError(
            f"output_size={layer.output_size}, expected 1: windows of other sizes may overlap"
        )
    return 1.0


def _isometry(module: Any) -> float:
    if getattr(module, "start_dim", getattr(module, "dim", 1)) != 1:
        raise ValueError("it begins at another axis, expected 1, the first one behind the samples")
    return 1.0


_PLAIN: dict[type[nn.Module], Callable[[Any], float]] = {
    nn.Identity: lambda _: 1.0,
    nn.Flatten: _isometry,
    nn.Unflatten: _isometry,
    nn.Dropout: lambda _: 1.0,
    nn.ReLU: lambda _: 1.0,
    nn.ReLU6: lambda _: 1.0,
    nn.LeakyReLU: lambda layer: max(1.0, abs(layer.negative_slope)),
    nn.Tanh: lambda _: 1.0,
    nn.Sigmoid: lambda _: 0.25,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: _mean_pool,
}
"""Layers of torch without weights, each with its constant."""
