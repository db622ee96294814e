"""``fedfw reproduce theory``: the report, the cache, and the exit status."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedfw.cli import main
from fedfw.command import reproduce
from fedfw.experiments import theory
from fedfw.experiments.theory import Effort, Study

SMALL = Effort(rounds=800, seeds=2, every=20)
computed: list[str] = []


def few(effort: Effort) -> Iterator[tuple[str, Callable[[], list[Study]]]]:
    def noted(title: str, run: Callable[[], list[Study]]) -> Callable[[], list[Study]]:
        def compute() -> list[Study]:
            computed.append(title)
            return run()

        return compute

    wanted = ("T1 on l2", "T2 on box", "anchors on box", "no theorem, noisy and not convex")
    for title, run in theory.studies(SMALL):
        if title in wanted:
            yield title, noted(title, run)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    computed.clear()
    monkeypatch.setattr(reproduce, "studies", few)


def test_the_report_and_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "theory", "--quick", "--out", str(tmp_path)]) == 0
    first = capsys.readouterr()
    assert "studies of a bound passed" in first.out
    assert "1/4 T1 on l2" in first.err
    page = (tmp_path / "theory.html").read_text()
    assert page.count("<svg") == page.count("<table") == page.count('download="') == 4
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', page)
    assert all(link.startswith("data:text/csv;base64,") for link in links)  # nothing to be fetched
    assert len(computed) == 4
    kept = sorted((tmp_path / "cache").iterdir())
    kept[0].unlink()  # as if the call had been interrupted
    assert main(["reproduce", "theory", "--quick", "--out", str(tmp_path)]) == 0
    assert len(computed) == 5
    assert capsys.readouterr().out == first.out


def test_a_bound_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong() -> list[Study]:
        (study,) = theory.nonconvex("box", SMALL)
        assert study.passed
        assert study.limit is not None
        return [replace(study, limit=study.limit * 1e-6)]

    monkeypatch.setattr(reproduce, "studies", lambda effort: iter([("wrong", wrong)]))
    assert main(["reproduce", "theory", "--quick", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "failed: T2 on box" in captured.err
    assert "FAILED" in captured.out
    assert 'class="bad' in (tmp_path / "theory.html").read_text()


def test_a_slope_that_is_too_flat_fails() -> None:
    (study,) = theory.nonconvex("box", SMALL)
    assert not replace(study, steepest=-5.0).passed
    assert not replace(study, limit=torch.zeros_like(study.measured)).passed
    assert Study.from_json(study.to_json()).slope == study.slope
