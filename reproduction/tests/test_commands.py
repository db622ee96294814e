"""Options of the laboratory's commands that contradict each other are refused."""

from pathlib import Path

import pytest

from fedfw.cli.main import main


@pytest.mark.parametrize(
    ("typed", "said"),
    [
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
        ("bench few --frameworks small", "--frameworks small changes nothing for few"),
        ("bench few --frameworks-folder there", "--frameworks-folder there changes nothing"),
        (
            "bench small --frameworks none --frameworks-folder there",
            "--frameworks-folder there changes nothing",
        ),
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
