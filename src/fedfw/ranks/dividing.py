"""How clients are divided among ranks: consecutive ones, so that all ranks finish together."""

from collections.abc import Sequence

import numpy as np


def divided(loads: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Where to cut a sequence so that its parts, done at these speeds, end together as nearly as
    can be.

    With equal speeds no other cuts end sooner. With unequal ones the slowest rank may be given one
    large client.

    Parameters
    ----------
    loads : sequence of float
        Of each client, positive; clients stay in order, and every part has at least one.
    speeds : sequence of float
        Of each rank, positive.

    Returns
    -------
    list of int
        Where each part begins, and the end of the last.

    Examples
    --------
    >>> divided([1, 1, 1, 1, 4, 4, 4], speeds=[1, 1])
    [0, 5, 7]
    >>> divided([1] * 9, speeds=[2, 1])
    [0, 6, 9]
    """
    n = len(loads)
    k = len(speeds)
    if n < k:
        raise ValueError(
            f"{k} ranks for {n} clients, expected at most {n}: every rank keeps at least one client"
        )
    upto = np.concatenate([[0.0], np.cumsum(np.asarray(loads, dtype=np.float64))])

    def cut(longest: float) -> list[int]:
        """The first ranks take what they can do in this time; the last one takes the rest."""
        cuts = [0]
        for r in range(k - 1):
            fits = (
                int(np.searchsorted(upto, upto[cuts[-1]] + longest * speeds[r], side="right")) - 1
            )
            cuts.append(min(max(fits, cuts[-1] + 1), n - (k - 1 - r)))
        return [*cuts, n]

    def time_of(cuts: list[int]) -> float:
        return float((np.diff(upto[cuts]) / np.asarray(speeds)).max())

    short = float(upto[-1]) / sum(speeds) / 2
    long = float(upto[-1]) / min(speeds)
    best = cut(long)
    for _ in range(60):
        middle = (short + long) / 2
        cuts = cut(middle)
        best = min(best, cuts, key=time_of)
        short, long = (short, middle) if time_of(cuts) <= middle * (1 + 1e-12) else (middle, long)
    return best
