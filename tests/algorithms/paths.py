"""F and the Frank-Wolfe gap of quadratics at many points at once: one at a time they cost more than
the rounds.
"""

import torch
from torch import Tensor

from fedfw_reproduction.known_quadratics import Quadratics


def values_at(q: Quadratics, points: Tensor) -> Tensor:
    """F at points (..., p): (...)."""
    away = points[..., None, :] - q.c
    return (q.w * torch.einsum("...ni,nij,...nj->...n", away, q.A, away)).sum(-1) / 2


def gaps_at(q: Quadratics, points: Tensor) -> Tensor:
    """The Frank-Wolfe gap at points (t, p), with one call of the oracle: (t,)."""
    gradients = torch.einsum("n,nij,tnj->ti", q.w, q.A, points[:, None] - q.c)
    atoms = q.constraint.lmo(gradients, batch=True)
    return (gradients * points).sum(1) - (
        atoms.dot(gradients) if atoms.bound is None else atoms.bound
    )
