"""A user's own .csv and .npz files: what columns become, and what is refused."""

import bz2
import gzip
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.cli.main import main
from fedfw.data import Data, load_data
from fedfw.data.base import Columns
from fedfw.data.movielens import read_ratings, without_means
from fedfw.data.shakespeare import ALPHABET, CHARACTERS, cut_windows, read_speakers
from fedfw.data.tcga_brca import read_patients
from tests.processes import run_python

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
    assert data.test.owners["client"].bincount().tolist() == [
        2,
        2,
        2,
    ]  # the fifth and tenth of each
    assert data.test.inputs[:, 2].tolist() == [12, 13, 14, 27, 28, 29]


def test_inputs_are_listed_and_identifiers_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{i + 100},{i * i % 7},{i % 2}\n" for i in range(20))
    with pytest.warns(UserWarning, match="the input 'patient' has another number"):
        data = load(tmp_path / "my.csv", "patient,age,ill\n" + rows, target="ill")
    assert data.columns == ("patient", "age")
    picture = tmp_path / "holdings.png"
    shown = f"data show table:{tmp_path / 'my.csv'} --target ill --clients 2 --out {picture}"
    with warnings.catch_warnings(record=True):
        assert main(shown.split()) == 0
    assert "inputs: patient, age\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "numbers", "classes", "first"),
    [
        ("b", False, 2, [1, 0, 1]),
        ("b", True, None, [1, 0, 1]),
        ("a", False, None, [0.125, 0.25, 0.375]),
    ],
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


NAMED = {"target": "answer", "client": "site"}


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (TEXT, {}, "no target is named, expected the column"),
        (
            TEXT,
            {"target": "anwser"},
            "no column 'anwser', expected one of a, b, site, answer, days",
        ),
        (TEXT, {"target": "a", "time": "a"}, "are a, a, expected different"),
        (TEXT, {"target": "answer"}, "line 2: 'site' is 'N', expected a number"),
        (TEXT.replace("0.125", "nan"), NAMED, "line 3: 'a' is 'nan', expected a number"),
        (TEXT.replace("0.125", "1e39"), NAMED, "line 3: 'a' is '1e39', expected"),
        (TEXT.replace("0.125", "1_0"), NAMED, "line 3: 'a' is '1_0', expected"),
        (TEXT.replace("0.125", ""), NAMED, "line 3: 'a' is '', expected a number"),
        (TEXT.replace(",S,", ",,"), NAMED, "line 3: 'site' is empty, expected"),
        (TEXT.replace("yes", "no"), NAMED, "answer has one value alone, expected"),
        (
            TEXT,
            {"target": "b", "time": "answer", "client": "site"},
            "answer has texts such as 'no'",
        ),
        (TEXT, {"target": "answer", "client": "site", "numbers": True}, "answer has texts such as"),
        ("a,y,t\n1,2,3\n1,1,3\n", {"target": "y", "time": "t"}, "expected y 0 or 1, and t at le"),
        ("a,y,t\n1,1,-3\n1,1,3\n", {"target": "y", "time": "t"}, "expected y 0 or 1, and t at l"),
        ("a,y,c\n1,1,0\n1,0,1\n", {"target": "y", "client": "c"}, "no client has five samples"),
        ("a,y\n1,2,3\n", {"target": "y"}, "line 2: 3 cells, expected 2"),
        ("a,a,y\n", {"target": "y"}, "expected a name for each, all different"),
        ("a,,y\n", {"target": "y"}, "expected a name for each, all different"),
        ("y\n1\n", {"target": "y"}, "no column beside y, expected inputs"),
        ("a,y\n1,2\n", {"target": "y"}, "has 1 samples, expected at least 2"),
        ('a,y\n"1,2\n', {"target": "y"}, "line 2: unexpected end of data"),
        ("a,y\n1," + "2" * 200_000 + "\n", {"target": "y"}, "line 2: field larger than"),
        (
            ",".join(map(str, range(300_000))) + ",y\n",
            {"target": "y"},
            "300001 columns, expected at most 262144",
        ),
    ],
    ids=range(23),
)
def test_what_is_refused(text: str, columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "my.csv", text, **columns)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones((4, 2)), None, "my.npz cannot be read: .*'y is not a file"),
        (np.ones((4, 2)), np.ones(3), r"y has shape \(3,\), expected one for \(4,\) inputs"),
        (np.ones(4), np.arange(4), r"x has shape \(4,\), expected \(samples, features\)"),
        (np.full((4, 2), np.inf), np.arange(4), "x has NaN, infinity or numbers beyond float32"),
        (np.full((4, 2), 1e39), np.arange(4), "x has NaN, infinity or numbers beyond float32"),
        (np.ones((4, 2)), np.full(4, np.nan), "y has NaN, infinity or numbers beyond float32"),
        (np.array([[{}], [{}]]), np.arange(2), "my.npz cannot be read: Object arrays cannot"),
        (np.array([["a"], ["b"]]), np.arange(2), "x is <U1, expected numbers"),
        (np.ones((2, 2)), np.array(["a", "b"]), "y is <U1, expected numbers"),
    ],
)
def test_arrays_that_are_refused(x: Any, y: Any, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "my.npz", x=x, **({} if y is None else {"y": y}))
    with pytest.raises(ValueError, match=message):
        load_data(f"table:{tmp_path / 'my.npz'}", columns=Columns(target="y"))


# --- LIBSVM text: labels become classes, sparse rows dense inputs unless they are large ---


def own(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return f"libsvm:{path}"


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("kinds", [("-1", "+1"), ("1", "2"), ("0", "1"), ("-7", "3")])
def test_two_kinds_of_labels_in_ascending_order(tmp_path: Path, kinds: tuple[str, str]) -> None:
    lines = [f"{kinds[i % 2]} {i + 1}:{i + 0.5} 12:1" for i in range(10)]
    data = load_data(own(tmp_path / "own", lines))
    assert data.classes == 2
    assert data.shape == (12,)
    assert data.test.targets.tolist() == [0, 1]  # samples 0 and 5
    assert data.train.targets.tolist() == [i % 2 for i in range(10) if i % 5]
    expected = torch.zeros(12)
    expected[[1, 11]] = torch.tensor([1.5, 1.0])
    assert torch.equal(data.train.inputs[0], expected)
    assert data.train.inputs.dtype == torch.float32


def news(path: Path, samples: int, features: int) -> str:
    """Write samples with ten numbers each that are not zero."""
    draw = np.random.default_rng(0)
    lines = []
    for i in range(samples):
        columns = np.sort(draw.choice(features, 10, replace=False)) + 1
        values = draw.random(10).round(3) + 0.001
        entries = [f"{column}:{value:.3f}" for column, value in zip(columns, values, strict=True)]
        lines.append(f"{i % 2} {' '.join(entries)}")
    return own(path, lines)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("model", ["logistic", "mclr"])
def test_large_sparse_files_stay_sparse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    name = news(tmp_path / "news", samples=90, features=2000)
    options = {"model": model, "clients": 3, "partition": "labels:1"}
    dense = fedfw.load_problem(name, **options)
    monkeypatch.setattr("fedfw.data.libsvm._MOST_DENSE", 1000)
    data = load_data(name)
    assert data.train.inputs.is_sparse_csr
    assert data.test.inputs.is_sparse_csr
    sparse = fedfw.load_problem(name, **options)
    assert torch.equal(sparse.test_data[0].to_dense(), dense.test_data[0])
    runs = [
        fedfw.simulate(problem, fedfw.FedFW("l1:50"), rounds=5, batch_size=batch_size)
        for problem in (dense, sparse, sparse.with_held_out(0.3))
        for batch_size in (None, 4)
    ]
    for one, other in zip(runs[:2], runs[2:4], strict=True):
        assert torch.allclose(one.x, other.x)
        assert one.history[-1].accuracy == other.history[-1].accuracy
        assert one.history.total("bytes_up") == other.history.total("bytes_up")
    with pytest.raises(ValueError, match=r"sparse inputs need torch\.nn\.Linear"):
        fedfw.load_problem(name, "mlp", clients=3)


MEMORY = """
import resource, sys
import fedfw

def run(name):
    problem = fedfw.load_problem(name, clients=3, partition="iid")
    fedfw.simulate(problem, fedfw.FedFW("l1:5"), rounds=5)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = run(sys.argv[1])
print(run(sys.argv[2]) - before)
"""


def test_rounds_on_a_file_of_news_size_need_little_memory(tmp_path: Path) -> None:
    small = news(tmp_path / "small", samples=30, features=100)
    large = news(tmp_path / "large", samples=1500, features=50_000)
    done = run_python(["-c", MEMORY, small, large])
    kib = int(done.stdout)
    assert kib < 200_000 // 2  # dense inputs alone would take 300 MB


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text", b"1 3:1 11\n0 2:1\n"),
        ("text", b"one 3:1\n0 2:1\n"),
        ("text", b"1 3:one\n0 2:1\n"),
        ("text", b"1 3:1 2:1\n0 2:1\n"),
        ("text", b"1 3:nan\n0 2:1\n"),
        ("text", b"1 3:1e39\n0 2:1\n"),
        ("text", b"inf 3:1\n0 2:1\n"),
        ("text", b""),
        ("text", b"1 3:1\n"),
        ("text", bytes(range(256))),
        ("packed.gz", gzip.compress(b"1 3:1\n0 2:1\n" * 50, mtime=0)[:-9]),
        ("packed.gz", b"1 3:1\n0 2:1\n"),
        ("packed.bz2", bz2.compress(b"1 3:1\n0 2:1\n" * 50)[:-9]),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name) as caught:
        load_data(f"libsvm:{path}")
    assert str(path) in str(caught.value)


# --- Ratings without their means ---

LINES = ["1\t1\t5\t881250949", "1\t2\t3\t881250949", "2\t1\t4\t881250949", "3\t3\t1\t881250949"]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_ids_count_from_zero(tmp_path: Path) -> None:
    table = read_ratings(write(tmp_path / "u.data", LINES), 3, 3, 4)
    assert table.tolist() == [[0, 0, 5], [0, 1, 3], [1, 0, 4], [2, 2, 1]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (LINES[:3], "3 lines of 4, expected 4 of 4 numbers"),
        ([*LINES[:3], "3\t3\t1"], "is damaged"),
        ([*LINES[:3], "3\t3\tone\t881250949"], "is damaged"),
        ([*LINES[:3], "4\t3\t1\t881250949"], r"\[4 3 1\] in line 4, expected .* to \[3 3 5\]"),
        (["0\t3\t1\t881250949", *LINES[:3]], r"\[0 3 1\] in line 1, expected"),
        ([LINES[0], "3\t9\t1\t881250949", *LINES[1:3]], r"\[3 9 1\] in line 2, expected"),
        ([*LINES[:3], "3\t3\t6\t881250949"], r"\[3 3 6\] in line 4, expected"),
        ([*LINES[:3], LINES[0]], "rates an item twice"),
        ([line.replace("\t", ",") for line in LINES], "is damaged"),
    ],
)
def test_movielens_damage_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_ratings(write(tmp_path / "u.data", lines), 3, 3, 4)
    assert "u.data" in str(caught.value)


def test_means_are_those_of_the_training_rows() -> None:
    table = np.array([[0, 0, 5], [0, 1, 3], [1, 0, 2], [2, 0, 4], [1, 2, 1]])
    train = np.array([True, True, True, False, False])
    # user 0: 4, user 1: 2, user 2 unseen: 10/3; then item 0: (1 + 0) / 2, item 1: -1, item 2
    # unseen: 0
    assert without_means(table, train, 3, 3) == pytest.approx([0.5, 0, -0.5, 4 - 10 / 3 - 0.5, -1])


# --- Speeches, the windows that are cut from them, and files that are not what they should be ---

SHAKESPEARE_TEXT = (
    "First Citizen:\nSpeak:\nI say.\n\nAll:\n\nB:\nNo, no.\n\nnot B\n\nFirst Citizen:\nYes.\n"
)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def text_of(characters: Tensor) -> str:
    return "".join(ALPHABET[i] for i in characters)


@pytest.mark.parametrize("packed", [False, True])
def test_speakers_say_what_follows_their_names(packed: bool, tmp_path: Path) -> None:
    content = gzip.compress(SHAKESPEARE_TEXT.encode()) if packed else SHAKESPEARE_TEXT.encode()
    speakers = read_speakers(written(tmp_path / "input.txt", content), len(SHAKESPEARE_TEXT))
    assert {name: text_of(said) for name, said in speakers.items()} == {
        "First Citizen": "Speak:\nI say.\n\nYes.\n",
        "All": "\n",
        "B": "No, no.\n\nnot B\n\n",
    }
    assert all(said.dtype == torch.int8 for said in speakers.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            SHAKESPEARE_TEXT[:-1].encode(),
            f"{len(SHAKESPEARE_TEXT) - 1} characters, expected {len(SHAKESPEARE_TEXT)}",
        ),
        (SHAKESPEARE_TEXT.encode() + b"\n", f"more characters, expected {len(SHAKESPEARE_TEXT)}"),
        (
            SHAKESPEARE_TEXT.replace("Yes", "Y1s").encode(),
            "byte 49 at 71, expected one of 65 characters",
        ),
        (gzip.compress(SHAKESPEARE_TEXT.encode())[:-9], "end-of-stream"),
        (gzip.compress(bytes(1 << 26)), f"more characters, expected {len(SHAKESPEARE_TEXT)}"),
    ],
    ids=("short", "long", "foreign", "cut off", "bomb"),
)
def test_shakespeare_damage_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"input\.txt is damaged: .*{message}"):
        read_speakers(written(tmp_path / "input.txt", content), len(SHAKESPEARE_TEXT))


def test_a_text_without_speakers_has_no_clients(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    written(tmp_path / "shakespeare" / "input.txt", b"a" * CHARACTERS)
    with pytest.raises(
        ValueError, match=r"input\.txt is damaged: expected a speaker with 3000 characters or more"
    ):
        load_data("shakespeare", tmp_path)


@pytest.mark.parametrize("context", [1, 5, 12, 25])
def test_windows_are_pieces_of_the_texts(context: int) -> None:
    texts = [torch.arange(size, dtype=torch.int8) % 65 for size in (300, 411)]
    together = torch.cat(texts)
    for part, stride in zip(
        cut_windows(texts, context), (max(1, context // 6), context + 1), strict=True
    ):
        assert part.inputs.shape == part.targets.shape == (len(part), context)
        assert torch.equal(part.inputs[:, 1:], part.targets[:, :-1])
        for window, target, start in zip(
            part.inputs, part.targets, part.starts.tolist(), strict=True
        ):
            assert torch.equal(together[start : start + context], window)
            assert int(together[start + context]) == int(target[-1])
        for speaker in (0, 1):
            own = part.starts[part.owners["speaker"] == speaker]
            assert torch.equal(own.diff(), torch.full((len(own) - 1,), stride))


@pytest.mark.parametrize("context", [1, 5, 12, 25])
def test_no_character_is_both_for_training_and_for_testing(context: int) -> None:
    texts = [torch.zeros(size, dtype=torch.int8) for size in (300, 411)]
    train, test = (
        {start + i for start in part.starts.tolist() for i in range(context + 1)}  # type: ignore[union-attr]
        for part in cut_windows(texts, context)
    )
    assert not train & test
    assert test <= {*range(270, 300), *range(300 + 370, 711)}  # the last tenths
    assert len(train) > 0.9 * (270 + 370)


# --- Patients of six regions: what is read, and files that are not what they should be ---

PEOPLE = (
    'pid,age,"sex, or none",E,T\nA,50,1,1.0,30.0\nB,60,0,0.0,40.5\nC,70,1,1.0,9\nnobody,80,0,0,1\n'
)
PLACES = "pid,fold,fold2\nC,train,train_3\nA,test,test_3\nB,train,train_0\n"


def written_of_tcga_brca(
    folder: Path, people: str = PEOPLE, places: str = PLACES
) -> tuple[Path, Path]:
    paths = folder / "brca.csv", folder / "train_test_split.csv"
    for path, text in zip(paths, (people, places), strict=True):
        path.write_text(text)
    return paths


def test_patients_by_fold_and_region_with_the_age_in_centuries(tmp_path: Path) -> None:
    paths = written_of_tcga_brca(tmp_path)
    train, test = (read_patients(*paths, fold) for fold in ("train", "test"))
    assert torch.equal(train.inputs, torch.tensor([[0.6, 0.0], [0.7, 1.0]]))
    assert train.targets.tolist() == [[0.0, 40.5], [1.0, 9.0]]
    assert train.owners["region"].tolist() == [0, 3]
    assert (test.targets.tolist(), test.owners["region"].tolist()) == ([[1.0, 30.0]], [3])


def test_other_files_of_patients_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tcga-brca").mkdir()
    written_of_tcga_brca(tmp_path / "tcga-brca")
    with pytest.raises(ValueError, match=r"brca\.csv is damaged: expected a file of SHA-256 07cb"):
        load_data("tcga-brca", tmp_path)
