"""How much more than in exact arithmetic one sample can change what is protected, because float64
rounds.

Noise is scaled to the sensitivity: by how much one sample can change a client's direction. In exact
arithmetic that is w clip / count, with the client's weight w and the number of samples that its sum
is divided by. Computers round. Let u = 2^-53, n the client's samples, p the model's parameters and
T the releases that were planned. In units of w clip / count, all of the following is true of
float64, whatever the order of additions and whether or not products are fused with them:

- A clipped gradient is longer than ``clip`` by at most (p + 8) u: its norm is worked out from at
  most p squares, and the factor and the product round once more.
- A sum has at most n terms of at most ``clip``, so that every partial sum is at most n. Each of n
  additions, and of 16 further operations (division by the count, the weight, the factor of the
  direction, ...), errs by at most n u.
- An average of gradients is a convex combination: it adds up errors and does not enlarge them. Each
  of T averages rounds 4 times, by at most n u each.
- What is added to a private direction (penalty, duals, an l2 term) is at most `LARGEST_TERM` times
  the sensitivity, or the round is refused. Up to 4 such terms are added in up to 6 operations, and
  noise and comparisons round 3 times more. Each errs by at most 4 `LARGEST_TERM` u = 2^-17.
- Where a score is a sum over s entries of a direction (the hull of given points), the products and
  their sum round s times; the limit for what is added is then s times lower.

Two data sets that differ in one sample round differently, so that all but the first count twice.
`slack` adds all of it up; the noise of a private run is scaled to (1 + slack) times the exact
sensitivity.
"""

from torch import Tensor

UNIT = 2.0**-53
"""The relative error of one operation in float64."""
LARGEST_TERM = 2.0**34
"""The largest term that is added to a private direction, as a multiple of the sensitivity."""
PUBLIC_SLACK = 2.0**-12
"""Above 2 * 9 * 4 * LARGEST_TERM * UNIT: what the addition of public terms can change."""
_OWN_SLACK = 2.0**-20
"""For the rounding of the scale of the noise itself, and of the noise."""


def slack(
    samples: Tensor, *, parameters: int, releases: int, selects: bool, summands: int = 1
) -> Tensor:
    """Return the relative increase of clients' sensitivity by rounding, float64 of the shape of
    ``samples``.

    Parameters
    ----------
    samples : Tensor
        How many samples the clients have.
    parameters : int
        Of the model.
    releases : int
        The largest number of releases of a client: rounds times local steps.
    selects : bool
        Whether noise is added to directions. Noise on gradients is added before anything else is.
    summands : int
        How many entries of a direction are added up to one score.

    Examples
    --------
    >>> import torch
    >>> round(float(slack(torch.tensor(1000), parameters=7850, releases=100, selects=False)), 7)
    1e-06
    >>> round(float(slack(torch.tensor(1000), parameters=7850, releases=100, selects=True)), 6)
    0.000245
    """
    n = samples.double()
    clipped = (parameters + 8) * UNIT
    summed = 2 * n * (n + 16 + 4 * releases + summands) * UNIT
    return 1.01 * (clipped + summed) + _OWN_SLACK + (PUBLIC_SLACK if selects else 0.0)
