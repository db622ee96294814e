"""A constrained fit by a federated algorithm, up to a certified gap."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedfw.algorithms import Algorithm, FedFWAnchored, FedFWPlus, FedLMO, FedPGD, Reveals
from fedfw.algorithms.registry import ALGORITHMS
from fedfw.errors import NonFiniteError
from fedfw.problems import Problem
from fedfw.sets import ConstraintSet
from fedfw.simulation import Run, SavedRun, simulate

Sees = Literal["gradients", "sums", "atoms"]
"""What owners allow the server to see: each client's gradients; sums of gradients now and then, and
atoms; or atoms alone.
"""
TOLERANCES = {"gradients": 1e-4, "sums": 1e-3, "atoms": 1e-3}
"""The certified gap at which a fit ends, as a share of the null model's loss."""
BEFORE_CORRECTIONS = 60
"""Rounds of a method with atoms and anchors before the support of its model is polished."""
TRANSPORT = 1300
"""Bytes that Flower's messages take beside payload and checks, each (docs/concepts/bytes.md)."""
_CHECKED_EVERY = 5
"""Rounds between two evaluations, each of which costs as much as a round."""
_POWER_STEPS = 12
"""Products with the Hessian that estimate its largest eigenvalue."""
_SAFETY = 1.3
"""What the estimate, which is from below, is multiplied by."""


class GapWarning(UserWarning):
    """A fit ended before its certified gap was small enough."""


@dataclass(frozen=True)
class Bytes:
    """Bytes that all clients sent up, by what they are for.

    Parameters
    ----------
    payload : int
        What the fit needs.
    checks : int
        What server and clients check each other by.
    transport : int
        An estimate of what Flower's messages add.

    Examples
    --------
    >>> Bytes(100, 8, 1300) + Bytes(50)
    Bytes(payload=150, checks=8, transport=1300)
    """

    payload: int = 0
    checks: int = 0
    transport: int = 0

    def __add__(self, other: object) -> Bytes:
        if not isinstance(other, Bytes):
            return NotImplemented
        return Bytes(
            self.payload + other.payload,
            self.checks + other.checks,
            self.transport + other.transport,
        )

    @classmethod
    def of_exchanges(cls, payload: int, exchanges: int, clients: int) -> Bytes:
        """Return the bytes of exchanges of sums beside a run, which have no checks."""
        return cls(payload, 0, TRANSPORT * exchanges * clients)


@dataclass(frozen=True)
class Certificate:
    """A proof of how good a fit is, in the units of the mean loss of a row.

    Parameters
    ----------
    loss : float
        Of the fit.
    lower_bound : float or None
        No point of the set has a smaller loss; None where nothing is proven. Without a constraint
        it is the loss less Newton's decrement: exact for least squares, an estimate up to second
        order for other models, and no proof.
    null_loss : float
        Of the model of the intercept alone; NaN for a deployed run.

    Examples
    --------
    >>> certificate = Certificate(0.5, 0.4999, 0.7)
    >>> round(certificate.gap, 4), round(certificate.relative_gap, 6)
    (0.0001, 0.000143)
    """

    loss: float
    lower_bound: float | None
    null_loss: float

    @property
    def gap(self) -> float | None:
        """Return how far the loss can be above the optimum."""
        return None if self.lower_bound is None else self.loss - self.lower_bound

    @property
    def relative_gap(self) -> float | None:
        """Return the gap as a share of the null model's loss; 0 where neither has any loss."""
        if self.gap is None or math.isnan(self.null_loss):
            return None
        if self.null_loss > 0:
            return self.gap / self.null_loss
        return 0.0 if self.gap <= 0 else math.inf


@dataclass(frozen=True)
class Fit:
    """A constrained fit: the run, its proof, and the bytes of all that was exchanged."""

    run: Run
    certificate: Certificate
    bytes: Bytes
    curvature: float | None = None
    """What the steps were made for, where they needed it: another fit of the problem needs no
    estimate of its own.
    """


def fit_constrained(
    problem: Problem,
    constraint: ConstraintSet,
    *,
    null_loss: float,
    algorithm: str | type[Algorithm] = "auto",
    sees: Sees = "gradients",
    share: float,
    max_rounds: int = 2000,
    seed: int = 0,
    curvature: float | None = None,
    **options: Any,
) -> Fit:
    """Minimise the problem's loss over the constraint until the certified gap is small enough.

    Parameters
    ----------
    problem
        Starts at the null model.
    constraint
        On the flat vector of the problem's parameters.
    null_loss
        The loss of the null model.
    algorithm
        A name or a class; "auto" chooses by what the server may see and by the set.
    sees
        What owners allow.
    share
        The gap at which the fit ends, as a share of the null model's loss.
    max_rounds
        The fit ends after so many rounds. Where sums of gradients may be shared, polishing goes on
        from `BEFORE_CORRECTIONS` rounds of atoms.
    seed, options
        Of the run.
    curvature
        Of an earlier fit of the problem; None estimates it.
    """
    chosen = choose_algorithm(algorithm, sees, constraint)
    target = share * null_loss
    kwargs: dict[str, Any] = {"eval_every": _CHECKED_EVERY, "tol": target, "seed": seed, **options}
    spent = Bytes()
    if target <= 0:  # the null model has no loss left, as for y that is constant
        kwargs.pop("tol")
    if issubclass(chosen, FedPGD):
        if curvature is None:
            curvature, spent = largest_curvature(problem, seed)
        run, curvature = _descend(problem, constraint, curvature, max_rounds, kwargs)
    else:
        rounds = min(max_rounds, BEFORE_CORRECTIONS) if sees == "sums" else max_rounds
        run = simulate(problem, chosen(constraint), rounds=rounds, **kwargs)
    loss = float(problem.value(run.feasible.flatten()))
    certificate = Certificate(loss, run.lower_bound, null_loss)
    return Fit(run, certificate, spent + bytes_of_run(run), curvature)


def choose_algorithm(
    algorithm: str | type[Algorithm], sees: Sees, constraint: ConstraintSet
) -> type[Algorithm]:
    """Return the class of a fit's algorithm; refuse one that shows more than owners allow.

    With gradients, projected gradient steps with Nesterov's extrapolation need the fewest rounds.
    Sets without a projection take oracle steps.
    """
    if algorithm == "auto":
        if sees == "atoms":
            return FedFWPlus
        if sees == "sums":
            return FedFWAnchored
        return FedPGD if constraint.has_projection else FedLMO
    chosen = _algorithm_class(algorithm)
    if sees == "atoms" and (chosen.reveals is not Reveals.ATOMS or chosen.shares):
        shared = chosen.shares or chosen.reveals.value
        raise ValueError(
            f"algorithm={chosen.name!r} shows the server {shared}, expected a method that sends "
            'atoms alone, or sees="gradients"'
        )
    if sees == "sums" and chosen.reveals is not Reveals.ATOMS:
        raise ValueError(
            f"algorithm={chosen.name!r} shows the server {chosen.reveals.value}, expected a method "
            'that sends atoms and sums of gradients, such as fedfw-anchored, or sees="gradients"'
        )
    return chosen


def _algorithm_class(algorithm: Any) -> type[Algorithm]:
    """Return the class of an algorithm by its name, or the class that was given."""
    if isinstance(algorithm, str) and algorithm in ALGORITHMS:
        return ALGORITHMS[algorithm]
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        return algorithm
    raise ValueError(
        f'algorithm={algorithm!r}, expected "auto", a class, or one of {", ".join(ALGORITHMS)}'
    )


def largest_curvature(problem: Problem, seed: int = 0) -> tuple[float, Bytes]:
    """Estimate the largest eigenvalue of the Hessian of F at the start, from sums of gradients.

    Power iterations: every product with the Hessian is a difference of two gradients. The
    smoothness that clients could report is that of the worst of them, several times as large.
    """
    start = problem.start
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start)
    _, base = problem.value_and_gradient(start)
    width = 1e-3 if start.dtype is torch.float64 else 1e-1
    value = 0.0
    for _ in range(_POWER_STEPS):
        direction = direction / direction.norm()
        _, moved = problem.value_and_gradient(start + width * direction)
        product = (moved - base) / width
        value = max(value, float(product.norm()))
        if value == 0:
            break
        direction = product
    exchanges = _POWER_STEPS + 1
    payload = exchanges * problem.n * start.numel() * start.element_size()
    return max(_SAFETY * value, 1e-12), Bytes.of_exchanges(payload, exchanges, problem.n)


def _descend(
    problem: Problem,
    constraint: ConstraintSet,
    curvature: float,
    max_rounds: int,
    options: dict[str, Any],
) -> tuple[Run, float]:
    """Return a run of projected gradient descent and the curvature that its steps were made for;
    where the loss rises the curvature was larger, so begin anew with shorter steps.
    """
    start_loss = problem.value(problem.start)
    for _ in range(8):
        method = FedPGD(constraint, lr=1 / curvature, extrapolation="nesterov")
        try:
            run = simulate(problem, method, rounds=max_rounds, **options)
        except NonFiniteError:
            curvature *= 4
            continue
        reached = run.history.last("loss")
        if reached is not None and reached <= start_loss:
            return run, curvature
        curvature *= 4
    raise ValueError(
        "projected gradient steps raise the loss however short they are; expected columns of "
        "comparable scale: leave standardize=True, and look for extreme values"
    )


def bytes_of_run(run: Run | SavedRun) -> Bytes:
    """Return what all clients sent in a run."""
    messages = sum(record.participants for record in run.history)
    return Bytes(
        payload=int(run.history.total("bytes_up")),
        checks=int(run.history.total("evidence_up")),
        transport=TRANSPORT * messages,
    )


def warn_of_gap(certificate: Certificate, share: float, rounds: int) -> None:
    """Warn where a fit ended with a larger gap than was asked for."""
    gap = certificate.relative_gap
    if gap is None:
        warnings.warn(
            f"the fit ended after {rounds} rounds without a proof of its gap, expected one of at "
            f"most {share:g} of the null model's loss",
            GapWarning,
            stacklevel=4,
        )
    elif gap > share:
        warnings.warn(
            f"the fit ended after {rounds} rounds with a certified gap of {gap:.2g} of the null "
            f"model's loss, expected at most {share:g}: raise max_rounds, or let the server see "
            "more",
            GapWarning,
            stacklevel=4,
        )
