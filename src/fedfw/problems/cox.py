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
        """Return a stack's samples, which are sorted by descending time, with the index of the last
        sample of the same time and the number of events at that index.
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
        """Keep the stacks, and prepare their order and, for Efron's ties, their groups of tied
        events.
        """
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
        """Return the losses for inputs (m, p) and pairs (event, time), (m, 2), of each client,
        sorted by falling times.
        """
        sorted_clients = []
        for inputs, targets in clients:
            if ties == "efron":
                order = events_last(targets)
            else:
                order = targets[:, 1].argsort(descending=True, stable=True)
            sorted_clients.append((inputs[order], targets[order]))
        return cls(
            stack_clients(sorted_clients, may_pad=False),
            torch.tensor([len(inputs) for inputs, _ in clients]),
            ties,
        )

    def on_stacks(self, stacks: list[Stack], sizes: Tensor) -> CoxLosses:
        return CoxLosses(stacks, sizes, self.ties)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the negative log partial likelihoods (m,) and their gradients (m, p) at points x
        (m, p), by running sums over the samples at risk.
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
        constants = torch.empty(self.n, dtype=torch.float64)
        for stack, ordered in self._ordered.items():
            inputs = ordered.inputs.double()
            # The largest ||x_j - c||^2 of the first k inputs, for every k.
            largest_distances = (
                (inputs - inputs.mean(1, keepdim=True)).square().sum(2).cummax(1).values
            )
            constants[stack.who.cpu()] = (ordered.counts * largest_distances).mean(1).cpu()
        return constants


def _breslow_shares(scores: Tensor, ordered: _Ordered) -> tuple[Tensor, Tensor]:
    """Return Breslow's loss of each sample (b, m), and exp(s_j) sum over k >= j of e_k exp(-r_k)
    (b, m), the expected number of events of each, from scores s (b, m) in falling order of time.
    """
    largest, heights = running_maxima(scores)
    shifted = scores - largest + heights
    sums = shifted.logcumsumexp(1)
    excess = (sums - heights).gather(1, ordered.last)
    losses = ordered.events * (excess + (largest.gather(1, ordered.last) - scores))
    # Sums over k >= j are cumulative sums of the flipped logarithms.
    return losses, (shifted + (ordered.logs - sums).flip(1).logcumsumexp(1).flip(1)).exp()


def _efron_shares(scores: Tensor, ties: TieGroups) -> tuple[Tensor, Tensor]:
    """Return Efron's loss of each sample (b, m), and the expected number of events of each (b, m),
    which is df/ds_j without its -1 for an event, times m; from scores s (b, m).
    """
    # Samples are sorted by falling times, and the events at one time come last among them.
    # `before` is the index of the sample before the first event at a sample's time, -1 where there
    # is none, and `last` that of the last sample at this time.
    terms = efron_terms(scores, ties)
    # 1 / D_i of each event i is added up at `before`: it counts for all samples up to there. The
    # slots are moved by one, so that slot 0 takes the events with no sample before them (-1), and
    # is dropped afterwards.
    rise = terms.heights.gather(1, ties.before.clamp(min=0)) - terms.heights.gather(1, ties.last)
    slots = scores.new_zeros(len(scores), scores.shape[1] + 1)
    slots.scatter_add_(1, ties.before + 1, ties.events * rise.exp() / terms.sums)
    # Logarithms of the sums over all events whose group begins after a sample.
    log_later = (slots[:, 1:].log() - terms.heights).flip(1).logcumsumexp(1).flip(1)
    # The events at one time share sum c_i / D_i: c_i = `kept` is the weight of their group in D_i.
    of_group = torch.zeros_like(scores)
    of_group.scatter_add_(1, ties.last, ties.events * ties.kept / terms.sums)
    within_group = ties.events * terms.tied * of_group.gather(1, ties.last)
    return terms.losses, (terms.shifted + log_later).exp() + within_group
