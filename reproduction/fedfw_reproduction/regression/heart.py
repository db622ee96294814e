"""Heart disease in four hospitals: logistic regression in l1 and l2 balls, beside FLamby's published
accuracies. The protocol, which was written down before test data were read, is
docs/studies/heart.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from fedfw.data import Data, Part, load_data
from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import Claim, Done, panels
from fedfw_reproduction.lab import Json, Site, was_run
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.regression.folds import Array, held_out_losses, least
from fedfw_reproduction.schema import Identity, identity

RADII = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SEEDS = (42, 43, 44, 45, 46)
FOLDS = 5
SETS = ("l1", "l2")
NONE = "none"
PUBLISHED = {
    "pooled training": (0.795, 0.003),
    "cyclic training": (0.785, 0.012),
    "best single hospital (Cleveland)": (0.784, None),
    "FedAdam, FedYogi, FedAdagrad": (0.779, 0.015),
    "FedAvg, FedProx, Scaffold": (0.748, 0.027),
}
"""FLamby's results_benchmark_fed_heart_disease: pooled-test accuracy, mean and deviation over its
seeds 42 to 46.
"""
BEST_FEDERATED = "FedAdam, FedYogi, FedAdagrad"
HOSPITALS = ("Cleveland", "Hungarian", "Switzerland", "VA Long Beach")


@dataclass(frozen=True)
class HeartTask:
    """One set: the radius by cross-validation on training data with each seed, then one fit on all
    of them, and the test patients.

    Parameters
    ----------
    kind : str
        l1 or l2; "none" is maximum likelihood, which has no radius.
    radii, folds, seeds
        A seed draws the folds.
    """

    kind: str
    radii: tuple[float, ...]
    folds: int
    seeds: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"heart disease, set {self.kind}"

    @property
    def weight(self) -> float:
        return float(len(self.radii) * self.folds * len(self.seeds))

    def identity(self) -> Identity:
        return identity(
            "heart disease",
            set=self.kind,
            radii=self.radii,
            folds=self.folds,
            seeds=self.seeds,
        )

    def compute(self, site: Site) -> Json:
        data = load_data("heart-disease", site.folder)
        if self.kind == NONE:
            return {"runs": [_tested(_fit(None, *_arrays(data.train)), data)]}
        by_radius: dict[float, Json] = {}
        runs = []
        for seed in self.seeds:
            losses = self._losses(data, seed)
            radius = least(self.radii, losses)
            if radius not in by_radius:
                by_radius[radius] = self._final(radius, data)
            runs.append({"seed": seed, "losses": losses, "radius": radius, **by_radius[radius]})
        return {"runs": runs}

    def _losses(self, data: Data, seed: int) -> list[float]:
        """Return the held-out deviance of each radius, half of it a row; test data are not used."""
        X, y, hospital = _arrays(data.train)

        def fit(radius: float, rows: Array) -> Any:
            return _fit(f"{self.kind}:{radius:g}", X[rows], y[rows], hospital[rows])

        def score(model: Any, rows: Array) -> float:
            scores = model.decision_function(X[rows])
            return float(np.logaddexp(0, np.where(y[rows] == 1, -scores, scores)).sum())

        return held_out_losses(fit, score, self.radii, hospital, self.folds, seed)

    def _final(self, radius: float, data: Data) -> Json:
        """Return the fit on all training data, and its test results."""
        return _tested(_fit(f"{self.kind}:{radius:g}", *_arrays(data.train)), data)


def _arrays(part: Part) -> tuple[Array, Array, Array]:
    """Return variables (m, p), targets (m,) and hospitals (m,)."""
    return (
        part.inputs.double().numpy(),
        part.targets.numpy(),
        part.owners["hospital"].numpy(),
    )


def _fit(constraint: str | None, X: Array, y: Array, hospital: Array) -> Any:
    """Return the fitted model; columns are standardised by one exchange of sums."""
    from fedfw.estimators import LogisticRegression

    return LogisticRegression(constraint).fit(X, y, groups=hospital)


def _tested(model: Any, data: Data) -> Json:
    """Return a model's coefficients, proof and bytes, and its accuracy on the test patients."""
    X, y, hospital = _arrays(data.test)
    right = model.predict(X) == y
    return {
        "accuracy": float(right.mean()),
        "hospitals": [float(right[hospital == k].mean()) for k in range(len(HOSPITALS))],
        "coef": model.coef_[0].tolist(),
        "selected": int(model.selected_.sum()),
        "gap": model.certificate_.relative_gap,
        "bytes": model.bytes_.payload + model.bytes_.checks,
    }


# --- the page ---


def cells(scale: Scale) -> dict[str, HeartTask]:
    """By set."""
    radii = RADII[1::3] if scale.quick else RADII
    seeds = SEEDS[:2] if scale.quick else SEEDS
    folds = 2 if scale.quick else FOLDS
    constrained = {kind: HeartTask(kind, radii, folds, seeds) for kind in SETS}
    return {**constrained, NONE: HeartTask(NONE, (), 0, ())}


def show(scale: Scale, done: Mapping[str, Done], page: Document) -> None:
    found = {name: one.result for name, one in done.items()}
    if not all(map(was_run, found.values())):
        page.text("not run: no data")
        return
    page.text(
        "Logistic regression on FLamby's Heart Disease: 486 patients for training and 254 for testing in four "
        "hospitals, 13 variables. The protocol is that of docs/studies/heart.md, written down before test data were "
        "read. A seed draws the folds by which the radius is chosen; the fit itself has no randomness. One standard "
        "error of an accuracy of 0.78 over 254 patients is 0.026."
    )
    page.table(
        ("set", "test accuracy", "radius by seed", "variables", "largest gap", "bytes a hospital"),
        [_row(name, result) for name, result in found.items()],
    )
    page.table(
        ("published by FLamby", "test accuracy"),
        [(name, _text(*numbers)) for name, numbers in PUBLISHED.items()],
    )
    page.table(
        ("test accuracy of hospital", *HOSPITALS),
        [
            (name, *(f"{mean(values):.3f}" for values in _by_hospital(result)))
            for name, result in found.items()
        ],
    )
    _picture(found, page)


def _row(name: str, result: Json) -> tuple[str, ...]:
    runs = result["runs"]
    radii = ", ".join(f"{run['radius']:g}" for run in runs) if name != NONE else "-"
    selected = sorted({run["selected"] for run in runs})
    return (
        "no constraint" if name == NONE else name,
        _text(*_accuracy(result)),
        radii,
        " to ".join(str(count) for count in (selected[0], selected[-1])),
        f"{max(run['gap'] for run in runs):.1e}",
        f"{max(run['bytes'] for run in runs) // len(HOSPITALS):,}",
    )


def _accuracy(result: Json) -> tuple[float, float | None]:
    values = [run["accuracy"] for run in result["runs"]]
    return mean(values), stdev(values) if len(values) > 1 else None


def _by_hospital(result: Json) -> list[list[float]]:
    columns = zip(*(run["hospitals"] for run in result["runs"]), strict=True)
    return [list(values) for values in columns]


def _text(value: float, deviation: float | None) -> str:
    return f"{value:.3f}" if deviation is None else f"{value:.3f} ± {deviation:.3f}"


def _picture(found: Mapping[str, Json], page: Document) -> None:
    """Draw held-out losses of all seeds, and accuracies beside published ones."""
    figure, (left, right) = panels(2)
    numbers: list[tuple[object, ...]] = []
    for kind, colour in zip(SETS, ("C0", "C1"), strict=True):
        for i, run in enumerate(found[kind]["runs"]):
            radii = RADII if len(run["losses"]) == len(RADII) else RADII[1::3]
            label = kind if i == 0 else None
            left.semilogx(radii, run["losses"], "o-", base=2, lw=0.8, color=colour, label=label)
            numbers += [
                ("held-out loss", kind, run["seed"], radius, loss)
                for radius, loss in zip(radii, run["losses"], strict=True)
            ]
    left.set(xlabel="radius", ylabel="held-out loss")
    left.legend(fontsize="x-small")
    bars = {f"ours, {name}": _accuracy(result) for name, result in found.items()} | PUBLISHED
    for place, (name, (value, deviation)) in enumerate(reversed(bars.items())):
        colour = "C0" if name.startswith("ours") else "0.6"
        right.barh(place, value, xerr=deviation or 0.0, color=colour)
        numbers.append(("accuracy", name, "", "", value))
    right.set_yticks(range(len(bars)), list(reversed(bars)), fontsize="x-small")
    right.set(xlim=(0.6, 0.85), xlabel="test accuracy")
    page.plot(
        figure,
        "What the radius was chosen by, five folds and each of the seeds (left); test accuracy beside FLamby's, bars "
        "are deviations over seeds (right)",
        csv_text(("measure", "set or method", "seed", "radius", "value"), numbers),
        "heart",
    )


def claims(scale: Scale, done: Mapping[str, Done]) -> list[Claim]:
    """Whether the constrained models reach the best published federated accuracy."""
    found = []
    for kind in SETS:
        result = done[kind].result
        if was_run(result):
            value, deviation = _accuracy(result)
            text = f"logistic regression in an {kind} ball is at least as accurate as FLamby's {BEST_FEDERATED}"
            published = _text(*PUBLISHED[BEST_FEDERATED])
            shown = (
                f"{_text(value, deviation)}; published: {published}; one standard error is 0.026"
            )
            found.append(Claim(text, value >= PUBLISHED[BEST_FEDERATED][0], shown, "Heart disease"))
    return found
