"""The synthetic data: the published distribution, from the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedfw.data import limits, load_data, partition
from fedfw.data.synthetic import LARGEST, client_size


def test_clients_do_not_depend_on_how_many_there_are() -> None:
    few, many = load_data("synthetic:1,1", clients=3, seed=4), load_data("synthetic:1,1", clients=8, seed=4)
    for client in range(3):
        for one, other in ((few.train, many.train), (few.test, many.test)):
            assert torch.equal(
                one.inputs[one.owners["client"] == client], other.inputs[other.owners["client"] == client]
            )
    assert not torch.equal(few.train.inputs[:50], load_data("synthetic:1,1", clients=3, seed=5).train.inputs[:50])


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("synthetic", 10),
        ("synthetic:iid", 10),
        ("synthetic:0.5,0.5", 10),
        ("synthetic:published-10", 10),
        ("synthetic:published-3", 3),
    ],
)
def test_every_form(name: str, classes: int) -> None:
    data = load_data(name, clients=12, seed=1)
    assert (data.name, data.classes, data.shape) == (name, classes, (60,))
    assert data.train.inputs.dtype == torch.float32
    assert 0 <= int(data.train.targets.min()) <= int(data.train.targets.max()) < classes
    train, test = (part.owners["client"].bincount(minlength=12) for part in (data.train, data.test))
    assert torch.equal(test, ((train + test) // 4))
    assert int((train + test).min()) >= (250 if "published" in name else 50)
    parts = partition("client", data.train, 12, classes, seed=0)
    assert all(set(data.train.owners["client"][part].tolist()) == {i} for i, part in enumerate(parts))


def test_plain_is_one_one() -> None:
    assert torch.equal(load_data("synthetic").train.inputs, load_data("synthetic:1,1").train.inputs)


def test_sizes_follow_the_lognormal_and_are_capped() -> None:
    random = np.random.Generator(np.random.PCG64(0))
    sizes = np.array([client_size(random, 1) for _ in range(20_000)])
    assert sizes.min() == 50
    assert sizes.max() == LARGEST
    assert np.median(sizes) == pytest.approx(50 + np.exp(4), rel=0.05)
    assert np.mean(sizes > 50 + np.exp(6)) == pytest.approx(0.1587, abs=0.01)  # one deviation above the median


def test_iid_inputs_are_centred_with_the_given_covariance() -> None:
    inputs = load_data("synthetic:iid", clients=60, seed=2).train.inputs
    variances = torch.arange(1, 61) ** -1.2
    assert torch.allclose(inputs.var(0), variances, rtol=0.06)
    assert bool((inputs.mean(0).abs() < 5 * (variances / len(inputs)).sqrt()).all())


def test_iid_clients_share_one_model_and_others_do_not() -> None:
    """The least-squares map to one-hot labels of one client serves another one only if they share their model."""

    def accuracy_elsewhere(name: str) -> float:
        data = load_data(name, clients=40, seed=0)
        sizes = data.train.owners["client"].bincount()
        first, second = sizes.argsort(descending=True)[:2].tolist()
        rows = [data.train.take((data.train.owners["client"] == i).nonzero().flatten()) for i in (first, second)]
        (x, y), (other_x, other_y) = rows
        weights = torch.linalg.lstsq(torch.nn.functional.pad(x, (0, 1), value=1.0), torch.eye(10)[y]).solution
        return float(
            ((torch.nn.functional.pad(other_x, (0, 1), value=1.0) @ weights).argmax(1) == other_y).float().mean()
        )

    assert accuracy_elsewhere("synthetic:iid") > 0.7
    assert accuracy_elsewhere("synthetic:1,1") < 0.5


def test_beta_moves_the_clients_apart() -> None:
    def distance(name: str) -> float:
        data = load_data(name, clients=30, seed=3)
        owners = data.train.owners["client"]
        centres = torch.stack([data.train.inputs[owners == i].mean(0) for i in range(30)])
        return float(centres.mean(1).std())  # the mean of a client's v_k is near its B_k

    assert distance("synthetic:iid") < 0.1
    assert distance("synthetic:0,0") < 0.3
    assert distance("synthetic:0,5") == pytest.approx(5, rel=0.4)  # a standard deviation, not a variance


@pytest.mark.parametrize("argument", ["x", "1", "1,2,3", "-1,1", "1,nan", "inf,1", "published-4"])
def test_other_forms_are_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=f"unknown data 'synthetic:{argument}', expected one of synthetic:iid"):
        load_data(f"synthetic:{argument}")


def test_many_clients_are_refused_before_anything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        r"synthetic for 1000000 clients takes 23\.1 GiB, expected at most 8\.0 GiB; FEDFW_DATA_MEMORY=24 allows more"
    )
    with pytest.raises(limits.MemoryLimitError, match=message):
        load_data("synthetic:1,1", clients=10**6)
    monkeypatch.setattr(limits, "LEAST", 0)
    monkeypatch.setattr(limits, "LARGEST_DRAWN", 3 * 50 * 496)  # enough if every client has the fewest samples
    with pytest.raises(limits.MemoryLimitError, match="synthetic for 3 clients takes"):
        load_data("synthetic:1,1", clients=3)
    with limits.allow_memory(1.0):
        assert len(load_data("synthetic:1,1", clients=3).train) > 3 * 37
