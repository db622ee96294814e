"""A configuration: one flat list of options, as TOML and back, and from flags."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedfw
from fedfw.config import (
    RunConfig,
    all_options,
    app_table,
    completed,
    load,
    merge,
    read_app_config,
    read_config,
)
from fedfw.config.run_config import VERSION_KEY
from fedfw.data import Data
from fedfw.deployment.settings import SIMULATED_ONLY, Deployment
from fedfw.options import options_of
from fedfw.presets import ProblemOptions
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation

# --- TOML and back ---

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""Text of any characters, those beyond the basic plane among them."""
configs = st.fixed_dictionaries(
    {},
    optional={
        "dataset": anything,
        "data_dir": anything,
        "model": anything,
        "l2": st.floats(0, 1e38),
        "clients": st.integers(1, 10**6),
        "partition": anything,
        "weights": st.sampled_from(["equal", "samples"]),
        "algorithm": anything,
        "constraint": anything,
        "per_parameter": st.booleans(),
        "rounds": st.integers(1, 10**9),
        "participation": st.integers(2, 1000) | st.floats(1e-9, 1.0),  # as a text, 1 is everyone
        "local_steps": st.integers(1, 100),
        "batch_size": st.none() | st.integers(1, 100),
        "tol": st.none() | st.floats(1e-300, 1e38),
        "eval_every": st.integers(1, 100),
        "polish": st.sampled_from([None, "support"]),
        "seed": st.integers(0, 2**63 - 1),
        "device": st.sampled_from(["cpu", "cuda"]),
        "privacy": st.just("eps=4,delta=1e-5"),
        "penalty": st.floats(0, 1e6) | st.sampled_from(["auto", "theory:3", "auto:0.1"]),
        "momentum": st.floats(0, 0.999) | st.just("auto"),
        "schedule": st.sampled_from(["convex", "constant:0.1"]),
        "anchor_every": st.integers(1, 50),
        "lr": st.floats(1e-6, 10) | st.just("theory"),
        "mu": st.floats(0, 10),
        "alpha": st.floats(0.001, 1.999),
    },
)


@given(configs)
def test_toml_and_back(values: dict[str, Any]) -> None:
    config = RunConfig.of(**values)
    text = config.to_toml()
    table = tomllib.loads(text)
    assert table.pop(VERSION_KEY) == fedfw.__version__
    assert table == config.items()
    again = merge(RunConfig(), table, "here")
    assert again == config
    assert again.to_toml() == text


def test_the_one_list_has_every_option_that_can_be_written_down() -> None:
    listed = all_options()
    for cls in (Options, ProblemOptions, *fedfw.ALGORITHMS.values()):
        for name, declared in options_of(cls).items():
            assert (name in listed) == declared.textual
    assert {"algorithm", "constraint", "per_parameter"} <= set(listed)
    assert "relax" not in listed
    keys = [declared.key for declared in listed.values()]
    assert len(set(keys)) == len(keys)


# --- reading ---


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"rounds": "7"}, {"rounds": 7}),
        ({"participation": "0.5"}, {"participation": 0.5}),
        ({"participation": "5"}, {"participation": 5}),
        ({"per-parameter": "true"}, {"per_parameter": True}),
        ({"tol": 1}, {"tol": 1.0}),
        ({"penalty": "0.1"}, {"penalty": 0.1}),
        ({"penalty": "auto:3"}, {"penalty": "auto:3"}),
        ({"anchor-every": "4"}, {"anchor_every": 4}),
        ({"mu": "1"}, {"mu": 1.0}),
        ({"dataset": "123"}, {"dataset": "123"}),
        ({"data-dir": "1e5"}, {"data_dir": "1e5"}),
        ({"privacy": "eps=4,delta=1e-5"}, {"privacy": "eps=4,delta=1e-5"}),
    ],
)
def test_text_is_parsed_by_what_is_declared(
    table: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = merge(RunConfig(), table, "flags")
    assert config == RunConfig.of(**expected)
    for name, value in expected.items():
        assert type(config.get(name)) is type(value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"round": 5},
            r"here: unknown key 'round' \(did you mean 'rounds'\?\), expected one of dataset, data-dir",
        ),
        ({"local_steps": 5}, r"here: unknown key 'local_steps' \(did you mean 'local-steps'\?\)"),
        ({"relax": {}}, "here: unknown key 'relax'"),
        ({"zzz": 1}, "here: unknown key 'zzz', expected"),
        ({"rounds": "many"}, "here: rounds = 'many', expected a whole number of at least 1"),
        ({"rounds": 0}, "here: rounds = 0, expected a whole number of at least 1"),
        ({"rounds": 2.5}, "here: rounds = 2.5"),
        ({"local-steps": True}, "here: local-steps = True"),
        ({"per-parameter": 1}, "here: per-parameter = 1, expected true or false"),
        ({"weights": "size"}, "here: weights = 'size', expected one of equal, samples"),
        ({"anchor-every": 0}, "here: anchor-every = 0, expected a whole number of at least 1"),
        ({"dataset": 3}, "here: dataset = 3, expected text"),
        ({"rounds": [3]}, r"here: rounds = \[3\]"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_source(
    table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        merge(RunConfig(), table, "here")


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no configuration file"):
        read_config(tmp_path / "nothing.toml")
    path = tmp_path / "broken.toml"
    for data in (b"rounds = ", b"rounds = 3\nrounds = 4", b"\xff\xfe"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"broken\.toml is no TOML file: "):
            read_config(path)
    path.write_text("[table]\nrounds = 3\n")
    with pytest.raises(ValueError, match="unknown key 'table'"):
        read_config(path)


# --- deployed apps ---


def test_the_apps_table_has_every_option_once() -> None:
    table = app_table()
    wanted = {one.key for name, one in all_options().items() if name not in SIMULATED_ONLY}
    assert set(table) == wanted | {one.key for one in options_of(Deployment).values()}
    assert len(table) == len(set(table))


def test_the_apps_table_is_read_as_it_is_written() -> None:
    table = {key: value for key, value in app_table().unwrap().items() if value != ""}
    config = read_app_config(table)
    assert (config.rounds, config.clients, config.algorithm, config.constraint) == (
        5,
        3,
        "fedfw",
        "ksparse:k=65,r=10",
    )
    assert config.own == (("penalty", 1e-4),)
    # Another algorithm is chosen by one line: the table's penalty is not in its way.
    assert read_app_config(table | {"algorithm": "fedavg"}).own == ()
    with pytest.raises(
        ValueError, match=r"run configuration: unknown key 'round' \(did you mean 'rounds'\?\)"
    ):
        read_app_config({"round": 3})


@pytest.mark.parametrize("value", ["1", 1, "1.0", 1.0])
def test_one_is_everyone_in_files_and_flags(value: Any) -> None:
    taken = merge(RunConfig(), {"participation": value}, "here").participation
    assert Participation(taken, 5, seed=0).is_full
    problem = fedfw.testing.two_quadratics()
    run = fedfw.simulate(problem, fedfw.FedFWPlus("box:-1,1"), rounds=2, participation=taken)
    assert run.history["participants"] == [2, 2]


# --- From names to objects: what a configuration leaves open is filled in, and what does not belong
# is refused ---


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
    assert config.own == ()  # numbers are left to the algorithm
    assert not config.per_parameter
    assert completed(config, digits()) == config
    assert filled(momentum=0.3).get("momentum") == 0.3
    assert filled(algorithm="fedfw+") == config
    assert filled(algorithm="fedfw-sto").batch_size == 64
    assert filled(algorithm="fedfw-sto", batch_size=8).batch_size == 8
    network = filled(model="mlp")
    assert (network.constraint, network.per_parameter) == ("l2:10", True)
    assert not filled(model="mlp", constraint="l1:5").per_parameter


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm": "fedfw", "mu": 1.0}, "mu goes with fedavg, not with fedfw"),
        (
            {"algorithm": "naive", "penalty": 0.1},
            r"penalty goes with fedfw, fedfw\+, .*, not with naive",
        ),
        (
            {"algorithm": "fedfw", "anchor_every": 3},
            "anchor-every goes with fedfw-anchored, not with fedfw",
        ),
        (
            {"algorithm": "fedww"},
            r"unknown algorithm 'fedww' \(did you mean 'fedfw'\?\), expected one of fedfw",
        ),
        ({"model": "mclrr"}, r"unknown model 'mclrr' \(did you mean 'mclr'\?\), expected one of"),
    ],
)
def test_what_does_not_belong_together_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled(**values)
