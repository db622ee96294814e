"""
Regression across hospitals
===========================

Three hospitals want one logistic model of complications after surgery, with odds ratios and
intervals, and their patients' rows stay where they are. Each has a CSV file; this script writes
them itself. The hospitals exchange sums and gradients, never rows.
"""

import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from fedfw.estimators import LogisticRegression, RadiusCV, path

folder = Path(tempfile.mkdtemp())
names = ["age", "bmi", "smoker", "diabetes", "duration", *(f"lab_{k}" for k in range(1, 16))]
effects = np.array([0.6, 0.0, 0.7, 0.5, 0.9] + [0.0] * 15)  # of a deviation, as the truth

draw = np.random.default_rng(3)
for hospital, patients, rate in (("north", 400, -1.0), ("east", 250, -1.4), ("west", 150, -0.6)):
    standard = draw.standard_normal((patients, len(names)))
    standard[:, 2:4] = draw.random((patients, 2)) < (0.3, 0.15)
    risk = 1 / (1 + np.exp(-rate - standard @ effects))
    complication = draw.random(patients) < risk
    rows = standard * ([12, 4, 1, 1, 40] + [1] * 15) + ([60, 26, 0, 0, 120] + [0] * 15)
    with open(folder / f"{hospital}.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*names, "complication"])
        table.writerows(np.column_stack([rows, complication]).round(3).tolist())

# %%
# One list entry a hospital: its columns and its outcome. One array with ``groups=`` that says who
# holds a row works as well.

files = [np.loadtxt(file, delimiter=",", skiprows=1) for file in sorted(folder.glob("*.csv"))]
hospitals = [(file[:, :-1], file[:, -1].astype(int)) for file in files]
print([len(outcome) for _, outcome in hospitals], "patients")

# %%
# Without a constraint a fit is maximum likelihood, by Newton steps from sums over each hospital's
# rows, and ``inference_`` has what statsmodels' Logit gives for the pooled rows: estimates,
# standard errors, p-values and intervals, and odds ratios.


def print_ratios(model, columns):
    """Print a table of odds ratios with their intervals."""
    found = model.inference_
    print(f"{'':10s} odds ratio   95 % interval      p")
    for name in columns:
        key = f"x{names.index(name)}"
        ratio, low, high, p = (found[of][key] for of in ("ratio", "ratio_low", "ratio_high", "p"))
        print(f"{name:10s} {ratio:10.3f}   {low:.3f} to {high:.3f}   {p:.4f}")


everything = LogisticRegression().fit(hospitals)
print_ratios(everything, names[:5])

# %%
# Which of the 20 variables are needed? An l1 ball selects. Each radius is fitted to a proven gap,
# and each from the last one. A deviation of the standardised columns is the unit of the radius.
# ``found.plot("path.svg")`` saves such a picture, too.

found = path(LogisticRegression(), None, hospitals)
lines = found.coefficients * found.scale
for name, line, needed in zip(names, lines.T, effects != 0, strict=True):
    if needed:
        plt.semilogx(found.radii, line, lw=2, label=name)
    else:
        plt.semilogx(found.radii, line, lw=0.8)
plt.xlabel("radius")
plt.ylabel("coefficient of the standardised column")
plt.legend()
plt.show()

# %%
# Cross-validation within the hospitals chooses the radius; ``one_standard_error`` prefers fewer
# variables. An interval from the rows that selected the variables would be too short and is
# refused. ``infer="split"`` selects on one half of each hospital, its radius too, and infers on the
# other half.

search = RadiusCV(LogisticRegression(infer="split"), found.radii).fit(hospitals)
chosen = [name for name, selected in zip(names, search.selected_, strict=True) if selected]
print(f"radius {search.best_radius_:.2f} selects {', '.join(chosen)}")
print_ratios(search.estimator_, chosen)

# %%
# What was proven, and what was sent.

certificate = search.certificate_
print(f"loss {certificate.loss:.4f}, at most {certificate.gap:.1e} above the optimum in the ball")
sent = search.bytes_
print(f"{(sent.payload + sent.checks) / 3 / 1e3:.0f} kB a hospital for the search and the fit")
