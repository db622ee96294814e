"""What is fixed before the first round: the set, the rates and the step sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedfw.atoms import Atom
from fedfw.ranks import ALONE, Ranks
from fedfw.schedules import Schedule
from fedfw.sets.base import ConstraintSet, Shape


@dataclass(frozen=True, eq=False)
class Rates:
    """Step size eta, penalty lam and averaging weight rho at one tick of the clock."""

    eta: float
    lam: float
    rho: float


@dataclass(frozen=True)
class Plan:
    """What an algorithm needs to know of a run: filled in once, before the first round.

    Parameters
    ----------
    n : int
        Number of clients.
    constraint : ConstraintSet
        The set on the flat vector of parameters.
    local_steps : int
        Steps of a client a round.
    lam_0, schedule : float, Schedule
        The penalty and the rates of algorithms that take Frank-Wolfe steps; the schedule's clock
        advances ``local_steps`` times a round.
    by_round : bool
        Whether that clock counts rounds instead, and a local step is the round's step divided by
        ``local_steps``.
    eta : float or None
        The most that a step of the present round may be, where the server works it out
        (`fedfw.algorithms.pacing`); None where the schedule alone says it.
    pace : float
        c, the factor of step sizes from curvature.
    least_tol : float
        The best accuracy that is asked of oracles that iterate.
    lr : float
        The step size of algorithms that take gradient steps, in the first round.
    horizon : int
        Rounds over which that step size falls linearly to zero; 0 where it stays as it is.
    convex : bool
        Whether the losses are known to be convex, so that lower bounds on the optimum can be
        proven.
    shapes : tuple of tuple of int
        The shapes of the parameters, one after the other in a vector; empty where they are not
        known.
    ranks : Ranks
        The processes that share the run: a step that adds up over clients adds up over ranks, too.
    watch : callable
        Lets the simulator time a part of a step: (name of the part, function) -> function.
    """

    n: int
    constraint: ConstraintSet
    local_steps: int = 1
    lam_0: float = 0.0
    schedule: Schedule | None = None
    by_round: bool = False
    eta: float | None = None
    pace: float = 0.0
    least_tol: float = 1e-6
    lr: float = 0.0
    horizon: int = 0
    convex: bool = False
    shapes: tuple[Shape, ...] = ()
    ranks: Ranks = ALONE
    watch: Callable[[str, Callable[..., Any]], Callable[..., Any]] = lambda part, function: function

    def oracle_tol(self, t: int) -> float:
        """Relative accuracy asked in round t of oracles that iterate.

        Frank-Wolfe keeps its rate when the oracle's error falls like the step size.
        """
        return max(self.least_tol, min(1e-2, 0.1 * self.rates(t).eta))

    def lmo(self, g: Tensor, t: int) -> Atom:
        """The oracle of the constraint at one direction g (p,) of round t."""
        atom: Atom = self.watch("oracle", self.constraint.lmo)(g, tol=self.oracle_tol(t))
        return atom

    def project(self, x: Tensor) -> Tensor:
        """The projection of one point (p,) or of a stack (m, p) on the constraint."""
        nearest: Tensor = self.watch("projection", self.constraint.project)(x, batch=x.ndim == 2)
        return nearest

    def decay(self, t: int) -> float:
        """What is left in round t = 1, 2, ... of the first round's gradient steps: 1 - (t - 1) /
        horizon, or 1.
        """
        return 1 - (t - 1) / self.horizon if self.horizon else 1.0

    def lr_at(self, t: int) -> float:
        """The step size of gradient steps in round t."""
        return self.lr * self.decay(t)

    def rates(self, t: int, k: int = 0) -> Rates:
        """Rates of local step k of round t = 1, 2, ..."""
        assert self.schedule is not None
        tick = t if self.by_round else (t - 1) * self.local_steps + k + 1
        eta = self.schedule.eta(tick)
        if not 0 < eta <= 1:
            raise ValueError(
                f"the schedule gives eta={eta} at t={tick}, expected a number above 0 and at most 1"
            )
        eta = eta if self.eta is None else min(eta, self.eta)
        eta = eta / self.local_steps if self.by_round else eta
        return Rates(
            eta, self.lam_0 * self.schedule.growth(tick), min(1.0, self.schedule.rho(tick))
        )

    def mixing(self, t: int) -> tuple[float, list[float]]:
        """Effective step of round t and each local step's share in it.

        x after K steps is (1 - sum a_k) x + sum a_k s_k with a_k = eta_k prod_{j > k} (1 - eta_j).
        """
        if self.local_steps == 1:
            return self.rates(t).eta, [1.0]
        etas = [self.rates(t, k).eta for k in range(self.local_steps)]
        amounts = [
            eta * math.prod(1 - later for later in etas[k + 1 :]) for k, eta in enumerate(etas)
        ]
        total = math.fsum(amounts)
        return total, [amount / total for amount in amounts]
