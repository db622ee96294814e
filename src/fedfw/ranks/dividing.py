"""How clients are divided among ranks: consecutive ones, so that all ranks finish together."""

from collections.abc import Sequence

import numpy as np


def divided(loads: Sequence[float], k: int) -> list[int]:
    """Return where to cut a sequence into k parts so that the largest part is as small as it can
    be.

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
    total_before = np.concatenate([[0.0], np.cumsum(np.asarray(loads, dtype=np.float64))])

    def cut(largest: float) -> list[int]:
        """Return the cuts where every part but the last takes as much as ``largest`` allows, at
        least one client, and leaves at least one to each later part.
        """
        cuts = [0]
        for part in range(k - 1):
            fits = (
                int(np.searchsorted(total_before, total_before[cuts[-1]] + largest, side="right"))
                - 1
            )
            cuts.append(min(max(fits, cuts[-1] + 1), n - (k - 1 - part)))
        return [*cuts, n]

    def size_of(cuts: list[int]) -> float:
        """Return the load of the largest part."""
        return float(np.diff(total_before[cuts]).max())

    too_small = float(total_before[-1]) / k / 2
    enough = float(total_before[-1])
    best = cut(enough)
    # Bisection over the largest part's load, to the last bit: 60 halvings of 53 binary digits.
    for _ in range(60):
        allowed = (too_small + enough) / 2
        cuts = cut(allowed)
        best = min(best, cuts, key=size_of)
        # 1e-12: sums that differ from the allowed load by rounding fit.
        if size_of(cuts) <= allowed * (1 + 1e-12):
            enough = allowed
        else:
            too_small = allowed
    return best
