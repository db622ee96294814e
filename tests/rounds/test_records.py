"""Records and histories: columns, files, and back."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedfw
from fedfw.deployment import DeployedRecord
from fedfw.rounds.records import History, Record
from fedfw.testing.known_quadratics import Quadratics

numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**60)
records = st.builds(
    Record,
    round=st.integers(1, 10**6),
    loss=numbers,
    gap=numbers,
    lower_bound=numbers,
    participants=counts,
    bytes_up=counts,
    evidence_up=counts,
    evidence_down=counts,
    seconds=st.none() | st.dictionaries(st.sampled_from(["gradient", "oracle", "rest"]), st.floats(0, 1e6)),
)


@given(st.lists(records, max_size=6))
def test_a_history_survives_its_lines(listed: list[Record]) -> None:
    history = History(listed)
    again = History.from_jsonl(history.to_jsonl())
    assert list(again) == listed
    assert again.to_jsonl() == history.to_jsonl()
    assert again.to_dict() == {f.name: [getattr(r, f.name) for r in listed] for f in fields(Record)}


@given(st.lists(records, min_size=1, max_size=6), st.lists(st.sampled_from(["append", "amend", "write"]), max_size=8))
def test_lines_follow_what_was_appended_and_amended(listed: list[Record], course: list[str]) -> None:
    """They are kept from one writing to the next, since a checkpoint a round would write them all anew."""
    history, wanted = History(listed[:1]), [asdict(listed[0])]
    for number, what in enumerate(course):
        if what == "append":
            record = listed[number % len(listed)]
            history.append(record)
            wanted.append(asdict(record))
        elif what == "amend":
            history.amend(loss=float(number))
            wanted[-1]["loss"] = float(number)
        else:
            history.to_jsonl()
        assert [json.loads(line) for line in history.to_jsonl().splitlines()] == wanted


def test_a_history_is_a_sequence() -> None:
    history = History([Record(round=t, loss=None if t % 2 else 1.0 / t, bytes_up=t) for t in range(1, 8)])
    assert (len(history), repr(history)) == (7, "History(7 rounds, loss 0.1667)")
    assert [r.round for r in history[2:4]] == [3, 4]
    assert isinstance(history[2:4], History)
    assert history[-1].round == 7
    assert history.last("loss") == 1 / 6
    assert history.last("gap") is None
    assert history.total("bytes_up") == 28
    assert History().last("loss") is None
    assert not History()


def test_history_as_columns_and_csv(tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    run = fedfw.simulate(q.problem, fedfw.FedFW(q.constraint), rounds=5, eval_every=2)
    columns = run.history.to_dict()
    assert columns["round"] == [1, 2, 3, 4, 5]
    assert [value is None for value in columns["loss"]] == [True, False, True, False, False]
    run.history.to_csv(tmp_path / "h.csv")
    with open(tmp_path / "h.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    assert {"seconds_gradient", "seconds_oracle", "seconds_rest"} <= set(rows[0])
    assert [row["bytes_up"] for row in rows] == [str(value) for value in columns["bytes_up"]]
    assert [float(row["loss"]) for row in rows if row["loss"]] == [v for v in columns["loss"] if v is not None]
    assert History.from_jsonl(run.history.to_jsonl()).to_dict() == columns
    figure = run.plot()
    assert len(figure.axes) == 4


def test_lines_of_version_0_1_are_read() -> None:
    """They have no evidence beside the payload."""
    old: dict[str, Any] = asdict(Record(round=3, loss=0.5, bytes_up=7, seconds={"rest": 0.1}))
    del old["evidence_up"], old["evidence_down"]
    record = History.from_jsonl(json.dumps(old) + "\n")[0]
    assert (record.loss, record.bytes_up, record.evidence_up, record.evidence_down) == (0.5, 7, 0, 0)


def test_a_deployment_has_records_of_its_own() -> None:
    history = History([DeployedRecord(round=1, refused={"replayed": 2}, joined=[4])])
    again = History.from_jsonl(history.to_jsonl(), DeployedRecord)
    assert list(again) == list(history)
    with pytest.raises(TypeError):
        History.from_jsonl(history.to_jsonl())


def test_a_column_by_its_name() -> None:
    history = History([Record(round=1, loss=0.5, bytes_up=3), Record(round=2, bytes_up=4)])
    assert history["loss"] == [0.5, None]
    assert history["round"] == [1, 2]
    with pytest.raises(KeyError, match=r"no column 'los' \(did you mean 'loss'\?\), expected one of round, loss"):
        history["los"]
    deployed = History([DeployedRecord(round=1, invited=7)])
    assert deployed["invited"] == [7]


def test_sums_of_whole_numbers_are_whole() -> None:
    history = History([Record(round=1, loss=0.5, bytes_up=2**60), Record(round=2, bytes_up=1)])
    assert history.total("bytes_up") == 2**60 + 1
    assert isinstance(history.total("bytes_up"), int)
    assert history.total("loss") == 0.5


def test_a_history_in_a_notebook_shows_its_ends() -> None:
    history = History([Record(round=t, loss=1 / t, bytes_up=t) for t in range(1, 31)])
    assert repr(history) == "History(30 rounds, loss 0.03333)"
    page = history._repr_html_()
    assert page.count("<tr>") == 1 + 5 + 1 + 5
    assert "<td>1</td>" in page
    assert "<td>0.03333</td>" in page
    assert "<td>15</td>" not in page
    assert "accuracy" not in page  # nobody evaluated it
    assert "History of 0 rounds" in History()._repr_html_()


def test_a_frame_keeps_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With something that stands for pandas, which the tests do not install."""

    class Frame(dict[str, Any]):
        def set_index(self, name: str) -> Frame:
            assert name in self
            return self

    def series(values: list[Any], dtype: str | None) -> tuple[list[Any], str | None]:
        return values, dtype

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame, Series=series))
    frame = History([Record(round=1, loss=0.5, seconds={"rest": 0.1}), Record(round=2, bytes_up=4)]).to_frame()
    assert frame["bytes_up"] == ([0, 4], "int64")
    assert frame["loss"] == ([0.5, None], "float64")
    assert frame["accuracy"] == ([None, None], "float64")
    assert frame["seconds_rest"] == ([0.1, None], "float64")
    assert "seconds" not in frame
    assert History().to_frame()["loss"] == ([], "float64")


def test_a_frame_without_pandas_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pandas is not installed: pip install pandas, or take"):
        History().to_frame()
