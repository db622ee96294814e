"""Nothing of an exception reaches the server but a constant text, and an owner's file is what a
Flower client obeys.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fedfw
from fedfw import Privacy
from fedfw.cli.deploy_init import copy_app
from fedfw.deployment import Consent, DataBudget, DeployedServer, Deployment, Task
from fedfw.deployment.data_checks import check_data
from fedfw.deployment.flower.apps import FAILED, ClientFailedError, client_app, settings_of
from fedfw.deployment.flower.bundles import Bundle
from fedfw.deployment.flower.keys import make_signing_key
from fedfw.deployment.flower.local import LocalFederation
from fedfw.deployment.flower.strategy import RECORD
from fedfw.deployment.limits import JobLimits
from fedfw.deployment.messages import Kind
from fedfw.deployment.refusal import Refusal
from fedfw.deployment.server_options import default_options, settings_in
from tests.deployment.loopback import small_task

FEDFW = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)
PROMISE = Privacy(0.5, 1e-5)
RICH = DataBudget(1e6, 0.4)
NUMBERS = count()


@pytest.fixture(autouse=True)
def _inside_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages can only be made where it runs an app."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def send(
    task: Task, kind: str, fields: dict[str, Any], run: dict[str, Any], **node: Any
) -> dict[str, Any]:
    """What the client's app of a node answers to a message."""
    message = Message(RecordDict({RECORD: ConfigRecord(fields)}), dst_node_id=1, message_type=kind)
    context = Context(1, 1, {"partition-id": 0} | node, RecordDict(), run)
    reply = client_app(lambda config: task)(message, context)
    return dict(reply.content[RECORD])  # type: ignore[arg-type]


def ask(task: Task, run: dict[str, Any] | None = None, **node: Any) -> dict[str, Any]:
    """What a node answers to the first order of a server."""
    settings = Deployment(tell_loss=task.options.promise is None)
    server = DeployedServer(replace(task, data=small_task(FEDFW).data), settings)
    return send(task, "train", server.open({0})[0].fields(), run or {}, **node)


def _text(client: int) -> Any:
    return torch.tensor([float("secret")])


def _label(client: int) -> Any:
    return torch.ones(3, 4), torch.tensor([0, 9, 1])


def _unwritable(client: int) -> Any:
    raise ValueError("secret \udcff")


def _missing(client: int) -> Any:
    raise FileNotFoundError(2, "no secret here", "/home/secret/John Smith.csv")


@pytest.mark.parametrize("promise", [None, PROMISE])
@pytest.mark.parametrize("data", [_text, _label, _missing, _unwritable])
def test_an_exceptions_text_stays_on_the_node(
    data: Callable[[int], Any], promise: Privacy | None, tmp_path: Path
) -> None:
    task = replace(small_task(FEDFW, rounds=3, privacy=promise), data=data)
    state = {"state-dir": str(tmp_path / "state")}
    if promise is None:
        with pytest.raises(ClientFailedError) as raised:
            ask(task, **state)
        assert str(raised.value) == FAILED
        assert raised.value.__cause__ is raised.value.__context__ is None
    else:  # a failure would tell of the data: it answers as if its budget were spent, whatever it is asked next
        for _ in range(2):
            answer = ask(task, **state)
            assert answer["kind"] == Kind.LEAVING
            assert answer["payload"] == answer["digest"] == b""
            task = replace(task, data=small_task(FEDFW).data)
    log = tmp_path / "state" / "failures.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert {_text: "secret", _label: "9", _missing: "John Smith.csv", _unwritable: r"\udcff"}[
        data
    ] in log.read_text()


def test_numbers_of_data_that_cannot_be_read_fail_in_the_same_way(tmp_path: Path) -> None:
    task = replace(small_task(fedfw.FedFW(fedfw.L1Ball(5.0)), rounds=3), data=_text)
    path = Consent("clinic", share=("numbers",)).write(tmp_path / "owner")
    node = {"state-dir": str(tmp_path / "state")}
    with pytest.raises(ClientFailedError, match=FAILED):
        send(task, "query", {}, {}, consent=str(path), **node)
    assert "gradient_norm" not in send(
        task, "query", {}, {}, **node
    )  # without consent the data are not looked at


def test_a_full_disk_does_not_let_the_text_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("no folder")
    with pytest.raises(ClientFailedError, match=FAILED) as raised:
        ask(replace(small_task(FEDFW), data=_text), **{"state-dir": str(tmp_path / "state")})
    assert raised.value.__cause__ is raised.value.__context__ is None
    said = capsys.readouterr().err
    assert f"fedfw: {tmp_path / 'state/failures.log'} cannot be written (File exists)" in said
    assert "secret" not in said


def test_the_file_of_consent_is_the_nodes_never_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*default_options(), "consent")  # a server that may set it gains nothing by it
    strict = str(
        Consent("strict", privacy=DataBudget(1.0, 1e-5), options=options).write(tmp_path / "strict")
    )
    loose = str(Consent("loose", share=("losses",), options=options).write(tmp_path / "loose"))
    task, state = small_task(FEDFW, rounds=3), str(tmp_path / "state")

    def answer(run: str = "", **node: Any) -> dict[str, Any]:
        return ask(task, run={"consent": run}, **({"state-dir": state} | node))

    assert answer(run=loose)["payload"] == Refusal.OPTION.encode()
    assert "loss" in answer(run=strict, consent=loose)
    assert answer(run=loose, consent=strict)["payload"] == Refusal.PLAIN.encode()
    monkeypatch.setenv("FEDFW_CONSENT", strict)
    assert answer(run=loose)["kind"] == Kind.REFUSED
    assert "loss" in answer(consent=loose)
    Path(loose).chmod(0o644)
    with pytest.raises(ClientFailedError):
        answer(consent=loose)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (
            {"consnet": "/etc/fedfw/consent.toml"},
            "node-config: unknown key 'consnet' (did you mean 'consent'?)",
        ),
        ({"leaving": "false"}, "node-config: leaving = 'false', expected true or false"),
        ({"consent": 3}, "node-config: consent = 3, expected a path in quotes"),
        ({"partition-id": "0"}, "node-config: partition-id = '0', expected the client's number"),
    ],
)
def test_a_nodes_settings_that_would_be_ignored_are_refused(
    node: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """A misspelt key used to leave the node without its owner's file, and the text "false" made it
    leave.
    """
    state = tmp_path / "state"
    with pytest.raises(ClientFailedError):
        ask(small_task(FEDFW), **{"state-dir": str(state)} | node)
    assert reason in (state / "failures.log").read_text()


def test_a_variable_that_nothing_reads_is_refused_by_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFW_CONSNET", str(tmp_path / "consent.toml"))
    with pytest.raises(ClientFailedError):
        ask(small_task(FEDFW), **{"state-dir": str(tmp_path / "state")})
    assert (
        "FEDFW_CONSNET is not read (did you mean 'FEDFW_CONSENT'?)"
        in (tmp_path / "state/failures.log").read_text()
    )


# --- What a node does with a run's configuration, which no signature covers: it is checked before a
# task is built ---


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The template, installed as a node installs a signed bundle; its modules are forgotten
    afterwards.
    """
    folder = tmp_path / "app"
    copy_app(folder)
    project = folder / "pyproject.toml"
    text = project.read_text()
    assert 'constraint = "ksparse:k=65,r=10"' in text
    project.write_text(text.replace('constraint = "ksparse:k=65,r=10"', 'constraint = "l1:10"'))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "federation"]:
        del sys.modules[name]


def send_of_run_options(
    make_task: Callable[[Any], Task],
    kind: str,
    fields: dict[str, Any],
    run: dict[str, Any],
    **node: Any,
) -> Any:
    """What a node answers to a message of a run with this configuration."""
    message = Message(RecordDict({RECORD: ConfigRecord(fields)}), dst_node_id=1, message_type=kind)
    context = Context(1, 1, {"partition-id": 0} | node, RecordDict(), run)
    return dict(client_app(make_task)(message, context).content[RECORD])  # type: ignore[call-overload]


def order() -> dict[str, Any]:
    """The first order of any server: what it asks for is refused before it is looked at."""
    return DeployedServer(small_task(FEDFW, rounds=3), Deployment()).open({0})[0].fields()


def never(config: Any) -> Task:
    raise AssertionError("a task was built that the owner does not allow")


PAYROLL = "salary,age,y\n" + "".join(f"{3000 + i * 7},{20 + i},{i % 2}\n" for i in range(64))
HOSTILE: dict[str, tuple[dict[str, Any], Refusal]] = {
    "the file of the server's choice": (
        {"dataset": "table:PAYROLL", "target": "y"},
        Refusal.OPTION,
    ),
    "another column": ({"target": "salary"}, Refusal.OPTION),
    "other data": ({"dataset": "mnist", "data-dir": "/etc"}, Refusal.OPTION),
    "another part of the data": ({"partition": "labels:1"}, Refusal.OPTION),
    "the data of another client": ({"clients": 1}, Refusal.OPTION),
    "memory for clients": ({"clients": 10**9}, Refusal.OPTION),
    "other samples by another seed": (
        {"seed": 7, "batch-size": 1, "constraint": "l2:10"},
        Refusal.OPTION,
    ),
    "one sample": ({"batch-size": 1}, Refusal.SAMPLES),
    "a whole gradient": ({"constraint": "l2:10"}, Refusal.SET),
    "steps without an end": ({"local-steps": 10**9}, Refusal.RANGE),
    "many steps": ({"local-steps": 11}, Refusal.STEPS),
    "rounds without an end": ({"rounds": 10**15}, Refusal.RANGE),
    "a wide model": ({"model": "transformer", "width": 10**6}, Refusal.RANGE),
    "a bound of 1e-40": ({"privacy": "eps=4,delta=1e-5,clip=1e-40"}, Refusal.RANGE),
    "no promise at all": ({"privacy": "eps=inf,delta=1e-5"}, Refusal.PROMISE),
    "another bound": ({"privacy": "eps=4,delta=1e-5,clip=7"}, Refusal.CLIP),
    "little noise": ({"privacy": "eps=4,delta=1e-5,noise=1e-300"}, Refusal.RANGE),
    "models": ({"algorithm": "fedavg"}, Refusal.SHARED),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_task_is_built_from_hostile_options(name: str, tmp_path: Path) -> None:
    options, reason = HOSTILE[name]
    secret = tmp_path / "payroll.csv"
    secret.write_text(PAYROLL)
    options = {
        key: str(value).replace("PAYROLL", str(secret)) if value == "table:PAYROLL" else value
        for key, value in options.items()
    }
    consent = Consent("clinic", privacy=DataBudget(4.0, 1e-5, required=False)).write(
        tmp_path / "owner"
    )
    node = {"consent": str(consent), "state-dir": str(tmp_path / "state")}
    for _ in range(2):
        answer = send_of_run_options(never, "train", order(), options, **node)
        assert (answer["kind"], answer["payload"]) == (Kind.REFUSED, reason.encode())
    said = send_of_run_options(never, "query", {}, options, **node)
    assert said.keys() == {"schema", "client", "leaving"}
    log = next((tmp_path / "state").rglob("client-0.log.jsonl")).read_text().splitlines()
    assert json.loads(log[-1])["event"].startswith(f"refused, because {reason}: ")
    assert "RefusedError" in (tmp_path / "state" / "failures.log").read_text()
    assert Consent.read(consent).count(0, tmp_path).read() == 0


def test_a_signed_app_reads_its_own_data_and_no_file_that_the_server_names(
    app: Path, tmp_path: Path
) -> None:
    """The template, whose options a server may replace, as a node installs it."""
    make_task = import_module("federation.task").make_task
    own = settings_in(app)
    assert own is not None
    assert settings_of(make_task) == own
    secret = tmp_path / "payroll.csv"
    secret.write_text(PAYROLL)
    server = DeployedServer(make_task(own | {"rounds": 2}), Deployment())
    fields = server.open({0})[0].fields()
    node = {"state-dir": str(tmp_path / "state")}
    honest = send_of_run_options(
        make_task, "train", fields, own | {"rounds": 2, "out": "/srv/training"}, **node
    )
    assert honest["kind"] == "step"
    hostile = own | {"dataset": f"table:{secret}", "target": "y", "clients": 1}
    answer = send_of_run_options(make_task, "train", fields | {"run": "other"}, hostile, **node)
    assert (answer["kind"], answer["payload"]) == (Kind.REFUSED, Refusal.OPTION.encode())


SAID = dict[str, Any]
"""What a server sees of an answer, and whether the promise is closed behind it."""
ASKED: dict[str, list[Any]] = {
    "model": ["linear", "mclr", "mlp", "cox", "os:system", ""],
    "algorithm": ["fedfw+", "fedfw-sto", "fedavg", "local-muon", "fedlmo"],
    "constraint": ["l1:1e30", "simplex:1", "ksparse:k=2,r=1", "l2:10", "linf:1", "box:0,1"],
    "privacy": [
        "eps=1,delta=1e-6,samples=5",
        "eps=1,delta=1e-6,noise=3",
        "eps=1e-9,delta=1e-6",
        "",
    ],
    "penalty": [0.0, 1e30, "auto"],
    "momentum": [0.0, 0.999, "auto"],
    "l2": [1e-3, 1e30],
    "local-steps": [3, 10],
    "batch-size": [32, 1000],
    "per-parameter": [True],
    "weights": ["samples"],
    "rounds": [1, 10**9],
    "seed": [7],
}


@pytest.fixture
def owners(app: Path, tmp_path: Path) -> Callable[[str, SAID], list[SAID]]:
    """Two owners with a budget, of whose samples one has another target and a huge input."""
    pytest.importorskip("dp_accounting")
    make_task = import_module("federation.task").make_task
    project, folders = app / "pyproject.toml", (tmp_path / "one", tmp_path / "other")
    nodes, tables = [], []
    for folder, different in zip(folders, ("0.3,2,23", "1e30,2,23.5"), strict=True):
        rows = [f"{i / 10},{i % 7},{20 + i % 40}" for i in range(120)]
        rows[3] = different
        consent = Consent("clinic", share=("atoms", "models"), sets=("all",), privacy=RICH)
        path = replace(consent, options=(*consent.options, "seed")).write(folder)
        tables.append("\n".join(["a,b,age", *rows]) + "\n")
        nodes.append({"consent": str(path), "state-dir": str(folder / "state")})
    table = tmp_path / "ages.csv"
    text = project.read_text()
    for key, value in {"dataset": f"table:{table}", "target": "age", "model": "linear"}.items():
        text = re.sub(f'^{key} = ".*"$', f'{key} = "{value}"', text, flags=re.MULTILINE)
    project.write_text(re.sub("^clients = .*$", "clients = 1", text, flags=re.MULTILINE))
    own = settings_in(app)
    assert own is not None
    signed = own | {"privacy": "eps=1,delta=1e-6"}
    for content, node, folder in zip(tables, nodes, folders, strict=True):
        table.write_text(content)
        check_data(make_task(signed), 0, folder / "state", Consent.read(node["consent"]))
    fields = DeployedServer(make_task(signed), Deployment()).open({0})[0].fields()

    def ask(run: str, options: SAID) -> list[SAID]:
        found = []
        for content, node, folder in zip(tables, nodes, folders, strict=True):
            table.write_text(content)
            said: SAID = {}
            with suppress(ClientFailedError):
                said = send_of_run_options(
                    make_task, "train", fields | {"run": run}, signed | options, **node
                )
            if said.get("kind") == "step":
                del said["payload"]  # this is what noise was added to
            promise = Consent.read(node["consent"]).promise(0, folder / "state")
            found.append(said | {"closed": promise.reopen() is not None})
        return found

    return ask


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example({}, "step")
@example({"model": "mclr"}, Kind.REFUSED)
@example({"seed": 7}, Kind.REFUSED)
@given(
    st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(values) for key, values in ASKED.items()}
    ),
    st.none(),
)
def test_under_a_budget_no_options_of_the_server_show_a_sample(
    owners: Callable[[str, SAID], list[SAID]], options: SAID, kind: Kind | None
) -> None:
    """Targets that are whole numbers are classes for some models: one sample would decide whether
    the data can be read.
    """
    one, other = owners(f"run-{next(NUMBERS)}", options)
    assert one == other
    assert kind in (None, one["kind"])


def test_without_an_apps_folder_every_option_is_the_servers(tmp_path: Path) -> None:
    def make_task(config: Any) -> Task:
        return small_task(FEDFW, rounds=3)

    assert settings_of(make_task) == {}
    assert settings_of(lambda config: small_task(FEDFW)) == {}
    node = {"state-dir": str(tmp_path)}
    assert (
        send_of_run_options(make_task, "train", order(), {"rounds": 3, "out": "x"}, **node)["kind"]
        == "step"
    )
    assert (
        send_of_run_options(make_task, "train", order(), {"dataset": "digits"}, **node)["payload"]
        == Refusal.OPTION.encode()
    )


def test_a_client_that_leaves_says_so_whatever_is_asked(tmp_path: Path) -> None:
    node = {"state-dir": str(tmp_path), "leaving": True}
    answer = send_of_run_options(
        lambda config: small_task(FEDFW), "train", order(), {"dataset": "mnist"}, **node
    )
    assert answer["kind"] == Kind.LEAVING


# --- limits of a job ---


def greedy(config: Any) -> Task:
    return replace(small_task(FEDFW), model=torch.nn.Linear(1 << 15, 1 << 15))


def endless(config: Any) -> Task:
    while True:
        pass


def _greedy_data(client: int) -> Any:
    return torch.ones(1 << 30), torch.zeros(1 << 30)


def _endless_data(client: int) -> Any:
    while True:
        pass


def with_data(data: Callable[[int], Any]) -> Callable[[Any], Task]:
    return lambda config: replace(small_task(FEDFW, rounds=3), data=data)


LITTLE_MEMORY, LITTLE_TIME = JobLimits(memory=0.5), JobLimits(seconds=0.1)


@pytest.mark.parametrize(
    ("make_task", "limits", "details"),
    [
        (greedy, LITTLE_MEMORY, "more memory than memory = 0.5 GiB"),
        (endless, LITTLE_TIME, "longer than seconds = 0.1"),
        (with_data(_greedy_data), LITTLE_MEMORY, "more memory than memory = 0.5 GiB"),
        (with_data(_endless_data), LITTLE_TIME, "longer than seconds = 0.1"),
    ],
)
def test_a_job_that_takes_too_much_ends_with_a_clear_refusal(
    make_task: Callable[[Any], Task], limits: JobLimits, details: str, tmp_path: Path
) -> None:
    consent = Consent("clinic", limits=limits).write(tmp_path / "owner")
    node = {"consent": str(consent), "state-dir": str(tmp_path / "state")}
    answer = send_of_run_options(make_task, "train", order(), {}, **node)
    assert answer["kind"] == Kind.REFUSED
    assert (
        Refusal.parse(answer["payload"])
        == "the job takes more memory or time than the owner allows"
    )
    log = next((tmp_path / "state").rglob("client-0.log.jsonl")).read_text()
    assert details in log
    assert Consent.read(consent).count(0, tmp_path).read() == 0


@pytest.mark.parametrize(("make_task", "limits"), [(greedy, LITTLE_MEMORY), (endless, LITTLE_TIME)])
def test_a_greeting_that_takes_too_much_says_no_more_than_who_it_is(
    make_task: Callable[[Any], Task], limits: JobLimits, tmp_path: Path
) -> None:
    consent = Consent("clinic", limits=limits).write(tmp_path / "owner")
    node = {"consent": str(consent), "state-dir": str(tmp_path / "state")}
    assert send_of_run_options(make_task, "query", {}, {}, **node).keys() == {
        "schema",
        "client",
        "leaving",
    }
    assert "[limits] in the owner's file" in (tmp_path / "state" / "failures.log").read_text()


# --- a federation on this machine ---


def test_options_that_no_server_may_set_are_signed_with_a_copy_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / "app"
    copy_app(app)
    before = (app / "pyproject.toml").read_bytes()
    federation = LocalFederation(tmp_path / "federation", 3)
    (federation.folder / "bundles").mkdir(parents=True)
    (federation.folder / "keys").mkdir()
    make_signing_key(federation.folder / "keys" / "signing")
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(federation, "start", lambda name, *command: started.append(command))
    own = settings_in(app)
    assert own is not None
    for changes in ({}, {"clients": 2, "dataset": "diabetes"}, {"clients": 4}):
        federation.submit(app, own | {"rounds": 2} | changes)
    copies = [settings_in(federation.folder / "apps" / copy) for copy in ("1", "2")]
    assert copies == [own | {"clients": 2, "dataset": "diabetes"}, own | {"clients": 4}]
    assert len({command[2] for command in started}) == 3  # each is an app of its own version
    assert started[0][2] == Bundle.read(app).spec
    assert (app / "pyproject.toml").read_bytes() == before
    for command in started:
        set_by_server = command[command.index("--run-config") + 1]
        assert "rounds=2" in set_by_server
        assert "clients=" not in set_by_server
        assert "dataset=" not in set_by_server
