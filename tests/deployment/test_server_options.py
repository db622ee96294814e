"""Which options a server has set, and which of them it may set where an owner says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedfw.cli.deploy_init import copy_app
from fedfw.config.app import app_options
from fedfw.deployment import Deployment
from fedfw.deployment.server_options import (
    DATA_OPTIONS,
    SEED,
    check_range,
    run_options,
    set_by_server,
    settings_in,
    usual_options,
)
from fedfw.deployment.settings import APP_DEFAULTS
from fedfw.options import options_of

OWN: dict[str, Any] = {"dataset": "digits", "rounds": 5, "penalty": 1e-4, "target": "", "out": ""}


def test_the_options_are_those_of_an_app() -> None:
    """A new option of fedfw is in one of the three lists, so that somebody has decided about it."""
    keys = {declared.key for declared in app_options().values()}
    assert set(run_options()) == keys
    assert set(usual_options()) == keys - {*DATA_OPTIONS, SEED}
    assert set(DATA_OPTIONS) < keys
    assert {"dataset", "data-dir", "target", "partition", "clients"} <= set(DATA_OPTIONS)


def test_what_a_server_has_set() -> None:
    assert set_by_server(OWN, OWN) == {}
    assert set_by_server(OWN | {"rounds": 50, "out": "/srv", "tell-loss": True}, OWN) == {"rounds": 50}
    assert set_by_server(OWN | {"dataset": "table:/etc/x.csv"}, OWN) == {"dataset": "table:/etc/x.csv"}
    assert set_by_server(OWN | {"rounds": True}, OWN | {"rounds": 1}) == {"rounds": True}  # 1 is no truth value
    assert set_by_server({"my-key": ""}, {}) == {"my-key": ""}
    servers = {declared.key: "x" for declared in options_of(Deployment).values()}
    assert set_by_server(servers, {}) == {}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rounds", 10**15, "rounds = 1000000000000000, expected a whole number of at least 1 and at most 1000000000"),
        ("local-steps", 10**9, "local-steps = 1000000000, expected a whole number of at least 1 and at most 100000"),
        ("batch-size", 10**9, "batch-size = 1000000000, expected a whole number of at least 1 and at most 100000000"),
        ("width", 10**6, "width = 1000000, expected a whole number of at least 1 and at most 16384"),
        ("seed", -1, "seed = -1, expected a whole number of at least 0"),
        ("l2", 1e300, "l2 = 1e\\+300, expected a number of at least 0 and at most 1e\\+38"),
        ("momentum", "1/0", "momentum = '1/0', expected a number of at least 0 and below 1, or auto"),
        ("penalty", "1e400", "penalty = inf, expected a number"),
    ],
)
def test_numbers_out_of_range_are_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"run configuration: {message}"):
        check_range(key, value)


def test_values_that_are_not_given_and_keys_of_an_apps_own_have_any_value() -> None:
    check_range("rounds", "")
    check_range("beds", 10**30)
    check_range("constraint", "?")  # it is read as a set elsewhere


def test_the_settings_of_an_app(tmp_path: Path) -> None:
    copy_app(tmp_path / "app")
    found = settings_in(tmp_path / "app")
    assert found is not None
    assert APP_DEFAULTS.items() <= found.items()
    assert settings_in(tmp_path) is None
    project = tmp_path / "pyproject.toml"
    for text in ("[project]\nname = 'x'", "[tool.flwr]\napp = 3", "[tool.", "[tool.flwr.app]\nconfig = 3"):
        project.write_text(text)
        assert settings_in(tmp_path) is None
    project.write_text("[tool.flwr.app.config]\nrounds = 3\n[tool.flwr.app.config.own.deep]\nkey = 'a'\n")
    assert settings_in(tmp_path) == {"rounds": 3, "own.deep.key": "a"}
    project.write_text("[tool.flwr.app]\n")
    assert settings_in(tmp_path) == {}
