"""The option ``schedule`` of methods that take Frank-Wolfe steps, and the rule that it stands
for.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from fedfw.algorithms.curvature import CurvatureSteps, factor
from fedfw.algorithms.optin import Certifies
from fedfw.algorithms.penalty import is_sparse
from fedfw.algorithms.rules import FrankWolfeSteps, StepRule
from fedfw.algorithms.setting import Setting
from fedfw.options import option
from fedfw.schedules import AUTO, CURVATURE, NAMES, Schedule, make_schedule, stochastic

NETWORK_SCHEDULE = "linear-decay:0.05"
"""For networks, see docs/defaults.md: Frank-Wolfe's first steps would destroy a network's start."""
ROUND_SCHEDULE = "linear-decay:0.1"
"""For clients that begin every round at the shared model."""
NETWORK_TOL = 1e-3
"""How accurate such oracles are for networks: minibatches are much less so."""

Wanted = str | Schedule | Callable[[int], float] | None
ScheduleOption = Annotated[
    Wanted,
    option(
        f"step sizes: {', '.join(NAMES)}",
        otherwise=f"by the problem; networks {NETWORK_SCHEDULE}",
        expected=f"one of {', '.join(NAMES)}, a Schedule, or a function t -> eta",
    ),
]
"""The option ``schedule``."""


def validate_schedule(method: str, schedule: Wanted, curvature: bool) -> None:
    """Refuse an unknown name, and steps from curvature for a method that has none."""
    if isinstance(schedule, str):
        make_schedule(schedule, p=1.0, horizon=1)  # raises ValueError for an unknown name
    if schedule == CURVATURE and not curvature:
        raise ValueError(
            f"schedule={CURVATURE!r}: {method} takes no steps from curvature, expected another "
            "schedule"
        )


def step_grid(setting: Setting) -> tuple[str, ...]:
    """Return the schedules that `fedfw.tune` tries: long steps, short ones, and from curvature."""
    if setting.network:
        return ("linear-decay:0.02", "linear-decay:0.1")
    automatic = setting.reports_allowed and setting.whole
    return ("convex", "linear-decay:0.02", AUTO if automatic else "linear-decay:0.1")


def supports_curvature_steps(setting: Setting) -> bool:
    """Return whether the gradients of a problem show its curvature."""
    return setting.convex is True and setting.whole


def fallback_schedule(setting: Setting, beta: float) -> str | None:
    """Return what "auto" is where steps cannot come from curvature, or None for the theory's.

    Steps fall linearly from 2/(p T) where gradients are exact, without momentum, and atoms are
    dense. There 2/(t+1) is too long. With minibatches or noise, more of which it averages out, it
    is the better one.
    """
    if not supports_curvature_steps(setting) or beta > 0 or is_sparse(setting):
        return None
    horizon = setting.p * setting.rounds * setting.local_steps
    return f"linear-decay:{min(1.0, 2 / horizon):.3g}"


def frank_wolfe_steps(
    schedule: Wanted,
    setting: Setting,
    lam_0: float,
    beta: float,
    measurable: bool = True,
    at_server: bool = False,
) -> tuple[Wanted, StepRule]:
    """Return the schedule and the rule for Frank-Wolfe steps, by clients from points of their own
    or by the server.

    Parameters
    ----------
    schedule : str, Schedule, callable or None
        As the user gave it.
    setting : Setting
        Of the run.
    lam_0 : float
        The penalty of the first round, which pulls a client's point to the model.
    beta : float
        The weight of past gradients.
    measurable : bool
        Whether two successive gradients are taken at the two ends of the last step, so that their
        difference shows the curvature along it.
    at_server : bool
        Whether the server takes the steps, and measures the curvature itself: clients report
        nothing beside their gradients.
    """
    if schedule == CURVATURE and not (measurable and setting.whole):
        raise ValueError(
            f"schedule={CURVATURE!r} compares two gradients of the same samples, one step apart: "
            "expected no minibatches, anchors more than a round apart, and all clients present "
            f"where the server takes the step; {AUTO!r} selects what can be used"
        )
    if schedule == AUTO:
        reported = at_server or setting.reports_allowed
        if supports_curvature_steps(setting) and reported and measurable:
            schedule = CURVATURE
        else:
            schedule = None if at_server else fallback_schedule(setting, beta)
    # With momentum networks train best with short steps; without, with those of the theory.
    if schedule is None and setting.network and beta > 0:
        schedule = NETWORK_SCHEDULE
    steps = FrankWolfeSteps(theory_schedule(schedule, setting), setting.local_steps, lam_0)
    if at_server or schedule != CURVATURE:
        return schedule, steps
    return schedule, CurvatureSteps(
        steps, factor(beta, points=True, sparse=is_sparse(setting)), beta
    )


def theory_schedule(schedule: Wanted, setting: Setting) -> Schedule:
    """Return a schedule as it is, or the one for the problem's kind."""
    if schedule is None:
        schedule = "nonconvex" if setting.network else "convex"
    return make_schedule(schedule, setting.p, setting.rounds * setting.local_steps)


def stochastic_steps(schedule: Wanted, setting: Setting, lam_0: float) -> StepRule:
    """Return the rule of step sizes for averaged minibatch gradients; "auto" is the "stochastic"
    schedule and, for networks, "nonconvex" with the averaging rate rho of "stochastic".
    """
    ticks = setting.rounds * setting.local_steps
    if schedule is None or schedule == AUTO:
        chosen = make_schedule("stochastic", setting.p, ticks)
        if setting.network:
            chosen = replace(make_schedule("nonconvex", setting.p, ticks), rho=stochastic().rho)
    else:
        chosen = make_schedule(schedule, setting.p, ticks)
    return FrankWolfeSteps(chosen, setting.local_steps, lam_0)


def steps_by_round(schedule: Wanted, setting: Setting) -> StepRule:
    """Return the rule for clients that begin every round at the shared model.

    The clock counts rounds, and attendance does not slow it: no client has a clock of its own.
    """
    if schedule is None or schedule == AUTO:
        schedule = ROUND_SCHEDULE
    by_rounds = make_schedule(schedule, 1.0, setting.rounds)
    tol = NETWORK_TOL if setting.network else 1e-6
    return FrankWolfeSteps(by_rounds, setting.local_steps, by_round=True, least_tol=tol)


def reports_curvature(method: object) -> bool:
    """Return whether clients of a method, as the user gave it, report measured curvature."""
    return getattr(method, "schedule", None) == CURVATURE and isinstance(method, Certifies)
