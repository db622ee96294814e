"""An estimator's task in a deployment: which columns of the owners' tables it reads, what its model
and its loss are, and what the parameters of a finished run mean.

All numbers of the task are public: they stand in the app that owners read and sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedfw.data.limits import read_isolated
from fedfw.estimators.scaling import Scaling
from fedfw.problems import cox_loss
from fedfw.problems.glm import glm_targets, weighted_logistic, weighted_poisson, weighted_squared
from fedfw.problems.survival import validate_event_times
from fedfw.sets import ConstraintSet, L1Ball, Product
from fedfw.sets.registry import as_set

ESTIMATORS = ("linear", "logistic", "poisson", "cox")
"""The estimators that can be deployed."""
INTERCEPT = 5.0
"""Half of the width of the intercept's interval where none is given."""
_LOSSES: dict[str, Any] = {
    "linear": weighted_squared,
    "logistic": weighted_logistic,
    "poisson": weighted_poisson,
    "cox": cox_loss,
}


@dataclass(frozen=True)
class Regression:
    """The regression of a deployment.

    Parameters
    ----------
    estimator : {"linear", "logistic", "poisson", "cox"}
        Its name.
    inputs : tuple of str
        The names of the p columns.
    target : str
        The column that is predicted; the event of Cox's model.
    time : str
        The column with the time until the event, for Cox's model.
    offset : str
        The column with the logarithm of a row's exposure, for Poisson regression.
    classes : tuple of str
        The two labels of logistic regression, the one that is predicted second; ("0", "1") by
        default.
    ties : {"efron", "breslow"}
        How Cox's model treats events at the same time.
    scales : mapping from str to (mean, scale)
        Public numbers for every input; without them columns are taken as they are.

    Examples
    --------
    >>> regression = Regression("logistic", ("age", "bmi"), "died", scales={"age": (60, 15)})
    Traceback (most recent call last):
        ...
    ValueError: scales: bmi has none, expected a mean and a scale for every column; (0, 1) leaves a
    column as it is
    >>> Regression("poisson", ("age",), "visits").facts["estimator"]
    'poisson'
    """

    estimator: str
    inputs: tuple[str, ...]
    target: str
    time: str = ""
    offset: str = ""
    classes: tuple[str, ...] = ()
    ties: str = "efron"
    scales: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise ValueError(
                f"estimator={self.estimator!r}, expected one of {', '.join(ESTIMATORS)}"
            )
        if not self.inputs or not self.target:
            raise ValueError("inputs or target is empty, expected names of columns")
        for name, owner in (("time", "cox"), ("offset", "poisson"), ("classes", "logistic")):
            if getattr(self, name) and self.estimator != owner:
                raise ValueError(
                    f"{name} goes with {owner}, not with {self.estimator}: leave it out"
                )
        if self.estimator == "cox" and not self.time:
            raise ValueError("time is empty, expected the column with the time until the event")
        if self.classes and len(set(self.classes)) != 2:
            raise ValueError(f"classes={self.classes}, expected two different labels")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns {', '.join(self.columns)}, expected each name once")
        _ = self.scaling

    @property
    def columns(self) -> list[str]:
        """Return the names of all columns that are read."""
        return [*self.inputs, *filter(None, (self.target, self.time, self.offset))]

    @property
    def scaling(self) -> Scaling:
        """Return the scaling of the inputs."""
        if not self.scales:
            return Scaling.none(len(self.inputs))
        return Scaling.public(self.scales, self.inputs)

    @property
    def facts(self) -> dict[str, Any]:
        """Return the regression as JSON has it, for the run folder."""
        return asdict(self)

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Regression:
        """Return the regression of a run folder's facts."""
        scales = {name: (mean, scale) for name, (mean, scale) in facts["scales"].items()}
        return cls(
            facts["estimator"],
            tuple(facts["inputs"]),
            facts["target"],
            facts["time"],
            facts["offset"],
            tuple(facts["classes"]),
            facts["ties"],
            scales,
        )

    # --- what a deployment trains ---

    @property
    def intercepts(self) -> int:
        """Return the number of intercepts: Cox's model has none."""
        return 0 if self.estimator == "cox" else 1

    @property
    def loss(self) -> Any:
        """Return the loss of a client's rows."""
        loss = _LOSSES[self.estimator]
        return partial(loss, ties=self.ties) if self.estimator == "cox" else loss

    def model(self) -> nn.Linear:
        """Return the model, which begins at 0."""
        model = nn.Linear(len(self.inputs), 1, bias=self.intercepts > 0, dtype=torch.float64)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model

    def constraint(self, coefficients: Any, bound: float = INTERCEPT) -> ConstraintSet | Product:
        """Return the set of the coefficients with that of the intercept: an interval around 0,
        which is an l1 ball of one number.
        """
        stated: ConstraintSet = as_set(coefficients)
        if not self.intercepts:
            return stated
        return Product({"weight": stated, "bias": L1Ball(bound)})

    def read(self, path: Path, own_names: Mapping[str, str] | None = None) -> tuple[Tensor, Tensor]:
        """Return the scaled inputs (m, p) and the targets of an owner's table.

        Parameters
        ----------
        path
            A .csv file with names in its first line; other columns are not looked at.
        own_names
            The owner's names of columns, by those of the regression.
        """
        given = dict(own_names or {})
        unknown = [name for name in given if name not in self.columns]
        if unknown:
            raise ValueError(
                f"columns: {unknown[0]!r} is none of the app's, expected {', '.join(self.columns)}"
            )
        if not path.is_file():
            raise ValueError(f"no file {path.name} in {path.absolute().parent}")
        names = {name: given.get(name, name) for name in self.columns}
        found = read_isolated("columns", path, *names.values())
        try:
            X = np.column_stack([_numbers(found, names[name]) for name in self.inputs])
            targets = self._targets(found, names)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return self.scaling.to_scaled(torch.from_numpy(X)), targets

    def _targets(self, found: Mapping[str, Any], names: Mapping[str, str]) -> Tensor:
        """Return pairs (event, time) (m, 2) for Cox's model, else [y, weight, offset] (m, 3)."""
        target = names[self.target]
        if self.estimator == "logistic":
            y = self._classes_of(found[target], target)
        else:
            y = _numbers(found, target)
        if self.estimator == "cox":
            pairs = torch.from_numpy(np.column_stack([y, _numbers(found, names[self.time])]))
            validate_event_times(pairs, target)
            if bool((pairs[:, 1] < 0).any()):
                raise ValueError(f"{names[self.time]!r} has a negative time, expected at least 0")
            return pairs
        if self.estimator == "poisson" and (y < 0).any():
            raise ValueError(f"{target!r} has a negative number, expected counts of at least 0")
        offset = None
        if self.offset:
            offset = torch.from_numpy(_numbers(found, names[self.offset]))
        return glm_targets(torch.from_numpy(y), None, offset)

    def _classes_of(self, values: Any, name: str) -> Any:
        """Return 0 for the first class and 1 for the second; refuse other labels."""
        labels = self.classes or ("0", "1")
        if values.dtype.kind == "U":
            places = [np.flatnonzero(np.array(labels) == value) for value in values]
        else:
            places = [
                np.flatnonzero([_as_number(label) == value for label in labels]) for value in values
            ]
        if any(len(place) != 1 for place in places):
            raise ValueError(f"{name!r} has a label beside {' and '.join(labels)}")
        return np.array([float(place[0]) for place in places])


def _numbers(found: Mapping[str, Any], name: str) -> Any:
    """Return a column (m,) in float64; refuse texts."""
    values = found[name]
    if values.dtype.kind == "U":
        raise ValueError(f"{name!r} has texts, expected numbers")
    return values.astype(np.float64)


def _as_number(label: str) -> float:
    """Return the number of a label; NaN for a text."""
    try:
        return float(label)
    except ValueError:
        return float("nan")
