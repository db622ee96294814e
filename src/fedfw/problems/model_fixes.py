"""Repairs of a model that a problem refuses, as functions that leave the given model as it
is.
"""

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_MOST_GROUPS = 32
_LEAST_CHANNELS = 4
"""Channels of a group: the numbers of a group are compared with each other, and a lone one would
become zero.
"""


def batch_norm_to_group_norm(model: nn.Module) -> nn.Module:
    """Return a copy of a model in which every BatchNorm layer is a GroupNorm layer.

    BatchNorm keeps running statistics, which are no parameters, so that no constraint and no atom
    would carry them between clients; `fedfw.Problem` refuses it. GroupNorm normalises every sample
    by itself and keeps nothing.

    Parameters
    ----------
    model : nn.Module
        It is not changed.

    Returns
    -------
    nn.Module
        Layers for images and volumes have as many groups as divide their channels, at most 32 and
        with at least four channels each; layers for vectors (BatchNorm1d) have one. Scales and
        shifts, eps, dtype and device are kept.

    Examples
    --------
    >>> import torch, fedfw
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Conv2d(1, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.ReLU()
    ... )
    >>> norm = fedfw.batch_norm_to_group_norm(model)[1]
    >>> type(norm).__name__, norm.num_groups, norm.num_channels
    ('GroupNorm', 16, 64)
    """
    model = copy.deepcopy(model)
    if isinstance(model, _BatchNorm):
        # A layer alone has no parent in which it could be replaced.
        return _group_norm(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _group_norm(child))
    return model


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    """Return a GroupNorm of the same channels with the BatchNorm's weights; one group where no
    larger number divides the channels.
    """
    channels = layer.num_features
    most_groups = (
        1 if isinstance(layer, nn.BatchNorm1d) else min(_MOST_GROUPS, channels // _LEAST_CHANNELS)
    )
    groups = max((count for count in range(1, most_groups + 1) if channels % count == 0), default=1)
    group_norm = nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        group_norm = group_norm.to(layer.weight.device, layer.weight.dtype)
        with torch.no_grad():
            group_norm.weight.copy_(layer.weight)
            group_norm.bias.copy_(layer.bias)
    return group_norm.train(layer.training)
