"""Times until an event: Cox's loss for a model's scores, and how well scores put patients in order.

A target is a pair (event, time): event is 1 where the event was seen at that time, and 0 where the
patient was last seen without it (censored). A larger score means a larger risk. Among those at risk
at time t, the patients j with t_j >= t, the model says that patient i has the event with
probability exp(s_i) / sum over j of exp(s_j).
"""

import torch
from torch import Tensor

_LARGEST_RISE = 64.0
"""exp(-64) = 1.6e-28 is lost beside 1 in float64, and is no subnormal number in float32."""
_PAIRS = 2**22
"""Pairs of patients that are looked at in one go: all of many patients would not fit."""


def cox_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the negative logarithm of Cox's partial likelihood, over the number of patients, with
    Breslow's ties.

        1/m  sum over events i of  log(sum over j with t_j >= t_i of exp(s_j)) - s_i

    It is convex in the scores, never negative, and zero where no patient has an event. It compares
    the patients of a client with each other, so it is no mean over them: clients are evaluated
    whole, without minibatches.

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

    Raises
    ------
    ValueError
        For events other than 0 and 1, and for times that are not finite; the message names the row.

    Examples
    --------
    >>> import torch
    >>> targets = torch.tensor(
    ...     [[1.0, 3.0], [0.0, 5.0], [0.0, 2.0]]
    ... )  # when the first one falls ill, two are at risk
    >>> cox_loss(torch.zeros(3, 1), targets) == torch.tensor(2.0).log() / 3
    tensor(True)
    """
    validate_event_times(targets, "cox_loss")
    return partial_likelihood(outputs, targets)


def partial_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return `cox_loss` of targets that were validated before: it looks at no numbers, so a GPU can
    record it.
    """
    scores = _scores(outputs, targets)
    event, time = targets.unbind(1)
    later = time.argsort(descending=True)
    # Ties are at risk together: each patient's sum goes to the last of those with the same time.
    at_risk = torch.searchsorted(-time[later], -time, right=True) - 1
    largest, heights = running_maxima(scores[later])
    excess = (scores[later] - largest + heights).logcumsumexp(0) - heights
    # Both terms are differences of scores, so that the size which scores have in common is not
    # rounded.
    return (event * (excess[at_risk] + (largest[at_risk] - scores))).sum() / len(scores)


def running_maxima(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maxima M_k of the first k scores, and heights h_k with which risk sets are summed
    stably.

    ``log(exp(s_1) + ... + exp(s_k))`` is as inexact as the scores are large, although it exceeds
    M_k by at most log k. That excess is worked out from differences of scores alone:

        e_k = log(sum over j <= k of exp(s_j - M_k)) = logcumsumexp(s - M + h)_k - h_k,

    where h begins at 0 and rises with M, but by at most `_LARGEST_RISE` from one patient to the
    next. A larger rise makes everything before it smaller than the rounding of the sum, and so does
    a rise of `_LARGEST_RISE`.

    Parameters
    ----------
    scores : Tensor
        (..., m), in the order in which patients join the risk sets: by falling times.

    Returns
    -------
    (..., m) and (..., m), both constants for differentiation: the derivatives by them cancel.
    """
    largest = scores.detach().cummax(-1).values
    rises = largest.diff(dim=-1, prepend=largest[..., :1])
    return largest, rises.clamp(max=_LARGEST_RISE).cumsum(-1)


def concordance(outputs: Tensor, targets: Tensor) -> float | None:
    """Return Harrell's concordance index: the share of comparable pairs in which the patient who
    has the event first has the larger score.

    A pair is comparable where one patient has an event while the other is known to be without it:
    at a later time, or censored at the same time. Equal scores count one half.

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

    Raises
    ------
    ValueError
        As for `cox_loss`.

    Examples
    --------
    >>> import torch
    >>> targets = torch.tensor([[1.0, 3.0], [1.0, 5.0], [0.0, 9.0]])
    >>> round(concordance(torch.tensor([3.0, 1.0, 2.0]), targets), 3)
    0.667
    """
    validate_event_times(targets, "concordance")
    scores = _scores(outputs, targets)
    event, time = targets.unbind(1)
    right = 0.0
    pairs = 0
    for some in torch.split(event.nonzero(), max(1, _PAIRS // max(1, len(time)))):
        after = (time > time[some]) | ((time == time[some]) & (event == 0))
        right += (
            int((after & (scores[some] > scores)).sum())
            + int((after & (scores[some] == scores)).sum()) / 2
        )
        pairs += int(after.sum())
    return right / pairs if pairs else None


def validate_event_times(targets: Tensor, owner: str) -> None:
    """Refuse targets that are no pairs (event, time), by the row.

    Parameters
    ----------
    targets : Tensor
        Any shape; (m, 2) is required.
    owner : str
        Whose targets these are, for the message.
    """
    if targets.ndim != 2 or targets.shape[1] != 2:
        raise ValueError(
            f"{owner}: targets of shape {tuple(targets.shape)}, expected one score and a pair "
            "(event, time) for each "
            "sample: put the two columns together, as torch.stack([event, time], 1) does"
        )
    event, time = targets.unbind(1)
    no_event = (event != 0) & (event != 1)
    if bool(no_event.any()):
        row = _first(no_event)
        if bool(((time == 0) | (time == 1)).all()):
            raise ValueError(
                f"{owner}: row {row} has the event {event[row].item():g} and all times are 0 or 1, "
                "expected pairs (event, time) in this order: the columns are swapped, "
                "targets.flip(1) puts them right"
            )
        raise ValueError(
            f"{owner}: row {row} has the event {event[row].item():g}, expected 1 where the event "
            "was seen and 0 where "
            "the sample was censored: recode the column, or leave the row out"
        )
    not_finite = ~time.isfinite()
    if bool(not_finite.any()):
        row = _first(not_finite)
        raise ValueError(
            f"{owner}: row {row} has the time {time[row].item():g}, expected a finite number: give "
            "the time of the "
            "event or of the last visit, or leave the row out"
        )


def _first(rows: Tensor) -> int:
    """Return the first row of (m,) that is true."""
    return int(rows.nonzero()[0])


def _scores(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (m,) scores of outputs and targets that fit."""
    if outputs.shape not in (targets.shape[:1], (len(targets), 1)):
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}, "
            "expected one score "
            "and a pair (event, time) for each sample"
        )
    return outputs.reshape(-1)
