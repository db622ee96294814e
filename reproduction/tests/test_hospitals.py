"""The study of the hospitals: folds within regions, a choice that never sees the test data, and the
page.
"""

from dataclasses import replace

import pytest
import torch
from tests.data.files import DATA, needs

from fedfw.cli.main import main
from fedfw.data import Data, load_data
from fedfw.problems import concordance
from fedfw_reproduction import hospitals, reproduce
from fedfw_reproduction.hospitals import METHODS, RADII, Chosen, _folds, _interval, cells
from fedfw_reproduction.lab import Site
from fedfw_reproduction.protocols import FULL, QUICK


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
@pytest.mark.parametrize("name", METHODS)
def test_the_choice_does_not_look_at_the_test_data(
    name: str, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(cells(FULL)[name].config, rounds=3, eval_every=3)
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
    for name in METHODS:
        assert name in printed
    assert "0.842 ± 0.015" in printed
    assert RADII[1::3] == cells(replace(FULL, quick=True))["FedFW+"].radii
