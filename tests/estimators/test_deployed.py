"""A deployed estimator: the app's task, owners with files and names of their own, a run in one
process, and its folder loaded into the estimator.
"""

import csv
import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomlkit
import torch

from fedfw.config.estimators import estimator_table, estimator_task
from fedfw.deployment import Consent, DeployedServer
from fedfw.deployment.node import NodeSettings
from fedfw.deployment.settings import Deployment
from fedfw.estimators import (
    CoxRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    deployed,
)
from fedfw.estimators.deployed import ESTIMATORS, Regression
from tests.deployment.loopback import Loopback

CLIENTS = 3
ROWS = 60
SCALES = "age:60:15,stage:2:1,noise:0:1"
KINDS: dict[str, Any] = {
    "linear": LinearRegression,
    "logistic": LogisticRegression,
    "poisson": PoissonRegression,
    "cox": CoxRegression,
}
OWNERS = Consent(share=("atoms", "losses", "gradients"))
GRADIENTS = {"algorithm": "fedpgd", "lr": 0.5, "penalty": "", "rounds": 60}


@pytest.fixture(autouse=True)
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of a test read their files once, not in a process of its own for each message."""
    monkeypatch.setattr(deployed, "read_isolated", lru_cache(deployed.read_isolated))


@pytest.fixture
def _forget_apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what an app brings into this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "federation"]:
        del sys.modules[name]


def write_tables(folder: Path, kind: str) -> list[dict[str, np.ndarray]]:
    """Write a table for each client; return the columns by name."""
    rng = np.random.default_rng(1)
    tables = []
    for client in range(CLIENTS):
        age = 60 + 15 * rng.normal(size=ROWS)
        stage = rng.integers(1, 4, ROWS).astype(float)
        eta = (age - 60) / 15 - 0.5 * (stage - 2)
        columns: dict[str, Any] = {"name": [f"patient {j}" for j in range(ROWS)]}
        columns |= {"age": age, "stage": stage, "noise": rng.normal(size=ROWS)}
        columns["y"] = {
            "linear": eta + rng.normal(size=ROWS),
            "logistic": np.where(rng.random(ROWS) < 1 / (1 + np.exp(-eta)), "yes", "no"),
            "poisson": rng.poisson(np.exp(0.5 * eta)),
            "cox": (rng.random(ROWS) < 0.7).astype(int),
        }[kind]
        columns["days"] = rng.exponential(np.exp(-eta)) + 0.01
        tables.append(columns)
        with open(folder / f"site-{client}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return tables


def settings(folder: Path, kind: str, **changes: Any) -> dict[str, Any]:
    """Return the settings of an app that `fedfw deploy init --estimator` wrote, filled in."""
    table = dict(estimator_table(kind).unwrap())
    table |= {"inputs": "age,stage,noise", "target": "y", "scales": SCALES, "clients": CLIENTS}
    table["dataset"] = f"table:{folder}/site-{{client}}.csv"
    if kind == "cox":
        table["time"] = "days"
    if kind == "logistic":
        table["classes"] = "no,yes"
    return table | changes


def deploy(folder: Path, config: dict[str, Any], consent: Consent = OWNERS) -> Path:
    """Run a deployment in this process; return its folder."""
    task = estimator_task(config)
    told = "losses" in consent.share
    options = Deployment(out=folder / "run", tell_loss=told, share_gradients=told)
    loop = Loopback(DeployedServer(task, options), folder / "clients", consent=consent)
    loop.greet()
    loop.run(task.options.rounds)
    assert not any(record.refused for record in loop.server.history)
    loop.server.finish()
    return folder / "run"


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_run_of_the_app_loads_into_the_estimator(kind: str, tmp_path: Path) -> None:
    tables = write_tables(tmp_path, kind)
    folder = deploy(tmp_path, settings(tmp_path, kind, **GRADIENTS))
    fit = KINDS[kind].from_run(folder)
    X = np.concatenate([np.column_stack([t["age"], t["stage"], t["noise"]]) for t in tables])
    y = np.concatenate([t["y"] for t in tables])
    if kind == "cox":
        y = np.column_stack([y, np.concatenate([t["days"] for t in tables])])
    scales = {"age": (60.0, 15.0), "stage": (2.0, 1.0), "noise": (0.0, 1.0)}
    estimator = KINDS[kind]("l1:3", scales={f"x{j}": s for j, s in enumerate(scales.values())})
    whole = estimator.fit(X, y, np.repeat(np.arange(CLIENTS), ROWS))
    assert fit.constraint == "l1:3"
    assert fit.feature_names_in_.tolist() == ["age", "stage", "noise"]
    assert fit.n_features_in_ == 3
    assert fit.coef_.shape == whole.coef_.shape
    assert fit.selected_[:2].all()
    assert np.abs(fit.coef_ * [15, 1, 1]).sum() <= 3 * (1 + 1e-6)
    certificate = fit.certificate_
    assert certificate.gap is not None
    assert certificate.lower_bound - 1e-9 <= whole.certificate_.loss <= certificate.loss + 1e-9
    assert certificate.loss - whole.certificate_.loss < 1e-3
    assert np.allclose(fit.coef_, whole.coef_, rtol=0.05, atol=0.02)
    assert fit.bytes_.payload > 0
    assert fit.n_iter_ == 60
    predicted = fit.predict(X)
    assert np.array_equal(predicted, KINDS[kind]().fit(folder).predict(X))
    if kind == "logistic":
        assert fit.classes_.tolist() == ["no", "yes"]
        assert fit.score(X, y) > whole.score(X, y) - 0.03
    with pytest.raises(ValueError, match="a run folder holds no rows"):
        _ = fit.inference_


def test_the_usual_consent_is_enough_and_gives_no_certificate(tmp_path: Path) -> None:
    write_tables(tmp_path, "logistic")
    folder = deploy(tmp_path, settings(tmp_path, "logistic", rounds=30), Consent())
    fit = LogisticRegression.from_run(folder)
    assert fit.certificate_ is None
    assert fit.coef_[0, 0] > 0 > fit.coef_[0, 1]


def test_sums_of_gradients_prove_a_bound(tmp_path: Path) -> None:
    write_tables(tmp_path, "logistic")
    changes = {"algorithm": "fedfw-anchored", "penalty": 1e-3, "rounds": 30}
    folder = deploy(tmp_path, settings(tmp_path, "logistic", **changes))
    certificate = LogisticRegression.from_run(folder).certificate_
    assert certificate is not None
    assert certificate.lower_bound is not None
    assert 0 < certificate.lower_bound < certificate.loss


def test_a_private_run(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    write_tables(tmp_path, "logistic")
    config = settings(tmp_path, "logistic", rounds=5, algorithm="fedfw", privacy="eps=4,delta=1e-5")
    folder = deploy(tmp_path, config, Consent())
    fit = LogisticRegression.from_run(folder)
    assert fit.certificate_ is None
    assert fit.run_.history.last("loss") is None
    cox = settings(tmp_path, "cox", rounds=5, algorithm="fedfw", privacy="eps=4,delta=1e-5")
    with pytest.raises(ValueError, match="all of a client's samples together"):
        estimator_task(cox)


def test_owners_name_their_own_files_and_columns(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, "poisson")
    own = tmp_path / "own.csv"
    text = (tmp_path / "site-0.csv").read_text()
    own.write_text(text.replace("age,", "AGE_YEARS,", 1).replace(",y,", ",visits,", 1))
    text = f'partition-id=0 table="{own}" columns="age=AGE_YEARS,y=visits"'
    node = NodeSettings.parse(text)
    config = settings(tmp_path, "poisson")
    X, targets = estimator_task(config | node.own_table).data(0)
    expected, other_targets = estimator_task(config).data(0)
    assert torch.equal(X, expected)
    assert torch.equal(targets, other_targets)
    assert np.allclose(X[:, 0] * 15 + 60, tables[0]["age"])
    wrong = replace(node, columns="weight=KG")
    with pytest.raises(ValueError, match="'weight' is none of the app's, expected age, stage"):
        estimator_task(config | wrong.own_table).data(0)


def test_clients_count_by_their_public_numbers_of_rows(tmp_path: Path) -> None:
    task = estimator_task(settings(tmp_path, "linear", rows="10,20,30"))
    assert task.weights == [10, 20, 30]
    with pytest.raises(ValueError, match="expected a number of rows for each of 3 clients"):
        estimator_task(settings(tmp_path, "linear", rows="10,20"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": ""}, "inputs or target is empty"),
        ({"scales": "age:60"}, "expected NAME:MEAN:SCALE"),
        ({"scales": "age:60:15"}, "stage, noise has none"),
        ({"inputs": "age,age"}, "expected each name once"),
        ({"estimator": "lasso"}, "expected one of linear, logistic, poisson, cox"),
        ({"offset": "days"}, "offset goes with poisson"),
        ({"classes": "a,a"}, "two different labels"),
        ({"constraint": ""}, "constraint is empty"),
        ({"intercept": "-1"}, "expected a number above 0"),
        ({"beds": 3}, "beds"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        estimator_task(settings(tmp_path, "logistic", **changes))


@pytest.mark.parametrize(
    ("kind", "old", "new", "message"),
    [
        ("linear", ",y,", ",z,", "no column 'y'"),
        ("linear", "patient 0,", "patient 0,many", "'age' has texts, expected numbers"),
        ("logistic", ",yes,", ",perhaps,", "a label beside no and yes"),
        ("poisson", None, "p,60,2,0,-1,3\n", "a negative number"),
        ("cox", None, "p,60,2,0,1,-3\n", "a negative time"),
        ("cox", None, "p,60,2,0,,3\n", "'y' is empty"),
    ],
)
def test_what_a_table_may_not_hold(
    kind: str, old: str | None, new: str, message: str, tmp_path: Path
) -> None:
    write_tables(tmp_path, kind)
    path = tmp_path / "site-0.csv"
    text = path.read_text()
    path.write_text(text + new if old is None else text.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        estimator_task(settings(tmp_path, kind)).data(0)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    write_tables(tmp_path, "linear")
    folder = deploy(tmp_path, settings(tmp_path, "linear", rounds=2))
    with pytest.raises(ValueError, match="holds a run of 'linear', expected one of 'cox'"):
        CoxRegression().fit(folder)
    with pytest.raises(ValueError, match="holds no finished run"):
        CoxRegression.from_run(tmp_path)
    (folder / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="states no regression"):
        LinearRegression.from_run(folder)


def test_a_regression_of_a_task_is_that_of_its_folder() -> None:
    scales = {"age": (60.0, 15.0)}
    one = Regression("logistic", ("age",), "died", classes=("no", "yes"), scales=scales)
    assert Regression.of_facts(as_stored(one.facts)) == one


def as_stored(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as a file of JSON has them."""
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found


@pytest.mark.usefixtures("_forget_apps")
def test_init_writes_the_app_of_an_estimator(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from fedfw.cli.main import main
    from fedfw.deployment.flower.app_folder import AppFolder

    assert main(["deploy", "init", str(tmp_path / "app"), "--estimator", "cox"]) == 0
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    assert (config["estimator"], config["ties"]) == ("cox", "efron")
    assert "model" not in config
    assert not (tmp_path / "app" / "estimator").exists()
    changes = {"inputs": "age", "target": "died", "time": "days"}
    app = AppFolder.read(tmp_path / "app")
    task = app.make_task(app.settings(changes))
    assert task.facts["inputs"] == ("age",)
    assert repr(task.algorithm.constraint) == "L1Ball(r=3)"


@pytest.mark.usefixtures("_forget_apps")
def test_the_demonstration_takes_an_estimators_app(tmp_path: Path) -> None:
    """Up to the processes that it starts: the app's settings reach the task, and it is simulated."""
    pytest.importorskip("flwr")
    from fedfw.cli.deploy_demo import Demo
    from fedfw.cli.deploy_init import copy_app
    from fedfw.deployment.flower.app_folder import AppFolder

    write_tables(tmp_path, "logistic")
    copy_app(tmp_path / "app", "logistic")
    path = tmp_path / "app" / "pyproject.toml"
    wanted = settings(tmp_path, "logistic", rounds=20)
    project = tomlkit.parse(path.read_text())
    project["tool"]["flwr"]["app"]["config"].update(wanted)
    path.write_text(tomlkit.dumps(project))
    demo = Demo.of_app(AppFolder.read(tmp_path / "app"), {})
    assert demo.rounds == 20
    assert demo.simulated.history.last("loss") < 0.69


@pytest.mark.deployment
@pytest.mark.usefixtures("_forget_apps")
def test_real_nodes_train_an_estimators_app(tmp_path: Path) -> None:
    from fedfw.cli.deploy_init import copy_app
    from fedfw.cli.main import main

    write_tables(tmp_path, "cox")
    app = tmp_path / "app"
    copy_app(app, "cox")
    project = tomlkit.parse((app / "pyproject.toml").read_text())
    project["tool"]["flwr"]["app"]["config"].update(settings(tmp_path, "cox", rounds=1))
    (app / "pyproject.toml").write_text(tomlkit.dumps(project))
    out = tmp_path / "out"
    assert main(["deploy", "demo", "--app", str(app), "--tell-loss", "--out", str(out)]) == 0
    fit = CoxRegression.from_run(out / "fedfwplus")
    assert fit.feature_names_in_.tolist() == ["age", "stage", "noise"]
    assert fit.coef_.any()
    assert fit.bytes_.payload > 0
