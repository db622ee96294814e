"""From names to objects: what a configuration leaves open is filled in, and what does not belong is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfw
from fedfw.config import RunConfig, build_algorithm, build_problem, completed, constraint_of, load, rooted
from fedfw.data import Data


@cache
def digits() -> Data:
    return load(RunConfig())


def filled(**values: Any) -> RunConfig:
    return completed(RunConfig.of(**values), digits())


def test_what_is_left_open_is_filled_in_by_names() -> None:
    config = filled()
    assert (config.algorithm, config.model, config.partition, config.constraint) == (
        "fedfw+",
        "mclr",
        "labels:3",
        "ksparse:k=65,r=1",
    )
    assert filled(per_parameter=True).constraint == "l1:30"  # the bias has fewer than 65 entries
    other = load(RunConfig(dataset="synthetic:iid"))
    assert completed(RunConfig(dataset="synthetic:iid"), other).constraint == "l1:30"
    assert config.get("momentum") == 0.9
    assert not config.per_parameter
    assert completed(config, digits()) == config
    assert filled(momentum=0.3).get("momentum") == 0.3
    assert filled(algorithm="fedfw").own == ()  # numbers are left to the algorithm
    assert filled(algorithm="fedfw-sto").batch_size == 64
    assert filled(algorithm="fedfw-sto", batch_size=8).batch_size == 8
    network = filled(model="mlp")
    assert (network.constraint, network.per_parameter) == ("l2:10", True)
    assert not filled(model="mlp", constraint="l1:5").per_parameter


def test_what_works_on_the_command_line_works_from_python() -> None:
    """The same names give the same run as the objects that they stand for."""
    config = filled(algorithm="fedfw", constraint="l2:5", penalty="auto:2", clients=4, partition="iid")
    problem, algorithm = build_problem(config, digits()), build_algorithm(config)
    assert algorithm == fedfw.FedFW(fedfw.L2Ball(5), penalty="auto:2")
    by_hand = fedfw.load_problem("digits", clients=4, partition="iid")
    one = fedfw.simulate(problem, algorithm, rounds=5)
    other = fedfw.simulate(by_hand, fedfw.FedFW(fedfw.L2Ball(5.0), penalty="auto:2"), rounds=5)
    assert torch.equal(one.x, other.x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm": "fedfw", "mu": 1.0}, "mu goes with fedavg, not with fedfw"),
        ({"algorithm": "naive", "penalty": 0.1}, r"penalty goes with fedfw, fedfw\+, .*, not with naive"),
        ({"algorithm": "fedfw", "anchor_every": 3}, "anchor-every goes with fedfw-anchored, not with fedfw"),
        ({"algorithm": "fedww"}, r"unknown algorithm 'fedww' \(did you mean 'fedfw'\?\), expected one of fedfw"),
        ({"model": "mclrr"}, r"unknown model 'mclrr' \(did you mean 'mclr'\?\), expected one of"),
    ],
)
def test_what_does_not_belong_together_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled(**values)


def test_sets_of_all_or_of_each_parameter() -> None:
    assert constraint_of(filled(constraint="l1:3")) == fedfw.L1Ball(3)
    each = constraint_of(filled(constraint="l1:3", per_parameter=True))
    assert isinstance(each, fedfw.Product)
    with pytest.raises(ValueError, match="l1"):
        constraint_of(filled(constraint="l11:3"))


def test_paths_are_made_absolute_so_that_a_run_goes_on_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rooted(RunConfig.of(dataset="mnist", data_dir="here")).data_dir == str(tmp_path / "here")
    assert rooted(RunConfig.of(dataset="digits")) == RunConfig.of(dataset="digits")
