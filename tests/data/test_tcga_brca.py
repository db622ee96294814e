"""Patients of six regions: what is read, and files that are not what they should be."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
import torch

from fedfw.data import DATASETS, load_data, partition
from fedfw.data.sources import SOURCES
from fedfw.data.tcga_brca import PATIENTS, read_patients
from tests.data.files import DATA, needs

PEOPLE = 'pid,age,"sex, or none",E,T\nA,50,1,1.0,30.0\nB,60,0,0.0,40.5\nC,70,1,1.0,9\nnobody,80,0,0,1\n'
PLACES = "pid,fold,fold2\nC,train,train_3\nA,test,test_3\nB,train,train_0\n"


def written(folder: Path, people: str = PEOPLE, places: str = PLACES) -> tuple[Path, Path]:
    paths = folder / "brca.csv", folder / "train_test_split.csv"
    for path, text in zip(paths, (people, places), strict=True):
        path.write_text(text)
    return paths


def test_patients_by_fold_and_region_with_the_age_in_centuries(tmp_path: Path) -> None:
    parts = read_patients(*written(tmp_path), 2)
    train, test = parts["train"], parts["test"]
    assert torch.equal(train.inputs, torch.tensor([[0.6, 0.0], [0.7, 1.0]]))
    assert train.targets.tolist() == [[0.0, 40.5], [1.0, 9.0]]
    assert train.owners["region"].tolist() == [0, 3]
    assert (test.targets.tolist(), test.owners["region"].tolist()) == ([[1.0, 30.0]], [3])


@pytest.mark.parametrize(
    ("people", "places", "message"),
    [
        (
            PEOPLE.replace("pid,age", "pid"),
            PLACES,
            r"brca\.csv is damaged: 4 columns, expected pid, 2 variables, E and",
        ),
        (
            PEOPLE.replace("A,50", "A,old"),
            PLACES,
            r"brca\.csv is damaged: patient 'A': 'age' is 'old', expected a numb",
        ),
        (PEOPLE.replace("A,50", "A,nan"), PLACES, "'age' is 'nan', expected a number"),
        (PEOPLE.replace("1,1.0,30.0", "1,2,30.0"), PLACES, r"E, T are \[2\.0, 30\.0\], expected 0 or 1, and days"),
        (PEOPLE.replace("30.0", "-1"), PLACES, r"E, T are \[1\.0, -1\.0\], expected"),
        (
            PEOPLE.replace("A,50,1,1.0", "A,50,1"),
            PLACES,
            r"brca\.csv is damaged or no table: row 2: 4 cells, expected 5",
        ),
        (
            PEOPLE.replace("A,", "Z,"),
            PLACES,
            r"brca\.csv is damaged: no patient 'A', expected all those of .*split\.csv",
        ),
        (PEOPLE, PLACES.replace("fold2", "place"), r"split\.csv is damaged: columns 'pid, fold, place', expected"),
        (PEOPLE, PLACES.replace("test_3", "train_3"), "a row 'A', 'test', 'train_3', expected a new patient"),
        (PEOPLE, PLACES.replace("train_3", "train_6"), "a row 'C', 'train', 'train_6', expected"),
        (PEOPLE, PLACES.replace("B,", "C,"), "a row 'C', 'train', 'train_0', expected a new patient"),
        (PEOPLE, PLACES.replace("test", "train"), "nobody is for test, expected somebody"),
        ("", PLACES, "row 1: names of columns"),
        (PEOPLE.replace("age", "E"), PLACES, "expected a name for each, all different"),
    ],
)
def test_damage_is_named(people: str, places: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_patients(*written(tmp_path, people, places), 2)


@needs("tcga-brca")
def test_the_real_patients() -> None:
    for source in SOURCES["tcga-brca"].sources:
        assert sha256((DATA / "tcga-brca" / source.file).read_bytes()).hexdigest() == source.sha256
    data, entry = load_data("tcga-brca", DATA), DATASETS["tcga-brca"]
    assert (data.shape, data.classes, (len(data.train), len(data.test))) == ((39,), None, (866, 222))
    assert (entry.shape, entry.samples, entry.owners) == (data.shape, (866, 222), tuple(data.train.owners))
    assert data.survival
    assert not data.sequences
    for part, events in ((data.train, 119), (data.test, 32)):
        assert int(part.targets[:, 0].sum()) == events
        assert 0 <= float(part.inputs.min()) <= float(part.inputs.max()) <= 1
    clients = partition("region", data.train, 6, None, 0)
    assert tuple(map(len, clients)) == PATIENTS["train"]
    with pytest.raises(ValueError, match="7 clients, but there are 6 owners to be dealt out, expected at most so many"):
        partition("region", data.train, 7, None, 0)


@needs("tcga-brca")
def test_a_file_without_some_patients_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tcga-brca").mkdir()
    people, places = ((DATA / "tcga-brca" / name).read_text() for name in ("brca.csv", "train_test_split.csv"))
    written(tmp_path / "tcga-brca", people, places[: places.rindex("\n", 0, -1) + 1])
    with pytest.raises(ValueError, match=r"split\.csv is damaged: .* patients of (train|test), expected"):
        load_data("tcga-brca", tmp_path)
