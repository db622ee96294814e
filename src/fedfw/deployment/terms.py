"""The terms of the owner of data: the options of an owner's file, and the checks that keep to them,
whatever a server or an app says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from fedfw.algorithms.contract import Algorithm, Reveals
from fedfw.algorithms.registry import ALGORITHMS
from fedfw.algorithms.step_sizes import reports_curvature
from fedfw.deployment.ledger import Release, charged
from fedfw.deployment.limits import JobLimits
from fedfw.deployment.refusal import Refusal, RefusedError, require_allowed
from fedfw.deployment.server_options import (
    DATA_OPTIONS,
    READING_OPTIONS,
    check_range,
    default_options,
    set_by_server,
)
from fedfw.options import check_options, option
from fedfw.privacy import Privacy
from fedfw.sets.base import ConstraintSet
from fedfw.sets.product import Product
from fedfw.sets.registry import parse_set

if TYPE_CHECKING:
    from fedfw.deployment.task import Task

Share = Literal["atoms", "losses", "numbers", "gradients", "models"]
SHARES: tuple[Share, ...] = get_args(Share)
"""All that a client can share."""
_NEEDED = {Reveals.ATOMS: "atoms", Reveals.MODELS: "models", Reveals.GRADIENTS: "gradients"}
CURVATURE_REPORTS = (
    "steps from curvature, whose clients send the server two numbers of their data in every round"
)
ALL_SETS = "all"
"""In the list of sets, all of them."""
USUAL_SETS = ("l1", "simplex", "ksparse:k=8")
"""The sets that may be used where the owner says nothing: their atoms speak of few coordinates."""
_ROUNDING = 1 + 1e-9
"""A budget may be exceeded by this factor: the rounding of sums of epsilons and deltas."""


@dataclass(frozen=True)
class DataBudget:
    """The privacy budget of a data set, over all runs, names and restarts.

    Examples
    --------
    >>> DataBudget(eps=4.0, delta=2.0)
    Traceback (most recent call last):
        ...
    ValueError: delta=2.0, expected a number above 0 and below 1
    """

    eps: Annotated[float, option("epsilon of all private releases together", gt=0)]
    delta: Annotated[float, option("delta of all private releases together", gt=0, lt=1)]
    required: Annotated[bool, option("refuse runs that are not private")] = True
    clip: Annotated[
        float,
        option(
            "the bound at which samples' gradients are clipped in private runs", ge=1e-12, le=1e12
        ),
    ] = 1.0

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Terms:
    """The uses of a client's data that its owner allows."""

    data_set: Annotated[
        str,
        option(
            "the owner's name for these data: there is one ledger for each name",
            expected="letters, digits, '-' and '_'",
            pattern=r"^[A-Za-z0-9_-]*$",
        ),
    ] = ""
    share: Annotated[
        tuple[Share, ...],
        option("what may be sent to the server", expected=f"a list out of {', '.join(SHARES)}"),
    ] = ("atoms",)
    algorithms: Annotated[
        tuple[str, ...] | None,
        option("algorithms that may run", expected="a list of names of algorithms"),
    ] = None
    sets: Annotated[
        tuple[str, ...],
        option(
            "constraint sets that may be used",
            expected='a list of names of sets, such as "ksparse:k=8", or "all"',
        ),
    ] = USUAL_SETS
    most_parameters: Annotated[int | None, option("how many parameters a model may have", ge=1)] = (
        None
    )
    privacy: DataBudget | None = None
    seeded_noise: Annotated[
        bool, option("accept private runs whose noise comes from a seed, for tests", scope="python")
    ] = False
    options: Annotated[
        tuple[str, ...],
        option("options of a run that a server may set", expected="a list of names of options"),
    ] = field(default_factory=default_options)
    least_samples: Annotated[
        int, option("samples that a gradient has at least", ge=1, le=1_000_000_000)
    ] = 32
    most_local_steps: Annotated[
        int, option("local steps that a round may have", ge=1, le=100_000)
    ] = 10
    most_rounds: Annotated[
        int,
        option("answers that are computed from the data, over all runs", ge=1, le=1_000_000_000),
    ] = 1000
    limits: JobLimits = field(default_factory=JobLimits)

    def __post_init__(self) -> None:
        """Check options and sets, and that no option of the data is left to the server."""
        check_options(self)
        for text in self.sets:
            _name_and_size(text)
        for key in self.options:
            if key in DATA_OPTIONS:
                raise ValueError(
                    f"options: {key!r} says which data are read, expected options other than "
                    f"{', '.join(DATA_OPTIONS)}"
                )

    def check_settings(self, config: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Refuse a run's configuration that the owner does not allow, before a task is built from
        it.

        Parameters
        ----------
        config : mapping
            The run's configuration by keys.
        own : mapping
            The values of the signed app, which the server may only replace where the owner allows
            it.

        Raises
        ------
        RefusedError
            With what was asked for and what is allowed.
        """
        settings = set_by_server(config, own)
        budgeted = self.privacy is not None and self.privacy.required
        for key, value in settings.items():
            shown = f"{key} = {str(value)[:100]!r}"
            require_allowed(
                key in self.options,
                Refusal.OPTION,
                f"{shown} was set by the server, expected one of {', '.join(self.options)}",
            )
            require_allowed(
                not budgeted or key not in READING_OPTIONS,
                Refusal.OPTION,
                f"{shown} was set by the server, and decides how data are read: "
                "under a budget it is the signed app's",
            )
            try:
                check_range(key, value)
            except ValueError as error:
                raise RefusedError(Refusal.RANGE, str(error)[:500]) from None
        # The app's own values come from signed code, and are checked in the task that it builds.
        self._check_given(settings)

    def _check_given(self, given: Mapping[str, Any]) -> None:
        """Refuse options of a server for which every task would be refused, before one is built;
        an option that is not given is not checked.
        """
        name = str(given.get("algorithm", "")).lower()
        if name in ALGORITHMS:
            self._check_algorithm(ALGORITHMS[name])
        try:
            constraint = parse_set(str(given["constraint"])) if given.get("constraint") else None
            promise = Privacy.parse(str(given["privacy"])) if given.get("privacy") else None
        except ValueError as error:
            raise RefusedError(Refusal.RANGE, str(error)[:500]) from None
        if constraint is not None:
            self._check_sets([constraint])
        if promise is not None:
            self._check_promise(promise)
        batch = given.get("batch-size")
        self._check_steps(int(given.get("local-steps") or 1), int(batch) if batch else None)

    def check(self, task: Task) -> None:
        """Refuse a task that the owner does not allow.

        Raises
        ------
        RefusedError
            With what was asked for and what is allowed.
        """
        algorithm = task.algorithm
        self._check_algorithm(type(algorithm))
        reports = reports_curvature(algorithm) and _NEEDED[algorithm.reveals] == "atoms"
        require_allowed(
            not reports or "numbers" in self.share,
            Refusal.SHARED,
            f"{algorithm.name} with {CURVATURE_REPORTS}: 'numbers' is not in share",
        )
        self._check_sets(sets_of(algorithm))
        self._check_steps(task.options.local_steps, task.options.batch_size)
        size = len(task.start)
        require_allowed(
            self.most_parameters is None or size <= self.most_parameters,
            Refusal.SIZE,
            f"{size} parameters, expected at most {self.most_parameters}",
        )
        promise = task.options.promise
        if promise is not None:
            self._check_promise(promise)
        require_allowed(
            promise is not None or self.privacy is None or not self.privacy.required,
            Refusal.PLAIN,
            "the run promises no privacy, expected one that does",
        )

    def _check_algorithm(self, algorithm: type[Algorithm]) -> None:
        """Refuse an algorithm that is not allowed, or that shares more than is allowed."""
        require_allowed(
            self.algorithms is None or algorithm.name in self.algorithms,
            Refusal.ALGORITHM,
            f"algorithm={algorithm.name}, expected {', '.join(self.algorithms or ()) or 'none'}",
        )
        needed = _NEEDED[algorithm.reveals]
        require_allowed(
            needed in ("atoms", *self.share),
            Refusal.SHARED,
            f"{algorithm.name} shares {algorithm.shares}: {needed!r} is not in share",
        )

    def _check_sets(self, used: Sequence[ConstraintSet]) -> None:
        """Refuse sets that no entry of the list allows."""
        for constraint in used:
            require_allowed(
                any(_allows(text, constraint) for text in self.sets),
                Refusal.SET,
                f"constraint={entry_of(constraint)}, expected {', '.join(self.sets) or 'none'}",
            )

    def _check_steps(self, local_steps: int, batch_size: int | None) -> None:
        """Refuse too many local steps, and minibatches of too few samples."""
        require_allowed(
            local_steps <= self.most_local_steps,
            Refusal.STEPS,
            f"{local_steps} local steps, expected at most most-local-steps = "
            f"{self.most_local_steps}",
        )
        require_allowed(
            batch_size is None or batch_size >= self.least_samples,
            Refusal.SAMPLES,
            f"batch-size={batch_size}, expected at least least-samples = {self.least_samples}",
        )

    def _check_promise(self, promise: Privacy) -> None:
        """Refuse noise from a seed, and a promise that is weaker than the budget."""
        require_allowed(
            promise.not_private_seed is None or self.seeded_noise,
            Refusal.SEED,
            f"not_private_seed={promise.not_private_seed}, expected none",
        )
        budget = self.privacy
        if budget is None:
            return
        require_allowed(
            promise.eps <= budget.eps and promise.delta <= budget.delta,
            Refusal.PROMISE,
            f"the run promises {promise}, expected at most eps {budget.eps:g} and delta "
            f"{budget.delta:g}",
        )
        require_allowed(
            promise.clip == budget.clip,
            Refusal.CLIP,
            f"the run promises {promise}, expected clip = {budget.clip:g}",
        )

    def allows_numbers(self, task: Task) -> bool:
        """Return whether the numbers of "auto" may be sent to the server of a task."""
        try:
            self.check(task)
        except RefusedError:
            return False
        return "numbers" in self.share

    def affords(self, releases: Sequence[Release]) -> bool:
        """Return whether private releases stay within the budget of the data set, if it has one."""
        budget = self.privacy
        if budget is None:
            return True
        eps, delta = charged(releases)
        return eps <= budget.eps * _ROUNDING and delta <= budget.delta * _ROUNDING


def sets_of(algorithm: Algorithm) -> list[ConstraintSet]:
    """Return an algorithm's sets, those of single parameters one by one."""
    constraint = algorithm.constraint
    return list(constraint.sets.values()) if isinstance(constraint, Product) else [constraint]


def entry_of(constraint: ConstraintSet) -> str:
    """Return the entry of an owner's list of sets that allows a set and no larger k.

    Examples
    --------
    >>> entry_of(parse_set("l1:10")), entry_of(parse_set("ksparse:k=65,r=10"))
    ('l1', 'ksparse:k=65')
    """
    size = getattr(constraint, "k", None)
    return constraint.name if size is None else f"{constraint.name}:k={size}"


def _allows(text: str, constraint: ConstraintSet) -> bool:
    """Return whether an entry of the list of sets allows a set: all of them, those of its name, or
    those of its name with k up to the entry's.
    """
    name, most = _name_and_size(text)
    if name == ALL_SETS:
        return True
    size = getattr(constraint, "k", None)
    return name == constraint.name and (most is None or (size is not None and size <= most))


def _name_and_size(text: str) -> tuple[str, int | None]:
    """Return the name of a set, and the largest k that an entry such as ``ksparse:k=8`` allows."""
    match = re.fullmatch(r"([a-z][a-z0-9-]*)(?::(?:k=)?([1-9][0-9]{0,8}))?", text)
    if match is None:
        raise ValueError(
            f"sets: {text[:40]!r}, expected the name of a set, or one with its largest k as in "
            "'ksparse:k=8'"
        )
    return match[1], None if match[2] is None else int(match[2])
