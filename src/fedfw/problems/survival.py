"""Times until an event: Cox's loss for a model's scores, and how well scores put patients in order.

A target is a pair (event, time): event is 1 where the event was seen at that time, and 0 where the patient was last
seen without it (censored). A larger score means a larger risk. Among those at risk at time t, the patients j with
t_j >= t, the model says that patient i has the event with probability exp(s_i) / sum over j of exp(s_j).
"""

from __future__ import annotations

import torch
from torch import Tensor

_PAIRS = 2**22
"""Pairs of patients that are looked at in one go: all of many patients would not fit."""


def cox_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The negative logarithm of Cox's partial likelihood, over the number of patients, with Breslow's ties.

        1/m  sum over events i of  log(sum over j with t_j >= t_i of exp(s_j)) - s_i

    It is convex in the scores, never negative, and zero where nobody has an event. It compares the patients of a client
    with each other, so it is no mean over them: clients are evaluated whole, without minibatches.

    Parameters
    ----------
    outputs : Tensor
        Scores s, (m, 1) or (m,).
    targets : Tensor
        Pairs (event, time), (m, 2), in any order.

    Returns
    -------
    Tensor
        A number, ().

    Examples
    --------
    >>> import torch
    >>> targets = torch.tensor([[1.0, 3.0], [0.0, 5.0], [0.0, 2.0]])  # when the first one falls ill, two are at risk
    >>> cox_loss(torch.zeros(3, 1), targets) == torch.tensor(2.0).log() / 3
    tensor(True)
    """
    scores, (event, time) = _scores(outputs, targets), targets.unbind(1)
    later = time.argsort(descending=True)
    # Ties are at risk together: each patient's sum goes to the last of those with the same time.
    at_risk = torch.searchsorted(-time[later], -time, right=True) - 1
    return (event * (scores[later].logcumsumexp(0)[at_risk] - scores)).sum() / len(scores)


def concordance(outputs: Tensor, targets: Tensor) -> float | None:
    """Harrell's concordance index: the share of comparable pairs in which who has the event first has the larger score.

    A pair is comparable where one patient has an event while the other is known to be without it: at a later time, or
    censored at the same time. Equal scores count one half.

    Parameters
    ----------
    outputs : Tensor
        Scores, (m, 1) or (m,).
    targets : Tensor
        Pairs (event, time), (m, 2).

    Returns
    -------
    float or None
        0.5 is chance and 1 a perfect order; None where no pair is comparable.

    Examples
    --------
    >>> import torch
    >>> targets = torch.tensor([[1.0, 3.0], [1.0, 5.0], [0.0, 9.0]])
    >>> round(concordance(torch.tensor([3.0, 1.0, 2.0]), targets), 3)
    0.667
    """
    scores, (event, time) = _scores(outputs, targets), targets.unbind(1)
    right, pairs = 0.0, 0
    for some in torch.split(event.nonzero(), max(1, _PAIRS // max(1, len(time)))):
        after = (time > time[some]) | ((time == time[some]) & (event == 0))
        right += int((after & (scores[some] > scores)).sum()) + int((after & (scores[some] == scores)).sum()) / 2
        pairs += int(after.sum())
    return right / pairs if pairs else None


def _scores(outputs: Tensor, targets: Tensor) -> Tensor:
    """(m,) scores of outputs and targets that fit."""
    if targets.ndim != 2 or targets.shape[1] != 2 or outputs.shape not in (targets.shape[:1], (len(targets), 1)):
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}, expected one score "
            "and a pair (event, time) for each sample"
        )
    return outputs.reshape(-1)
