"""Tensors of several parts in one flat dictionary, as checkpoints hold them."""

from collections.abc import Mapping

from torch import Tensor


def joined(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """One dictionary with names such as ``server.xbar``; what belongs to the part "" keeps its name.

    Examples
    --------
    >>> import torch
    >>> held = joined({"server": {"xbar": torch.zeros(2)}, "": {"round": torch.tensor(3)}})
    >>> sorted(held)
    ['round', 'server.xbar']
    >>> list(part(held, "server"))
    ['xbar']
    """
    return {
        f"{name}.{key}" if name else key: value for name, tensors in parts.items() for key, value in tensors.items()
    }


def part(held: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of one part, by their own names."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in held.items() if key.startswith(prefix)}
