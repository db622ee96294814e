"""LIBSVM text: labels become classes, sparse rows dense inputs."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfw.data import MissingDataError, load_data
from fedfw.data.libsvm import read_libsvm
from tests.data.files import DATA, needs


def own(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return f"libsvm:{path}"


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


def test_many_classes_numbers_and_one_label(tmp_path: Path) -> None:
    lines = [f"{label} 1:1" for label in (30, 10, 20, 30, 10, 20)]
    assert load_data(own(tmp_path / "classes", lines)).train.targets.tolist() == [0, 1, 2, 0]
    numbers = load_data(own(tmp_path / "numbers", [f"{label} 1:1" for label in (0.5, 1, 2, 3, 4.25)]))
    assert numbers.classes is None
    assert numbers.train.targets.tolist() == [1, 2, 3, 4.25]
    assert numbers.train.targets.dtype == torch.float32
    assert load_data(own(tmp_path / "one", ["1 1:1"] * 5)).classes is None


def test_packed_files(tmp_path: Path) -> None:
    text = b"".join(b"%d %d:1\n" % (i % 2, i + 1) for i in range(6))
    for name, data in (("own", text), ("own.gz", gzip.compress(text)), ("own.bz2", bz2.compress(text))):
        (tmp_path / name).write_bytes(data)
        assert torch.equal(load_data(f"libsvm:{tmp_path / name}").test.inputs, torch.eye(6)[[0, 5]])


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


def test_inputs_too_large_to_be_dense(tmp_path: Path) -> None:
    lines = [f"{i % 2} 1:1 1000000000:1" for i in range(5)]
    with pytest.raises(
        ValueError,
        match=r"wide: its reader needs 3\.7 GiB of memory for 1 lines of 1000000000 features as dense inputs, expected",
    ):
        load_data(own(tmp_path / "wide", lines))


def test_what_is_known_of_published_files_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "a9a"
    path.write_text("-1 3:1\n+1 5:1\n")
    rows, labels = read_libsvm(path, features=6, samples=2)
    assert rows.shape == (2, 6)
    assert labels.tolist() == [-1, 1]
    for features, samples in ((6, 3), (4, 2)):
        with pytest.raises(ValueError, match="is damaged"):
            read_libsvm(path, features, samples)
    path.write_text("-1 3:1\n-1 5:1\n")
    with pytest.raises(ValueError, match="1 kinds of labels, expected 2 and 2"):
        read_libsvm(path, 6, 2)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=f"no file nothing in {tmp_path}"):
        load_data(f"libsvm:{tmp_path / 'nothing'}")
    with pytest.raises(ValueError, match="expected libsvm:PATH"):
        load_data("libsvm")


@needs("libsvm")
def test_the_real_files() -> None:
    a9a = load_data("a9a", DATA)
    assert (a9a.classes, a9a.shape, len(a9a.train), len(a9a.test)) == (2, (123,), 32_561, 16_281)
    assert a9a.train.targets.bincount().tolist() == [24_720, 7_841]
    assert set(np.unique(a9a.train.inputs.numpy())) == {0, 1}
    assert a9a.train.inputs[0].nonzero().flatten().tolist()[:3] == [2, 10, 13]
    mushrooms = load_data("mushrooms", DATA)
    assert (mushrooms.classes, mushrooms.shape, len(mushrooms.train), len(mushrooms.test)) == (2, (112,), 6_499, 1_625)
    both = torch.cat([mushrooms.train.targets, mushrooms.test.targets])
    assert both.bincount().tolist() == [3_916, 4_208]
