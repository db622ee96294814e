"""Four hospitals' files of patients: which rows and columns are read, and FLamby's split."""

from pathlib import Path

import pytest
import torch

from fedfw.data import load_data
from fedfw.data.heart_disease import COLUMNS, read_hospital, split_rows
from fedfw.data.sources import HEART_DISEASE_FILES
from tests.data.files import DATA, needs

ROWS = """63,1,1,145,233,1,2,150,0,2.3,3,0,6,0
67,0,4,160,286,0,0,108,1,1.5,?,?,?,2
40,1,2,?,230,0,0,150,0,0.0,1,0,3,1
50,1,3,120.0,200,0,1,100,0,-.5,?,?,?,1
"""


def test_complete_rows_with_dummies_and_units(tmp_path: Path) -> None:
    """What is missing in columns that are left out does not matter."""
    file = tmp_path / "processed.va.data"
    file.write_text(ROWS)
    inputs, targets = read_hospital(file)
    assert targets.tolist() == [0, 1, 1]
    first = dict(zip(COLUMNS, inputs[0].tolist(), strict=True))
    assert first["age"] == pytest.approx(0.63)
    assert first["heart_rate"] == pytest.approx(1.5)
    assert (first["male"], first["pain_2"], first["pain_4"], first["ecg_2"]) == (1, 0, 0, 1)
    assert inputs[1, COLUMNS.index("pain_4")] == 1
    assert inputs[2, COLUMNS.index("ecg_1")] == 1


@pytest.mark.parametrize(("sick", "rows"), [(20, 100), (2, 47)])
def test_the_split_is_in_proportion_where_there_are_enough_patients(sick: int, rows: int) -> None:
    targets = torch.zeros(rows, dtype=torch.int64)
    targets[:sick] = 1
    train, test = split_rows(targets)
    assert sorted(torch.cat([train, test]).tolist()) == list(range(rows))
    if sick > 2:
        assert int(targets[train].sum()) == 13


@needs("heart-disease")
def test_published_sizes_of_the_hospitals() -> None:
    data = load_data("heart-disease", DATA)
    assert data.train.owners["hospital"].bincount().tolist() == [199, 172, 30, 85]
    assert data.test.owners["hospital"].bincount().tolist() == [104, 89, 16, 45]


def test_other_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "heart-disease"
    folder.mkdir()
    for name in HEART_DISEASE_FILES:
        (folder / name).write_text(ROWS)
    with pytest.raises(ValueError, match=r"cleveland\.data is damaged: expected a file of SHA-256"):
        load_data("heart-disease", tmp_path)
