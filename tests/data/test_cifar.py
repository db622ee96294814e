"""CIFAR-10's binary records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedfw.data import load_data
from fedfw.data.cifar import read_batches
from tests.data.files import DATA, Array, needs


def batch(path: Path, labels: list[int], seed: int) -> Array:
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 32, 32), np.uint8)
    path.write_bytes(b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, pixels, strict=True)))
    return pixels


def test_records_become_images_in_the_order_of_the_files(tmp_path: Path) -> None:
    paths = [tmp_path / "one.bin", tmp_path / "two.bin"]
    pixels = [batch(paths[0], [3, 9], 0), batch(paths[1], [0, 5], 1)]
    part = read_batches(paths, 2)
    assert part.inputs.dtype == torch.uint8
    assert np.array_equal(part.inputs.numpy(), np.concatenate(pixels))
    assert part.targets.tolist() == [3, 9, 0, 5]


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one.bin"
    batch(path, [3, 10], 0)
    with pytest.raises(ValueError, match=r"one\.bin is damaged: labels 3 \.\. 10, expected 0 \.\. 9"):
        read_batches([path], 2)
    batch(path, [3, 9], 0)
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"\0", whole[:3073], b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"one\.bin is damaged: {len(content)} bytes, expected 2 records of 3073"):
            read_batches([path], 2)


@needs("cifar10")
def test_the_real_images() -> None:
    data = load_data("cifar10", DATA)
    assert data.train.inputs.shape == (50_000, 3, 32, 32)
    assert data.train.targets.bincount().tolist() == [5000] * 10
    assert data.test.targets.bincount().tolist() == [1000] * 10
    assert data.train.targets[:5].tolist() == [6, 9, 9, 4, 1]
    means = data.train.inputs[::10].float().mean((0, 2, 3)) / 255
    assert torch.allclose(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=5e-3)  # red, green, blue
