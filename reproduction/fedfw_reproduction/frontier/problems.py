"""On what methods are compared: ten problems, or small ones on the digits for a look."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedfw.config import RunConfig
from fedfw_reproduction.cells import Cell, Central
from fedfw_reproduction.frontier.courses import Task
from fedfw_reproduction.frontier.methods import METHODS, Method
from fedfw_reproduction.protocols import Scale

BUDGETS = (25, 100, 400)
"""Rounds."""
_QUICK_BUDGETS, _QUICK_SETTINGS = (8, 30), 2


@dataclass(frozen=True)
class Studied:
    """One problem.

    Parameters
    ----------
    title : str
        In tables.
    config : RunConfig
        Data, model, clients and set.
    differ : str
        How different the clients are: ``little`` or ``much``.
    budgets : tuple of int
        Rounds, rising.
    tol, max_steps : float, int
        How well its optimum is to be known, and when to give up.
    settings : int
        How many of a method's settings are tried, at most.
    """

    title: str
    config: RunConfig
    differ: str = "much"
    budgets: tuple[int, ...] = BUDGETS
    tol: float = 1e-5
    max_steps: int = 10_000
    settings: int = 6

    @property
    def methods(self) -> tuple[Method, ...]:
        """What is compared, with settings from all over their list where not all are tried."""
        every = math.ceil(6 / self.settings)
        return tuple(Method(one.title, one.algorithm, one.settings[::every]) for one in METHODS)

    def task(self, method: Method) -> Task:
        """All settings of a method."""
        config = self.config.having(algorithm=method.algorithm)
        return Task(config, method.settings, self.budgets)

    @property
    def central(self) -> Central:
        """The optimum."""
        usual = Central.of(Cell(self.config, seeds=1))
        return replace(usual, tol=self.tol, max_steps=self.max_steps)

    @property
    def scored_by(self) -> str:
        """What the column ``test`` of a curve is."""
        return "test RMSE" if self.is_completion else "test accuracy"

    @property
    def is_completion(self) -> bool:
        """Whether a matrix is completed; then errors count beside residuals."""
        return self.config.model == "completion"


def _mnist(
    constraint: str, partition: str = "labels:3", clients: int = 10, participation: float = 1.0
) -> RunConfig:
    return RunConfig.of(
        dataset="mnist",
        model="mclr",
        partition=partition,
        clients=clients,
        participation=participation,
        constraint=constraint,
    )


_A9A = RunConfig.of(
    dataset="a9a", model="logistic", clients=10, partition="iid", constraint="l1:10"
)
_SYNTHETIC = RunConfig.of(
    dataset="synthetic:1,1", model="mclr", clients=10, partition="client", constraint="l1:10"
)
_MOVIES = RunConfig.of(
    dataset="ml-100k", model="completion", clients=10, partition="user", constraint="nuclear:500"
)

FULL = (
    *(
        Studied(f"MNIST, 3 labels, {constraint}", _mnist(constraint))
        for constraint in ("l1:10", "l1:100", "l2:10", "nuclear:10", "ksparse:k=100,r=0.3")
    ),
    Studied("MNIST, IID, l1:10", _mnist("l1:10", partition="iid"), differ="little"),
    Studied("a9a, IID, l1:10", _A9A, differ="little"),
    Studied("synthetic(1,1), l1:10", _SYNTHETIC),
    Studied(
        "MovieLens, users, nuclear:500",
        _MOVIES,
        budgets=(25, 100),
        tol=1e-3,
        max_steps=300,
        settings=3,
    ),
    Studied(
        "MNIST, 10 % of 539 writers, l1:30", _mnist("l1:30", "writer", 539, 0.1), differ="little"
    ),
)
"""The problems."""


def _digits(partition: str, constraint: str) -> RunConfig:
    return RunConfig.of(
        dataset="digits", model="mclr", clients=10, partition=partition, constraint=constraint
    )


QUICK = tuple(
    Studied(
        f"digits, {name}, {constraint}",
        _digits(partition, constraint),
        differ=differ,
        budgets=_QUICK_BUDGETS,
        tol=1e-3,
        max_steps=1000,
        settings=_QUICK_SETTINGS,
    )
    for name, partition, constraint, differ in (
        ("3 labels", "labels:3", "l1:10", "much"),
        ("IID", "iid", "l1:10", "little"),
        ("3 labels", "labels:3", "nuclear:10", "much"),
    )
)
"""The same on the digits that scikit-learn has, with few settings and rounds."""


def studied(scale: Scale) -> tuple[Studied, ...]:
    """The problems of a scale."""
    return QUICK if scale.quick else FULL
