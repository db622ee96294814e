"""Cox's loss of a linear layer in closed form: clients of one size together, each in the order of
falling times.

With patients in that order, those at risk at t_i are the first ones, up to the last with the same
time, k(i). Let e_k be the number of events with k(i) = k, and r_k = log(exp(s_1) + ... + exp(s_k)).
Then

    f = 1/m sum over events i of (r_k(i) - s_i)
    df/ds_j = 1/m (exp(s_j) sum over k >= j of e_k exp(-r_k)  -  1 where j has the event)

which are two cumulative sums, taken as logarithms of scores less their running maximum
(`running_maxima`): no exponential overflows, and large scores cost no digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedfw.problems.base import ClientLosses
from fedfw.problems.stacks import Samples, Stack, samples_of, stack_clients
from fedfw.problems.survival import running_maxima


class _Ordered(NamedTuple):
    """Clients of one size: ``inputs`` (b, m, p), ``events`` (b, m) 1 or 0, ``last`` (b, m) k(i),
    ``counts`` (b, m) e_k.

    Inputs are relative to the first ones of their client; ``logs`` (b, m) are the logarithms of the
    counts.
    """

    inputs: Tensor
    events: Tensor
    last: Tensor
    counts: Tensor
    logs: Tensor

    @classmethod
    def of(cls, stack: Stack) -> _Ordered:
        events, times = (part.contiguous() for part in stack.targets.unbind(2))
        last = torch.searchsorted(-times, -times, right=True) - 1
        events = events.to(stack.inputs.dtype)  # integers would have logarithms in float32
        counts = torch.zeros_like(events).scatter_add(1, last, events)
        # One vector that is taken off all inputs changes no difference of scores: what the inputs
        # of a client have in common, such as a year, then costs no digits.
        return cls(stack.inputs - stack.inputs[:, :1], events, last, counts, counts.log())


class CoxLosses(ClientLosses):
    """f_i(x) = `fedfw.cox_loss` of the scores inputs_i x, for a linear layer with one output and no
    bias.
    """

    per = "client"

    sizes: Tensor

    def __init__(self, stacks: list[Stack], sizes: Tensor) -> None:
        self._stacks, self.sizes, self.n = stacks, sizes, len(sizes)
        self._ordered = [_Ordered.of(stack) for stack in stacks]
        self._exact: CoxLosses | None = None  # these losses in float64, made when first asked for
        self._selected: tuple[Tensor, list[tuple[Tensor, _Ordered]]] | None = (
            None  # of the last clients asked for
        )

    @classmethod
    def of(cls, clients: list[Samples]) -> CoxLosses:
        """From inputs (m, p) and pairs (event, time), (m, 2), of each client."""
        ordered = []
        for inputs, targets in clients:
            later = targets[:, 1].argsort(descending=True, stable=True)
            ordered.append((inputs[later], targets[later]))
        return cls(
            stack_clients(ordered, may_pad=False),
            torch.tensor([len(inputs) for inputs, _ in clients]),
        )

    def data(self) -> Iterator[Tensor]:
        return samples_of(self._stacks)

    def to(self, device: torch.device) -> CoxLosses:
        return CoxLosses([stack.to(device) for stack in self._stacks], self.sizes)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if picks is not None:
            raise ValueError(
                "Cox's loss compares all of a client's samples with each other, expected no minibatch"
            )
        values, gradients = x.new_empty(len(x)), torch.empty_like(x)
        for at, (inputs, events, last, _, logs) in self._select(who):
            # Sums of products, no matrix products: a client alone has the same bits as a stack of
            # clients.
            scores = (inputs * x[at].unsqueeze(1)).sum(2)
            largest, heights = running_maxima(scores)
            shifted = scores - largest + heights
            sums = shifted.logcumsumexp(1)
            excess = (sums - heights).gather(1, last)
            values[at] = (events * (excess + (largest.gather(1, last) - scores))).mean(1)
            shares = (shifted + (logs - sums).flip(1).logcumsumexp(1).flip(1)).exp()
            gradients[at] = (inputs * (shares - events).unsqueeze(2)).mean(1)
        return values, gradients

    def _select(self, who: Tensor) -> list[tuple[Tensor, _Ordered]]:
        """Places (b,) among ``who`` and what is needed of those clients, kept for the next step of
        the same ones.
        """
        if self._selected is None or self._selected[0] is not who:
            found = []
            for stack, ordered in zip(self._stacks, self._ordered, strict=True):
                at, rows = (who[:, None] == stack.who.to(who.device)).nonzero(as_tuple=True)
                if len(at):
                    found.append((at, _Ordered(*(part[rows] for part in ordered))))
            self._selected = who, found
        return self._selected[1]

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        if self._exact is None:
            self._exact = CoxLosses([stack.in_float64() for stack in self._stacks], self.sizes)
        return self._exact.value_and_gradient(x.double(), who, None)

    def smoothness(self) -> Tensor:
        """L_i (n,).

        The Hessian is 1/m sum_k e_k C_k with C_k a covariance of the first k inputs, with some
        weights. Around any centre c it is at most the largest ||x_j - c||^2 of them; c is the mean
        input.
        """
        found = torch.empty(self.n, dtype=torch.float64)
        for stack, ordered in zip(self._stacks, self._ordered, strict=True):
            inputs = ordered.inputs.double()
            longest = (inputs - inputs.mean(1, keepdim=True)).square().sum(2).cummax(1).values
            found[stack.who.cpu()] = (ordered.counts * longest).mean(1).cpu()
        return found
