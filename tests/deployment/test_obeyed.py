"""An app's settings reach its task, or are refused."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.config import app_table
from fedfw.deployment import DeployedServer, Deployment, Task
from fedfw.deployment.node import NodeSettings, parse_node_config
from fedfw.deployment.obeyed import (
    NotedSettings,
    contradictions,
    given_in_table,
    validate_settings,
)
from fedfw.options import options_of
from fedfw.rounds.options import Options

TABLE = app_table().unwrap()
"""What ``fedfw deploy init`` writes."""


def task(**changed: Any) -> Task:
    usual: dict[str, Any] = {
        "algorithm": fedfw.FedFW("ksparse:k=2,r=10", penalty=1e-4, momentum=0.9),
        "clients": 3,
        "options": Options(rounds=5),
    }
    wanted = usual | changed
    algorithm, clients = wanted.pop("algorithm"), wanted.pop("clients")
    loss = torch.nn.functional.cross_entropy
    return Task(torch.nn.Linear(4, 3), loss, algorithm, lambda client: None, clients, **wanted)


GIVEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "rounds": (7, {"options": Options(rounds=7)}),
    "participation": (0.5, {"options": Options(rounds=5, participation=0.5)}),
    "local-steps": (2, {"options": Options(rounds=5, local_steps=2)}),
    "batch-size": (4, {"options": Options(rounds=5, batch_size=4)}),
    "eval-every": (2, {"options": Options(rounds=5, eval_every=2)}),
    "certify": ("0.1", {"options": Options(rounds=5, certify=[0.1])}),
    "seed": (3, {"options": Options(rounds=5, seed=3)}),
    "privacy": (
        "eps=4,delta=1e-5",
        {"options": Options(rounds=5, privacy=fedfw.Privacy(4.0, 1e-5))},
    ),
    "clients": (2, {"clients": 2}),
    "l2": (0.5, {"l2": 0.5}),
    "weights": ("samples", {"weights": [1.0, 2.0, 3.0]}),
    "algorithm": ("fedavg", {"algorithm": fedfw.FedAvg("ksparse:k=2,r=10", lr=0.1)}),
    "constraint": ("l1:3", {"algorithm": fedfw.FedFW("l1:3", penalty=1e-4, momentum=0.9)}),
    "per-parameter": (
        True,
        {"algorithm": fedfw.FedFW(fedfw.Product({"*": fedfw.L1Ball(3.0)}), momentum=0.9)},
    ),
    "penalty": (0.5, {"algorithm": fedfw.FedFW("ksparse:k=2,r=10", penalty=0.5, momentum=0.9)}),
    "momentum": (0.5, {"algorithm": fedfw.FedFW("ksparse:k=2,r=10", penalty=1e-4, momentum=0.5)}),
    "schedule": ("convex", {"algorithm": fedfw.FedFW("ksparse:k=2,r=10", schedule="convex")}),
}
"""A value of each setting that a task shows, and a task that has it."""
READ_ONLY = {
    "dataset",
    "data-dir",
    "target",
    "time",
    "client-column",
    "model",
    "width",
    "depth",
    "heads",
    "partition",
}
"""Settings that no task shows: it is noted whether they were read."""


@pytest.mark.parametrize("key", GIVEN)
def test_what_a_task_has_is_accepted_and_what_it_has_not_is_refused(key: str) -> None:
    value, changed = GIVEN[key]
    settings = {"constraint": "", key: value}
    assert key not in contradictions(task(**changed), settings)
    with pytest.raises(
        ValueError, match=f"command line: {key} = .* changes nothing, because the task has"
    ):
        validate_settings(task(), settings, {key: "command line"})


def test_every_setting_of_the_table_is_compared_or_noted() -> None:
    """A new option has to be put into one of the two."""
    deployed = {option.key for option in options_of(Deployment).values()}
    own = {option.key for cls in fedfw.ALGORITHMS.values() for option in options_of(cls).values()}
    assert set(TABLE) - deployed - own == (set(GIVEN) | READ_ONLY) - own
    for key in own - {"penalty", "momentum", "schedule"}:
        [sentence] = contradictions(task(), {key: "anything"}).values()
        assert sentence.endswith("the algorithm fedfw, which has no such option")


def test_lines_as_init_wrote_them_are_not_given_but_not_silent() -> None:
    assert given_in_table(TABLE) == set()
    given = {"rounds": 3, "lr": 0.1, "tell-loss": True}
    assert given_in_table(TABLE | given | {"model": ""}) == given.keys()
    assert validate_settings(task(), TABLE, {}) == [
        "constraint = 'ksparse:k=65,r=10' changes nothing, because the task has KSparse(k=2, r=10)"
    ]
    other = task(algorithm=fedfw.FedAvg("ksparse:k=65,r=10", lr=0.1), options=Options())
    assert validate_settings(other, TABLE, {}) == [
        "algorithm = 'fedfw' changes nothing, because the task has fedavg",
        "rounds = 5 changes nothing, because the task has 100",
    ]


@pytest.mark.parametrize(
    ("read", "left"),
    [
        (lambda s: s["rounds"], {"dataset"}),
        (lambda s: s.get("dataset", ""), {"rounds"}),
        (lambda s: dict(s), set()),
        (lambda s: {**s}, set()),
        (lambda s: s | {}, set()),
        (lambda s: s.copy(), set()),
        (lambda s: [*s.items()], set()),
        (lambda s: [*s.values()], set()),
        (lambda s: s.pop("rounds"), {"dataset"}),
        (lambda s: [*s, "rounds" in s, len(s), s.get("other")], {"dataset", "rounds"}),
    ],
)
def test_what_is_read_is_noted(read: Any, left: set[str]) -> None:
    settings = NotedSettings({"dataset": "mnist", "rounds": 3, "out": "here", "of-its-own": 4})
    read(settings)
    assert set(settings.unread(["dataset", "rounds", "out", "of-its-own"])) == left


@pytest.mark.parametrize("value", [1, 1.0, "1", "1.0"])
@pytest.mark.parametrize(
    ("found", "same"), [(1.0, True), (3, True), (1, True), (2, False), (0.5, False)]
)
def test_everyone_in_settings_is_everyone_in_the_task(value: Any, found: Any, same: bool) -> None:
    one = task(options=Options(rounds=5, participation=found))
    assert ("participation" not in contradictions(one, {"participation": value})) is same


def test_the_server_of_an_app_refuses_what_its_task_does_not_take_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("flwr")
    from fedfw.deployment.flower.apps import task_of

    def make_task(config: Mapping[str, Any]) -> Task:
        return task()

    assert task_of(make_task, TABLE | {"partition": "shards"}).options.rounds == 5
    said = [record.getMessage() for record in caplog.records]
    assert "run configuration: partition is not read by the app's make_task" in said
    with pytest.raises(
        ValueError, match="run configuration: rounds = 3 changes nothing, because the task has 5"
    ):
        task_of(make_task, TABLE | {"rounds": 3})


# --- how it is deployed ---


def test_losses_of_a_private_run_are_not_asked_for() -> None:
    private = task(options=Options(rounds=5, privacy="eps=4,delta=1e-5"))
    DeployedServer(private)
    with pytest.raises(ValueError, match="tell-loss changes nothing in a private run"):
        DeployedServer(private, Deployment(tell_loss=True))


def test_numbers_are_claimed_anew_only_where_a_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="rebind='3' changes nothing in a new run, expected resume=true beside it"
    ):
        Deployment(out=str(tmp_path), rebind="3")
    assert Deployment(out=str(tmp_path), rebind="3", resume=True).rebound == [3]


def test_a_run_that_goes_on_keeps_its_name(tmp_path: Path) -> None:
    one = task()
    server = DeployedServer(one, Deployment(out=str(tmp_path), run_name="trial-2"))
    server.close()
    name, folder = server.run, str(tmp_path)
    del server
    for given in ("run", "trial-2"):
        assert DeployedServer(one, Deployment(out=folder, resume=True, run_name=given)).run == name
    with pytest.raises(
        ValueError, match=r"run-name='other' changes nothing: the run in .* is called 'trial-2'"
    ):
        DeployedServer(one, Deployment(out=folder, resume=True, run_name="other"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("partition-id=0", {"partition-id": 0}),
        (
            'partition-id=0 consent="/etc/fedfw/my consent.toml"  leaving=true ',
            {"partition-id": 0, "consent": "/etc/fedfw/my consent.toml", "leaving": True},
        ),
        ("", {}),
    ],
)
def test_a_nodes_settings_are_read_as_flower_reads_them(text: str, found: dict[str, Any]) -> None:
    config = pytest.importorskip("flwr.common.config")
    assert parse_node_config(text) == found == config.parse_config_args([text])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("partition-id=0 leaving", "node-config: 'leaving', expected KEY=VALUE"),
        (
            "partition-id=0 consent=/etc/consent.toml",
            "node-config: consent = /etc/consent.toml, expected true or",
        ),
        ("consent='a'", "there is no partition-id, expected the client's number: partition-id=0"),
        (
            "partition-id=0 consnet='a'",
            r"unknown key 'consnet' \(did you mean 'consent'\?\), expected partition-id, co",
        ),
        ("partition-id=-1", "partition-id = -1, expected the client's number"),
        ("partition-id=true", "partition-id = True, expected the client's number"),
    ],
)
def test_a_nodes_settings_that_make_no_sense(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        NodeSettings.parse(text)


def test_flowers_simulation_says_how_many_nodes_there_are() -> None:
    assert NodeSettings.read({"partition-id": 0, "num-partitions": 3}).partition_id == 0


# --- What a task refuses before anybody trains ---

PRIVATE = "eps=1,delta=1e-5"


def data(client: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(client)
    return torch.randn(8, 4, generator=generator), torch.arange(8) % 3


def task_of_task(
    model: nn.Module | None = None,
    loss: Any = nnf.cross_entropy,
    per: Any = "sample",
    **options: Any,
) -> Task:
    algorithm = fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1)
    return Task(
        model or nn.Linear(4, 3),
        loss,
        algorithm,
        data,
        2,
        options=Options(rounds=2, **options),
        per=per,
    )


def test_what_only_the_data_show_is_refused_at_the_client() -> None:
    mixing = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="batch_size=3, expected none"):
        task_of_task(mixing, batch_size=3).problem(data(0))
    with pytest.raises(ValueError, match='privacy does not go with per="client"'):
        task_of_task(mixing, privacy=PRIVATE).problem(data(0))
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="privacy does not go with class weights"):
        task_of_task(loss=weighted, privacy=PRIVATE).problem(data(0))
    assert task_of_task(loss=weighted, batch_size=3).problem(data(0)).losses.weighs


@pytest.mark.parametrize("clients", [0, 10**6 + 1])
def test_the_number_of_clients_has_bounds(clients: int) -> None:
    message = f"clients={clients}, expected at least 1 and at most 1000000 in a deployment"
    with pytest.raises(ValueError, match=message):
        replace(task_of_task(), clients=clients)


@pytest.mark.parametrize("weights", [[0.0, 1.0], [-1.0, 2.0], [float("nan"), 1.0], [1.0]])
def test_weights_are_positive_numbers_one_a_client(weights: list[float]) -> None:
    """A round in which only a client of weight 0 answers would have no mean."""
    with pytest.raises(ValueError, match=r"weights=.*, expected 2 positive numbers"):
        replace(task_of_task(), weights=weights)
