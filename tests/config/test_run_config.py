"""A configuration: one flat list of options, as TOML and back, from flags refused for files of version 0.1."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedfw
from fedfw.algorithms.base import Message, Plan, State
from fedfw.config import RunConfig, all_options, app_table, build_algorithm, merge, read_app_config, read_config
from fedfw.config.run_config import VERSION_KEY, algorithm_class, algorithm_options, owners, read_table, run_options
from fedfw.deployment.settings import SIMULATED_ONLY, Deployment
from fedfw.options import option, options_of
from fedfw.presets import ProblemOptions
from fedfw.rounds.options import Options

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


@pytest.mark.parametrize(
    "name", ["🌍.csv", 'a"b\\c', "tab\there", "new\nline", "ß", "\u0000", "\U0010fffd", "'''", '"""']
)
def test_names_of_any_characters(name: str, tmp_path: Path) -> None:
    config = RunConfig.of(dataset=f"folder:{name}", rounds=3)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert read_config(path) == config


@given(configs)
def test_values_are_found_by_their_names(values: dict[str, Any]) -> None:
    config = RunConfig.of(**values)
    for name, value in values.items():
        assert config.get(name) == value
    open_ones = all_options().keys() - values.keys()
    assert all(config.get(name) == all_options()[name].default for name in open_ones if name in options_of(RunConfig))
    assert {key.replace("-", "_") for key in config.items()} >= {n for n, v in values.items() if v is not None}


def test_the_one_list_has_every_option_that_can_be_written_down() -> None:
    listed = all_options()
    for cls in (Options, ProblemOptions, *fedfw.ALGORITHMS.values()):
        for name, declared in options_of(cls).items():
            assert (name in listed) == declared.textual
    assert {"algorithm", "constraint", "per_parameter"} <= set(listed)
    assert "relax" not in listed
    keys = [declared.key for declared in listed.values()]
    assert len(set(keys)) == len(keys)


def test_having_other_values() -> None:
    config = RunConfig.of(rounds=5, penalty=0.1, mu=2.0)
    assert config.own == (("mu", 2.0), ("penalty", 0.1))
    assert config.having(penalty=None).own == (("mu", 2.0),)
    assert config.having(rounds=7, penalty=0.2) == RunConfig.of(rounds=7, penalty=0.2, mu=2.0)
    with pytest.raises(TypeError, match=r"no option 'round' \(did you mean 'rounds'\?\)"):
        config.having(round=7)
    with pytest.raises(ValueError, match="rounds=0, expected a whole number of at least 1"):
        config.having(rounds=0)
    assert run_options(config) == Options(rounds=5)


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
def test_text_is_parsed_by_what_is_declared(table: dict[str, Any], expected: dict[str, Any]) -> None:
    config = merge(RunConfig(), table, "flags")
    assert config == RunConfig.of(**expected)
    for name, value in expected.items():
        assert type(config.get(name)) is type(value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"round": 5}, r"here: unknown key 'round' \(did you mean 'rounds'\?\), expected one of dataset, data-dir"),
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
def test_what_makes_no_sense_is_refused_with_its_source(table: dict[str, Any], message: str) -> None:
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


def test_run_folders_of_version_0_1_are_refused(tmp_path: Path) -> None:
    """There "auto" was what is called "theory" now."""
    path = tmp_path / "config.toml"
    path.write_text('penalty = "auto:3"\n')
    (tmp_path / "history.jsonl").write_text("")
    with pytest.raises(ValueError, match=r'of a run of fedfw 0\.1, where "auto" was what is called "theory" now'):
        read_config(path)
    path.write_text(f'{VERSION_KEY} = "{fedfw.__version__}"\npenalty = "auto:3"\n')
    assert read_config(path).get("penalty") == "auto:3"


def test_a_file_without_a_history_is_somebodys_own(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('penalty = "auto:3"\n')
    assert read_table(tmp_path / "config.toml") == {"penalty": "auto:3"}


# --- algorithms that are registered later ---


@dataclass(frozen=True)
class Windy(fedfw.FedFW):
    """FedFW with an option of its own."""

    wind: Annotated[float, option("how strong the wind blows", ge=0, le=12)] = 3.0
    gusts_at: Annotated[str, option("when it gusts")] = "noon"

    name: ClassVar[str] = "windy"
    title: ClassVar[str] = "Windy"


@dataclass(frozen=True)
class Plain(fedfw.Algorithm):
    """An algorithm without any option."""

    name: ClassVar[str] = "plain"
    title: ClassVar[str] = "Plain"

    def plan(self, setting: Any) -> Plan:
        return Plan(setting.n, setting.constraint)

    def client_step(self, plan: Plan, state: State, message: Message, gradient: Any, lmo: Any) -> Any:
        _, a = gradient(message.xbar.expand_as(state["x"]).clone())
        return state, lmo(a), None

    def server_step(self, plan: Plan, server: Any, aggregate: Any, t: int) -> Any:
        eta = 2 / (t + 1)
        return type(server)((1 - eta) * server.xbar + eta * aggregate.total / aggregate.count)


@pytest.fixture
def registered() -> Iterator[None]:
    fedfw.ALGORITHMS.update({cls.name: cls for cls in (Windy, Plain)})
    yield
    for cls in (Windy, Plain):
        del fedfw.ALGORITHMS[cls.name]


@pytest.mark.usefixtures("registered")
def test_options_of_a_new_algorithm_appear_everywhere() -> None:
    assert {"wind", "gusts_at"} <= set(all_options())
    assert owners("wind") == ["windy"]
    assert "windy" in owners("penalty")
    config = merge(RunConfig(), {"algorithm": "windy", "wind": "7", "gusts-at": "dusk", "penalty": 0.1}, "here")
    assert config == RunConfig.of(algorithm="windy", wind=7.0, gusts_at="dusk", penalty=0.1)
    table = tomllib.loads(config.to_toml())
    assert merge(RunConfig(), {key: table[key] for key in table if key != VERSION_KEY}, "here") == config
    algorithm = build_algorithm(config.having(constraint="l1:2"))
    assert algorithm == Windy(fedfw.L1Ball(2), wind=7.0, gusts_at="dusk", penalty=0.1)
    with pytest.raises(ValueError, match=r"here: wind = 13\.0, expected a number of at least 0 and at most 12"):
        merge(RunConfig(), {"wind": 13}, "here")
    app = app_table()
    assert (app["wind"], app["gusts-at"]) == ("", "")  # the algorithm's own default
    assert read_app_config({"algorithm": "windy", "wind": 7.0}) == RunConfig.of(algorithm="windy", wind=7.0)


@pytest.mark.usefixtures("registered")
def test_an_algorithm_without_options_is_an_algorithm() -> None:
    assert options_of(Plain) == {}
    config = RunConfig.of(algorithm="plain", constraint="l1:2")
    assert build_algorithm(config) == Plain(fedfw.L1Ball(2))
    run = fedfw.simulate(fedfw.testing.two_quadratics(), Plain(fedfw.Box(-1.0, 1.0)), rounds=5)
    assert len(run.history) == 5
    assert algorithm_class("plain") is Plain
    assert read_app_config({"algorithm": "plain", "penalty": 1e-4}) == config.having(constraint=None)


def test_they_are_gone_afterwards() -> None:
    assert "wind" not in algorithm_options()
    with pytest.raises(
        ValueError, match=r"unknown algorithm 'fedfww' \(did you mean 'fedfw'\?\), expected one of fedfw, "
    ):
        algorithm_class("fedfww")


# --- deployed apps ---


def test_the_apps_table_has_every_option_once() -> None:
    table = app_table()
    wanted = {one.key for name, one in all_options().items() if name not in SIMULATED_ONLY}
    assert set(table) == wanted | {one.key for one in options_of(Deployment).values()}
    assert len(table) == len(set(table))


def test_the_apps_table_is_read_as_it_is_written() -> None:
    table = {key: value for key, value in app_table().unwrap().items() if value != ""}
    config = read_app_config(table)
    assert (config.rounds, config.clients, config.algorithm, config.constraint) == (5, 3, "fedfw", "ksparse:k=65,r=10")
    assert config.own == (("momentum", 0.9), ("penalty", 1e-4))
    # Another algorithm is chosen by one line: the table's penalty and momentum are not in its way.
    assert read_app_config(table | {"algorithm": "fedavg"}).own == ()
    with pytest.raises(ValueError, match=r"run configuration: unknown key 'round' \(did you mean 'rounds'\?\)"):
        read_app_config({"round": 3})


def test_every_field_of_a_configuration_is_listed() -> None:
    assert {f.name for f in fields(RunConfig)} - {"own"} == set(options_of(RunConfig))


@pytest.mark.parametrize("value", ["1", 1, "1.0", 1.0])
def test_one_is_everyone_in_files_and_flags(value: Any) -> None:
    taken = merge(RunConfig(), {"participation": value}, "here").participation
    assert isinstance(taken, float)
    assert taken == 1.0
