"""Accelerated projected gradient steps with backtracking, on any function that has gradients."""

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor


class Objective(Protocol):
    """A function of a point (p,), such as `fedfw.Problem`."""

    def value(self, x: Tensor) -> float:
        """Return the value at x."""

    def value_and_gradient(self, x: Tensor) -> tuple[float, Tensor]:
        """Return the value at x and the gradient (p,) there."""


def accelerated_steps(
    objective: Objective, project: Callable[[Tensor], Tensor], x: Tensor
) -> Iterator[Tensor]:
    """Yield the points of accelerated projected gradient steps from x (p,); the momentum begins
    anew when the value rises.
    """
    z = x
    momentum = 1.0
    lowest = math.inf
    L = 1.0
    while True:
        value, g = objective.value_and_gradient(z)
        next_x, next_value, L = backtrack(objective, z, value, g, L, _projection(project, z, g))
        if next_value > lowest:  # the momentum overshot: begin again from here
            momentum = 1.0
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        z = next_x + (momentum - 1) / next_momentum * (next_x - x)
        x = next_x
        momentum = next_momentum
        lowest = next_value
        yield x


def _projection(
    project: Callable[[Tensor], Tensor], z: Tensor, g: Tensor
) -> Callable[[float], Tensor]:
    return lambda L: project(z - g / L)


def backtrack(
    objective: Objective,
    x: Tensor,
    value: float,
    g: Tensor,
    L: float,
    move: Callable[[float], Tensor],
) -> tuple[Tensor, float, float]:
    """Return the point move(L), F there, and L, for an L at which F is below its quadratic model
    around x (p,).
    """
    rounding = 8 * torch.finfo(x.dtype).eps * abs(value)
    last_L = L
    L *= 0.8  # curvature falls on the way to the optimum: give the step a chance to grow
    while True:
        moved = move(L)
        d = (moved - x).double()
        moved_value = objective.value(moved)
        model = value + float((g.double() * d).sum()) + L / 2 * float(d.square().sum())
        # 1e18: no step of this size changes x, so that doubling further is useless.
        if moved_value <= model + rounding or L > 1e18:
            # A decrease that drowns in rounding would pass at any L: it says nothing about a
            # smaller one.
            return moved, moved_value, L if value - model > 8 * rounding else max(L, last_L)
        L *= 2
