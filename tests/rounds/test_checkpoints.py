"""Checkpoints as files: everything comes back to the bit, and nothing is taken that was not written."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from torch import Tensor

from fedfw.rounds.checkpoints import FORMAT, DamagedCheckpointError, _checksum, load_checkpoint, save_checkpoint
from fedfw.rounds.files import write_atomically

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 1e3
    values = values.to(draw(st.sampled_from(DTYPES)))
    if values.is_floating_point() and values.numel():
        values.view(-1)[0] = draw(st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 1e-42]))
    return values.T if values.ndim == 2 and draw(st.booleans()) else values


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    held=st.dictionaries(names, tensors(), max_size=5), meta=st.dictionaries(st.text(max_size=6), json_data, max_size=4)
)
@settings(max_examples=60)
def test_everything_comes_back_to_the_bit(held: dict[str, Tensor], meta: dict[str, Any]) -> None:
    held.pop("__metadata__", None)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        save_checkpoint(path, held, meta)
        again, told = load_checkpoint(path)
    assert told == meta
    assert again.keys() == held.keys()
    for name, value in held.items():
        assert again[name].dtype == value.dtype
        assert again[name].shape == value.shape
        assert again[name].contiguous().numpy().tobytes() == value.contiguous().numpy().tobytes()
        if again[name].numel():
            again[name].view(-1)[0] = 1  # what was read can be written to


def test_a_single_number_stays_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint", {"number": torch.tensor(3.0)}, {})
    assert load_checkpoint(tmp_path / "checkpoint")[0]["number"].shape == ()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "checkpoint"
    save_checkpoint(path, {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7)}, {"round": 3, "history": "{}\n"})
    return path.read_bytes()


def test_every_changed_byte_is_noticed(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises((DamagedCheckpointError, ValueError), match=r"damaged|has checkpoint format"):
            load_checkpoint(path)
    path.write_bytes(good)
    assert load_checkpoint(path)[1]["round"] == 3


@given(cut=st.integers(0, 10**6), more=st.binary(max_size=5), noise=st.binary(max_size=300))
def test_cut_lengthened_and_foreign_files_are_damaged(good: bytes, cut: int, more: bytes, noise: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        for data in (good[: cut % len(good)], good + b"x" + more, noise, b"fedfw-checkpoint 2\n{" + noise):
            path.write_bytes(data)
            with pytest.raises(DamagedCheckpointError, match="is damaged"):
                load_checkpoint(path)


def test_another_format_is_refused_in_words(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not damaged: another version of the library wrote it."""
    path = tmp_path / "checkpoint"
    monkeypatch.setattr("fedfw.rounds.checkpoints.FORMAT", FORMAT + 4)
    save_checkpoint(path, {"a": torch.ones(2)}, {})
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"has checkpoint format {FORMAT + 4}, this version reads {FORMAT}") as caught:
        load_checkpoint(path)
    assert not isinstance(caught.value, DamagedCheckpointError)


@pytest.mark.parametrize(
    "head", [{}, {"format": "3"}, {"format": "3", "meta": "{}"}, {"format": "3", "meta": "[", "sha256": ""}]
)
def test_a_safetensors_file_of_somebody_else_is_refused(head: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(save({"a": np.ones(3)}, head))
    with pytest.raises(DamagedCheckpointError):
        load_checkpoint(path)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "nothing")


def test_what_json_cannot_say_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path / "checkpoint", {}, {"x": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []


def test_files_are_replaced_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "some" / "folder" / "file"
    write_atomically(target, b"old")
    assert target.read_bytes() == b"old"

    def fails(*of: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("fedfw.rounds.files.os.fsync", fails)
    with pytest.raises(OSError, match="full"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    monkeypatch.undo()
    write_atomically(target, json.dumps({"new": 1}).encode())
    assert json.loads(target.read_text()) == {"new": 1}


# --- what would take much memory ---


def repacked(path: Path, shapes: dict[str, Any], **arrays: Any) -> None:
    """A checkpoint of these arrays and shapes, with a checksum that fits."""
    held = {name.replace("_at", "\0at"): np.asarray(array) for name, array in arrays.items()}
    head = {"format": str(FORMAT), "meta": "{}", "shapes": json.dumps(shapes)}
    path.write_bytes(save(held, head | {"sha256": _checksum(held, head)}))


ENTRIES = {"x": np.ones(2, np.float32), "x_at": np.array([0, 1], np.uint32)}


@pytest.mark.parametrize(
    ("shapes", "arrays", "message"),
    [
        ({"x": [1 << 40]}, ENTRIES, r"its tensors take 4096\.0 GiB of memory, expected at most 1\.0 GiB"),
        ({"x": [3, 1 << 28]}, ENTRIES, r"its tensors take 3\.0 GiB of memory"),
        ({"x": [-1]}, ENTRIES, r"'x' has the shape \[-1\]"),
        ({"x": ["2"]}, ENTRIES, r"'x' has the shape"),
        ({"x": [1]}, ENTRIES, r"'x' has entries outside of its shape \[1\]"),
        ({"x": [3]}, ENTRIES | {"x_at": np.array([0, -1])}, "'x' has entries outside of its shape"),
        ({"x": [3]}, ENTRIES | {"x_at": np.array([0])}, "'x' has entries outside of its shape"),
        ({"x": [3]}, ENTRIES | {"x_at": np.array([0.0, 1.0])}, "'x' has entries outside of its shape"),
        ({"x": [3]}, {"x": np.ones(2, np.float32)}, "x.*at"),
        ({"y": [3]}, ENTRIES, "'y'"),
    ],
)
def test_a_small_file_does_not_become_large_tensors(
    shapes: dict[str, Any], arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    repacked(tmp_path / "checkpoint", shapes, **arrays)
    with pytest.raises(DamagedCheckpointError, match=f"checkpoint is damaged: .*{message}"):
        load_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_written_can_be_read_within_the_limit(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {name: torch.zeros(size, dtype=dtype) for name, size in (("a", 5000), ("b", 50_000), ("c", 6000))}
    for number, tensor in enumerate(held.values(), 1):
        tensor[number] = number
    path = tmp_path / "checkpoint"
    save_checkpoint(path, held, {})
    assert path.stat().st_size < 2000
    monkeypatch.setattr("fedfw.data.limits.LEAST", 50_000)
    with pytest.raises(DamagedCheckpointError, match="where the file is trusted, allow more by FEDFW_DATA_MEMORY"):
        load_checkpoint(path)
    save_checkpoint(path, held, {})  # the largest tensor is now written whole
    whole = held["b"].nbytes
    assert whole < path.stat().st_size < whole + 2000
    again, _ = load_checkpoint(path)
    assert all(torch.equal(again[name], held[name]) for name in held)
