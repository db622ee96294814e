"""Every rule divides the samples exactly: none twice, none lost."""

import warnings
from hashlib import sha256

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfw.data import Part, limits, load_data, partition

CLASSES = 6


def samples_of(labels: list[int], owners: list[int] | None = None) -> Part:
    targets = torch.tensor(labels, dtype=torch.int64)
    kinds = {} if owners is None else {"writer": torch.tensor(owners, dtype=torch.int64)}
    return Part(torch.zeros(len(labels), 1), targets, kinds)


labels_drawn = st.lists(st.integers(0, CLASSES - 1), min_size=30, max_size=200)
clients_drawn = st.integers(1, 12)
seeds = st.integers(0, 2**31)


@settings(max_examples=60, deadline=None)
@given(
    labels_drawn,
    clients_drawn,
    seeds,
    st.sampled_from(["iid", "dirichlet:0.05", "dirichlet:1", "dirichlet:1e5"]),
)
def test_every_sample_has_one_client(labels: list[int], clients: int, seed: int, rule: str) -> None:
    parts = partition(rule, samples_of(labels), clients, CLASSES, seed)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            parts, partition(rule, samples_of(labels), clients, CLASSES, seed), strict=True
        )
    )


@settings(max_examples=60, deadline=None)
@given(labels_drawn, clients_drawn, seeds, st.integers(1, CLASSES), st.booleans())
def test_labels_are_held_by_their_holders(
    labels: list[int], clients: int, seed: int, k: int, unequal: bool
) -> None:
    rule = f"labels:{k}" + ",unequal" * unequal
    labels = labels + list(range(CLASSES)) * 12  # enough for every holder
    data = samples_of(labels)
    held = {i: {(i + j) % CLASSES for j in range(k)} for i in range(clients)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = partition(rule, data, clients, CLASSES, seed)
    for i, part in enumerate(parts):
        assert set(data.targets[part].tolist()) <= held[i]
    given_out = [
        row for row, label in enumerate(labels) if any(label in wanted for wanted in held.values())
    ]
    assert torch.cat(parts).sort().values.tolist() == given_out
    for label in range(CLASSES):
        counts = [
            int((data.targets[part] == label).sum())
            for i, part in enumerate(parts)
            if label in held[i]
        ]
        if not counts:
            continue
        assert min(counts) >= 1
        assert unequal or max(counts) - min(counts) <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-5, 20), min_size=1, max_size=150), seeds, st.data())
def test_owners_stay_whole(owners: list[int], seed: int, draw: st.DataObject) -> None:
    data = samples_of([0] * len(owners), owners)
    ids = sorted(set(owners))
    clients = draw.draw(st.integers(1, len(ids)))
    parts = partition("writer", data, clients, 1, seed)
    assert torch.cat(parts).sort().values.tolist() == list(range(len(owners)))
    theirs = [set(data.owners["writer"][part].tolist()) for part in parts]
    assert sum(map(len, theirs)) == len(ids)
    largest = max(owners.count(i) for i in ids)
    sizes = [len(part) for part in parts]
    if clients == len(ids):
        assert [{i} for i in ids] == theirs
    else:
        assert (
            max(sizes) - min(sizes) <= largest
        )  # the last owner dealt went to the emptiest client
    with pytest.raises(
        ValueError, match=f"{len(ids) + 1} clients, but there are {len(ids)} owners"
    ):
        partition("writer", data, len(ids) + 1, 1, seed)


def fingerprint(parts: list[Tensor]) -> str:
    return sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("rule", "seed", "clients", "expected"),
    [
        ("iid", 0, 10, "0b93338a8a360fbd"),
        ("iid", 3, 7, "57b210eaf27033ab"),
        ("labels:3", 0, 10, "b1a117d0ae8a05b7"),
        ("labels:3", 5, 23, "2d58e9e39a4ee294"),
        ("labels:1", 1, 10, "a318ee8eada24cba"),
    ],
)
def test_splits_of_stored_runs_never_change(
    rule: str, seed: int, clients: int, expected: str
) -> None:
    assert fingerprint(partition(rule, load_data("digits").train, clients, 10, seed)) == expected


def test_known_shares() -> None:
    data = samples_of([i % CLASSES for i in range(600)])
    even = partition("labels:2", data, CLASSES, CLASSES, seed=0)
    assert [part.shape[0] for part in even] == [100] * CLASSES
    uneven = partition("labels:2,unequal", data, CLASSES, CLASSES, seed=0)
    assert max(map(len, uneven)) > 3 * min(map(len, uneven))


def test_unheld_labels_are_said() -> None:
    with pytest.warns(
        UserWarning, match="with 2 clients and labels:1, 4 of 6 labels are held by no client"
    ):
        partition("labels:1", samples_of(list(range(CLASSES)) * 5), 2, CLASSES, seed=0)


UNKNOWN = {
    "": ["x", "iid:1", "labels", "dirichlet"],
    "labels:": ["", "0", "7", "-1", "2,", "2,even", "2,unequal,"],
    "dirichlet:": ["", "0", "-1", "nan", "inf", "1e7", "much"],
}


@pytest.mark.parametrize(
    "rule", [name + value for name, values in UNKNOWN.items() for value in values]
)
def test_unknown_rules_are_refused_with_the_known_ones(rule: str) -> None:
    with pytest.raises(
        ValueError, match=f"unknown partition '{rule}', expected one of iid, labels:K"
    ) as caught:
        partition(rule, samples_of(list(range(CLASSES))), 2, CLASSES, seed=0)
    assert "K from 1 to 6" in str(caught.value)


OWNED = samples_of(list(range(CLASSES)), [0, 0, 1, 1, 2, 2])
NUMBERS = Part(torch.zeros(4, 2), torch.zeros(4))
BY_CLASS = "goes by classes, but the targets are numbers"


@pytest.mark.parametrize(
    ("rule", "data", "clients", "classes", "message"),
    [
        ("iid", OWNED, 0, CLASSES, "clients=0"),
        ("labels:2", NUMBERS, 2, None, f"partition 'labels:2' {BY_CLASS}"),
        ("dirichlet:1", NUMBERS, 2, None, f"partition 'dirichlet:1' {BY_CLASS}"),
        ("labels:2,unequal", NUMBERS, 2, None, f"partition 'labels:2,unequal' {BY_CLASS}"),
        ("x", NUMBERS, 2, None, "unknown partition 'x'"),
        ("user", OWNED, 2, CLASSES, "natural owners of these data: writer"),
        ("labels:2", OWNED, 2, 5, r"classes 0 \.\. 5, expected 0 \.\. 4"),
        ("iid", OWNED, 7, CLASSES, r"leaves client \d of 7 without samples"),
        ("dirichlet:1", OWNED, 7, CLASSES, r"leaves client \d of 7 without samples"),
    ],
)
def test_what_makes_no_sense_is_refused(
    rule: str, data: Part, clients: int, classes: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        partition(rule, data, clients, classes, seed=0)


# --- The synthetic data: the published distribution, from the seed alone ---


def test_clients_do_not_depend_on_how_many_there_are() -> None:
    few, many = (
        load_data("synthetic:1,1", clients=3, seed=4),
        load_data("synthetic:1,1", clients=8, seed=4),
    )
    for client in range(3):
        for one, other in ((few.train, many.train), (few.test, many.test)):
            assert torch.equal(
                one.inputs[one.owners["client"] == client],
                other.inputs[other.owners["client"] == client],
            )
    assert not torch.equal(
        few.train.inputs[:50], load_data("synthetic:1,1", clients=3, seed=5).train.inputs[:50]
    )


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
    assert all(
        set(data.train.owners["client"][part].tolist()) == {i} for i, part in enumerate(parts)
    )


def test_plain_is_one_one() -> None:
    assert torch.equal(load_data("synthetic").train.inputs, load_data("synthetic:1,1").train.inputs)


@pytest.mark.parametrize("argument", ["x", "1", "1,2,3", "-1,1", "1,nan", "inf,1", "published-4"])
def test_other_forms_are_refused(argument: str) -> None:
    with pytest.raises(
        ValueError, match=f"unknown data 'synthetic:{argument}', expected one of synthetic:iid"
    ):
        load_data(f"synthetic:{argument}")


def test_many_clients_are_refused_before_anything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        r"synthetic for 1000000 clients takes 23\.1 GiB, expected at most 8\.0 GiB; "
        r"FEDFW_DATA_MEMORY=24 allows more"
    )
    with pytest.raises(limits.MemoryLimitError, match=message):
        load_data("synthetic:1,1", clients=10**6)
    monkeypatch.setattr(limits, "LEAST", 0)
    monkeypatch.setattr(
        limits, "LARGEST_DRAWN", 3 * 50 * 496
    )  # enough if every client has the fewest samples
    with pytest.raises(limits.MemoryLimitError, match="synthetic for 3 clients takes"):
        load_data("synthetic:1,1", clients=3)
    with limits.allow_memory(1.0):
        assert len(load_data("synthetic:1,1", clients=3).train) > 3 * 37
