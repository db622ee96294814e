"""Schedules: step size, penalty and averaging weight as functions of the clock t = 1, 2, ...

The clock counts local steps: with K local steps in a round it advances by K in every round, and the
horizon T, which is the value of the clock at the end of a run, is the number of rounds times K.
`convex`, `nonconvex` and `stochastic` are the schedules for which the theory proves convergence
rates.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fedfw.options import nearest

Rate = Callable[[int], float]
"""A quantity as a function of the clock t = 1, 2, ..."""


@dataclass(frozen=True)
class Schedule:
    """The step size, penalty and averaging weight that a run follows, as functions of the clock t =
    1, 2, ...

    Parameters
    ----------
    eta : callable
        Maps t to the step size in (0, 1], with which a client moves from x to ``(1 - eta) x + eta
        s`` for an atom s.
    growth : callable
        Maps t to ``lam_t / lam_0``, the growth of the penalty that pulls the clients together,
        relative to its start.
    rho : callable, optional
        Maps t to the weight of a new gradient in the running average of stochastic gradients.
        Values above 1 count as 1, and the default is always 1, which means no averaging.

    Examples
    --------
    >>> import torch, fedfw
    >>> schedule = fedfw.Schedule(eta=lambda t: 2 / (t + 1), growth=lambda t: t**0.5)
    >>> [round(schedule.eta(t), 3) for t in (1, 2, 3)], schedule.growth(4), schedule.rho(9)
    ([1.0, 0.667, 0.5], 2.0, 1.0)
    """

    eta: Rate
    growth: Rate
    rho: Rate = lambda t: 1.0


def convex(p: float = 1.0, horizon: int = 0) -> Schedule:
    """Return the schedule for convex losses: ``eta_t = 2 / (p (t - 1) + 2)`` and ``lam_t = lam_0
    sqrt(p (t - 1) + 2)``.

    Parameters
    ----------
    p : float, default 1.0
        The probability that a client takes part in a round.
    horizon : int, default 0
        Not used; it is there because all named schedules are called alike.

    Returns
    -------
    Schedule
        For it the theory proves ``F(xbar) - F* = O((p t)^(-1/2))`` at the mean xbar of the clients'
        points.

    Examples
    --------
    >>> from fedfw.schedules import convex
    >>> [round(convex().eta(t), 3) for t in (1, 2, 3)]
    [1.0, 0.667, 0.5]
    """
    return Schedule(lambda t: 2 / (p * (t - 1) + 2), lambda t: (p * (t - 1) + 2) ** 0.5)


def nonconvex(p: float = 1.0, horizon: int = 1) -> Schedule:
    """Return the schedule for non-convex losses: ``eta_t = T^(-2/3)`` and ``lam_t = lam_0 T^(1/3)``
    for a horizon T.

    Parameters
    ----------
    p : float, default 1.0
        The probability that a client takes part in a round. Below 1, ``p T + 1`` takes the place of
        T.
    horizon : int, default 1
        The horizon T: rounds times local steps.

    Returns
    -------
    Schedule
        For it the theory proves that the smallest Frank-Wolfe gap of a run is ``O((p T)^(-1/3))``.

    Examples
    --------
    >>> from fedfw.schedules import nonconvex
    >>> round(nonconvex(horizon=1000).eta(1), 6), round(nonconvex(horizon=1000).growth(1), 6)
    (0.01, 10.0)
    """
    length = horizon if p == 1.0 else p * horizon + 1
    return Schedule(lambda t: length ** (-2 / 3), lambda t: length ** (1 / 3))


def stochastic(p: float = 1.0, horizon: int = 0) -> Schedule:
    """Return the schedule for stochastic gradients, which also averages the gradients over time.

    It is ``eta_t = 9 / (t + 8)``, ``lam_t = lam_0 sqrt(t + 8)`` and ``rho_t = 4 / (t + 7)^(2/3)``.

    Parameters
    ----------
    p : float, default 1.0
        Not used; it is there because all named schedules are called alike.
    horizon : int, default 0
        Not used, for the same reason.

    Returns
    -------
    Schedule
        For it the theory proves ``F(xbar) - F* = O(t^(-1/3))`` for convex losses.

    Examples
    --------
    >>> from fedfw.schedules import stochastic
    >>> (
    ...     stochastic().eta(1),
    ...     stochastic().growth(1),
    ...     stochastic().rho(1),
    ...     round(stochastic().rho(57), 3),
    ... )
    (1.0, 3.0, 1.0, 0.25)
    """
    # In floating point 4 / 8^(2/3) is slightly above 1.
    return Schedule(
        lambda t: 9 / (t + 8), lambda t: (t + 8) ** 0.5, lambda t: min(1.0, 4 / (t + 7) ** (2 / 3))
    )


def constant(eta: float, rho: float = 1.0) -> Schedule:
    """Return a schedule that does not change over time, for ablation studies: step size ``eta``,
    averaging weight ``rho``, and the penalty stays at its start, ``lam_t = lam_0``, which the
    algorithm sets.

    The points do not converge to a minimiser but stay at a distance that depends on the step size
    and the penalty.

    Parameters
    ----------
    eta : float
        The step size, above 0 and at most 1.
    rho : float, default 1.0
        The averaging weight, above 0 and at most 1.

    Returns
    -------
    Schedule
        The schedule.

    Raises
    ------
    ValueError
        If eta or rho is out of range.

    Examples
    --------
    >>> from fedfw.schedules import constant
    >>> constant(0.1).eta(1), constant(0.1).eta(1000)
    (0.1, 0.1)
    """
    _validate_fraction("eta", eta)
    _validate_fraction("rho", rho)
    return Schedule(lambda t: eta, lambda t: 1.0, lambda t: rho)


def linear_decay(eta: float, p: float = 1.0, horizon: int = 1) -> Schedule:
    """Return a step size that decreases linearly to zero, ``eta_t = eta (1 - (t - 1) / T)``, with
    the penalty of `nonconvex`.

    Nothing is proven for it, but in practice it is the best one for networks.

    Parameters
    ----------
    eta : float
        The step size at t = 1, above 0 and at most 1.
    p : float, default 1.0
        The probability that a client takes part in a round.
    horizon : int, default 1
        The horizon T: rounds times local steps.

    Returns
    -------
    Schedule
        The schedule.

    Raises
    ------
    ValueError
        If eta is out of range.

    Examples
    --------
    >>> from fedfw.schedules import linear_decay
    >>> [round(linear_decay(0.5, horizon=10).eta(t), 3) for t in (1, 6, 10)]
    [0.5, 0.25, 0.05]
    """
    _validate_fraction("eta", eta)
    growth = nonconvex(p, horizon).growth
    return Schedule(lambda t: eta * (1 - (t - 1) / horizon), growth)


AUTO = "auto"
CURVATURE = "curvature"
"""The tested defaults of the problem; and steps that the server computes from curvature
(`fedfw.algorithms.pacing`).
"""
NAMES = ("convex", "nonconvex", "stochastic", "constant:ETA", "linear-decay:ETA", AUTO, CURVATURE)
"""The names that `make_schedule` takes, where ETA stands for a step size."""


def make_schedule(wanted: str | Schedule | Rate, p: float, horizon: int) -> Schedule:
    """Return the schedule that an algorithm's ``schedule`` argument stands for.

    Parameters
    ----------
    wanted : str, Schedule or callable
        One of `NAMES`, such as ``convex`` or ``linear-decay:0.05``; a schedule, which is returned
        unchanged; or a function from t to the step size, which is combined with the penalty of
        `convex`. The last two names stand for `convex` here: an algorithm works out what ``auto``
        is, and steps from curvature are at most as long.
    p : float
        The probability that a client takes part in a round.
    horizon : int
        Rounds times local steps.

    Returns
    -------
    Schedule
        The schedule.

    Raises
    ------
    ValueError
        If the name is unknown or its number is out of range.

    Examples
    --------
    >>> from fedfw.schedules import make_schedule
    >>> make_schedule("constant:0.2", p=1.0, horizon=100).eta(50)
    0.2
    >>> make_schedule(lambda t: 1 / t, p=1.0, horizon=100).eta(4)
    0.25
    """
    if isinstance(wanted, Schedule):
        return wanted
    if callable(wanted):
        return Schedule(wanted, convex(p).growth)
    name, _, value = wanted.partition(":")
    plain = {
        AUTO: convex,
        CURVATURE: convex,
        "convex": convex,
        "nonconvex": nonconvex,
        "stochastic": stochastic,
    }
    if name in plain and not value:
        return plain[name](p, horizon)
    try:
        if name == "constant":
            return constant(float(value))
        if name == "linear-decay":
            return linear_decay(float(value), p, horizon)
    except ValueError as error:
        raise ValueError(
            f"schedule {wanted!r}: {error}; expected one of {', '.join(NAMES)}"
        ) from None
    close = nearest(name, [known.partition(":")[0] for known in NAMES])
    raise ValueError(
        f"unknown schedule {wanted!r}{close}, expected one of {', '.join(NAMES)}, or a callable t "
        "-> eta"
    )


def _validate_fraction(name: str, value: float) -> None:
    """Raise ValueError unless 0 < value <= 1."""
    if not 0 < value <= 1:
        raise ValueError(f"{name}={value}, expected a number above 0 and at most 1")
