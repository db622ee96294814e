"""Two processes that share one GPU take the runs of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.ranks.launch import run_ranks
from tests.simulation.shared_runs import cases, take
from tests.simulation.test_ranks import assert_same

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),
]


def test_two_ranks_on_one_gpu_take_the_runs_of_one_process(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    for ended in run_ranks(2, ["-m", "tests.simulation.shared_runs", str(out), "float64", "cuda"], timeout=400):
        assert ended.status == 0, ended.said
    found = json.loads(out.read_text())["float64"]
    for name, case in cases().items():
        alone = json.loads(json.dumps(take(case, torch.float64, device="cuda")))
        try:
            assert_same(found[name], alone, 1e-6)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
