"""Speeches, the windows that are cut from them, and files that are not what they should be."""

from __future__ import annotations

import gzip
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedfw.data import DATASETS, load_data, partition
from fedfw.data.shakespeare import ALPHABET, CHARACTERS, LEAST, cut_windows, read_speakers
from fedfw.data.sources import SOURCES
from tests.data.files import DATA, needs

TEXT = "First Citizen:\nSpeak:\nI say.\n\nAll:\n\nB:\nNo, no.\n\nnot B\n\nFirst Citizen:\nYes.\n"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def text_of(characters: Tensor) -> str:
    return "".join(ALPHABET[i] for i in characters)


@pytest.mark.parametrize("packed", [False, True])
def test_speakers_say_what_follows_their_names(packed: bool, tmp_path: Path) -> None:
    content = gzip.compress(TEXT.encode()) if packed else TEXT.encode()
    speakers = read_speakers(written(tmp_path / "input.txt", content), len(TEXT))
    assert {name: text_of(said) for name, said in speakers.items()} == {
        "First Citizen": "Speak:\nI say.\n\nYes.\n",
        "All": "\n",
        "B": "No, no.\n\nnot B\n\n",
    }
    assert all(said.dtype == torch.int8 for said in speakers.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT[:-1].encode(), f"{len(TEXT) - 1} characters, expected {len(TEXT)}"),
        (TEXT.encode() + b"\n", f"more characters, expected {len(TEXT)}"),
        (TEXT.replace("Yes", "Y1s").encode(), "byte 49 at 71, expected one of 65 characters"),
        (gzip.compress(TEXT.encode())[:-9], "end-of-stream"),
        (gzip.compress(bytes(1 << 26)), f"more characters, expected {len(TEXT)}"),
    ],
    ids=("short", "long", "foreign", "cut off", "bomb"),
)
def test_damage_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"input\.txt is damaged: .*{message}"):
        read_speakers(written(tmp_path / "input.txt", content), len(TEXT))


def test_a_text_without_speakers_has_no_clients(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    written(tmp_path / "shakespeare" / "input.txt", b"a" * CHARACTERS)
    with pytest.raises(ValueError, match=r"input\.txt is damaged: expected a speaker with 3000 characters or more"):
        load_data("shakespeare", tmp_path)


@pytest.mark.parametrize("context", [1, 5, 12, 25])
def test_windows_are_pieces_of_the_texts(context: int) -> None:
    texts = [torch.arange(size, dtype=torch.int8) % 65 for size in (300, 411)]
    together = torch.cat(texts)
    for part, stride in zip(cut_windows(texts, context), (max(1, context // 6), context + 1), strict=True):
        assert part.inputs.shape == part.targets.shape == (len(part), context)
        assert torch.equal(part.inputs[:, 1:], part.targets[:, :-1])
        assert part.starts is not None
        for window, target, start in zip(part.inputs, part.targets, part.starts.tolist(), strict=True):
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


@pytest.mark.parametrize("context", ["0", "257", "few", "-3", "9" * 50, "²"])
def test_contexts_that_are_refused(context: str, tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    written(tmp_path / "shakespeare" / "input.txt", b"")
    with pytest.raises(ValueError, match=f"shakespeare:{context}, expected a context of 1 to 256 characters"):
        load_data(f"shakespeare:{context}", tmp_path)


@needs("shakespeare")
def test_the_real_speeches() -> None:
    path = DATA / "shakespeare" / "input.txt.gz"
    (source,) = SOURCES["shakespeare"].sources
    assert sha256(gzip.decompress(path.read_bytes())).hexdigest() == source.sha256
    speakers = read_speakers(path, CHARACTERS)
    assert len(speakers) == 309  # ten of them are named and say nothing
    assert sum(len(said) >= LEAST for said in speakers.values()) == 82
    assert text_of(speakers["First Citizen"]).startswith("Before we proceed any further, hear me speak.\n\nYou are all")

    data, entry = load_data("shakespeare", DATA), DATASETS["shakespeare"]
    assert (data.shape, data.classes, (len(data.train), len(data.test))) == (entry.shape, entry.classes, entry.samples)
    assert entry.owners == tuple(data.train.owners)
    assert data.sequences
    inputs, targets = data.test.take(torch.arange(3))
    assert inputs.dtype == targets.dtype == torch.int64
    for part in (data.train, data.test):
        assert part.owners["speaker"].unique().tolist() == list(range(82))
    assert load_data("shakespeare:32", DATA).shape == (32,)


@needs("shakespeare")
def test_clients_are_speakers_or_groups_of_them() -> None:
    train = load_data("shakespeare", DATA).train
    everyone, few = (partition("speaker", train, clients, 65, 0) for clients in (82, 10))
    assert [train.owners["speaker"][part].unique().tolist() for part in everyone] == [[i] for i in range(82)]
    groups = [set(train.owners["speaker"][part].tolist()) for part in few]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 82
    for rule in ("labels:3", "dirichlet:0.1"):
        with pytest.raises(ValueError, match="goes by classes, but a target is a sequence of them"):
            partition(rule, train, 10, 65, 0)
