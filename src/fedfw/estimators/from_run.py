"""A deployed run's folder, loaded into an estimator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from fedfw.estimators.deployed import Regression
from fedfw.estimators.fitted import FittedModel
from fedfw.estimators.fitting import Certificate, bytes_of_run
from fedfw.estimators.private import NO_CERTIFICATE
from fedfw.estimators.selection import SMALL
from fedfw.rounds.folders import FACTS
from fedfw.simulation import SavedRun, load_run

if TYPE_CHECKING:
    from fedfw.estimators.base import FederatedEstimator

    Estimator = TypeVar("Estimator", bound=FederatedEstimator)


def load_fit(estimator: Estimator, folder: Path) -> Estimator:
    """Set the fitted attributes of an estimator from the folder of a finished run.

    Raises
    ------
    ValueError
        If the folder holds no finished run, or that of another estimator.
    """
    run = load_run(folder)
    regression = Regression.of_facts(facts_of(folder))
    if regression.estimator != estimator.deployed:
        raise ValueError(
            f"{folder} holds a run of {regression.estimator!r}, expected one of "
            f"{estimator.deployed!r}: load it into that estimator"
        )
    weight = run.parameters["weight"].double()
    bias = run.parameters.get("bias", torch.zeros(0)).double()
    small = SMALL * float(weight.abs().max())
    selected = (weight[0].abs() >= small) & (weight[0] != 0)
    coef, intercept = regression.scaling.to_original(weight, bias)
    model = FittedModel(
        coef,
        intercept if len(bias) else bias,
        selected=selected,
        bytes=bytes_of_run(run),
        certificate=certificate_of(run),
        parameters=torch.cat([weight.flatten(), bias]),
    )
    estimator.n_features_in_ = len(regression.inputs)
    estimator.feature_names_in_ = np.array(regression.inputs, dtype=object)
    if regression.estimator == "logistic":
        labels = regression.classes or ("0", "1")
        estimator.classes_ = _labels(labels)
    if regression.estimator == "cox":
        estimator.strata_ = {}
    estimator._take(model, regression.inputs)
    estimator.run_ = run
    estimator.n_iter_ = len(run.history)
    estimator._inference = (
        "no inference: a run folder holds no rows, and a fit under a constraint has no intervals"
    )
    return estimator


def facts_of(folder: Path) -> dict[str, Any]:
    """Return the facts of a run folder that state a regression."""
    path = folder / FACTS
    try:
        facts: dict[str, Any] = json.loads(path.read_text())["task"]
        Regression.of_facts(facts)
        return facts
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} states no regression ({type(error).__name__}), expected the folder of a run "
            "of an app that 'fedfw deploy init --estimator' wrote"
        ) from None


def certificate_of(run: SavedRun) -> Certificate:
    """Return what the run proved: nothing where clients reported no losses."""
    loss = run.history.last("loss")
    if loss is None:
        return NO_CERTIFICATE
    return Certificate(loss, run.history.last("lower_bound"), float("nan"))


def _labels(labels: tuple[str, ...]) -> Any:
    """Return two labels as an array: numbers where both are."""
    try:
        return np.array([int(label) for label in labels])
    except ValueError:
        return np.array(labels)
