"""Quadratics with known constants, to put theory to the test: f_i(x) = (x - c_i)' A_i (x - c_i) /
2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedfw.problems.base import ClientLosses
from fedfw.problems.problem import Problem


class QuadraticLosses(ClientLosses):
    """A (n, p, p) symmetric, c (n, p)."""

    def __init__(self, A: Tensor, c: Tensor) -> None:
        self.A = A
        self.c = c
        self.n = len(A)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return (x - c)^T A (x - c) / 2 and its gradient A (x - c) for each client."""
        A, c = (self.A, self.c) if who is self._everyone else (self.A[who], self.c[who])
        offset = x - c
        # A is symmetric, and rows are multiplied sooner.
        gradients = torch.bmm(offset.unsqueeze(1), A).squeeze(1)
        return (offset * gradients).sum(1) / 2, gradients

    @cached_property
    def _in_float64(self) -> QuadraticLosses:
        return QuadraticLosses(self.A.double(), self.c.double())

    def smoothness(self) -> Tensor:
        largest: Tensor = torch.linalg.eigvalsh(self.A.double())[:, -1]
        return largest

    def data(self) -> Iterator[Tensor]:
        yield from (self.A, self.c)

    def to(self, device: torch.device) -> QuadraticLosses:
        return QuadraticLosses(self.A.to(device), self.c.to(device))


def quadratic_problem(
    A: Tensor,
    c: Tensor,
    start: Tensor,
    weights: Sequence[float] | None = None,
    convex: bool | None = True,
) -> Problem:
    """Return a problem of n quadratic clients that begins at ``start`` (p,)."""
    return Problem.of_client_losses(QuadraticLosses(A, c), start, weights, convex)


def random_quadratics(
    n: int, p: int, condition: float, spread: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return A_i (n, p, p) with eigenvalues from 1 to ``condition`` in random directions, and
    Gaussian c_i (n, p) times ``spread``.
    """
    generator = torch.Generator().manual_seed(seed)
    A = []
    for _ in range(n):
        q, _ = torch.linalg.qr(torch.randn(p, p, generator=generator, dtype=torch.float64))
        eigenvalues = torch.logspace(
            0, torch.log10(torch.tensor(condition)).item(), p, dtype=torch.float64
        )
        A.append(q @ torch.diag(eigenvalues) @ q.T)
    return torch.stack(A), spread * torch.randn(n, p, generator=generator, dtype=torch.float64)
