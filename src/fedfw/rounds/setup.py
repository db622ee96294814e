"""The preparation of a run before its first round: where it starts, what is known of the problem,
what will be proven.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property

import torch
from torch import Tensor

from fedfw.algorithms.contract import Algorithm
from fedfw.algorithms.optin import Certifies
from fedfw.algorithms.setting import Setting
from fedfw.errors import NoProjectionError
from fedfw.linalg.selection import robust_row_norms
from fedfw.problems.base import validate_finite
from fedfw.problems.problem import Problem
from fedfw.rounds.options import Options
from fedfw.sets.base import ConstraintSet, Shape


def usable_device(wanted: str | torch.device) -> torch.device:
    """Return the device, if it exists here; refuse others."""
    try:
        device = torch.device(wanted)
    except RuntimeError:
        # No such name: refused below, as any device but cpu and cuda.
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={wanted!r}, expected cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={wanted!r}: there is no CUDA device here")
    return device


def feasible_start(constraint: ConstraintSet, start: Tensor) -> Tensor:
    """Return the parameters (p,) if they lie in the set, else their projection, with a warning."""
    if constraint.contains(start):
        return start
    try:
        nearest = constraint.project(start)
    except NoProjectionError as error:
        raise ValueError(
            f"the start lies outside the constraint: give a start inside ({error})"
        ) from None
    moved = float(robust_row_norms((nearest - start).double()[None]))
    norm = float(robust_row_norms(start.double()[None]))
    warnings.warn(
        "the model's parameters lie outside of the constraint set, so the run begins at the "
        "nearest point of the set: "
        f"they were moved by {moved:.3g} (their norm was {norm:.3g})",
        stacklevel=3,
    )
    return nearest


class StartingGradients:
    """The clients' gradients at the start x (p,), from which default penalties are made."""

    def __init__(self, problem: Problem, x: Tensor) -> None:
        self._problem = problem
        self._x = x

    @cached_property
    def _gradients(self) -> Tensor:
        """Return grad f_i (m, p) of all clients that this rank keeps."""
        losses = self._problem.losses
        if not losses.countable:
            raise ValueError(
                'penalty="auto" asks all clients for their gradient, and these are too many: give '
                "a number"
            )
        who = losses.all_clients(self._x.device)
        values, gradients = losses.value_and_gradient(self._x.expand(len(who), -1), who, None)
        validate_finite(values, gradients, who, 0)
        return gradients

    def heterogeneity(self) -> float:
        """Return zeta, with zeta^2 = (1/n) sum ||grad h_i - grad F||^2 and h_i = n w_i f_i."""
        problem = self._problem
        x = self._x
        weights = problem.weights[problem.losses.all_clients(x.device)].to(x.dtype) * problem.n
        gradients = self._gradients * weights[:, None]
        (mean,) = problem.ranks.sums(gradients.sum(0) / problem.n)
        (sum_of_squares,) = problem.ranks.sums((gradients - mean).double().square().sum())
        return math.sqrt(float(sum_of_squares) / problem.n)

    def rms_gradient_norm(self) -> float:
        """The root mean square of ||grad h_i||."""
        own = [gradient_norm_of(gradient) for gradient in self._gradients]
        norms = [norm for theirs in self._problem.ranks.all_gather_object(own) for norm in theirs]
        return mean_gradient_norm(norms, self._problem.weights.tolist())


def gradient_norm_of(gradient: Tensor) -> float:
    """||g|| of one client's gradient (p,), to seven digits: a deployed client and the simulator
    then agree on it.
    """
    return _to_seven_digits(float(gradient.double().norm()))


def mean_gradient_norm(each: Sequence[float], weights: Sequence[float]) -> float:
    """The root mean square of n w_i ||grad f_i||, from one number of each client; the weights add
    up to 1.
    """
    n = len(each)
    squares = ((n * weight * norm) ** 2 for norm, weight in zip(each, weights, strict=True))
    return _to_seven_digits(math.sqrt(math.fsum(squares) / n))


def _to_seven_digits(value: float) -> float:
    return float(f"{value:.7g}")


def make_setting(
    n: int,
    constraint: ConstraintSet,
    start: Tensor,
    p: float,
    options: Options,
    *,
    convex: bool | None,
    classes: int | None,
    shapes: Sequence[Shape],
    reports_allowed: bool = True,
    **measured: Callable[[], float | None],
) -> Setting:
    """Return the setting from which an algorithm fills in its defaults, in a simulation and
    deployed.

    ``measured`` are numbers of the data, by their names in `Setting`. A private run has the bound
    on clipped gradients in their place: the numbers would reveal the data.
    """
    promise = options.promise
    if promise is not None:
        clip = promise.clip
        measured = {
            "heterogeneity": lambda: clip,
            "rms_gradient_norm": lambda: clip,
            "smoothness": _refused,
            "local_smoothness": _refused,
        }
    return Setting(
        n=n,
        constraint=constraint,
        shape=tuple(start.shape),
        convex=convex,
        classes=classes,
        p=p,
        rounds=options.rounds,
        local_steps=options.local_steps,
        reports_allowed=reports_allowed and promise is None,
        whole=promise is None and options.batch_size is None,
        private=promise is not None,
        shapes=tuple(shapes),
        **measured,
    )


def describe_setting(
    problem: Problem, constraint: ConstraintSet, start: Tensor, p: float, options: Options
) -> Setting:
    """Return the setting from which an algorithm fills in its defaults in a simulation."""
    measured = StartingGradients(problem, start)
    return make_setting(
        problem.n,
        constraint,
        start,
        p,
        options,
        convex=problem.convex,
        classes=problem.classes,
        shapes=tuple(problem.shapes.values()),
        heterogeneity=measured.heterogeneity,
        rms_gradient_norm=measured.rms_gradient_norm,
        smoothness=problem.smoothness,
        local_smoothness=problem.local_smoothness,
    )


def _refused() -> float | None:
    raise ValueError(
        'lr="auto" is worked out from the data, which a private run must not reveal: give a number'
    )


def validate_reports(reports: bool, options: Options) -> None:
    """Refuse a private run whose clients would report numbers of their data beside what is made
    private.
    """
    if reports and options.promise is not None:
        raise ValueError(
            'schedule="curvature" reports two numbers of each client\'s data in every round, which '
            'a private run must not reveal: "auto" is a schedule that needs none there'
        )


class Certificate(StrEnum):
    """Return the assumptions of the lower bound on the optimum, or why there is none."""

    EVERY_ROUND = (
        "the bound comes from what clients sent in every round, and from loss - gap at evaluations"
    )
    AT_EVALUATIONS = "the bound comes from loss - gap at evaluations"
    AVERAGED = "with momentum, the bound is loss - gap at evaluations"
    MINIBATCHES = "with minibatches, the bound is loss - gap at evaluations"
    NOT_CONVEX = "none, because the losses are not known to be convex"
    ONLY_FLOAT32 = (
        "none, because the losses cannot be worked out in float64, and float32 rounds too much for "
        "a proof"
    )
    NOT_COUNTED = "none, because there is no sum over all clients"
    PRIVATE = "none, because it would reveal the data"

    @property
    def proves(self) -> bool:
        """Return whether there is a bound at all."""
        return self in (self.EVERY_ROUND, self.AT_EVALUATIONS, self.AVERAGED, self.MINIBATCHES)


def certificate_of(problem: Problem, algorithm: Algorithm, options: Options) -> Certificate:
    """Return the kind of certificate that a run of a resolved algorithm will have; the first reason
    against one counts.
    """
    if options.promise is not None:
        return Certificate.PRIVATE
    if not problem.losses.countable:
        return Certificate.NOT_COUNTED
    if problem.convex is not True:
        return Certificate.NOT_CONVEX
    if not problem.works_in_float64():
        return Certificate.ONLY_FLOAT32
    if options.batch_size is not None:
        return Certificate.MINIBATCHES
    if not (isinstance(algorithm, Certifies) and algorithm.proves_bounds):
        return Certificate.AT_EVALUATIONS
    return Certificate.AVERAGED if algorithm.averages else Certificate.EVERY_ROUND
