"""Minimisers for many small problems at once: each row has its own directions, steps and history."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Objective = Callable[[Tensor], Tensor]
"""(k, d) -> (k,): row i of the result depends on row i of the argument alone."""
_HISTORY = 20
_HALVINGS = 8
_ENOUGH = 1e-4  # Armijo's share of the decrease that the slope promises


def value_and_slope(objective: Objective, z: Tensor) -> tuple[Tensor, Tensor]:
    """Values (k,) and gradients (k, d)."""
    z = z.detach().requires_grad_()
    values = objective(z)
    (slope,) = torch.autograd.grad(values.sum(), z)
    return values.detach(), slope.nan_to_num(0.0, 0.0, 0.0)


def adam(objective: Objective, z: Tensor, steps: int, lr: float = 0.1) -> Iterator[tuple[Tensor, Tensor]]:
    """Adam with a step size that falls to zero; yields values and points after each step."""
    mean, square = torch.zeros_like(z), torch.zeros_like(z)
    for t in range(1, steps + 1):
        values, slope = value_and_slope(objective, z)
        if not bool(slope.any()):  # nothing tells where to go: nothing ever will
            yield values, z
            return
        mean = 0.9 * mean + 0.1 * slope
        square = 0.999 * square + 0.001 * slope.square()
        rate = lr * (1 - (t - 1) / steps)
        z = z - rate * (mean / (1 - 0.9**t)) / ((square / (1 - 0.999**t)).sqrt() + 1e-12)
        yield values, z


def lbfgs(objective: Objective, z: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """L-BFGS, each row with a backtracking search of its own; yields values and points after each step."""
    values, slope = value_and_slope(objective, z)
    moves: list[Tensor] = []
    turns: list[Tensor] = []
    for _ in range(steps):
        if not bool(slope.any()):  # nothing tells where to go: nothing ever will
            yield values, z
            return
        direction = _two_loops(slope, moves, turns)
        promised = (direction * slope).sum(1)
        uphill = promised >= 0
        direction = torch.where(uphill[:, None], -slope, direction)
        promised = torch.where(uphill, -slope.square().sum(1), promised)
        first = 1.0 if moves else 1.0 / slope.norm(dim=1).clamp(min=1.0)
        step = torch.ones_like(values) * first
        for _ in range(_HALVINGS):
            with torch.no_grad():
                tried = objective(z + step[:, None] * direction)
            short = ~(tried <= values + _ENOUGH * step * promised)
            if not bool(short.any()):
                break
            step = torch.where(short, step / 3, step)
        moved = z + torch.where(short, 0.0, step)[:, None] * direction
        after, turned = value_and_slope(objective, moved)
        moves.append(moved - z)
        turns.append(turned - slope)
        del moves[:-_HISTORY], turns[:-_HISTORY]
        z, values, slope = moved, after, turned
        yield values, z


def _two_loops(slope: Tensor, moves: list[Tensor], turns: list[Tensor]) -> Tensor:
    """L-BFGS's direction, row by row; pairs without positive curvature are left out."""
    q, alphas = slope.clone(), []
    curvatures = [(move * turn).sum(1) for move, turn in zip(moves, turns, strict=True)]
    for move, turn, curvature in zip(reversed(moves), reversed(turns), reversed(curvatures), strict=True):
        good = curvature > 1e-20
        alpha = torch.where(good, (move * q).sum(1) / curvature.clamp(min=1e-20), 0.0)
        q = q - alpha[:, None] * turn
        alphas.append(alpha)
    if moves:
        last = turns[-1].square().sum(1)
        good = (curvatures[-1] > 1e-20) & (last > 1e-30)
        q = q * torch.where(good, curvatures[-1] / last.clamp(min=1e-30), 1.0)[:, None]
    for move, turn, curvature, alpha in zip(moves, turns, curvatures, reversed(alphas), strict=True):
        good = curvature > 1e-20
        beta = torch.where(good, (turn * q).sum(1) / curvature.clamp(min=1e-20), 0.0)
        q = q + (alpha - beta)[:, None] * move
    return -q
