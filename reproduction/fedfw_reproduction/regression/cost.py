"""What a fit costs: seconds of a sparse logistic regression over 50 sites up to its certified gap,
beside pooled scikit-learn at the same l1 norm, and the bytes of a site.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from fedfw.report import human_bytes
from fedfw_reproduction.document import Document
from fedfw_reproduction.figures import Claim, Done
from fedfw_reproduction.lab import Json, Site, was_run
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.regression.folds import Array
from fedfw_reproduction.schema import Identity, identity

RADIUS = 8.0
SIGNALS = 20
STRENGTH = 0.5
LIBLINEAR, SAGA = "scikit-learn, liblinear, pooled", "scikit-learn, saga, pooled"
SEES = ("gradients", "sums", "atoms")
PATH = "path of 20 radii"
SMALLEST_SHARE = 0.05
"""The smallest radius of the path, as a share of the largest, which is that of the fit."""
TIMES_POOLED, SECONDS_OF_SUMS, TIMES_FIT = 2.0, 5.0, 4.0
_SAME_NORM = 2e-3  # scikit-learn's penalty is searched until the l1 norm is the radius, up to this


@dataclass(frozen=True)
class Cost:
    """All contenders on one problem, in turns.

    Parameters
    ----------
    sites, rows, variables : int
    repeats : int
        Of each contender; the median counts.
    max_rounds : int
        Of fits where the server sees atoms alone.
    """

    sites: int
    rows: int
    variables: int
    repeats: int
    max_rounds: int

    @property
    def title(self) -> str:
        return f"cost of a fit, {self.sites} sites x {self.rows} rows x {self.variables} variables"

    @property
    def weight(self) -> float:
        return float(self.repeats)

    def identity(self) -> Identity:
        return identity(
            "cost of a fit",
            sites=self.sites,
            rows=self.rows,
            variables=self.variables,
            repeats=self.repeats,
            max_rounds=self.max_rounds,
        )

    def compute(self, site: Site) -> Json:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self._compared()
        finally:
            torch.set_num_threads(threads)

    def _compared(self) -> Json:
        """Return the seconds of every contender, and what its last fit is like."""
        X, y, groups = self._draw()
        scaled = (X - X.mean(0)) / X.std(0)
        contenders: dict[str, Callable[[], Any]] = {
            LIBLINEAR: self._pooled("liblinear", scaled, y),
            SAGA: self._pooled("saga", scaled, y),
        }
        contenders |= {sees: self._federated(sees, X, y, groups) for sees in SEES}
        contenders[PATH] = self._path(X, y, groups)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        fits: dict[str, Any] = {}
        for _ in range(self.repeats):
            for name, fit in contenders.items():
                begin = time.process_time()
                fits[name] = fit()
                seconds[name].append(time.process_time() - begin)
        bound = fits["gradients"].certificate_.lower_bound
        found = {name: self._described(fits[name], scaled, y, bound) for name in fits}
        for name, values in seconds.items():
            found[name]["seconds"] = median(values)
        return found

    def _draw(self) -> tuple[Array, Array, Array]:
        """Return columns (m, p), labels (m,) and sites (m,)."""
        draw = np.random.default_rng(0)
        X = draw.standard_normal((self.sites * self.rows, self.variables))
        coef = np.zeros(self.variables)
        coef[:SIGNALS] = STRENGTH * np.where(np.arange(SIGNALS) % 2 == 0, 1, -1)
        y = draw.random(len(X)) < 1 / (1 + np.exp(-X @ coef))
        return X, y.astype(int), np.repeat(np.arange(self.sites), self.rows)

    def _pooled(self, solver: str, scaled: Array, y: Array) -> Callable[[], Any]:
        """Return scikit-learn's fit with the penalty at which its l1 norm is the radius."""
        from sklearn.linear_model import LogisticRegression

        def fit(strength: float) -> Any:
            model = LogisticRegression(C=strength, l1_ratio=1.0, solver=solver, max_iter=1000)
            return model.fit(scaled, y)

        low, high = 1e-4, 1e2
        while True:
            middle = float(np.sqrt(low * high))
            norm = float(np.abs(fit(middle).coef_).sum())
            if abs(norm - RADIUS) <= _SAME_NORM * RADIUS or high / low < 1 + 1e-6:
                return lambda: fit(middle)
            if norm < RADIUS:
                low = middle
            else:
                high = middle

    def _federated(self, sees: str, X: Array, y: Array, groups: Array) -> Callable[[], Any]:
        from fedfw.estimators import LogisticRegression

        options: dict[str, Any] = {"sees": sees}
        if sees == "atoms":
            options["max_rounds"] = self.max_rounds
        model = LogisticRegression(f"l1:{RADIUS:g}", **options)
        return lambda: model.fit(X, y, groups=groups)

    def _path(self, X: Array, y: Array, groups: Array) -> Callable[[], Any]:
        from fedfw import estimators

        model = estimators.LogisticRegression(f"l1:{RADIUS:g}")
        radii = np.geomspace(SMALLEST_SHARE * RADIUS, RADIUS, 20)
        return lambda: estimators.path(model, radii, X, y, groups)

    def _described(self, fit: Any, scaled: Array, y: Array, bound: float) -> Json:
        """Return the loss above the bound, the variables, and the bytes of a site."""
        if hasattr(fit, "certificates"):
            sent = fit.bytes.payload + fit.bytes.checks
            gap = max(one.relative_gap for one in fit.certificates)
            count = int(fit.selected[-1].sum())
            return {"gap": gap, "variables": count, "bytes": sent / self.sites}
        if hasattr(fit, "certificate_"):
            sent = fit.bytes_.payload + fit.bytes_.checks
            return {
                "gap": fit.certificate_.relative_gap,
                "variables": int(fit.selected_.sum()),
                "bytes": sent / self.sites,
                "transport": fit.bytes_.transport / self.sites,
                "rounds": fit.n_iter_,
            }
        shrink = min(1.0, RADIUS / float(np.abs(fit.coef_).sum()))
        scores = scaled @ (shrink * fit.coef_[0]) + fit.intercept_
        loss = float(np.logaddexp(0, np.where(y == 1, -scores, scores)).mean())
        share = y.mean()
        null = -float(share * np.log(share) + (1 - share) * np.log(1 - share))
        return {
            "gap": (loss - bound) / null,
            "variables": int((fit.coef_ != 0).sum()),
            "norm": float(np.abs(fit.coef_).sum()),
        }


# --- the page ---


def cells(scale: Scale) -> dict[str, Cost]:
    """One problem."""
    return {"fit": Cost(4, 50, 40, 1, 100) if scale.quick else Cost(50, 200, 1000, 3, 2000)}


def show(scale: Scale, done: Mapping[str, Done], page: Document) -> None:
    result = done["fit"].result
    if not was_run(result):
        page.text("not run")
        return
    task: Cost = done["fit"].task
    page.text(
        f"Logistic regression in l1:{RADIUS:g}: {task.sites} sites with {task.rows} rows of {task.variables:,} normal "
        f"columns, of which {SIGNALS} matter. One thread, processor time, medians of {task.repeats} fits of each, in "
        "turns. Pooled scikit-learn begins with standardised columns and with the penalty at which its l1 norm is "
        f"{RADIUS:g}; the search for it is not counted. Federated fits validate and standardise the columns and go on "
        "up to the certified gap that is their default: 1e-4 of the null model's loss with gradients, else 1e-3. The "
        "gap of scikit-learn is that of its solution, brought into the ball, from the federated lower bound."
    )
    page.table(
        (
            "fit",
            "seconds",
            "of liblinear",
            "gap / null loss",
            "variables",
            "bytes a site",
            "rounds",
        ),
        [_row(name, result) for name in result if isinstance(result[name], dict)],
    )


def _row(name: str, result: Json) -> tuple[str, ...]:
    one = result[name]
    title = name if name in (LIBLINEAR, SAGA, PATH) else f'federated, sees="{name}"'
    return (
        title,
        f"{one['seconds']:.2f}",
        f"{one['seconds'] / result[LIBLINEAR]['seconds']:.2f}",
        f"{one['gap']:.1e}",
        str(one["variables"]),
        human_bytes(round(one["bytes"])) if "bytes" in one else "-",
        str(one.get("rounds", "-")),
    )


def claims(scale: Scale, done: Mapping[str, Done]) -> list[Claim]:
    """Whether the costs are below their bars."""
    result = done["fit"].result
    if not was_run(result):
        return []
    seconds = {name: one["seconds"] for name, one in result.items() if isinstance(one, dict)}
    where = "Cost of a fit"
    pooled = seconds["gradients"] / seconds[LIBLINEAR]
    several = seconds[PATH] / seconds["gradients"]
    return [
        Claim(
            "a fit with gradients takes at most twice the time of pooled liblinear",
            pooled <= TIMES_POOLED,
            f"{pooled:.2f} times",
            where,
        ),
        Claim(
            "a fit with atoms and sums of gradients takes at most 5 s",
            seconds["sums"] <= SECONDS_OF_SUMS,
            f"{seconds['sums']:.2f} s",
            where,
        ),
        Claim(
            "a path of 20 radii takes at most 4 times one fit",
            several <= TIMES_FIT,
            f"{several:.2f} times",
            where,
        ),
    ]
