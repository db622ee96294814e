"""Layers whose Lipschitz constant is known; a module of one's own says its constant by an attribute
``lipschitz``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class GroupSort(nn.Module):
    """Sort the channels in groups: an activation that keeps distances, and gradients, as long as
    they were.

    Sorting is 1-Lipschitz in l2, because a sorted vector is the nearest to another sorted vector
    among all orders of its entries. Where a ReLU loses half of a vector, a sorted group loses
    nothing, so a network whose layers all have the constant 1 can still use it fully (Anil, Lucas
    and Grosse, 2019).

    Parameters
    ----------
    size : int
        How many channels a group has; the number of channels (the second axis) must be a multiple
        of it.

    Examples
    --------
    >>> import torch
    >>> from fedfw.lipschitz import GroupSort
    >>> GroupSort(3)(torch.tensor([[3.0, 1.0, 2.0, 0.0, -1.0, 5.0]])).tolist()
    [[1.0, 2.0, 3.0, -1.0, 0.0, 5.0]]
    """

    lipschitz: float = 1.0

    def __init__(self, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"size={size}, expected a whole number of at least 1")
        self.size = size

    def forward(self, inputs: Tensor) -> Tensor:
        """(m, channels, ...) -> the same shape."""
        _validate_channels(inputs, self.size)
        groups = inputs.reshape(len(inputs), -1, self.size, *inputs.shape[2:])
        return groups.sort(2).values.reshape(inputs.shape)

    def extra_repr(self) -> str:
        return f"size={self.size}"


class MaxMin(nn.Module):
    """The larger and the smaller of each pair of channels: `GroupSort` with groups of two, in one
    pass.

    Channel j of the first half is paired with channel j of the second half; the maxima come first.
    It is 1-Lipschitz.

    Examples
    --------
    >>> import torch
    >>> from fedfw.lipschitz import MaxMin
    >>> MaxMin()(torch.tensor([[1.0, 4.0, 3.0, 2.0]])).tolist()
    [[3.0, 4.0, 1.0, 2.0]]
    """

    lipschitz: float = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        """(m, channels, ...) -> the same shape; the number of channels is even."""
        _validate_channels(inputs, 2)
        one, other = inputs.chunk(2, 1)
        return torch.cat([torch.maximum(one, other), torch.minimum(one, other)], 1)


class Normalise(nn.Module):
    """``(inputs - mean) / std``, a number each for all channels or for every channel; its constant
    is 1 / min std.

    Parameters
    ----------
    mean, std : float or sequence of float
        One number, or one a channel (the second axis of the inputs); std is positive.

    Examples
    --------
    >>> import torch
    >>> from fedfw.lipschitz import Normalise
    >>> layer = Normalise(0.5, 0.25)
    >>> layer(torch.tensor([[0.0, 1.0]])).tolist(), layer.lipschitz
    ([[-2.0, 2.0]], 4.0)
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.as_tensor(value, dtype=torch.get_default_dtype()))
        if not bool((self.std > 0).all() & self.std.isfinite().all() & self.mean.isfinite().all()):
            raise ValueError(f"mean={mean}, std={std}, expected finite numbers, with std positive")

    @property
    def lipschitz(self) -> float:
        """1 / min std."""
        return 1 / float(self.std.min())

    def forward(self, inputs: Tensor) -> Tensor:
        """(m, channels, ...) -> the same shape."""
        sizes = [len(one) for one in (self.mean, self.std) if one.ndim]
        if any(
            size not in (1, inputs.shape[1]) for size in sizes
        ):  # one channel would become several
            raise ValueError(f"inputs have {inputs.shape[1]} channels, expected {max(sizes)}")
        mean, std = (
            one.reshape(-1, *[1] * (inputs.ndim - 2)) if one.ndim else one
            for one in (self.mean, self.std)
        )
        return (inputs - mean) / std


class Residual(nn.Module):
    """``inputs + body(inputs)``, whose constant is at most 1 plus that of the body.

    The body is given a copy of the inputs, so that what is added to its outputs are the inputs
    themselves, even where a layer of the body works in place.

    Parameters
    ----------
    body : nn.Module
        Its outputs have the shape of its inputs.

    Examples
    --------
    >>> import torch
    >>> from fedfw.lipschitz import Residual
    >>> Residual(torch.nn.ReLU())(torch.tensor([[-1.0, 2.0]])).tolist()
    [[-1.0, 4.0]]
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, inputs: Tensor) -> Tensor:
        """(m, ...) -> the same shape."""
        change: Tensor = self.body(inputs.clone())
        if (
            change.shape != inputs.shape
        ):  # a sum of other shapes repeats numbers, which the bound does not count
            raise ValueError(
                f"the body makes {tuple(change.shape)} of {tuple(inputs.shape)}, expected the same "
                "shape"
            )
        return inputs + change


class Scaled(nn.Module):
    """``factor * inputs``: a fixed factor, whose magnitude is the constant.

    Parameters
    ----------
    factor : float
        Any finite number.

    Examples
    --------
    >>> import torch
    >>> from fedfw.lipschitz import Scaled
    >>> Scaled(3.0)(torch.ones(1, 2)).tolist()
    [[3.0, 3.0]]
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        if not abs(factor) < float("inf"):
            raise ValueError(f"factor={factor}, expected a finite number")
        self.factor = float(factor)

    @property
    def lipschitz(self) -> float:
        """Return the factor's magnitude."""
        return abs(self.factor)

    def forward(self, inputs: Tensor) -> Tensor:
        """(m, ...) -> the same shape."""
        return self.factor * inputs

    def extra_repr(self) -> str:
        return f"factor={self.factor}"


def _validate_channels(inputs: Tensor, size: int) -> None:
    if inputs.shape[1] % size:
        raise ValueError(f"inputs have {inputs.shape[1]} channels, expected a multiple of {size}")
