"""``fedfw reproduce``: the report of everything, the cache, missing data, and the exit status."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pictures import draw_nothing
from tests.data.files import DATA, needs

from fedfw.cli.main import main
from fedfw_reproduction import (
    bounds,
    counterexample,
    reproduce,
    small_figures,
    table1,
    theory,
)
from fedfw_reproduction.catalogue import sections
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.names import REPRODUCTIONS
from fedfw_reproduction.protocols import FULL, QUICK, Scale
from fedfw_reproduction.theory import Effort, Study

SMALL = Effort(rounds=100, seeds=2, every=20)
TINY = Scale(True, 1, 3, 3, samples=150, network_rounds=2, network_samples=100, some=150)
EVERYBODY_LENDS = replace(
    TINY, samples=QUICK.samples, network_samples=QUICK.network_samples, some=QUICK.some
)
SHORT_PATHS = [
    replace(path, rounds=500) for path in counterexample.cells(FULL)
]  # the claim holds from round 429
CERTIFIED = {  # a9a takes seconds to read
    "mushrooms, l1:2, IID": small_figures.CERTIFIED["a9a, l1:2, IID"] | {"dataset": "mushrooms"},
    **{title: setting for title, setting in small_figures.CERTIFIED.items() if "a9a" not in title},
}


def few(effort: Effort) -> Iterator[tuple[str, Callable[[], list[Study]]]]:
    wanted = ("T2 on box", "T2 on l2")
    return ((title, run) for title, run in theory.studies(SMALL) if title in wanted)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "studies", few)
    monkeypatch.setattr(reproduce, "QUICK", TINY)


def test_theory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "theory", "--quick", "--out", str(tmp_path)]) == 0
    assert "1/2 theory, T2 on l2" in capsys.readouterr().err
    page = (tmp_path / "theory-quick.html").read_text()
    assert page.count("<svg") == page.count('.csv" href="data:') == 1
    assert "quick" in page


def test_a_bound_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong() -> list[Study]:
        (study,) = theory.nonconvex("box", SMALL)
        assert study.passed
        return [replace(study, limit=study.limit * 1e-6)]

    monkeypatch.setattr(bounds, "studies", lambda effort: iter([("wrong", wrong)]))
    draw_nothing(monkeypatch)
    assert main(["reproduce", "theory", "--quick", "--out", str(tmp_path)]) == 1
    assert "failed: T2 on box" in capsys.readouterr().err
    page = (tmp_path / "theory-quick.html").read_text()
    assert "FAILED" in page
    assert 'class="bad' in page


def test_a_slope_that_is_too_flat_fails() -> None:
    (study,) = theory.nonconvex("box", SMALL)
    assert not replace(study, steepest=-5.0).passed
    assert not replace(study, limit=torch.zeros_like(study.measured)).passed
    assert Study.from_json(study.to_json()).slope == study.slope


def test_the_names_of_the_help_are_those_of_the_catalogue() -> None:
    assert tuple(sections()) == REPRODUCTIONS


def test_an_interrupt_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compute = counterexample.Path.compute

    def interrupted(self: counterexample.Path, site: Site) -> Json:
        if self.algorithm == "fedfw+":
            raise KeyboardInterrupt
        return compute(self, site)

    monkeypatch.setattr(counterexample.Path, "compute", interrupted)
    monkeypatch.setattr(counterexample, "cells", lambda scale: SHORT_PATHS)
    draw_nothing(monkeypatch)
    arguments = ["reproduce", "counterexample", "--quick", "--out", str(tmp_path)]
    assert main(arguments) == 130
    assert "the same command goes on" in capsys.readouterr().out
    assert main([*arguments, "--kept"]) == 0
    assert (
        "1 tasks not run: not yet (not among the kept results)"
        in (tmp_path / "counterexample-quick.html").read_text()
    )
    monkeypatch.setattr(counterexample.Path, "compute", compute)
    assert main(arguments) == 0
    assert "4 of 5 tasks are kept" in capsys.readouterr().err


def test_without_data_the_report_says_so(tmp_path: Path) -> None:
    arguments = ["--quick", "--out", str(tmp_path), "--data-dir", str(tmp_path / "none")]
    assert main(["reproduce", "table1-cifar", *arguments]) == 0
    page = (tmp_path / "table1-cifar-quick.html").read_text()
    assert page.count("not run: no data") >= 32
    assert main(["reproduce", "split", *arguments]) == 0


def report(out: Path, names: tuple[str, ...], short: bool = True) -> Path:
    """A report of several sections on very little of the data at hand, and the same as Markdown.

    ``short`` leaves out what is long whatever the scale.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "studies", few)
        patch.setattr(reproduce, "QUICK", TINY if short else EVERYBODY_LENDS)
        patch.setattr(table1, "SMALL", table1.SMALL[:1])
        if short:
            patch.setattr(counterexample, "cells", lambda scale: SHORT_PATHS)
            patch.setattr(small_figures, "CERTIFIED", CERTIFIED)
        few_sections = {name: section for name, section in sections().items() if name in names}
        patch.setattr(reproduce, "sections", lambda baselines: few_sections)
        patch.setenv("FEDFW_DATA", str(DATA))
        arguments = ["--quick", "--out", str(out), "--markdown", str(out / "page.md")]
        assert main(["reproduce", "all", *arguments]) == 0
    page, markdown = (out / "all-quick.html").read_text(), (out / "page.md").read_text()
    for section in few_sections.values():
        assert section.title in page
        assert f"## {section.title}\n" in markdown
    assert page.count("<svg") == page.count('.csv" href="data:') == markdown.count(".svg)") > 0
    for link in re.findall(r"\]\(([^)#]+)\)", markdown):
        assert (out / link).is_file()
    return out / "all-quick.html"


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("some")
    return report(
        out, ("table1", "table1-cifar", "certificate", "counterexample", "split", "theory")
    )


@needs("mnist")
def test_the_columns_are_never_blended(some: Path) -> None:
    page = some.read_text()
    header = "<th>algorithm</th><th>paper</th><th>stated</th><th>ours</th><th>FedLMO</th><th>matched</th>"
    assert header in page
    assert re.search(
        r"<td[^>]*>FedDR</td><td[^>]*>89\.6</td>", page
    )  # the paper's number, as printed there
    assert '<td class="plain">not run: no data</td>' in page  # CIFAR-10
    assert "Seeds 0 to 0" in page


@needs("mnist")
def test_the_quick_report_says_what_was_run_and_paints_nothing_red(some: Path) -> None:
    page = some.read_text()
    for said in (
        "10 clients, 3 rounds (networks: 2), one full-gradient step",
        "with at most 150 samples for training (table 3: 300, networks: 100)",
        "batches of 5 (table 3: 64, networks: 3)",
        "at most two points of a grid of six",
        '<td class="plain">holds at this size</td>',
        'class="good',  # a proven bound holds at every size
    ):
        assert said in page
    # What was run small proves nothing.
    assert re.search(r'class="(good|bad)[^"]*">\d', page) is None
    assert "`" not in page


@pytest.mark.slow
@needs("mnist")
def test_every_section(tmp_path: Path) -> None:
    report(
        tmp_path,
        tuple(name for name, section in sections().items() if not section.apart),
        short=False,
    )
