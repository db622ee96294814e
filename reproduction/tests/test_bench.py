"""`fedfw bench`: nothing is timed that does not compute the same, and what is missing is said."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from fedfw.cli.main import main
from fedfw_reproduction.bench import contenders, timing
from fedfw_reproduction.bench import run as bench
from fedfw_reproduction.bench.tasks import TASKS, BenchTask
from fedfw_reproduction.bench.timing import compare, refuse_different

TINY = {
    "softmax": BenchTask("softmax", 3, 7, 5),
    "mlp": BenchTask("mlp", 3, 7, 5, "mlp"),
    "cnn": BenchTask("cnn", 2, 3, 8, "cnn"),
}


@pytest.mark.parametrize("name", TINY)
def test_all_contenders_compute_the_same_rounds(name: str) -> None:
    task = TINY[name]
    sides = {
        "ours": contenders.ours(task, contenders.fedavg(task)),
        "hand": contenders.hand_fedavg(task),
        "loop": contenders.loop_fedavg(task),
    }
    found = [side(4, lambda: None) for side in sides.values()]
    assert all(torch.allclose(x, found[0], atol=1e-5) for x in found)
    assert not torch.allclose(found[0], task.problem().start)
    timings = compare(task, sides, rounds=3, repeats=1)
    assert all(timing.round_ms > 0 and timing.loss is not None for timing in timings.values())


def test_short_contenders_take_more_turns_until_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count(step=0.1)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    turns: list[int] = []

    def contender(rounds: int, mark: contenders.Mark) -> torch.Tensor:
        turns.append(rounds)
        mark()
        return torch.zeros(0)

    compare(TINY["softmax"], {"one": contender}, rounds=1, repeats=2)
    assert len(turns) == 3  # the first looks at losses
    compare(TINY["softmax"], {"one": contender}, rounds=1, repeats=2, seconds=4.0)
    assert len(turns) > 6


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("ball", contenders.RADII)
def test_fedfw_by_hand_is_fedfw(ball: str, plus: bool) -> None:
    task = TINY["softmax"]
    ours = contenders.ours(task, contenders.frank_wolfe(ball, plus))(6, lambda: None)
    assert torch.allclose(ours, contenders.hand_fedfw(task, ball, plus)(6, lambda: None), atol=1e-4)
    assert bool(ours.any())


def test_different_losses_are_not_timed() -> None:
    with pytest.raises(ValueError, match="differ"):
        refuse_different(TINY["softmax"], {"one": 1.0, "other": 1.001})


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setitem(TASKS, "small", TINY["softmax"])
    monkeypatch.setattr(bench, "SMALL", TINY["softmax"])
    monkeypatch.delenv("FEDFW_FRAMEWORKS", raising=False)
    out = tmp_path / "bench.json"
    options = ["--rounds", "3", "--repeats", "1", "--seconds", "0", "--out", str(out)]
    assert main(["bench", "small", *options]) == 0
    torch.set_num_threads(threads)
    told = capsys.readouterr().out
    assert "not installed" in told
    kept = json.loads(out.read_text())["tasks"]["small"]
    size = TINY["softmax"]
    floor = f"bare products, {8 * size.clients * size.samples * size.features / 1e6:.1f} MB read"
    assert set(kept["FedAvg"]) == {
        "fedfw",
        "by hand",
        "loop over clients",
        floor,
        "pfl",
        "Flower simulation",
    }
    assert kept["FedFW, l1:10"]["fedfw"]["round_ms"] > 0
    assert main(["bench", "nothing"]) == 2


def test_fedfw_sto_by_hand_is_fedfw_sto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "BATCH", 4)
    task = TINY["softmax"]
    ours = contenders.ours(task, contenders.fedfw_sto(task), 4)(6, lambda: None)
    assert torch.allclose(ours, contenders.hand_fedfw_sto(task)(6, lambda: None), atol=1e-5)
