"""A user's own .csv and .npz files: what columns become, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedfw
from fedfw.cli.main import main
from fedfw.data import Data, load_data
from fedfw.data.base import Columns

ROWS = [(i / 8, i % 2, "NSW"[i % 3], ("no", "yes")[i % 2], float(i)) for i in range(30)]
TEXT = "a,b,site,answer,days\n" + "".join(",".join(map(str, row)) + "\n" for row in ROWS)


def load(path: Path, text: str = TEXT, **columns: Any) -> Data:
    path.write_text(text)
    return load_data(f"table:{path}", columns=Columns(**columns))


def test_columns_become_inputs_targets_and_clients(tmp_path: Path) -> None:
    data = load(tmp_path / "my.csv", target="answer", client="site")
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (2, (3,), 24, 6)
    assert data.train.inputs[:3].tolist() == [[0, 0, 0], [0.125, 1, 1], [0.25, 0, 2]]
    assert data.train.targets[:3].tolist() == [0, 1, 0]
    assert data.train.owners["client"][:3].tolist() == [0, 1, 2]  # N, S, W
    assert data.test.owners["client"].bincount().tolist() == [2, 2, 2]  # the fifth and tenth of each
    assert data.test.inputs[:, 2].tolist() == [12, 13, 14, 27, 28, 29]


@pytest.mark.parametrize(
    ("target", "numbers", "classes", "first"),
    [("b", False, 2, [1, 0, 1]), ("b", True, None, [1, 0, 1]), ("a", False, None, [0.125, 0.25, 0.375])],
)
def test_whole_numbers_are_classes_unless_said_otherwise(
    target: str, numbers: bool, classes: int | None, first: list[float], tmp_path: Path
) -> None:
    text = TEXT.replace("no\n", "0\n").replace(",no,", ",0,").replace(",yes,", ",1,")
    for name, number in (("N", "1"), ("S", "2"), ("W", "3")):
        text = text.replace(f",{name},", f",{number},")
    data = load(tmp_path / "my.csv", text, target=target, numbers=numbers)
    assert data.classes == classes
    assert data.train.targets[:3].tolist() == first
    assert data.train.targets.is_floating_point() is (classes is None)


def test_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    text = "x,y\n" + "".join(f"{i},{value}\n" for i, value in enumerate((10, 9, 2, 10, 2, 9)))
    assert load(tmp_path / "my.csv", text, target="y").train.targets.tolist() == [1, 0, 2, 0]


def test_events_and_times(tmp_path: Path) -> None:
    data = load(
        tmp_path / "my.csv",
        target="b",
        time="days",
        text=TEXT.replace("yes", "1")
        .replace("no", "0")
        .replace(",N,", ",0,")
        .replace(",S,", ",1,")
        .replace(",W,", ",2,"),
    )
    assert data.survival
    assert data.train.targets[:2].tolist() == [[1, 1], [0, 2]]


@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_gives_what_csv_gives(order: Any, tmp_path: Path) -> None:
    x = np.array([(a, b, days) for a, b, _, _, days in ROWS], order=order)
    np.savez(tmp_path / "my.npz", x=x, answer=np.arange(30) % 2 > 0, site=np.arange(30) % 3)
    columns = Columns(target="answer", client="site")
    one, two = (
        load_data(f"table:{tmp_path / 'my.npz'}", columns=columns),
        load(tmp_path / "my.csv", target="answer", client="site"),
    )
    for part, other in ((one.train, two.train), (one.test, two.test)):
        assert torch.equal(part.inputs, other.inputs)
        assert torch.equal(part.targets, other.targets)
        assert torch.equal(part.owners["client"], other.owners["client"])


def test_bytes_are_numbers_but_for_images(tmp_path: Path) -> None:
    for shape, first in (((6, 4), 200.0), ((6, 1, 2, 2), 200 / 255)):
        np.savez(tmp_path / "my.npz", x=np.full(shape, 200, np.uint8), y=np.arange(6) % 2)
        data = load_data(f"table:{tmp_path / 'my.npz'}", columns=Columns(target="y"))
        assert float(data.train.take()[0].flatten()[0]) == pytest.approx(first)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (TEXT, {}, "no target is named, expected the column"),
        (TEXT, {"target": "anwser"}, r"my\.csv has no column 'anwser', expected one of a, b, site, answer, days"),
        (TEXT, {"target": "a", "time": "a"}, "target, time and client-column are a, a, expected different"),
        (TEXT, {"target": "answer"}, r"my\.csv: sample 1: 'site' is 'N', expected a number"),
        (TEXT.replace("0.125", "nan"), {"target": "answer", "client": "site"}, "sample 2: 'a' is 'nan', expected a n"),
        (TEXT.replace("0.125", "1e39"), {"target": "answer", "client": "site"}, "sample 2: 'a' is '1e39', expected"),
        (TEXT.replace("0.125", ""), {"target": "answer", "client": "site"}, "sample 2: 'a' is '', expected a number"),
        (TEXT.replace(",S,", ",,"), {"target": "answer", "client": "site"}, "sample 2: 'site' is empty, expected"),
        (TEXT.replace("yes", "no"), {"target": "answer", "client": "site"}, "answer has one value alone, expected"),
        (TEXT, {"target": "days", "time": "b", "client": "answer"}, "'site' is 'N', expected a number"),
        ("a,y,t\n1,2,3\n1,1,3\n", {"target": "y", "time": "t"}, "expected y 0 or 1, and t at least 0"),
        ("a,y,t\n1,1,-3\n1,1,3\n", {"target": "y", "time": "t"}, "expected y 0 or 1, and t at least 0"),
        ("a,y,c\n1,1,0\n1,0,1\n", {"target": "y", "client": "c"}, "no client has five samples, expected one"),
        ("a,y\n1,2,3\n", {"target": "y"}, "row 2: 3 cells, expected 2"),
        ("a,a,y\n", {"target": "y"}, "expected a name for each, all different"),
        ("y\n1\n", {"target": "y"}, "has no column beside y, expected inputs"),
        ("a,y\n1,2\n", {"target": "y"}, "has 1 samples, expected at least 2"),
        ('a,y\n"1,2\n', {"target": "y"}, r"my\.csv is damaged or no table: row 1: unexpected end of data"),
        (
            "a,y\n1," + "2" * 200_000 + "\n",
            {"target": "y"},
            r"my\.csv is damaged or no table: row 1: field larger than",
        ),
    ],
)
def test_what_is_refused(text: str, columns: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "my.csv", text, **columns)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((4, 2))}, r"my\.npz is damaged: .*y\.npy"),
        ({"x": np.ones((4, 2)), "y": np.ones(3)}, r"y has shape \(3,\), expected one for \(4,\) inputs"),
        ({"x": np.ones(4), "y": np.arange(4)}, r"x has shape \(4,\), expected \(samples, features\)"),
        ({"x": np.full((4, 2), np.inf), "y": np.arange(4)}, "x has NaN, infinity or numbers beyond float32"),
        ({"x": np.full((4, 2), 1e39), "y": np.arange(4)}, "x has NaN, infinity or numbers beyond float32"),
        ({"x": np.array([[{}], [{}]]), "y": np.arange(2)}, r"x is object of \(2, 1\), expected numbers"),
        ({"x": np.array([["a"], ["b"]]), "y": np.arange(2)}, "expected numbers"),
    ],
)
def test_arrays_that_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "my.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_data(f"table:{tmp_path / 'my.npz'}", columns=Columns(target="y"))


def test_columns_go_with_a_table_alone_and_tables_have_two_endings() -> None:
    with pytest.raises(ValueError, match=r"a column 'y' goes with your own table \(table:PATH\), not with digits"):
        fedfw.load_problem("digits", target="y")
    with pytest.raises(ValueError, match=r"table:my\.xls, expected the path of your own \.csv or \.npz file"):
        fedfw.load_problem("table:my.xls", target="y")
    with pytest.raises(ValueError, match=r"table: no file none\.csv in "):
        fedfw.load_problem("table:none.csv", target="y")


@pytest.mark.usefixtures("no_plots")
def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.csv").write_text(TEXT.replace("yes", "1").replace("no", "0"))
    own = ["--data", "my.csv", "--target", "answer", "--time", "days", "--client-column", "site", "--clients", "3"]
    assert main(["run", *own, "--rounds", "2", "--out", "kept"]) == 0
    assert "test concordance" in capsys.readouterr().out
    assert f'dataset = "table:{tmp_path / "my.csv"}"' in Path("kept/config.toml").read_text()
    monkeypatch.chdir(tmp_path.parent)
    assert main(["resume", str(tmp_path / "kept"), "--rounds", "3"]) == 0
    assert main(["solve", "--data", str(tmp_path / "my.csv"), *own[2:], "--constraint", "l1:1"]) == 0
    assert "test concordance of the optimum" in capsys.readouterr().out
    shown = ["data", "show", f"table:{tmp_path / 'my.csv'}", *own[2:], "--out", str(tmp_path / "holdings.png")]
    assert main(shown) == 0
    assert "client, 3 clients: 24 of 24 training samples" in capsys.readouterr().out
