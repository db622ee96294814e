"""Pooled fits of statsmodels and lifelines, kept in reference.json.

    python -m tests.estimators.reference

writes them and needs both packages; the tests need the file alone, and compare with live fits where the packages
are installed.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FILE = Path(__file__).with_name("reference.json")
Array = npt.NDArray[np.float64]


def regression_data() -> dict[str, Array]:
    """300 rows of four sites: X (300, 3), targets of each model, weights, and offsets."""
    draw = np.random.RandomState(7)
    X = draw.randn(300, 3) * [1.0, 5.0, 0.2] + [0.0, 50.0, 3.0]
    eta = 0.5 * X[:, 0] - 0.1 * (X[:, 1] - 50) + 1.5 * (X[:, 2] - 3)
    offset = np.log(draw.uniform(0.5, 4.0, 300))
    scores = np.column_stack([np.zeros(300), eta, -0.5 * eta + 0.3])
    noise = draw.gumbel(size=(300, 3))
    return {
        "X": X,
        "groups": draw.randint(0, 4, 300).astype(float),
        "linear": 2 + eta + draw.randn(300) * (0.5 + np.abs(X[:, 0])),
        "logistic": (draw.uniform(size=300) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": draw.poisson(np.exp(0.4 * eta + offset)).astype(float),
        "multinomial": (scores + noise).argmax(1).astype(float),
        "weights": draw.uniform(0.2, 3.0, 300),
        "offset": offset,
    }


def survival_data() -> dict[str, Array]:
    """240 patients of three sites, with many ties: X (240, 3), y (240, 2)."""
    draw = np.random.RandomState(11)
    X = draw.randn(240, 3) * [1.0, 10.0, 0.5] + [0.0, 60.0, 0.0]
    risk = 0.6 * X[:, 0] + 0.03 * (X[:, 1] - 60) - 0.8 * X[:, 2]
    groups = draw.randint(0, 3, 240)
    times = draw.exponential(np.exp(-risk)) * 4 * (1 + groups)
    censored = draw.exponential(12.0, 240)
    events = (times <= censored).astype(float)
    exact = np.minimum(times, censored)
    return {
        "X": X,
        "groups": groups.astype(float),
        "y": np.column_stack([events, np.ceil(exact)]),
        "untied": np.column_stack([events, exact]),
        "weights": draw.uniform(0.3, 2.5, 240),
        "offset": draw.uniform(-0.5, 0.5, 240),
    }


def statsmodels_fits() -> dict[str, Any]:
    import statsmodels.api as sm

    data = regression_data()
    # The intercept comes last, as it does here.
    A = np.column_stack([data["X"], np.ones(300)])
    w = data["weights"]
    tight: dict[str, Any] = {"tol": 1e-14, "maxiter": 100}
    found: dict[str, Any] = {}

    def keep(name: str, fit: Any, robust: Any = None) -> None:
        found[name] = {
            "coef": np.asarray(fit.params).tolist(),
            "se": np.asarray(fit.bse).tolist(),
            "p": np.asarray(fit.pvalues).tolist(),
            "interval": np.asarray(fit.conf_int(0.1)).tolist(),
        }
        if robust is not None:
            found[name]["sandwich"] = np.asarray(robust.bse).tolist()

    ols = sm.OLS(data["linear"], A)
    keep("linear", ols.fit(), ols.fit(cov_type="HC0"))
    wls = sm.WLS(data["linear"], A, weights=w)
    keep("linear weighted", wls.fit(), wls.fit(cov_type="HC0"))
    logit = sm.GLM(data["logistic"], A, family=sm.families.Binomial())
    keep("logistic", logit.fit(**tight), logit.fit(cov_type="HC0", **tight))
    weighted = sm.GLM(data["logistic"], A, family=sm.families.Binomial(), var_weights=w)
    keep("logistic weighted", weighted.fit(**tight), weighted.fit(cov_type="HC0", **tight))
    poisson = sm.GLM(data["poisson"], A, family=sm.families.Poisson(), offset=data["offset"])
    keep("poisson", poisson.fit(**tight), poisson.fit(cov_type="HC0", **tight))
    both = sm.GLM(
        data["poisson"],
        A,
        family=sm.families.Poisson(),
        offset=data["offset"],
        var_weights=w,
    )
    keep("poisson weighted", both.fit(**tight), both.fit(cov_type="HC0", **tight))
    several = sm.MNLogit(data["multinomial"], A).fit(disp=0, method="newton", maxiter=50, tol=1e-10)
    # Columns: class 1 and class 2, each against class 0.
    found["multinomial"] = {
        "coef": np.asarray(several.params).T.tolist(),
        "se": np.asarray(several.bse).T.tolist(),
        "loss": -float(several.llf),
    }
    patients = survival_data()
    for ties in ("breslow", "efron"):
        for name, y, offset in (
            ("cox", "y", None),
            ("cox with offset", "y", patients["offset"]),
            ("cox untied", "untied", None),
        ):
            fit = sm.PHReg(
                patients[y][:, 1],
                patients["X"],
                status=patients[y][:, 0],
                strata=patients["groups"],
                offset=offset,
                ties=ties,
            ).fit(disp=0, tol=1e-14)
            found[f"{name} {ties}"] = {
                "coef": fit.params.tolist(),
                "se": fit.bse.tolist(),
                "p": fit.pvalues.tolist(),
                "interval": np.asarray(fit.conf_int(0.1)).tolist(),
                "loss": -float(fit.llf),
            }
            if ties == "breslow":  # statsmodels has no score residuals of Efron's ties
                residuals = np.nan_to_num(fit.score_residuals)  # never at risk: undefined
                found[f"{name} {ties}"]["outer"] = (residuals.T @ residuals).tolist()
    return found


def lifelines_fits() -> dict[str, Any]:
    import pandas
    from lifelines import CoxPHFitter

    patients = survival_data()
    found: dict[str, Any] = {}
    for name, y, weighted in (
        ("ties", "y", False),
        ("untied", "untied", False),
        ("ties weighted", "y", True),
        ("untied weighted", "untied", True),
    ):
        frame = pandas.DataFrame(patients["X"], columns=["a", "b", "c"])
        frame["event"] = patients[y][:, 0]
        frame["time"] = patients[y][:, 1]
        frame["site"] = patients["groups"].astype(int)
        if weighted:
            frame["weight"] = patients["weights"]
        results = {}
        for robust in (False, True):
            fitter = CoxPHFitter()
            fitter.fit(
                frame,
                "time",
                "event",
                strata=["site"],
                weights_col="weight" if weighted else None,
                robust=robust,
                fit_options={"precision": 1e-14},
            )
            results["sandwich" if robust else "se"] = fitter.standard_errors_.tolist()
        results["coef"] = fitter.params_.tolist()
        results["loss"] = -float(fitter.log_likelihood_)
        hazard = fitter.baseline_cumulative_hazard_
        results["hazard"] = {
            str(i): [hazard.index.tolist(), hazard[column].tolist()]
            for i, column in enumerate(hazard.columns)
        }
        results["center"] = fitter._norm_mean.tolist()
        found[name] = results
    return found


if __name__ == "__main__":
    fits = {"statsmodels": statsmodels_fits(), "lifelines": lifelines_fits()}
    FILE.write_text(json.dumps(fits) + "\n")
