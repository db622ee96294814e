"""Minimisers for many small problems at once: each row has its own directions, steps and history.

An iteration is one evaluation of values and slopes and looks at no number on the way, so that a GPU
repeats it without Python. What it works on is a tuple of tensors with a leading axis of k rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedfw.graphs import Replayed

Objective = Callable[[Tensor], Tensor]
"""(k, d) -> (k,): row i of the result depends on row i of the argument alone."""
Optimizer = Literal["lbfgs", "adam"]
_HISTORY = 20
_TRIES = 8
_ENOUGH = 1e-4  # Armijo's share of the decrease that the slope promises
_FEWEST = 50  # iterations in which nothing may get better before the search is given up
_PROGRESS = 1e-3


class Found(NamedTuple):
    """Where a search stands: its step, the points (k, d), and the best ones so far with their
    values (k,).
    """

    step: int
    z: Tensor
    best: Tensor
    best_z: Tensor


def minimise(
    objective: Objective, z: Tensor, steps: int, optimizer: Optimizer = "lbfgs", looks: int = 20
) -> Iterator[Found]:
    """Search from z (k, d); says about ``looks`` times where it stands, the last time at the end.

    It ends early when there is no slope, and when no row has got better for a while.
    """
    iterate, state = {"lbfgs": _lbfgs, "adam": _adam}[optimizer](objective, z, steps)
    best, best_z = torch.full_like(z[:, 0], torch.inf), z
    replayed = (
        z.device.type == "cuda" and optimizer == "lbfgs"
    )  # torch's Adam keeps a state of its own

    def step(best: Tensor, best_z: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        z, values, *rest = iterate(*state)
        better = values < best
        return (
            torch.where(better, values, best),
            torch.where(better[:, None], z, best_z),
            z,
            values,
            *rest,
        )

    advance = Replayed(step) if replayed else step
    between = max(1, steps // looks)
    last_better, reached = 0, best
    for t in range(1, steps + 1):
        best, best_z, *state = advance(best, best_z, *state)
        if t > 1 and t % between and t < steps:
            continue
        if bool((best < reached * (1 - _PROGRESS)).any()):
            last_better, reached = t, best.clone()
        over = t == steps or not bool(state[2].any()) or t - last_better >= max(_FEWEST, between)
        yield Found(t, state[0].clone(), best.clone(), best_z.clone())
        if over:
            return


def value_and_slope(objective: Objective, z: Tensor) -> tuple[Tensor, Tensor]:
    """Values (k,) and gradients (k, d)."""
    z = z.detach().requires_grad_()
    values = objective(z)
    (slope,) = torch.autograd.grad(values.sum(), z)
    return values.detach(), slope.nan_to_num(0.0, 0.0, 0.0)


Method = tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]
"""An iteration and what it begins with; the first three tensors are the points, their values and
their slopes.
"""


def _adam(objective: Objective, z: Tensor, steps: int) -> Method:
    """Adam with a step size that falls to zero."""
    point = z.clone().requires_grad_()
    optimizer = torch.optim.Adam([point], lr=0.1, eps=1e-12)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)

    def iterate(z: Tensor, values: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
        point.grad = slope
        optimizer.step()
        falling.step()
        return point.detach().clone(), *value_and_slope(objective, point)

    return iterate, [z, *value_and_slope(objective, z)]


def _lbfgs(objective: Objective, z: Tensor, steps: int) -> Method:
    """L-BFGS; an iteration tries one step, and a row whose values did not fall enough tries a
    shorter one next.
    """
    values, slope = value_and_slope(objective, z)
    k, d = z.shape

    def iterate(
        z: Tensor,
        values: Tensor,
        slope: Tensor,
        direction: Tensor,
        length: Tensor,
        tries: Tensor,
        moves: Tensor,
        turns: Tensor,
    ) -> tuple[Tensor, ...]:
        tried = z + length[:, None] * direction
        after, turned = value_and_slope(objective, tried)
        fell = after <= values + _ENOUGH * length * (direction * slope).sum(1)
        curvature = ((tried - z) * (turned - slope)).sum(1)
        # A pair scaled to curvature one: the update of the inverse Hessian stays what it is.
        scale = curvature.clamp(min=1e-30).rsqrt()[:, None]
        curved = (fell & (curvature > 1e-20))[:, None, None]
        moves = torch.where(
            curved, torch.cat([moves[:, 1:], ((tried - z) * scale)[:, None]], 1), moves
        )
        turns = torch.where(
            curved, torch.cat([turns[:, 1:], ((turned - slope) * scale)[:, None]], 1), turns
        )
        z, slope = torch.where(fell[:, None], tried, z), torch.where(fell[:, None], turned, slope)
        values, tries = torch.where(fell, after, values), torch.where(fell, 0, tries + 1)

        stuck = tries >= _TRIES  # the history misleads: go down the slope
        known = turns[:, -1].any(1)
        moves, turns = (torch.where(stuck[:, None, None], 0.0, pairs) for pairs in (moves, turns))
        newton = _inverse_hessian_times(slope, moves, turns)
        newton = torch.where(((newton * slope).sum(1) > 0)[:, None], newton, slope)
        direction = torch.where((fell | stuck)[:, None], -newton, direction)
        anew = torch.where(turns[:, -1].any(1), 1.0, 1 / slope.norm(dim=1).clamp(min=1.0))
        length = torch.where(fell | (stuck & known), anew, length / 3)
        return z, values, slope, direction, length, torch.where(stuck, 0, tries), moves, turns

    empty = z.new_zeros(k, _HISTORY, d)
    length = 1 / slope.norm(dim=1).clamp(min=1.0)
    return iterate, [z, values, slope, -slope, length, torch.zeros_like(values), empty, empty]


def _inverse_hessian_times(slope: Tensor, moves: Tensor, turns: Tensor) -> Tensor:
    """L-BFGS's compact form, row by row: pairs (k, m, d) of curvature one, the newest last, zeros
    where there is none.

    Reference: Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices" (1994).
    """

    def times(pairs: Tensor, vector: Tensor) -> Tensor:
        return torch.bmm(pairs, vector[:, :, None])

    newest = turns[:, -1].square().sum(1)
    gamma = torch.where(newest > 0, 1 / newest.clamp(min=1e-30), 1.0)[:, None, None]
    R = torch.bmm(moves, turns.mT).triu(1) + torch.eye(
        moves.shape[1], device=slope.device, dtype=slope.dtype
    )
    p = torch.linalg.solve_triangular(R, times(moves, slope), upper=True)
    inner = p + gamma * (torch.bmm(turns, torch.bmm(turns.mT, p)) - times(turns, slope))
    u = torch.linalg.solve_triangular(R.mT, inner, upper=False)
    return (gamma * slope[:, :, None] + torch.bmm(moves.mT, u) - gamma * torch.bmm(turns.mT, p))[
        :, :, 0
    ]
