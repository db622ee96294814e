"""Ovarian cancer in four studies: what is computed. The protocol is docs/studies/ovarian.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch

from fedfw.problems import concordance
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.regression.folds import Array
from fedfw_reproduction.regression.ovarian_fits import (
    Chosen,
    Patients,
    chosen_lasso,
    coxnet,
    lasso,
    meta_of_genes,
    meta_of_lassos,
    read_patients,
)
from fedfw_reproduction.schema import Identity, identity

STUDIES = (4, 9, 13, 16)
FEDERATED = "federated lasso"
POOLED = "pooled lasso, fedfw"
COXNET = "pooled lasso, scikit-survival"
ALONE = "study {} alone"
META_LASSO = "meta-analysis of single lassos"
META_GENES = "meta-analysis gene by gene"


def concordances(test: Patients, coefs: Mapping[str, Array], draws: int) -> Json:
    """Return Harrell's concordance of each model on a study, with bootstrap errors: of each, and of
    the difference from the federated model on the same draws.
    """
    targets = torch.from_numpy(test.y)
    scores = {name: torch.from_numpy(test.X @ coef) for name, coef in coefs.items()}
    draw = torch.Generator().manual_seed(0)
    drawn: dict[str, list[float]] = {name: [] for name in scores}
    for _ in range(draws):
        rows = torch.randint(len(targets), (len(targets),), generator=draw)
        for name, of in scores.items():
            drawn[name].append(concordance(of[rows], targets[rows]) or 0.5)
    table = {name: np.array(values) for name, values in drawn.items()}
    first = table[next(iter(table))]
    return {
        name: {
            "concordance": concordance(of, targets),
            "error": float(table[name].std(ddof=1)),
            "difference_error": float((first - table[name]).std(ddof=1)),
            "genes": int((coefs[name] != 0).sum()),
        }
        for name, of in scores.items()
    }


@dataclass(frozen=True)
class LeftOut:
    """All methods on three studies, and their concordance on the fourth.

    Parameters
    ----------
    study : int
        The one that is left out.
    radii, folds, draws
        Of the choice of radii, and of the bootstrap over the study's patients.
    """

    study: int
    radii: tuple[float, ...]
    folds: int
    draws: int

    @property
    def title(self) -> str:
        return f"ovarian cancer, study {self.study} left out"

    @property
    def weight(self) -> float:
        return float(2 * len(self.radii) * self.folds)

    def identity(self) -> Identity:
        return identity(
            "study left out",
            study=self.study,
            radii=self.radii,
            folds=self.folds,
            draws=self.draws,
        )

    def compute(self, site: Site) -> Json:
        patients = read_patients(site.folder)
        train = patients.take(patients.studies != self.study)
        test = patients.take(patients.studies == self.study)
        federated = chosen_lasso(train, self.radii, self.folds)
        pooled = chosen_lasso(train, self.radii, self.folds, pooled=True)
        single: dict[int, Chosen] = {}
        events = []
        for study in np.unique(train.studies).tolist():
            own = train.take(train.studies == study)
            single[study] = chosen_lasso(own, self.radii, self.folds)
            events.append(float(own.y[:, 0].sum()))
        coefs = {
            FEDERATED: federated.coef,
            POOLED: pooled.coef,
            **{ALONE.format(study): fit.coef for study, fit in single.items()},
            META_LASSO: meta_of_lassos(list(single.values()), events),
            META_GENES: meta_of_genes(train),
        }
        fits = {FEDERATED: federated, POOLED: pooled}
        fits |= {ALONE.format(study): fit for study, fit in single.items()}
        return {
            "methods": concordances(test, coefs, self.draws),
            "fits": {
                name: {"radius": fit.radius, "losses": fit.losses, "gap": fit.gap}
                for name, fit in fits.items()
            },
            "genes": federated.selected,
            "bytes": federated.bytes,
            "bytes_of_choice": federated.bytes_of_choice,
            "patients": len(test.y),
            "events": int(test.y[:, 0].sum()),
        }


@dataclass(frozen=True)
class Coxnet:
    """scikit-survival's pooled lasso on three studies, where it is installed."""

    study: int
    folds: int

    @property
    def title(self) -> str:
        return f"ovarian cancer, study {self.study} left out, scikit-survival"

    weight = 10.0

    def identity(self) -> Identity:
        return identity("study left out, coxnet", study=self.study, folds=self.folds)

    def compute(self, site: Site) -> Json:
        if find_spec("sksurv") is None:
            return {"not_run": "no scikit-survival", "why": "scikit-survival is not installed"}
        patients = read_patients(site.folder)
        coef = coxnet(patients.take(patients.studies != self.study), self.folds)
        test = patients.take(patients.studies == self.study)
        found: Json = concordances(test, {COXNET: coef}, 2)[COXNET]
        return found


@dataclass(frozen=True)
class Stability:
    """How often each gene is selected in halves of every study, at the radius that all four studies
    choose.

    Parameters
    ----------
    radii, folds
        Of the choice.
    pairs : int
        Complementary pairs of halves.
    """

    radii: tuple[float, ...]
    folds: int
    pairs: int

    title = "ovarian cancer, stability selection"

    @property
    def weight(self) -> float:
        return float(len(self.radii) * self.folds + 2 * self.pairs)

    def identity(self) -> Identity:
        return identity("stability of genes", radii=self.radii, folds=self.folds, pairs=self.pairs)

    def compute(self, site: Site) -> Json:
        patients = read_patients(site.folder)
        chosen = chosen_lasso(patients, self.radii, self.folds)
        draw = np.random.default_rng(0)
        counts = np.zeros(len(patients.genes))
        for _ in range(self.pairs):
            first = np.zeros(len(patients.y), dtype=bool)
            for study in STUDIES:
                own = draw.permutation(np.flatnonzero(patients.studies == study))
                first[own[: len(own) // 2]] = True
            for half in (first, ~first):
                counts += lasso(patients.take(half), chosen.radius).selected_
        shares = counts / (2 * self.pairs)
        return {
            "radius": chosen.radius,
            "losses": chosen.losses,
            "genes": chosen.selected,
            "shares": dict(zip(patients.genes, shares.tolist(), strict=True)),
            "coef": dict(zip(patients.genes, chosen.coef.tolist(), strict=True)),
        }
