"""How often intervals after a selection cover: `infer="split"` in scenarios that were fixed before
any was run.

A repetition draws the sites' rows anew. The estimator selects variables on one half of each site and
gives intervals from the other. They are intervals of the *selected submodel's* coefficients in the
population: those of the same submodel, fitted without a constraint to a very large sample of the
scenario. An interval covers if that number lies in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import Claim, Done, panels
from fedfw_reproduction.lab import Json, Site, was_run
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.regression.folds import Array
from fedfw_reproduction.schema import Identity, identity

REPETITIONS = 1000
POPULATION = 40_000
"""Rows of the large sample. Its error is at most a tenth of a standard error of a repetition."""
VARIABLES = 8
CORRELATION = 0.5
"""Of neighbouring columns; those at distance d have this to the power of d."""
CENSORING = 0.5
"""Rate of the exponential times of censoring; times until an event have rate exp(eta)."""
WITHIN = (0.93, 0.97)
MODELS = ("logistic", "linear", "Cox")
STRONG = (1.0, -1.0, 0.0, 0.5)
WEAK = (0.3, -0.2, 0.0, 0.1)
SIZES: dict[str, tuple[int, ...]] = {
    "four": (150,) * 4,
    "small": (24,) * 12,
    "unequal": (400, 120, 60, 20),
}
SITUATIONS = {
    "strong signals": (STRONG, "four", 2.0),
    "weak signals": (WEAK, "four", 0.4),
    "12 small sites": (STRONG, "small", 2.0),
    "unequal sites": (STRONG, "unequal", 2.0),
}
"""Coefficients, whose rest is zero; sizes of the sites; and the radius of the l1 ball."""


@dataclass(frozen=True)
class Scenario:
    """One model in one situation.

    Parameters
    ----------
    model : str
        logistic, linear or Cox.
    coefficients : tuple of float
        Of the first columns; the others are zero.
    sizes : tuple of int
        Rows of each site. Sites differ in their intercepts or baseline hazards, which are spread
        over -0.5 to 0.5.
    radius : float
        Of the l1 ball that selects.
    repetitions : int
    population : int
        Rows of the large sample.
    """

    model: str
    coefficients: tuple[float, ...]
    sizes: tuple[int, ...]
    radius: float
    repetitions: int
    population: int = POPULATION

    @property
    def title(self) -> str:
        return f"coverage, {self.model}, {len(self.sizes)} sites, radius {self.radius:g}"

    @property
    def weight(self) -> float:
        return float(self.repetitions)

    def identity(self) -> Identity:
        return identity(
            "coverage after selection",
            model=self.model,
            coefficients=self.coefficients,
            sizes=self.sizes,
            radius=self.radius,
            repetitions=self.repetitions,
            population=None if self.population == POPULATION else self.population,
        )

    def compute(self, site: Site) -> Json:
        large = self._draw(np.random.default_rng(10**6), self.population / sum(self.sizes))
        population: dict[tuple[int, ...], Array] = {}
        covered = []
        widths = []
        selected = []
        without = 0
        for repetition in range(self.repetitions):
            found = self._intervals(repetition)
            if found is None:
                without += 1
                continue
            chosen, low, high = found
            if chosen not in population:
                population[chosen] = self._submodel(large, chosen)
            inside = (low <= population[chosen]) & (population[chosen] <= high)
            covered.append((int(inside.sum()), len(chosen)))
            widths.append(float((high - low).mean()))
            selected.append(len(chosen))
        return {
            "covered": covered,
            "without": without,
            "width": float(np.mean(widths)),
            "selected": float(np.mean(selected)),
            "submodels": len(population),
        }

    def _draw(self, draw: np.random.Generator, copies: float = 1.0) -> tuple[Array, Array, Array]:
        """Return columns (m, p), targets (m,) or (m, 2), and sites (m,)."""
        sizes = [round(copies * size) for size in self.sizes]
        sites = np.repeat(np.arange(len(sizes)), sizes)
        distances = np.abs(np.subtract.outer(np.arange(VARIABLES), np.arange(VARIABLES)))
        factor = np.linalg.cholesky(CORRELATION**distances)
        X = draw.standard_normal((len(sites), VARIABLES)) @ factor.T
        shifts = np.linspace(-0.5, 0.5, len(sizes))[sites]
        eta = shifts + X[:, : len(self.coefficients)] @ np.array(self.coefficients)
        if self.model == "linear":
            return X, eta + draw.standard_normal(len(sites)), sites
        if self.model == "logistic":
            probabilities = 1 / (1 + np.exp(-eta))
            return X, (draw.random(len(sites)) < probabilities).astype(int), sites
        event = draw.standard_exponential(len(sites)) / np.exp(eta)
        censored = draw.standard_exponential(len(sites)) / CENSORING
        return X, np.column_stack([event <= censored, np.minimum(event, censored)]), sites

    def _intervals(self, repetition: int) -> tuple[tuple[int, ...], Array, Array] | None:
        """Return the selected columns with the ends of their intervals; None where there are none."""
        X, y, sites = self._draw(np.random.default_rng(repetition))
        options = {"infer": "split", "random_state": repetition}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = _estimator(self.model, f"l1:{self.radius:g}", **options)
            model.fit(X, y, groups=sites)
        chosen = np.flatnonzero(model.selected_)
        try:
            table = model.inference_
        except ValueError:  # nothing was selected, or the other half has no maximum
            return None
        names = [f"x{j}" for j in chosen]
        low, high = (np.array([table[end][name] for name in names]) for end in ("low", "high"))
        return tuple(chosen.tolist()), low, high

    def _submodel(self, large: tuple[Array, Array, Array], chosen: Sequence[int]) -> Array:
        """Return the coefficients of the chosen columns in the population."""
        X, y, sites = large
        model = _estimator(self.model, None).fit(X[:, list(chosen)], y, groups=sites)
        coefficients: Array = np.ravel(model.coef_)
        return coefficients


def _estimator(model: str, constraint: str | None, **options: Any) -> Any:
    """Return an estimator of a model."""
    from fedfw import estimators

    kinds = {
        "logistic": estimators.LogisticRegression,
        "linear": estimators.LinearRegression,
        "Cox": estimators.CoxRegression,
    }
    return kinds[model](constraint, **options)


# --- the page ---


def cells(scale: Scale) -> dict[str, Scenario]:
    """By model and situation."""
    effort = (10, POPULATION // 10) if scale.quick else (REPETITIONS, POPULATION)
    return {
        f"{model}, {situation}": Scenario(model, coefficients, SIZES[sizes], radius, *effort)
        for model in MODELS
        for situation, (coefficients, sizes, radius) in SITUATIONS.items()
    }


def coverage_of(result: Json) -> tuple[float, float]:
    """Return the share of intervals that cover, and its standard error; intervals of a repetition
    depend on each other, so the error is that of a ratio of sums over repetitions.
    """
    inside, count = np.array(result["covered"], dtype=float).T
    share = inside.sum() / count.sum()
    error = np.sqrt(((inside - share * count) ** 2).sum()) / count.sum()
    return float(share), float(error)


def show(scale: Scale, done: Mapping[str, Done], page: Document) -> None:
    found = {name: one.result for name, one in done.items() if was_run(one.result)}
    if not found:
        page.text("not run")
        return
    some = next(iter(done.values())).task
    page.text(
        f'Intervals of `infer="split"` at 95 %: {some.repetitions} repetitions of each scenario, {VARIABLES} normal '
        f"columns with correlation {CORRELATION:g} between neighbours. Strong signals are {STRONG}, weak ones {WEAK}, "
        "the other coefficients are zero. Sites are four of 150 rows, 12 of 24 rows, or 400, 120, 60 and 20 rows; "
        "their intercepts or baseline hazards differ. Variables are selected on a half of each site's rows in an l1 "
        "ball of a fixed radius (2, with weak signals 0.4) on standardised columns; intervals are from the other half, "
        "with the sandwich. What they should cover is the coefficient of the selected submodel, fitted without a "
        f"constraint to {some.population:,} rows. All scenarios were fixed before any was run."
    )
    page.table(
        ("scenario", "coverage", "error", "93 to 97 %", "variables", "width", "without intervals"),
        [_row(scale, name, result) for name, result in found.items()],
    )
    figure, (axis,) = panels(1)
    for place, (name, result) in enumerate(reversed(found.items())):
        share, error = coverage_of(result)
        colour = f"C{MODELS.index(name.partition(',')[0])}"
        axis.errorbar(share, place, xerr=1.96 * error, fmt="o", color=colour)
    axis.axvspan(*WITHIN, color="0.9", zorder=0)
    axis.axvline(0.95, color="0.5", lw=0.8)
    axis.set_yticks(range(len(found)), list(reversed(found)), fontsize="x-small")
    axis.set(xlabel="coverage of 95 % intervals")
    rows = [(name, *coverage_of(result)) for name, result in found.items()]
    page.plot(
        figure,
        "Coverage of intervals after a selection, with its 95 % interval",
        csv_text(("scenario", "coverage", "error"), rows),
        "coverage",
    )


def _row(scale: Scale, name: str, result: Json) -> tuple[Any, ...]:
    share, error = coverage_of(result)
    inside = WITHIN[0] <= share <= WITHIN[1]
    return (
        name,
        f"{share:.3f}",
        f"{error:.3f}",
        ("yes" if inside else "no", scale.kind(inside)),
        f"{result['selected']:.1f}",
        f"{result['width']:.3f}",
        str(result["without"]),
    )


def claims(scale: Scale, done: Mapping[str, Done]) -> list[Claim]:
    """Whether coverage lies within 93 to 97 % in every scenario."""
    found = {name: one.result for name, one in done.items() if was_run(one.result)}
    if not found:
        return []
    shares = {name: coverage_of(result)[0] for name, result in found.items()}
    outside = [name for name, s in shares.items() if not WITHIN[0] <= s <= WITHIN[1]]
    shown = f"{min(shares.values()):.3f} to {max(shares.values()):.3f}"
    if outside:
        shown += f"; outside: {', '.join(outside)}"
    text = "95 % intervals after a selection cover 93 to 97 % in every scenario"
    return [Claim(text, not outside, shown, "Coverage of intervals")]
