"""Times until an event: Cox's loss for a model's scores, and how well scores put patients in order.

A target is a pair (event, time): event is 1 where the event was seen at that time, and 0 where the
patient was last seen without it (censored). A larger score means a larger risk. Among those at risk
at time t, the patients j with t_j >= t, the model says that patient i has the event with
probability exp(s_i) / sum over j of exp(s_j).
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Ties = Literal["breslow", "efron"]
_LARGEST_RISE = 64.0
"""exp(-64) = 1.6e-28 is lost beside 1 in float64, and is no subnormal number in float32."""
_PAIRS = 2**22
"""Pairs of patients that are looked at in one go: all of many patients would not fit."""


def cox_loss(outputs: Tensor, targets: Tensor, ties: Ties = "breslow") -> Tensor:
    """Return the negative logarithm of Cox's partial likelihood, over the number of patients.

        1/m  sum over events i of  log(sum over j with t_j >= t_i of exp(s_j)) - s_i

    This is Breslow's treatment of events at the same time. With Efron's, the l-th of d such events
    (l = 0 to d - 1) finds the d of them at risk with the weight 1 - l/d only:

        1/m  sum over events i of  log(sum over j with t_j >= t_i of exp(s_j)
                                       - l_i/d_i sum over events j with t_j = t_i of exp(s_j)) - s_i

    It is convex in the scores, never negative, and zero where no patient has an event. It compares
    the patients of a client with each other, so it is no mean over them: clients are evaluated
    whole, without minibatches.

    Parameters
    ----------
    outputs : Tensor
        Scores s, (m, 1) or (m,).
    targets : Tensor
        Pairs (event, time), (m, 2), in any order.
    ties : str
        ``"breslow"`` or ``"efron"``; ``functools.partial(cox_loss, ties="efron")`` is a loss for
        `fedfw.Problem`.

    Returns
    -------
    Tensor
        A number, ().

    Raises
    ------
    ValueError
        For events other than 0 and 1, and for times that are not finite; the message names the row.
        For other ``ties``.

    Examples
    --------
    >>> import torch
    >>> targets = torch.tensor(
    ...     [[1.0, 3.0], [0.0, 5.0], [0.0, 2.0]]
    ... )  # when the first one falls ill, two are at risk
    >>> cox_loss(torch.zeros(3, 1), targets) == torch.tensor(2.0).log() / 3
    tensor(True)
    """
    if ties not in ("breslow", "efron"):
        raise ValueError(f"ties={ties!r}, expected 'breslow' or 'efron'")
    validate_event_times(targets, "cox_loss")
    return likelihood_of(ties)(outputs, targets)


def ties_of(loss: Callable[..., Tensor]) -> Ties | None:
    """Return how `cox_loss`, or a `functools.partial` of it, treats ties; None for other losses.

    Examples
    --------
    >>> ties_of(cox_loss), ties_of(partial(cox_loss, ties="efron")), ties_of(partial_likelihood)
    ('breslow', 'efron', None)
    """
    if loss is cox_loss:
        return "breslow"
    if not isinstance(loss, partial) or loss.func is not cox_loss or loss.args:
        return None
    ties = loss.keywords.get("ties", "breslow")
    if not loss.keywords.keys() <= {"ties"} or ties not in ("breslow", "efron"):
        raise ValueError(
            f"the loss is cox_loss with {loss.keywords}, expected ties='breslow' or ties='efron' "
            "alone"
        )
    return "efron" if ties == "efron" else "breslow"


def likelihood_of(ties: Ties) -> Callable[[Tensor, Tensor], Tensor]:
    """Return `cox_loss` of targets that were validated before: it looks at no numbers, so a GPU can
    record it.
    """
    return efron_likelihood if ties == "efron" else partial_likelihood


def partial_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return `cox_loss` with Breslow's ties of targets that were validated before."""
    scores = _scores(outputs, targets)
    event, time = targets.unbind(1)
    order = time.argsort(descending=True)
    # Ties are at risk together: each patient's sum goes to the last of those with the same time.
    at_risk = torch.searchsorted(-time[order], -time, right=True) - 1
    largest, heights = running_maxima(scores[order])
    excess = (scores[order] - largest + heights).logcumsumexp(0) - heights
    # Both terms are differences of scores, so that the size which scores have in common is not
    # rounded.
    return (event * (excess[at_risk] + (largest[at_risk] - scores))).sum() / len(scores)


def efron_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return `cox_loss` with Efron's ties of targets that were validated before."""
    scores = _scores(outputs, targets)
    order = events_last(targets)
    scores = scores[order]
    ties = TieGroups.of(targets[order], scores.dtype)
    return efron_terms(scores, ties).losses.sum() / len(scores)


def events_last(targets: Tensor) -> Tensor:
    """Return the order (m,) of falling times in which the events at one time come after those who
    are censored then.
    """
    events_after = targets[:, 0].argsort(stable=True)
    later = targets[events_after, 1].argsort(descending=True, stable=True)
    return events_after[later]


class TieGroups(NamedTuple):
    """The events at one time of patients in the order of `events_last`; all are (..., m).

    ``events`` is 1 or 0. ``last`` is the place of the last patient with the same time, up to whom
    patients are at risk, and ``before`` the place before the first event at that time: -1 where
    there is none. ``kept`` is the weight 1 - l/d with which the events at that time are at risk
    when this one happens; it is 1 for patients without an event.
    """

    events: Tensor
    last: Tensor
    before: Tensor
    kept: Tensor

    @classmethod
    def of(cls, targets: Tensor, dtype: torch.dtype) -> "TieGroups":
        """Return the groups of tied events for targets (..., m, 2) in the order of `events_last`,
        with weights in a dtype.
        """
        events, times = (part.contiguous() for part in targets.unbind(-1))
        events = events.to(dtype)
        last = torch.searchsorted(-times, -times, right=True) - 1
        counts = torch.zeros_like(events).scatter_add(-1, last, events).gather(-1, last)
        events_behind = last - torch.arange(events.shape[-1], device=events.device)
        # The last of d events at a time has l = 0; the events before it have l = 1, 2, ...
        kept = torch.where(events > 0, 1 - events_behind / counts.clamp(min=1), 1.0)
        return cls(events, last, last - counts.long(), kept)


class EfronTerms(NamedTuple):
    """The parts of Efron's likelihood, all (..., m) in the order of `events_last`.

    ``losses`` are the events' terms and 0 for others. ``shifted`` and ``heights`` are those of
    `running_maxima`. ``sums`` are the weighted sums of exp(s) at risk, and ``tied`` the exp(s) of
    the patient itself, both over exp of the maximum at risk.
    """

    losses: Tensor
    shifted: Tensor
    heights: Tensor
    sums: Tensor
    tied: Tensor


def efron_terms(scores: Tensor, ties: TieGroups) -> EfronTerms:
    """Return Efron's terms of scores (..., m).

    The sum over those at risk, less l/d of the events', is worked out as the sum over the others
    plus 1 - l/d of the events': no digits are lost by a difference.
    """
    largest, heights = running_maxima(scores)
    shifted = scores - largest + heights
    logs = shifted.logcumsumexp(-1) - heights + largest
    highest = largest.gather(-1, ties.last)
    others = (logs.gather(-1, ties.before.clamp(min=0)) - highest).exp()
    # before = -1: no patient is at risk but the events themselves, and there is no sum to gather.
    others = torch.where(ties.before < 0, 0.0, others)
    tied = (scores - highest).exp()
    of_time = torch.zeros_like(scores).scatter_add(-1, ties.last, tied * ties.events)
    sums = others + ties.kept * of_time.gather(-1, ties.last)
    losses = ties.events * (sums.log() + (highest - scores))
    return EfronTerms(losses, shifted, heights, sums, tied)


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
    concordant = 0.0
    pairs = 0
    # So few patients with an event at a time that the pairs fit in memory.
    for rows in torch.split(event.nonzero(), max(1, _PAIRS // max(1, len(time)))):
        is_later = (time > time[rows]) | ((time == time[rows]) & (event == 0))
        concordant += (
            int((is_later & (scores[rows] > scores)).sum())
            + int((is_later & (scores[rows] == scores)).sum()) / 2
        )
        pairs += int(is_later.sum())
    return concordant / pairs if pairs else None


def validate_event_times(targets: Tensor, owner: str) -> None:
    """Refuse targets that are not pairs (event, time); the error names the row.

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
    is_invalid = (event != 0) & (event != 1)
    if bool(is_invalid.any()):
        row = _first(is_invalid)
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
    is_not_finite = ~time.isfinite()
    if bool(is_not_finite.any()):
        row = _first(is_not_finite)
        raise ValueError(
            f"{owner}: row {row} has the time {time[row].item():g}, expected a finite number: give "
            "the time of the "
            "event or of the last visit, or leave the row out"
        )


def _first(rows: Tensor) -> int:
    """Return the first row of (m,) that is true."""
    return int(rows.nonzero()[0])


def _scores(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the scores (m,) of outputs (m, 1) or (m,); refuse any that do not fit the targets."""
    if outputs.shape not in (targets.shape[:1], (len(targets), 1)):
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}, "
            "expected one score "
            "and a pair (event, time) for each sample"
        )
    return outputs.reshape(-1)
