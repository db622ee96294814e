"""Step size, penalty and averaging weight as functions of the clock t = 1, 2, ...

The rows of the theory's table, by name. With K local steps a round the clock advances K times a round and the horizon
is rounds times K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Rate = Callable[[int], float]


@dataclass(frozen=True)
class Schedule:
    """What one run follows.

    Parameters
    ----------
    eta
        Step size at t, in (0, 1].
    growth
        lam_t / lam_0 at t.
    rho
        Weight of a fresh gradient in the running average at t; clipped to 1.
    """

    eta: Rate
    growth: Rate
    rho: Rate = lambda t: 1.0


def convex(p: float = 1.0, horizon: int = 0) -> Schedule:
    """eta = 2/(p(t-1)+2), lam = lam_0 sqrt(p(t-1)+2): F(xbar) - F* = O((pt)^-1/2)."""
    return Schedule(lambda t: 2 / (p * (t - 1) + 2), lambda t: (p * (t - 1) + 2) ** 0.5)


def nonconvex(p: float = 1.0, horizon: int = 1) -> Schedule:
    """eta = T^-2/3, lam = lam_0 T^1/3, with pT + 1 for T when clients may be absent: least gap O((pT)^-1/3)."""
    length = horizon if p == 1.0 else p * horizon + 1
    return Schedule(lambda t: length ** (-2 / 3), lambda t: length ** (1 / 3))


def stochastic(p: float = 1.0, horizon: int = 0) -> Schedule:
    """eta = 9/(t+8), lam = lam_0 sqrt(t+8), rho = 4/(t+7)^2/3: F(xbar) - F* = O(t^-1/3)."""
    # 4 / 8^(2/3) is a hair above 1 in floating point.
    return Schedule(lambda t: 9 / (t + 8), lambda t: (t + 8) ** 0.5, lambda t: min(1.0, 4 / (t + 7) ** (2 / 3)))


def constant(eta: float, rho: float = 1.0) -> Schedule:
    """Fixed eta and lam, for ablations: leaves a bias."""
    _fraction("eta", eta)
    _fraction("rho", rho)
    return Schedule(lambda t: eta, lambda t: 1.0, lambda t: rho)


def linear_decay(eta: float, p: float = 1.0, horizon: int = 1) -> Schedule:
    """eta (1 - (t-1)/T) with the penalty of the non-convex row: nothing proven, best in practice for networks."""
    _fraction("eta", eta)
    growth = nonconvex(p, horizon).growth
    return Schedule(lambda t: eta * (1 - (t - 1) / horizon), growth)


NAMES = ("convex", "nonconvex", "stochastic", "constant:ETA", "linear-decay:ETA")


def make_schedule(wanted: str | Schedule | Rate, p: float, horizon: int) -> Schedule:
    """A schedule from its name (``convex``, ``linear-decay:0.05``), from a callable t -> eta, or as it is."""
    if isinstance(wanted, Schedule):
        return wanted
    if callable(wanted):
        return Schedule(wanted, convex(p).growth)
    name, _, value = wanted.partition(":")
    plain = {"convex": convex, "nonconvex": nonconvex, "stochastic": stochastic}
    if name in plain and not value:
        return plain[name](p, horizon)
    try:
        if name == "constant":
            return constant(float(value))
        if name == "linear-decay":
            return linear_decay(float(value), p, horizon)
    except ValueError as error:
        raise ValueError(f"schedule {wanted!r}: {error}; expected one of {', '.join(NAMES)}") from None
    raise ValueError(f"unknown schedule {wanted!r}, expected one of {', '.join(NAMES)}, or a callable t -> eta")


def _fraction(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name}={value}, expected a number above 0 and at most 1")
