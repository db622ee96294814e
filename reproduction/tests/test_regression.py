"""The evidence for estimators: folds, what a choice looks at, meta-analyses, coverage, and pages."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.files import DATA, needs

from fedfw.cli import main
from fedfw.data import Data, Part
from fedfw.estimators import CoxRegression
from fedfw_reproduction.lab import Site
from fedfw_reproduction.protocols import QUICK
from fedfw_reproduction.regression import coverage, heart, ovarian, ovarian_fits
from fedfw_reproduction.regression.folds import folds_within, held_out_losses, least
from fedfw_reproduction.regression.ovarian_tasks import FEDERATED, META_LASSO, STUDIES, LeftOut

HERE = Site()


def test_every_site_divides_its_own_rows() -> None:
    sites = np.repeat([4, 9, 16], [21, 10, 3])
    fold = folds_within(sites, 5, 0)
    for site in np.unique(sites):
        counts = np.bincount(fold[sites == site], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert (fold != folds_within(sites, 5, 1)).any()


def test_a_fit_never_sees_what_it_is_scored_on() -> None:
    sites = np.repeat([0, 1], [12, 8])
    scored = np.zeros(20)

    def fit(radius: float, rows: np.ndarray) -> np.ndarray:
        return rows

    def score(model: np.ndarray, rows: np.ndarray) -> float:
        assert not (model & rows).any()
        scored[rows] += 1
        return float(rows.sum())

    losses = held_out_losses(fit, score, (1.0, 2.0), sites, 4, 0)
    assert losses == [1.0, 1.0]
    assert (scored == 2).all()  # once for each radius
    assert least((2.0, 1.0), (0.5, 0.5)) == 1.0


# --- Heart disease ---


def patients_of(seed: int, rows: int) -> Part:
    """Draw patients of four hospitals."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 13, generator=draw)
    targets = (inputs[:, 0] + torch.randn(rows, generator=draw) > 0).long()
    return Part(inputs, targets, {"hospital": torch.arange(rows) % 4})


def test_the_radius_does_not_depend_on_test_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data("heart-disease", patients_of(0, 120), patients_of(1, 60), 2)
    task = heart.HeartTask("l1", (0.25, 2.0), 2, (42, 43))
    found = []
    for test in (data.test, replace(data.test, targets=1 - data.test.targets)):
        other = replace(data, test=test)
        monkeypatch.setattr(heart, "load_data", lambda name, folder, other=other: other)
        found.append(task.compute(HERE)["runs"])
    for one, other_one in zip(*found, strict=True):
        assert one["losses"] == other_one["losses"]
        assert one["coef"] == other_one["coef"]
        assert one["accuracy"] == pytest.approx(1 - other_one["accuracy"])
        assert one["radius"] == least((0.25, 2.0), one["losses"])


@needs("heart-disease")
def test_the_page_of_heart_disease(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "heart", "--quick", "--data-dir", str(DATA), "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "no constraint" in capsys.readouterr().out


# --- Ovarian cancer ---


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """Write a file of four studies, whose first two genes matter."""
    draw = np.random.default_rng(0)
    folder = tmp_path / "ovarian"
    folder.mkdir()
    with open(folder / "ovarian.csv", "w", newline="") as text:
        table = csv.writer(text)
        table.writerow(["study", "time", "event", "debulk", *(f"G{j}" for j in range(6))])
        for study in STUDIES:
            genes = draw.standard_normal((60, 6))
            time = draw.exponential(np.exp(-genes[:, 0] + genes[:, 1]))
            event = draw.random(60) < 0.7
            table.writerows(np.column_stack([np.full(60, study), time, event, event, genes]))
    return tmp_path


def test_a_study_that_is_left_out_is_ordered(studies: Path) -> None:
    found = LeftOut(9, (0.2, 1.0), 2, 5).compute(Site(str(studies)))
    assert found["patients"] == 60
    for name in (FEDERATED, META_LASSO, "study 4 alone"):
        assert found["methods"][name]["concordance"] > 0.7
    assert "study 9 alone" not in found["methods"]
    assert {"G0", "G1"} <= set(found["genes"])
    assert found["methods"][FEDERATED]["difference_error"] == 0


def test_a_meta_analysis_weights_by_inverse_variances(studies: Path) -> None:
    patients = ovarian_fits.read_patients(studies)
    tables = [
        CoxRegression().fit(own.X[:, [0]], own.y).inference_
        for own in (patients.take(patients.studies == study) for study in STUDIES)
    ]
    weights = [table["se"]["x0"] ** -2 for table in tables]
    expected = np.average([table["coef"]["x0"] for table in tables], weights=weights)
    assert ovarian_fits.meta_of_genes(patients)[0] == pytest.approx(expected)


def test_a_held_out_loss_is_a_difference_of_likelihoods(studies: Path) -> None:
    patients = ovarian_fits.read_patients(studies)
    coef = np.array([1.0, -1.0, 0, 0, 0, 0])
    rows = patients.studies == 4
    own = ovarian_fits.negative_log_likelihood(patients.take(rows), coef)
    assert ovarian_fits.held_out(patients, coef, rows) == pytest.approx(own)
    pooled = ovarian_fits.held_out(patients, coef, rows, pooled=True)
    assert pooled > own  # they are compared with patients of other studies, too


def test_the_page_of_ovarian_cancer(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "ovarian", "--quick", "--data-dir", str(studies)]
    assert main([*arguments, "--out", str(studies)]) == 0
    assert FEDERATED in capsys.readouterr().out


def test_data_that_are_missing_are_said(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no file ovarian\.csv"):
        ovarian_fits.read_patients(tmp_path)
    assert ovarian.cells(QUICK)["left out"]


# --- Coverage ---


def test_the_population_has_the_coefficients_of_the_scenario() -> None:
    """The whole submodel is the true one; without a column its neighbours take a part."""
    for name in ("logistic, strong signals", "linear, unequal sites", "Cox, 12 small sites"):
        scenario = coverage.cells(QUICK)[name]
        large = scenario._draw(np.random.default_rng(1), 20_000 / sum(scenario.sizes))
        whole = scenario._submodel(large, range(coverage.VARIABLES))
        assert whole[:4] == pytest.approx(scenario.coefficients, abs=0.08)
        assert whole[4:] == pytest.approx(0, abs=0.08)
        assert abs(scenario._submodel(large, (1,))[0] + 1) > 0.1


def test_the_error_of_a_coverage_is_that_of_repetitions() -> None:
    together = {"covered": [(4, 4)] * 90 + [(0, 4)] * 10}
    single = {"covered": [(1, 1)] * 90 + [(0, 1)] * 10}
    assert coverage.coverage_of(together) == pytest.approx(coverage.coverage_of(single))
    assert coverage.coverage_of(single) == pytest.approx((0.9, 0.03))


def test_intervals_are_of_selected_columns() -> None:
    scenario = replace(coverage.cells(QUICK)["linear, strong signals"], repetitions=3)
    found = scenario.compute(HERE)
    assert len(found["covered"]) + found["without"] == 3
    assert all(0 <= inside <= count <= coverage.VARIABLES for inside, count in found["covered"])
