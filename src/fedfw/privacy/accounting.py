"""The accountant of what has been spent: Google's dp-accounting on the mechanisms of this package,
samples being added or removed.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedfw.errors import missing_extra

_LITTLE_NOISE = 0.15
_FINE = 1e-3
"""Grid of privacy loss distributions; they err on the safe side."""


def _library() -> Any:
    """Import dp-accounting, which is an optional dependency."""
    try:
        import dp_accounting  # type: ignore[import-untyped]
    except ImportError:
        raise missing_extra("privacy", "dp-accounting", "privacy") from None
    return dp_accounting


@dataclass(frozen=True)
class Accountant:
    """Epsilon at a given delta of one client's releases.

    Parameters
    ----------
    choices
        Choices among vertices a release, by the exponential mechanism; None for Gaussian or
        logistic noise.
    rate
        Probability with which a sample is looked at (1: always). It makes Gaussian noise go
        further.
    gaussian
        Whether the noise is Gaussian.
    """

    delta: float
    choices: int | None = None
    rate: float = 1.0
    gaussian: bool = False

    def epsilon(self, noise: float, releases: int) -> float:
        """Return what so many releases with this noise multiplier have spent."""
        if releases == 0:
            return 0.0
        return _spent(self, noise, releases) if noise > 0 else math.inf

    def least_noise(self, eps: float, releases: int) -> float:
        """Return the smallest noise multiplier, to a thousandth, with which so many releases spend
        at most ``eps``.
        """
        if math.isinf(eps):
            return 0.0  # eps = inf promises nothing
        low = 0.0
        high = 1.0
        # Double the noise until it is enough, then bisect: `high` always is, `low` never is.
        while self.epsilon(high, releases) > eps:
            low = high
            high *= 2
        while high - low > 1e-3 * high:
            noise = (low + high) / 2
            if self.epsilon(noise, releases) <= eps:
                high = noise
            else:
                low = noise
        return high

    def most_releases(self, eps: float, noise: float, at_most: int) -> int:
        """Return how many releases with this noise multiplier fit into ``eps``."""
        counts = range(1, at_most + 1)
        return bisect_right(counts, eps, key=lambda releases: self.epsilon(noise, releases))


@lru_cache(maxsize=4096)
def _spent(account: Accountant, noise: float, releases: int) -> float:
    """Return the eps that so many releases with this noise spend, at the account's delta."""
    dp = _library()
    # Exact privacy loss distributions take too much memory where the noise of all releases
    # together is small; the bounds by zero-concentration below are enough there.
    effective_noise = noise / math.sqrt(releases) if account.rate == 1 else noise / 2
    sampled = dp.PoissonSampledDpEvent(account.rate, dp.GaussianDpEvent(noise))
    if account.gaussian and effective_noise > _LITTLE_NOISE:
        from dp_accounting import pld

        distribution = pld.PLDAccountant(value_discretization_interval=_FINE)
        if account.rate < 1:
            distribution.compose(sampled, releases)
        else:  # k Gaussian mechanisms together are one with noise / sqrt(k)
            distribution.compose(dp.GaussianDpEvent(noise / math.sqrt(releases)))
        return float(distribution.get_epsilon(account.delta))
    event = dp.ZCDpEvent(1 / (2 * noise**2))
    if account.gaussian and account.rate < 1:
        event = sampled
    by_concentration = _composed(event, account.delta, releases)
    if account.choices is None:
        return by_concentration
    # Few releases are better counted as pure differential privacy, which sampling helps, too.
    # epsilon_0 = 2 / (z sqrt(k)) of each of k choices, see `fedfw.privacy.mechanisms`.
    pure_eps = 2 * math.sqrt(account.choices) / noise
    if account.rate < 1:
        # eps' = log(1 + rate (e^eps - 1)), by sampling. Beyond 500 expm1 overflows, and eps' is eps
        # + log(rate) to all digits.
        if pure_eps < 500:
            pure_eps = math.log1p(account.rate * math.expm1(pure_eps))
        else:
            pure_eps = pure_eps + math.log(account.rate)
    # A mechanism of pure privacy eps is eps^2 / 2-concentrated (Bun and Steinke, 2016).
    concentrated = dp.ZCDpEvent(pure_eps**2 / 2)
    return min(
        by_concentration, releases * pure_eps, _composed(concentrated, account.delta, releases)
    )


def _composed(event: Any, delta: float, releases: int) -> float:
    """Return epsilon of so many equal releases by Renyi differential privacy."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant()
    accountant.compose(event, releases)
    return float(accountant.get_epsilon(delta))
