"""What ranks tell each other, and how clients are divided among them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfw.cli import main
from fedfw.ranks import Ranks, divided
from fedfw.rounds.records import read_history
from tests.ranks import exchanges
from tests.ranks.launch import run_ranks

LOADS = st.lists(st.integers(1, 1000), min_size=3, max_size=9)
SPEEDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=3)


@pytest.mark.xdist_group("ranks")
def test_three_ranks_tell_each_other_everything() -> None:
    for ended in run_ranks(3, ["-m", "tests.ranks.exchanges"], timeout=120):
        assert ended.status == 0, ended.said


def test_a_process_alone_is_what_it_was_given() -> None:
    for check in exchanges.CHECKS:
        check(Ranks())


def longest(loads: list[int], cuts: list[int], speeds: list[float]) -> float:
    return float(max(sum(loads[a:b]) / v for a, b, v in zip(cuts, cuts[1:], speeds, strict=False)))


@given(LOADS, SPEEDS)
def test_ranks_finish_together_as_nearly_as_can_be(loads: list[int], speeds: list[float]) -> None:
    cuts = divided(loads, speeds)
    assert cuts[0] == 0
    assert cuts[-1] == len(loads)
    assert (np.diff(cuts) >= 1).all()
    inner = combinations(range(1, len(loads)), len(speeds) - 1)
    best = min(longest(loads, [0, *some, len(loads)], speeds) for some in inner)
    # Every rank has a client: a slow one may be given a large client that another division would have spared it.
    spared = 0.0 if len(set(speeds)) == 1 else max(loads) / min(speeds)
    assert longest(loads, cuts, speeds) <= max(best, spared) * (1 + 1e-9)


@given(LOADS, st.integers(1, 3))
def test_equal_ranks_finish_together_as_nearly_as_can_be(loads: list[int], size: int) -> None:
    inner = combinations(range(1, len(loads)), size - 1)
    best = min(longest(loads, [0, *some, len(loads)], [1.0] * size) for some in inner)
    assert longest(loads, divided(loads, [1.0] * size), [1.0] * size) == best


def test_every_rank_needs_a_client() -> None:
    with pytest.raises(ValueError, match="3 ranks for 2 clients"):
        divided([5, 5], [1, 1, 1])
    with pytest.raises(ValueError, match="balance='size'"):
        Ranks(balance="size")  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_plots")
@pytest.mark.xdist_group("ranks")
def test_the_command_line_shares_a_run_and_trials(tmp_path: Path) -> None:
    """Under torchrun `fedfw run` divides the clients and `fedfw tune` the trials; one process finds the same."""
    asked = ["--clients", "4", "--rounds", "3", "--algorithm", "fedavg", "--constraint", "l2:10"]
    grid = ["--grid", "lr=0.01,0.1,0.3"]
    for command in (["run", *asked, "--lr", "0.1"], ["tune", *asked, *grid]):
        ending = ".toml" if command[0] == "tune" else ""
        assert main([*command, "--out", str(tmp_path / f"one{ending}")]) == 0
        first, other = run_ranks(2, ["-m", "fedfw", *command, "--out", str(tmp_path / f"two{ending}")])
        assert first.status == 0, first.said
        assert other.status == 0
        assert not other.said  # the first one speaks for all
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()
    assert (tmp_path / "one.toml").read_text() == (tmp_path / "two.toml").read_text()
    one, two = (read_history(tmp_path / name / "history.jsonl") for name in ("one", "two"))
    assert two[-1].loss == pytest.approx(one[-1].loss, rel=1e-6)
    assert two.total("bytes_up") == one.total("bytes_up")


def test_commands_that_are_not_shared_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        main(["sets"])
    assert "sets does not divide its work among processes" in capsys.readouterr().err
