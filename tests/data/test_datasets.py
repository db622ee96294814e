"""The table of data sets, the folder they lie in, and those that are built in."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
import torch

from fedfw.data import DATASETS, MissingDataError, Part, data_folder, load_data
from fedfw.data.sources import SOURCES


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FEDFW_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder(None) == tmp_path / ".cache" / "fedfw"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder(None) == tmp_path / "cache" / "fedfw"
    monkeypatch.setenv("FEDFW_DATA", str(tmp_path / "data"))
    assert data_folder(None) == tmp_path / "data"
    assert data_folder(tmp_path / "here") == tmp_path / "here"


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.folder])
def test_missing_files_are_named_with_the_command_that_gets_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = DATASETS[name]
    with pytest.raises(MissingDataError) as caught:
        load_data(name, tmp_path)
    assert f"no file {Path(entry.layouts[0][0]).name} in {tmp_path / entry.folder}" in str(caught.value)
    if name == "emnist-small":
        assert "it has no download" in str(caught.value)
        return
    assert str(caught.value).endswith(f"fedfw data get {name} --data-dir {tmp_path}")
    monkeypatch.setenv("FEDFW_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match=f"fedfw data get {name}$"):
        load_data(name)


def test_the_file_that_is_missing_is_the_one_that_is_named(tmp_path: Path) -> None:
    inner = tmp_path / "cifar10" / "cifar-10-batches-bin"
    inner.mkdir(parents=True)
    (inner / "data_batch_1.bin").touch()
    with pytest.raises(MissingDataError, match=rf"no file data_batch_2\.bin in {inner}"):
        load_data("cifar10", tmp_path)


def test_what_is_downloaded_is_what_the_loaders_look_for() -> None:
    for name, collection in SOURCES.items():
        got = {file for source in collection.sources for file in source.members or (source.file,)}
        if name != "qmnist-labels":
            assert collection.folder == DATASETS[name].folder
            assert set(DATASETS[name].layouts[0]) <= got


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"unknown dataset 'diggits' \(did you mean 'digits'\?\), expected one of"):
        load_data("diggits")
    with pytest.raises(ValueError, match="unknown dataset 'cats', expected one of digits, diabetes"):
        load_data("cats")
    with pytest.raises(ValueError, match="digits takes no argument"):
        load_data("digits:8")
    with pytest.raises(ValueError, match="clients=0"):
        load_data("synthetic", clients=0)


def test_digits() -> None:
    data = load_data("digits")
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (10, (1, 8, 8), 1437, 360)
    assert sha256(data.train.inputs.numpy().tobytes()).hexdigest()[:16] == "af1cfa41b5ce0bbb"  # the split never changes
    assert (float(data.train.inputs.min()), float(data.train.inputs.max())) == (0, 1)
    assert torch.equal(data.train.take()[0], data.train.inputs)


def test_diabetes() -> None:
    data = load_data("diabetes")
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (None, (10,), 353, 89)
    assert data.train.targets.dtype == data.train.inputs.dtype == torch.float32
    assert float(data.train.targets.mean()) == pytest.approx(0, abs=1e-6)
    assert float(data.train.targets.std(correction=0)) == pytest.approx(1, abs=1e-6)
    everything = torch.cat([data.train.inputs, data.test.inputs])
    assert torch.allclose(everything.square().sum(0), torch.ones(10), atol=1e-5)  # as scikit-learn scales them


def test_sparse() -> None:
    data, again, other = load_data("sparse:60"), load_data("sparse:60"), load_data("sparse:60", seed=1)
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (2, (60,), 5000, 2000)
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert not torch.equal(data.train.inputs, other.train.inputs)
    assert torch.equal(data.train.inputs.abs(), torch.ones(5000, 60))
    # The mean of y x is far from zero for the ten features that matter, and for no other.
    told = ((2.0 * data.train.targets - 1)[:, None] * data.train.inputs).mean(0).abs()
    assert int((told > 0.08).sum()) == 10
    assert float(told.sort().values[-11]) < 0.06
    assert load_data("sparse").shape == (1000,)
    for wrong in ("sparse:9", "sparse:few"):
        with pytest.raises(ValueError, match="expected sparse:P with at least 10 features"):
            load_data(wrong)
    with pytest.raises(ValueError, match=r"sparse:100000000 takes 10430\.8 GiB, expected at most 8\.0 GiB"):
        load_data("sparse:100000000")


def test_the_table_says_what_the_data_are() -> None:
    for name in ("digits", "diabetes"):
        entry, data = DATASETS[name], load_data(name)
        assert (entry.shape, entry.classes, entry.samples) == (
            data.shape,
            data.classes,
            (len(data.train), len(data.test)),
        )
    assert DATASETS["synthetic"].owners == tuple(load_data("synthetic").train.owners)


def test_parts_must_fit_together() -> None:
    with pytest.raises(ValueError, match=r"targets of shape \(2,\), expected one for 3 inputs"):
        Part(torch.zeros(3, 4), torch.zeros(2))
    assert len(Part(torch.zeros(3, 4), torch.zeros(3, 4))) == 3  # a target for each character of a sequence
    with pytest.raises(ValueError, match=r"targets of shape \(3, 3\)"):
        Part(torch.zeros(3, 4), torch.zeros(3, 3))
    with pytest.raises(ValueError, match="writer of shape"):
        Part(torch.zeros(3, 4), torch.zeros(3), {"writer": torch.zeros(4)})


def test_capital_letters_do_not_matter_and_arguments_keep_theirs(tmp_path: Path) -> None:
    assert load_data("Digits").name == load_data("digits").name
    (tmp_path / "Mine.txt").write_text("".join(f"{i % 2} 1:{i}\n" for i in range(10)))
    assert len(load_data(f"LIBSVM:{tmp_path / 'Mine.txt'}").train) == 8
