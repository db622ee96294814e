"""Cox's loss of a linear layer in closed form: clients of one size together, each in the order of
falling times.

With patients in that order, those at risk at t_i are the first ones, up to the last with the same
time, k(i). Let e_k be the number of events with k(i) = k, and r_k = log(exp(s_1) + ... + exp(s_k)).
Then

    f = 1/m sum over events i of (r_k(i) - s_i)
    df/ds_j = 1/m (exp(s_j) sum over k >= j of e_k exp(-r_k)  -  1 where j has the event)

which are two cumulative sums, taken as logarithms of scores less their running maximum
(`running_maxima`): no exponential overflows, and large scores cost no digits.

With Efron's ties (`efron_terms`) the events at a time come last among those with that time. Let
D_i be the weighted sum at risk of event i and c_i the weight in it of the events at its time. Then

    df/ds_j = 1/m (exp(s_j) (sum over events i whose group begins after j of 1 / D_i
                             + sum over events i of j's group, if j is one of them, of c_i / D_i)
                   -  1 where j has the event).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedfw.problems.stacks import Samples, Stack, StackedLosses, stack_clients
from fedfw.problems.survival import (
    TieGroups,
    Ties,
    efron_terms,
    events_last,
    running_maxima,
)


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
        """Prepare a stack whose samples are sorted by descending time: for each sample the last one
        of the same time, and how many events share that time.
        """
        events, times = (part.contiguous() for part in stack.targets.unbind(2))
        last = torch.searchsorted(-times, -times, right=True) - 1
        events = events.to(stack.inputs.dtype)  # integers would have logarithms in float32
        counts = torch.zeros_like(events).scatter_add(1, last, events)
        # One vector that is taken off all inputs changes no difference of scores: what the inputs
        # of a client have in common, such as a year, then costs no digits.
        return cls(stack.inputs - stack.inputs[:, :1], events, last, counts, counts.log())


class CoxLosses(StackedLosses):
    """f_i(x) = `fedfw.cox_loss` of the scores inputs_i x, for a linear layer with one output and no
    bias.

    Stacks are in the order of falling times, and of `events_last` for Efron's ties.
    """

    per = "client"

    def __init__(self, stacks: list[Stack], sizes: Tensor, ties: Ties = "breslow") -> None:
        super().__init__(stacks, sizes)
        self.ties = ties
        self._ordered = {stack: _Ordered.of(stack) for stack in stacks}
        self._groups = {}
        if ties == "efron":
            self._groups = {
                stack: TieGroups.of(stack.targets, stack.inputs.dtype) for stack in stacks
            }

    @classmethod
    def of(cls, clients: list[Samples], ties: Ties = "breslow") -> CoxLosses:
        """Make the losses from inputs (m, p) and pairs (event, time), (m, 2), of each client."""
        ordered = []
        for inputs, targets in clients:
            if ties == "efron":
                later = events_last(targets)
            else:
                later = targets[:, 1].argsort(descending=True, stable=True)
            ordered.append((inputs[later], targets[later]))
        return cls(
            stack_clients(ordered, may_pad=False),
            torch.tensor([len(inputs) for inputs, _ in clients]),
            ties,
        )

    def on_stacks(self, stacks: list[Stack], sizes: Tensor) -> CoxLosses:
        return CoxLosses(stacks, sizes, self.ties)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the negative log partial likelihoods and their gradients, with running sums over
        the samples at risk.
        """
        if picks is not None:
            raise ValueError(
                "Cox's loss compares all of a client's samples with each other, expected no "
                "minibatch"
            )
        values = x.new_empty(len(x))
        gradients = torch.empty_like(x)
        for stack, positions, rows in self.select(who):
            ordered = _Ordered(*(part[rows] for part in self._ordered[stack]))
            # Sums of products, no matrix products: a client alone has the same bits as a stack of
            # clients.
            scores = (ordered.inputs * x[positions].unsqueeze(1)).sum(2)
            if self.ties == "efron":
                groups = TieGroups(*(part[rows] for part in self._groups[stack]))
                losses, shares = _efron_shares(scores, groups)
            else:
                losses, shares = _breslow_shares(scores, ordered)
            values[positions] = losses.mean(1)
            slopes = (shares - ordered.events).unsqueeze(2)
            gradients[positions] = (ordered.inputs * slopes).mean(1)
        return values, gradients

    def smoothness(self) -> Tensor:
        """Return L_i (n,).

        The Hessian is 1/m sum_k e_k C_k with C_k a covariance of the first k inputs, with some
        weights; Efron's ties change the weights alone. Around any centre c it is at most the
        largest ||x_j - c||^2 of them; c is the mean input.
        """
        found = torch.empty(self.n, dtype=torch.float64)
        for stack, ordered in self._ordered.items():
            inputs = ordered.inputs.double()
            longest = (inputs - inputs.mean(1, keepdim=True)).square().sum(2).cummax(1).values
            found[stack.who.cpu()] = (ordered.counts * longest).mean(1).cpu()
        return found


def _breslow_shares(scores: Tensor, ordered: _Ordered) -> tuple[Tensor, Tensor]:
    """Return the terms (b, m) of Breslow's likelihood, and what patients expect to share of the
    events (b, m).
    """
    largest, heights = running_maxima(scores)
    shifted = scores - largest + heights
    sums = shifted.logcumsumexp(1)
    excess = (sums - heights).gather(1, ordered.last)
    losses = ordered.events * (excess + (largest.gather(1, ordered.last) - scores))
    return losses, (shifted + (ordered.logs - sums).flip(1).logcumsumexp(1).flip(1)).exp()


def _efron_shares(scores: Tensor, ties: TieGroups) -> tuple[Tensor, Tensor]:
    """Return the same of Efron's likelihood."""
    terms = efron_terms(scores, ties)
    # An event counts for all before the events at its time; slot 0 is for those who are alone.
    rise = terms.heights.gather(1, ties.before.clamp(min=0)) - terms.heights.gather(1, ties.last)
    slots = scores.new_zeros(len(scores), scores.shape[1] + 1)
    slots.scatter_add_(1, ties.before + 1, ties.events * rise.exp() / terms.sums)
    later = (slots[:, 1:].log() - terms.heights).flip(1).logcumsumexp(1).flip(1)
    within = torch.zeros_like(scores)
    within.scatter_add_(1, ties.last, ties.events * ties.kept / terms.sums)
    own = ties.events * terms.tied * within.gather(1, ties.last)
    return terms.losses, (terms.shifted + later).exp() + own
