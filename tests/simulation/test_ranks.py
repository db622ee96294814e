"""Several processes that share a run, beside one that takes it alone."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfw
from tests.ranks.launch import run_ranks
from tests.simulation import failing_runs
from tests.simulation.resumed_runs import CASES, go_on
from tests.simulation.shared_runs import cases, many, outcome, take

pytestmark = pytest.mark.filterwarnings("ignore")
DTYPES = (torch.float64, torch.float32)
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}


@cache
def together(size: int, folder: Path) -> dict[str, Any]:
    """All cases by the name of their dtype, in both of them."""
    out = folder / f"{size}.json"
    for ended in run_ranks(
        size, ["-m", "tests.simulation.shared_runs", str(out), "float64,float32"]
    ):
        assert ended.status == 0, ended.said
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


def assert_same(found: dict[str, Any], alone: dict[str, Any], tolerance: float) -> None:
    """The same model, records, bytes and bound, up to the order of sums."""
    near = {"rel": tolerance, "abs": tolerance * 1e-2}
    assert found["x"] == pytest.approx(alone["x"], **near)
    assert found["totals"] == alone["totals"]
    assert found["bound"] == (
        None if alone["bound"] is None else pytest.approx(alone["bound"], **near)
    )
    assert len(found["records"]) == len(alone["records"])
    for one, other in zip(found["records"], alone["records"], strict=True):
        for name, value in other.items():
            loose = (
                {"rel": tolerance, "abs": 10 * tolerance} if name in ("gap", "consensus") else near
            )
            numeric = isinstance(value, float | dict)
            assert one[name] == (pytest.approx(value, **loose) if numeric else value), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*cases(), "many"])
@pytest.mark.xdist_group("ranks")
def test_two_ranks_take_the_run_of_one_process(name: str, dtype: torch.dtype, folder: Path) -> None:
    found = together(2, folder)[str(dtype).removeprefix("torch.")][name]
    if name == "many":
        few = {"participation": 5, "rounds": 12, "eval_every": 6}
        alone = outcome(fedfw.simulate(many(), fedfw.FedFW("l1:5", penalty=0.1), **few))
    else:
        alone = json.loads(json.dumps(take(cases()[name], dtype)))
    assert_same(found, alone, TOLERANCE[dtype])


def go_on_together(
    size: int, out: Path, steps: list[tuple[str, Path, int]]
) -> list[dict[str, Any]]:
    """What ranks find that take these runs one after the other, each until a round."""
    texts = [f"{case}:{folder}:{rounds}" for case, folder, rounds in steps]
    for ended in run_ranks(size, ["-m", "tests.simulation.resumed_runs", str(out), *texts]):
        assert ended.status == 0, ended.said
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


@pytest.mark.usefixtures("no_plots")
@pytest.mark.xdist_group("ranks")
def test_a_checkpoint_goes_on_with_any_number_of_ranks(tmp_path: Path) -> None:
    two, begun, taken_over = (
        tmp_path / name for name in ("two", "begun by two", "begun by two, too")
    )
    steps = [(case, two / case, 12) for case in CASES]
    steps += [
        (case, folder / case, rounds)
        for case in CASES
        for folder, rounds in ((begun, 4), (begun, 12))
    ]
    steps += [(case, taken_over / case, 4) for case in CASES]
    of_two = go_on_together(2, tmp_path / "two.json", steps)
    for case in CASES:
        go_on(case, tmp_path / "begun by one" / case, 4)
    steps = [(case, tmp_path / "begun by one" / case, 12) for case in CASES]
    of_three = go_on_together(3, tmp_path / "three.json", steps)
    for i, case in enumerate(CASES):
        whole = json.loads(json.dumps(go_on(case, tmp_path / "alone" / case, 12)))
        assert_same(of_two[i], whole, 1e-6)
        assert (
            of_two[len(CASES) + 2 * i + 1] == of_two[i]
        )  # the same number of ranks: the same bits
        assert_same(json.loads(json.dumps(go_on(case, taken_over / case, 12))), whole, 1e-6)
        assert_same(of_three[i], whole, 1e-6)


@pytest.mark.usefixtures("no_plots")
@pytest.mark.xdist_group("ranks")
def test_a_rank_that_is_killed_ends_the_run_for_all_and_it_goes_on(tmp_path: Path) -> None:
    first, second = run_ranks(
        2, ["-m", "tests.simulation.failing_runs", "killed", str(tmp_path / "run")], timeout=60
    )
    assert second.status == -9
    assert first.status == 1
    assert "RankLostError: rank 0 of 2: rank 1 is gone" in first.said
    whole = failing_runs.take("well", tmp_path / "whole")
    resumed = failing_runs.take("well", tmp_path / "run")
    assert len(resumed.history) == len(whole.history) == failing_runs.ROUNDS
    assert torch.allclose(resumed.x, whole.x, rtol=1e-9, atol=1e-12)


@pytest.mark.xdist_group("ranks")
def test_a_nan_names_its_client_on_all_ranks() -> None:
    first, second = run_ranks(2, ["-m", "tests.simulation.failing_runs", "nan"], timeout=60)
    assert (first.status, second.status) == (1, 1)
    for ended in (first, second):
        assert "NaN or infinity in the loss or gradient of client 2" in ended.said
    assert "rank 1 ended: NonFiniteError: round" in first.said


@pytest.mark.xdist_group("ranks")
def test_a_loss_that_is_not_convex_ends_the_run_on_all_ranks() -> None:
    ranks = run_ranks(2, ["-m", "tests.simulation.failing_runs", "refutes"], timeout=60)
    for ended in ranks:
        assert ended.status == 1
        assert "ContradictionError: round" in ended.said
        assert "not convex" in ended.said


@pytest.mark.xdist_group("ranks")
def test_what_ranks_cannot_do_together_is_refused() -> None:
    first, second = run_ranks(2, ["-m", "tests.simulation.failing_runs", "asks"], timeout=60)
    for ended in (first, second):
        assert "ranks were given different runs: start differ" in ended.said
    assert "ValueError: the callback AfterRound runs on rank 0 alone" in first.said
    assert "rank 0 ended: ValueError: the callback AfterRound runs on rank 0 alone" in second.said
