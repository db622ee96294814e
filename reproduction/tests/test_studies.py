"""Studies from their first task to their page: hospitals, FedLMO, steps, privacy, and leakage."""

import math
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from tests.data.files import DATA, needs

from fedfw.cli import main
from fedfw.config import RunConfig
from fedfw.data import Data, load_data
from fedfw.problems import concordance
from fedfw_reproduction import convex_lmo, hospitals, private_training, reproduce, steps
from fedfw_reproduction.convex_lmo import (
    ANCHORED,
    LAZY_NAME,
    LOCAL_STEPS,
    RENEWALS,
    WITH_MOMENTUM,
    compared,
)
from fedfw_reproduction.figures import tasks_in
from fedfw_reproduction.hospitals import RADII, Chosen, _folds, _interval
from fedfw_reproduction.lab import Site
from fedfw_reproduction.leakage import readings
from fedfw_reproduction.leakage import study as leakage
from fedfw_reproduction.leakage.readings import ClosedForm, cifar100_images
from fedfw_reproduction.leakage.study import Attack
from fedfw_reproduction.protocols import FULL, LMO_SIX, QUICK, Scale
from fedfw_reproduction.steps import PROBLEMS, TUNED, Row, schedules_of


@pytest.fixture
def data() -> Data:
    return load_data("tcga-brca", DATA)


@needs("tcga-brca")
def test_folds_share_out_every_region_and_nobody_is_in_two(data: Data) -> None:
    folds = _folds(data, 5)
    regions = data.train.owners["region"].bincount()
    for fold in folds:
        held, kept = (
            part.owners["region"].bincount(minlength=6) for part in (fold.test, fold.train)
        )
        assert torch.equal(held + kept, regions)
        assert int((held - regions / 5).abs().max()) < 1
    lent = torch.cat([torch.cat([fold.test.inputs, fold.test.targets], 1) for fold in folds])
    everyone = torch.cat([data.train.inputs, data.train.targets], 1)
    assert sorted(map(tuple, lent.tolist())) == sorted(map(tuple, everyone.tolist()))


@needs("tcga-brca")
@pytest.mark.parametrize("name", hospitals.METHODS)
def test_the_choice_does_not_look_at_the_test_data(
    name: str, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(hospitals.cells(FULL)[name].config, rounds=3, eval_every=3)
    task, site = Chosen(config, (0.5, 8.0), folds=2, draws=20), Site(str(DATA))
    found = task.compute(site)
    turned = replace(data.test, targets=data.test.targets.flip(0), inputs=1 - data.test.inputs)
    monkeypatch.setattr(hospitals, "data_of", lambda config, samples: replace(data, test=turned))
    other = task.compute(site)
    assert found["folds"] == other["folds"]
    assert (found["chosen"], found["x"]) == (other["chosen"], other["x"])
    assert found["concordance"] != other["concordance"]
    best = min(found["folds"], key=lambda row: row["loss"])
    assert found["chosen"]["radius"] == best["radius"]
    assert sum(map(abs, found["x"])) <= best["radius"] * (1 + 1e-5)
    scores = data.test.inputs @ torch.tensor(found["x"])
    assert found["concordance"] == concordance(scores, data.test.targets)
    assert found["interval"][0] < found["concordance"] < found["interval"][1]


def test_the_interval_is_a_point_where_every_draw_says_the_same() -> None:
    times = torch.arange(30.0)
    targets = torch.stack([torch.ones(30), times], 1)
    assert _interval(-times, targets, 50) == [1.0, 1.0]
    low, high = _interval(torch.randn(30, generator=torch.Generator().manual_seed(1)), targets, 200)
    assert 0 < low < high < 1


@needs("tcga-brca")
def test_the_page_has_every_method_beside_what_was_published(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce, "QUICK", replace(QUICK, long_rounds=5))
    assert (
        main(["reproduce", "hospitals", "--quick", "--data-dir", str(DATA), "--out", str(tmp_path)])
        == 0
    )
    printed = capsys.readouterr().out
    for name in hospitals.METHODS:
        assert name in printed
    assert "0.842 ± 0.015" in printed
    assert RADII[1::3] == hospitals.cells(replace(FULL, quick=True))["FedFW+"].radii


# --- The study of FedLMO on convex problems: what is compared, and the sentences that come from
# results ---


def test_every_row_has_the_same_six_settings_and_the_bars_that_were_asked_for() -> None:
    assert prod(len(values) for _, values in LMO_SIX) == 6
    found = convex_lmo.cells(FULL)
    assert (set(found["everybody"]), set(found["some"])) == (
        set(convex_lmo.BARS),
        set(convex_lmo.PARTIAL_BARS),
    )
    rows = [*found["everybody"].values(), *found["some"].values()]
    assert {row.task.grid for row in rows} == {LMO_SIX}
    assert {
        (row.task.config.clients, row.task.config.participation, row.task.samples) for row in rows
    } == {
        (10, 1.0, None),
        (30, 9, 6000),
    }
    assert all(row.optimum.tol == 1e-5 and row.task.config.rounds == 100 for row in rows)


def test_a_sum_every_m_rounds_costs_both_methods_as_much() -> None:
    """Between two sums nothing but atoms travels."""
    scale = Scale(True, seeds=1, rounds=20)
    rows = convex_lmo.renewed("synthetic(1,1), l1:10", scale)
    assert len(rows) == len(RENEWALS) * (2 * len(LOCAL_STEPS) + 1)
    lazy, anchored = (
        rows[name, 5, 1][0].task.compute(Site())["runs"][0] for name in (LAZY_NAME, ANCHORED)
    )
    assert lazy["curve"]["bytes_up"] == pytest.approx(anchored["curve"]["bytes_up"], rel=0.01)


def test_better_everywhere_is_said_only_where_it_is_so() -> None:
    lazy = {(LAZY_NAME, m, K): (1.0, 0.1) for m in RENEWALS for K in LOCAL_STEPS}
    anchored = {(ANCHORED, m, K): (1.0, 0.2) for m in RENEWALS for K in LOCAL_STEPS}
    momentum = {(WITH_MOMENTUM, m, 1): (1.0, 0.2) for m in RENEWALS}
    points = lazy | anchored | momentum
    assert "It is better everywhere." in compared({"a": points})
    said = compared({"a": points | {(WITH_MOMENTUM, 5, 1): (1.0, 0.05)}})
    assert "2 of 3 cases (not: a, m = 5). It is not better everywhere." in said
    said = compared({"a": points | {(LAZY_NAME, 20, 3): (1.0, 0.3)}})
    assert "8 of 9 pairs (not: a, m = 20, K = 3)" in said


@needs("mnist")
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "QUICK", Scale(True, 1, 3, 3, samples=150, some=150))
    monkeypatch.setattr(convex_lmo, "BARS", {("l1:10", 3): 2e-4, ("l2:10", 3): 1.0})
    monkeypatch.setattr(convex_lmo, "LOCAL_STEPS", (1, 3))
    monkeypatch.setattr(convex_lmo, "LAZY", {"MNIST, l1:10": ("mnist", "labels:3", "l1:10")})
    arguments = [
        "reproduce",
        "networks-convex",
        "--quick",
        "--out",
        str(tmp_path),
        "--data-dir",
        str(DATA),
    ]
    assert main(arguments) == 0
    page = (tmp_path / "networks-convex-quick.html").read_text()
    assert page.count("<svg") == 1
    assert "better everywhere" in page
    assert "&lt;= 0.0002" in page
    assert 'class="bad' not in page  # nobody is there after three rounds, which says nothing


# --- The study of steps from curvature: what it calls near and worse, and that it runs ---


def row(theory: float, best: float, auto: float) -> Row:
    return Row(PROBLEMS[0], steps.METHODS[0], theory, best, "convex", auto)


@pytest.mark.parametrize(
    ("theory", "best", "auto", "near", "worse"),
    [
        (0.5, 0.2, 0.22, True, False),
        (0.5, 0.2, 0.24, False, False),
        (0.2, 0.2, 0.225, True, True),
        (0.001, 0.001, 0.0029, True, True),  # 0.002 is near, and worse all the same
        (0.2, 0.1, 0.25, False, True),
    ],
)
def test_what_near_and_worse_are(
    theory: float, best: float, auto: float, near: bool, worse: bool
) -> None:
    made = row(theory, best, auto)
    assert (made.near, made.worse) == (near, worse)


def test_all_that_is_compared() -> None:
    made = schedules_of(PROBLEMS[0], steps.METHODS[0], FULL)
    assert list(made) == [*TUNED, "auto"]
    assert len(TUNED) == 15
    assert len(tasks_in(steps.cells(FULL))) == 2 * len(PROBLEMS) * len(steps.METHODS) * 16
    assert len(set(tasks_in(steps.cells(QUICK)))) == 2 + 2 * len(steps.METHODS) * 4


def test_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "QUICK", replace(QUICK, rounds=4))
    assert main(["reproduce", "steps", "--quick", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "steps-quick.html").read_text()
    assert "digits, labels:3, l2:10" in page
    assert "best tuned" in page


# --- The study of what privacy costs, on a small grid ---


@needs("libsvm")
def test_the_study_of_what_privacy_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr(
        private_training, "PROBLEMS", {"mushrooms": ("mushrooms", "logistic", "l1:10")}
    )
    monkeypatch.setattr(private_training, "budgets", lambda scale: (1.0, math.inf))
    clip = ("clip", (0.5, 1.0))
    grid = (("rounds", (2,)), ("penalty", ("theory:1",)), clip)
    config = RunConfig.of(
        dataset="mushrooms",
        model="logistic",
        constraint="l1:10",
        partition="iid",
        algorithm="fedfw",
    )
    few = dict.fromkeys(
        (private_training.SELECTION, private_training.NOISE), (config, grid, "auto")
    )
    steps = (("rounds", (2,)), ("lr", (0.5,)), clip)
    few[private_training.DP_SGD] = (replace(config, algorithm="fedavg"), steps, "auto")
    monkeypatch.setattr(private_training, "methods", lambda name, scale: few)
    assert (
        main(["reproduce", "dp", "--quick", "--out", str(tmp_path), "--data-dir", str(DATA)]) == 0
    )
    page = (tmp_path / "dp-quick.html").read_text()
    assert page.count("<svg") == 1
    assert "Private selection has the least" in page


# --- The leakage study from its first task to its page, and the command that runs one attack
# ---

needs_images = needs("cifar100-small")


@needs_images
def test_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leakage, "_size", lambda scale: {"images": 2, "steps": 2})
    monkeypatch.setattr(readings, "train", lambda model, images, labels, steps, seed: None)
    short = [
        Attack(sends, way, images=2, steps=2, informed=False) for sends, way in leakage.FIGURE_ONE
    ]
    monkeypatch.setattr(leakage, "figure_one", lambda scale: short)
    arguments = ["reproduce", "privacy", "--quick"]
    assert main([*arguments, "--out", str(tmp_path), "--data-dir", str(DATA)]) == 0
    page = (tmp_path / "privacy-quick.html").read_text()
    assert page.count("<svg") == 2
    for name in (
        "samples a client",
        "rounds put together",
        "trained model",
        "unknown labels",
        "Closed forms",
    ):
        assert name in page
    assert "Sending oracle outputs protects data: l2 ball" in page
    assert (
        main([*arguments, "--data-dir", str(tmp_path / "none"), "--out", str(tmp_path / "other")])
        == 0
    )
    assert "Not run: no data" in (tmp_path / "other" / "privacy-quick.html").read_text()


@needs_images
@pytest.mark.parametrize(
    ("form", "exact"),
    [
        (ClosedForm("gradient", images=3), True),
        (ClosedForm("l2:10", True, 3), True),
        (ClosedForm("nuclear:10", images=3), True),
        (ClosedForm("group:10", images=3), True),
        (ClosedForm("l1:10", images=3), False),
    ],
)
def test_closed_forms_are_exact_where_theory_says_so(form: ClosedForm, exact: bool) -> None:
    result = form.compute(Site(str(DATA)))
    assert all(result["labels"])
    assert (len(result["cosine"]) == 3) is exact
    assert all(value > 0.999 for value in result["cosine"])


@needs_images
def test_one_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "found.png"
    arguments = [
        "attack",
        "--sends",
        "l1",
        "--images",
        "2",
        "--steps",
        "2",
        "--data-dir",
        str(DATA),
    ]
    assert main([*arguments, "--out", str(picture)]) == 0
    assert "no better than a guess" in capsys.readouterr().out
    assert picture.stat().st_size > 1000


def test_the_binary_version_of_cifar100(tmp_path: Path) -> None:
    records = torch.randint(0, 100, (3, 2 + 3072), dtype=torch.uint8)
    (tmp_path / "cifar-100-binary").mkdir()
    (tmp_path / "cifar-100-binary" / "train.bin").write_bytes(records.numpy().tobytes())
    images, labels = cifar100_images(tmp_path)
    assert torch.equal(labels, records[:, 1].long())
    assert torch.equal(images.flatten(1), records[:, 2:])


# --- Options of the laboratory's commands that contradict each other are refused ---


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("reproduce counterexample --jobs 0", "--jobs 0, expected at least 1"),
        ("attack --images 0", "images=0, expected at least 1"),
        ("attack --way soft --sends l2", "soft is for the vertices"),
        ("attack --data-dir /nowhere", "CIFAR-100"),
        ("reproduce table1 --kept --jobs 1", "--jobs 1 with --kept, which computes nothing"),
        (
            "reproduce table1 --kept --device cpu",
            "--device cpu with --kept, which computes nothing",
        ),
        ("reproduce table1 --kept --data-dir elsewhere", "--data-dir elsewhere with --kept"),
        ("reproduce table1 --kept --seconds 7", "--seconds 7.0 with --kept"),
        (
            "reproduce table1 --seconds 7 --markdown a.md",
            "--markdown with --seconds, which writes no report",
        ),
        ("reproduce table2 --baselines", "--baselines with table2, expected table1"),
        ("reproduce table2 --mixed", "--mixed with --device cpu, expected cuda"),
        ("attack --sends gradient --way explain", "expected another way: gradients are matched"),
        ("attack --sends gradient --rounds 2", "rounds=2 changes nothing for gradients"),
        ("attack --sends gradient --per-parameter", "per-parameter changes nothing for gradients"),
        ("bench small --rounds 0", "--rounds 0, expected a whole number of at least 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    typed: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(typed.split()) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
