"""A term l2/2 ||x||^2 on top of every client's loss, which makes a convex loss strongly convex."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedfw.problems.base import ClientLosses


class RegularisedLosses(ClientLosses):
    """f_i(x) + l2/2 ||x||^2."""

    def __init__(self, inner: ClientLosses, l2: float) -> None:
        self.inner, self.l2 = inner, l2
        self.n, self.sizes, self.plain_kernels = inner.n, inner.sizes, inner.plain_kernels
        self.per, self.weighs = inner.per, inner.weighs

    def everyone(self, device: torch.device) -> Tensor:
        return self.inner.everyone(device)

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        return self.inner.value(x, who) + self._term(x)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        values, gradients = self.inner.value_and_gradient(x, who, picks)
        return values + self._term(x), gradients.add_(x, alpha=self.l2)

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = self.inner.exactly(x, who)
        return values + self._term(x.double()), gradients.add_(x.double(), alpha=self.l2)

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        return self.inner.clipped_gradient(x, who, keep, norm, clip, count)

    def public_gradient(self, x: Tensor) -> Tensor | None:
        inner = self.inner.public_gradient(x)
        return self.l2 * x if inner is None else inner + self.l2 * x

    def _term(self, x: Tensor) -> Tensor:
        return self.l2 / 2 * x.square().sum(1)

    def smoothness(self) -> Tensor | None:
        inner = self.inner.smoothness()
        return None if inner is None else inner + self.l2

    def data(self) -> Iterator[Tensor]:
        return self.inner.data()

    def to(self, device: torch.device) -> RegularisedLosses:
        return RegularisedLosses(self.inner.to(device), self.l2)
