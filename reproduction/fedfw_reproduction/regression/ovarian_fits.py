"""Ovarian cancer in four studies: the patients, and the fits that are compared."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfw.data import MissingDataError
from fedfw.problems import cox_loss
from fedfw_reproduction.regression.folds import Array, folds_within, held_out_losses, least

FOLD_SEED = 0
SIGNIFICANT = 1.959963984540054
"""The quantile of the normal distribution for p < 0.05."""
_FILE = Path("ovarian") / "ovarian.csv"


@dataclass(frozen=True)
class Patients:
    """Genes (m, p), pairs (event, time) (m, 2), and studies (m,)."""

    X: Array
    y: Array
    studies: Array
    genes: tuple[str, ...]

    def take(self, rows: Array) -> Patients:
        return Patients(self.X[rows], self.y[rows], self.studies[rows], self.genes)


def read_patients(folder: Path) -> Patients:
    """Return the patients of ``ovarian/ovarian.csv`` in the data folder."""
    path = folder / _FILE
    if not path.is_file():
        raise MissingDataError(
            f"ovarian: no file {_FILE.name} in {path.parent}; docs/studies/ovarian.md says how it "
            "is made"
        )
    with open(path, encoding="utf-8", newline="") as text:
        header, *rows = csv.reader(text)
    table = np.array(rows, dtype=np.float64)
    place = {name: j for j, name in enumerate(header)}
    genes = [name for name in header if name not in ("study", "time", "event", "debulk")]
    return Patients(
        table[:, [place[name] for name in genes]],
        table[:, [place["event"], place["time"]]],
        table[:, place["study"]].astype(int),
        tuple(genes),
    )


# --- fits ---


def lasso(patients: Patients, radius: float, *, pooled: bool = False) -> Any:
    """Return a Cox model in an l1 ball; studies are strata, or all patients are one stratum."""
    from fedfw.estimators import CoxRegression

    groups = None if pooled else patients.studies
    return CoxRegression(f"l1:{radius:g}").fit(patients.X, patients.y, groups=groups)


def negative_log_likelihood(patients: Patients, coef: Array, *, pooled: bool = False) -> float:
    """Return the negative log partial likelihood, summed over strata."""
    scores = torch.from_numpy(patients.X @ coef)
    targets = torch.from_numpy(patients.y)
    total = 0.0
    for study in [None] if pooled else np.unique(patients.studies):
        rows = slice(None) if study is None else torch.from_numpy(patients.studies == study)
        own = targets[rows]
        total += float(cox_loss(scores[rows], own, ties="efron")) * len(own)
    return total


def held_out(patients: Patients, coef: Array, rows: Array, *, pooled: bool = False) -> float:
    """Return Verweij and van Houwelingen's loss of rows (m,), a mask: that of all patients without
    that of the others.
    """
    everyone = negative_log_likelihood(patients, coef, pooled=pooled)
    return everyone - negative_log_likelihood(patients.take(~rows), coef, pooled=pooled)


@dataclass
class Chosen:
    """A lasso at the radius that cross-validation chose, and the bytes of all its fits."""

    coef: Array
    radius: float
    losses: list[float]
    selected: list[str]
    gap: float
    bytes: int
    bytes_of_choice: int


def chosen_lasso(
    patients: Patients, radii: Sequence[float], folds: int, *, pooled: bool = False
) -> Chosen:
    """Return the lasso at the radius of the least held-out loss over folds within studies."""
    sent = 0

    def fit(radius: float, rows: Array) -> Any:
        nonlocal sent
        model = lasso(patients.take(rows), radius, pooled=pooled)
        sent += model.bytes_.payload + model.bytes_.checks
        return model

    def score(model: Any, rows: Array) -> float:
        return held_out(patients, model.coef_, rows, pooled=pooled)

    losses = held_out_losses(fit, score, radii, patients.studies, folds, FOLD_SEED)
    radius = least(radii, losses)
    model = lasso(patients, radius, pooled=pooled)
    genes = [patients.genes[j] for j in np.flatnonzero(model.selected_)]
    last = model.bytes_.payload + model.bytes_.checks
    gap = model.certificate_.relative_gap
    return Chosen(model.coef_, radius, losses, genes, gap, last, sent)


def meta_of_lassos(fits: Sequence[Chosen], events: Sequence[float]) -> Array:
    """Return the mean of single lassos' coefficients (p,), weighted by events: a sparse fit has no
    standard errors by which it could be weighted.
    """
    mean: Array = np.average([fit.coef for fit in fits], axis=0, weights=events)
    return mean


def meta_of_genes(patients: Patients) -> Array:
    """Return coefficients (p,): each gene's log hazard ratio alone, as a fixed-effect meta-analysis
    over studies combines it; zero where p is 0.05 or more.
    """
    from fedfw.estimators import CoxRegression

    count = len(patients.genes)
    weight = np.zeros(count)
    weighted = np.zeros(count)
    for study in np.unique(patients.studies):
        own = patients.take(patients.studies == study)
        for j in range(count):
            table = CoxRegression().fit(own.X[:, [j]], own.y).inference_
            precision = 1 / table["se"]["x0"] ** 2
            weight[j] += precision
            weighted[j] += precision * table["coef"]["x0"]
    coef: Array = weighted / weight
    return np.where(np.abs(coef) * np.sqrt(weight) > SIGNIFICANT, coef, 0.0)


def coxnet(patients: Patients, folds: int) -> Array:
    """Return scikit-survival's lasso (p,) on all patients as one stratum, with its penalty by the
    same folds and held-out loss.
    """
    from sksurv.linear_model import CoxnetSurvivalAnalysis
    from sksurv.util import Surv

    scale = patients.X.std(0)
    scaled = Patients(
        (patients.X - patients.X.mean(0)) / scale, patients.y, patients.studies, patients.genes
    )

    def fit(rows: Array, alphas: Array | None) -> Any:
        own = scaled.take(rows)
        model = CoxnetSurvivalAnalysis(l1_ratio=1.0, alphas=alphas, alpha_min_ratio=0.01)
        return model.fit(own.X, Surv.from_arrays(own.y[:, 0] == 1, own.y[:, 1]))

    whole = fit(np.ones(len(scaled.y), dtype=bool), None)
    fold = folds_within(patients.studies, folds, FOLD_SEED)
    losses = np.zeros(len(whole.alphas_))
    for k in range(folds):
        part = fit(fold != k, whole.alphas_)
        for a in range(len(part.alphas_)):
            losses[a] += held_out(scaled, part.coef_[:, a], fold == k, pooled=True)
    coef: Array = whole.coef_[:, int(losses.argmin())] / scale
    return coef
