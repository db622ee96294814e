"""How clients are divided among ranks: consecutive ones, so that all ranks finish together."""

from collections.abc import Sequence

import numpy as np


def divided(loads: Sequence[float], k: int) -> list[int]:
    """Where to cut a sequence into k parts so that the largest one is as small as it can be.

    Parameters
    ----------
    loads : sequence of float
        Of each client, positive; clients stay in order, and every part has at least one.
    k : int
        How many parts there are.

    Returns
    -------
    list of int
        Where each part begins, and the end of the last.

    Examples
    --------
    >>> divided([1, 1, 1, 1, 4, 4, 4], 2)
    [0, 5, 7]
    """
    n = len(loads)
    if n < k:
        raise ValueError(
            f"{k} ranks for {n} clients, expected at most {n}: every rank keeps at least one client"
        )
    upto = np.concatenate([[0.0], np.cumsum(np.asarray(loads, dtype=np.float64))])

    def cut(largest: float) -> list[int]:
        """The first parts are as large as they may be; the last one takes the rest."""
        cuts = [0]
        for part in range(k - 1):
            fits = int(np.searchsorted(upto, upto[cuts[-1]] + largest, side="right")) - 1
            cuts.append(min(max(fits, cuts[-1] + 1), n - (k - 1 - part)))
        return [*cuts, n]

    def size_of(cuts: list[int]) -> float:
        return float(np.diff(upto[cuts]).max())

    short = float(upto[-1]) / k / 2
    long = float(upto[-1])
    best = cut(long)
    for _ in range(60):
        middle = (short + long) / 2
        cuts = cut(middle)
        best = min(best, cuts, key=size_of)
        if size_of(cuts) <= middle * (1 + 1e-12):
            long = middle
        else:
            short = middle
    return best
