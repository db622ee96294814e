"""Samples that can be read off what is sent, without any search.

For one sample a and a linear layer on top of it, the gradient of the weights is r a' and that of
the bias is r: every row of the weights over its bias is the sample. An l2 atom scales both by the
same number when one set holds all parameters, and by two numbers when each parameter has its own,
so that the sample comes out up to scale. A rank-one atom of the weights is r a' normalised: its
right vector is the sample up to scale and sign.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfw.atoms import Atom, LowRank, Rearranged


def from_rows(weights: Tensor, bias: Tensor) -> Tensor:
    """The sample (f,), up to scale, from what is sent of a linear layer's weights (c, f) and bias
    (c,).
    """
    row = int(bias.abs().argmax())  # the surest
    return weights[row] / bias[row]


def from_rank_one(atom: Atom, features: int) -> Tensor | None:
    """The sample (f,), up to scale, from a rank-one atom of the weights or of [W | b]; None for
    other atoms.
    """
    inner = atom.inner if isinstance(atom, Rearranged) else atom
    if not isinstance(inner, LowRank) or inner.u.shape[2] != 1:
        return None
    sample = inner.v[0, :, 0]
    if (
        len(sample) == features + 1
    ):  # [W | b]: the bias is the sample's constant one, which fixes scale and sign
        return sample[:-1] / sample[-1]
    return sample[:features]


def cosine(a: Tensor, b: Tensor) -> float:
    """|<a, b>| / (||a|| ||b||)."""
    a, b = a.flatten().double(), b.flatten().double()
    return float((a @ b).abs() / (a.norm() * b.norm()).clamp(min=1e-300))


def to_unit_range(sample: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A sample known up to scale and sign, as an image in [0, 1]: brightest pixel 1."""
    image = sample.reshape(shape)
    if float(image.sum()) < 0:
        image = -image
    return (
        (image / image.abs().max().clamp(min=1e-30)).clamp(0, 1)
        if torch.isfinite(image).all()
        else image
    )
