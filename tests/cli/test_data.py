"""``fedfw data``: the lists, the tables and the pictures."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from fedfw.cli import data as command
from fedfw.data import DATASETS
from fedfw.data.sources import SOURCES, Collection, Source
from fedfw.report.holdings import plot_holdings
from tests.data.files import write_mnist


def test_list_tells_what_is_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_mnist(tmp_path / "mnist")
    assert command.list_data(tmp_path, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in told["datasets"]}
    assert told["folder"] == str(tmp_path)
    assert list(rows) == list(DATASETS)
    assert rows["digits"]["status"] == "built in"
    assert rows["mnist"]["status"] == "at hand"
    assert (rows["mnist"]["train"], rows["mnist"]["classes"], rows["mnist"]["shape"]) == (60_000, 10, [1, 28, 28])
    assert rows["mnist"]["partitions"] == ["writer"]
    assert rows["cifar10"]["status"] == f"missing: fedfw data get cifar10 --data-dir {tmp_path}"
    assert command.list_data(tmp_path, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(DATASETS)]] == list(DATASETS)
    assert any("synthetic:published-3" in line for line in lines)


def test_get(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"ratings"
    source = Source("http://127.0.0.1:9/file.txt", sha256(content).hexdigest())
    monkeypatch.setitem(SOURCES, "ml-100k", Collection("films", (source,), "Mind the terms."))
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:9/file\.txt"):
        command.get_data("ml-100k", tmp_path)
    (tmp_path / "films" / "file.txt").write_bytes(content)
    assert command.get_data("ml-100k", tmp_path) == 0  # the server is not asked
    out = capsys.readouterr().out
    assert "Mind the terms." in out
    assert f"file.txt: already in {tmp_path / 'films'}" in out
    assert command.get_data("digits", tmp_path) == 0
    assert "needs no download" in capsys.readouterr().out
    for name in ("cats", "emnist-small"):
        with pytest.raises(ValueError, match=f"no download of '{name}', expected one of mnist"):
            command.get_data(name, tmp_path)


def test_show_one_row_a_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "new" / "digits.png"
    assert command.show_data("digits", None, partition="labels:3", clients=10, seed=0, out=picture) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "digits, labels:3, 10 clients: 1,437 of 1,437 training samples"
    assert lines[-1] == f"picture: {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in picture.parent.iterdir()] == ["digits.png"]
    assert lines[2].split() == ["client", "samples", "labels", "held", *map(str, range(10))]
    for client, line in enumerate(lines[3:13]):
        number, samples, held, *counts = map(int, line.split())
        assert (number, held, sum(counts)) == (client, 3, samples)
        assert {label for label, count in enumerate(counts) if count} == {(client + j) % 10 for j in range(3)}


def test_show_many_clients_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.show_data("digits", None, partition="iid", clients=100, seed=0, out=tmp_path / "a.png")
    out = capsys.readouterr().out
    assert [line.split()[1:] for line in out.splitlines() if line.startswith("samples")] == [["14", "14", "15"]]
    assert "labels held" in out
    command.show_data("diabetes", None, partition="iid", clients=4, seed=0, out=tmp_path / "b.png")
    assert [line.split() for line in capsys.readouterr().out.splitlines()[3:5]] == [["0", "89"], ["1", "88"]]
    command.show_data("synthetic:iid", None, partition="client", clients=3, seed=0, out=tmp_path / "c.png")
    assert "clients" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.png"))) == 3


def test_pictures_are_readable_with_few_and_many_clients() -> None:
    counts = torch.arange(1, 101).reshape(10, 10) * (torch.eye(10, dtype=torch.int64) == 0)
    axis = plot_holdings(counts, "title").axes[0]
    assert (axis.get_title(), axis.get_xlabel(), axis.get_ylabel()) == ("title", "label", "client")
    assert sorted(int(text.get_text()) for text in axis.texts) == sorted(counts[counts > 0].tolist())
    bar = plot_holdings(1000 + counts, "title").axes[1]
    assert bar.get_ylim() == (1000, 1099)  # colours begin where the data do
    assert plot_holdings(torch.full((2, 3), 7), "title").axes[1].get_ylim()[1] == 7
    many = plot_holdings(torch.ones(539, 10, dtype=torch.int64), "title")
    assert not many.axes[0].texts  # no room for numbers
    assert max(many.get_size_inches()) <= 16
    bars = plot_holdings(torch.tensor([3, 1, 2]), "title").axes[0]
    assert bars.containers[0].datavalues.tolist() == [3, 1, 2]  # type: ignore[attr-defined]
