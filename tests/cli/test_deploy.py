"""``fedfw deploy init`` and ``fedfw deploy demo --app``, up to the processes that they start."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.cli.deploy_demo import Demo, allowed_by_name, owners_of
from fedfw.cli.main import main
from fedfw.config import RunConfig
from fedfw.deployment.consent import Consent
from fedfw.deployment.refusal import RefusedError
from fedfw.deployment.settings import APP_DEFAULTS
from fedfw.deployment.terms import USUAL_SETS

pytest.importorskip("flwr")

import fedfw.deployment.flower.local as local
from fedfw.deployment.flower.app_folder import AppFolder
from fedfw.rounds.wire import digest


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder; what an app brings into this process is forgotten."""
    monkeypatch.chdir(tmp_path)
    handler, paths = signal.getsignal(signal.SIGTERM), list(sys.path)
    yield
    signal.signal(signal.SIGTERM, handler)
    sys.path[:] = paths
    for name in [name for name in sys.modules if name.partition(".")[0] == "federation"]:
        del sys.modules[name]


@pytest.fixture
def app(capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["deploy", "init", "mine"]) == 0
    assert "fedfw deploy demo --app mine" in capsys.readouterr().out
    return Path("mine")


class Federation:
    """Stands for the processes: an interrupt arrives when a run has been submitted."""

    def __init__(self, folder: Path, clients: int, consent: Consent) -> None:
        self.clients, self.names, self.consent = clients, ["superlink"], consent
        self.ended = False
        Federation.latest = self

    latest: Federation

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self.ended = True

    def submit(self, app: Path, config: Mapping[str, Any], name: str) -> str:
        self.app, self.config = app, dict(config)
        raise KeyboardInterrupt


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that is printed, before anything was started or written."""
    assert main(["deploy", "demo", *arguments]) == 2
    line: str = capsys.readouterr().err.strip()
    assert "\n" not in line
    assert not Path("runs").exists()
    return line


def test_an_app_is_read_with_its_settings_and_changes(app: Path) -> None:
    change(app / "pyproject.toml", "clients = 3", "clients = 4")
    read = AppFolder.read(app)
    task = read.make_task(read.settings({"rounds": 7, "constraint": "l2:2"}))
    assert (task.clients, task.options.rounds, repr(task.algorithm.constraint)) == (
        4,
        7,
        "L2Ball(r=2)",
    )
    assert not list(app.rglob("*.pyc"))


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "federation/task.py",
            "settings = completed",
            "settings = = completed",
            "SyntaxError: invalid syntax",
        ),
        (
            "federation/task.py",
            "kind = MODELS",
            'config["beds"]; kind = MODELS',
            "KeyError: 'beds' (federation/task.py",
        ),
        (
            "federation/task.py",
            "return kind.samples",
            "return open('nowhere') and",
            "FileNotFoundError",
        ),
        (
            "federation/task.py",
            "clients=settings.clients,",
            "clients=0,",
            "clients=0, expected at least 1",
        ),
        ("federation/task.py", "return Task(", "return dict(", "expected a fedfw.deployment.Task"),
        (
            "federation/apps.py",
            "make_task",
            "federation.task.make_task",
            "federation/apps.py, line 3",
        ),
        (
            "pyproject.toml",
            "rounds = 5",
            'rounds = "many"',
            "rounds = 'many', expected a whole number",
        ),
        (
            "pyproject.toml",
            '\nout = ""',
            "",
            "'out' is missing, expected it in [tool.flwr.app.config]",
        ),
        (
            "pyproject.toml",
            "serverapp = ",
            "server = ",
            '"serverapp" missing in [tool.flwr.app.components]',
        ),
        ("pyproject.toml", "[tool.flwr.app]", "[tool.flower.app]", "pyproject.toml"),
        ("pyproject.toml", "[project]", "[project", "pyproject.toml"),
        ("pyproject.toml", "penalty = 0.0001", 'penalty = "auto"', "tell-loss"),
    ],
)
def test_a_broken_app_is_refused_in_one_line(
    app: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, said: str
) -> None:
    change(app / file, old, new)
    line = refusal(capsys, "--app", "mine")
    assert line.startswith("fedfw deploy: mine")
    assert said in line


def test_what_is_no_app_is_refused(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    for folder in ("empty", "nowhere"):
        assert f"{folder} has no pyproject.toml" in refusal(capsys, "--app", folder)
    change(app / "pyproject.toml", "local-steps = 1\n", "")
    assert "'local-steps' is missing" in refusal(capsys, "--app", "mine", "--local-steps", "2")


WITHOUT_OPTIONS = ("options=run_options(settings),", "")
"""An app whose Task sets no options: it has 100 rounds, whatever is said."""


@pytest.mark.parametrize(
    ("change_of_app", "arguments", "said"),
    [
        (
            WITHOUT_OPTIONS,
            ["--rounds", "3"],
            "command line: rounds = 3 changes nothing, because the task has 100",
        ),
        (
            WITHOUT_OPTIONS,
            ["--seed", "7"],
            "command line: seed = 7 changes nothing, because the task has 0",
        ),
        (
            ("settings.clients,", "3,"),
            ["--clients", "2"],
            "command line: clients = 2 changes nothing, because the task",
        ),
        (
            None,
            ["--algorithm", "fedavg", "--momentum", "0.9"],
            "momentum goes with fedfw, ",
        ),
    ],
)
def test_an_option_that_an_app_does_not_take_over_is_refused(
    app: Path,
    capsys: pytest.CaptureFixture[str],
    change_of_app: tuple[str, str] | None,
    arguments: list[str],
    said: str,
) -> None:
    if change_of_app is not None:
        change(app / "federation" / "task.py", *change_of_app)
    change(app / "pyproject.toml", "rounds = 5", 'rounds = ""')
    assert main(["deploy", "demo", "--app", "mine", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


OWN_TASK = """
import torch
import fedfw
from fedfw.deployment import Task
from fedfw.simulation import Options


def make_task(settings):
    options = Options(rounds=settings["rounds"])
    def data(client):
        return torch.eye(4), torch.arange(4) % 3
    algorithm = fedfw.FedFW(settings["constraint"], penalty=1e-3)
    loss = torch.nn.functional.cross_entropy
    return Task(torch.nn.Linear(4, 3), loss, algorithm, data, settings["clients"], options=options)
"""
"""It reads three settings one by one and brings its own data."""


def test_an_option_that_make_task_does_not_read_is_refused(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (app / "federation" / "task.py").write_text(OWN_TASK)
    given = ["deploy", "demo", "--app", "mine", "--partition", "iid"]
    assert main(given) == 2
    said = capsys.readouterr().err
    assert "command line: partition = 'iid' changes nothing: make_task does not read it" in said
    assert not Path("runs").exists()


def test_an_interrupt_ends_everything_in_one_line(
    app: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LocalFederation", Federation)
    assert (
        main(
            ["deploy", "demo", "--app", "mine", "--clients", "2", "--rounds", "2", "--out", "here"]
        )
        == 130
    )
    federation, captured = Federation.latest, capsys.readouterr()
    assert federation.ended
    assert (federation.clients, federation.app) == (2, Path("mine"))
    assert federation.config == {
        "clients": 2,
        "rounds": 2,
        "out": str(Path("here/fedfw").absolute()),
    }
    assert "Traceback" not in captured.err
    last = captured.err.strip().splitlines()[-1]
    assert (
        last
        == "interrupted; everything that was started has ended; 0 of 2 rounds are done and kept in here"
    )
    assert "FedFW with penalty 0.0001, momentum 0.9 on the set KSparse(k=65, r=10)" in captured.out
    assert "seconds" in captured.err
    [line] = [
        line for line in captured.out.splitlines() if line.startswith("The owners here allow")
    ]
    assert line == (
        "The owners here allow the set ksparse:k=65 by name, all that clients can share, and gradients of few samples; "
        "by default an owner allows atoms of l1, simplex, ksparse:k=8, of 32 samples or more."
    )
    assert federation.consent.sets == ("l1", "simplex", "ksparse:k=8", "ksparse:k=65")


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        ("l1:3", ()),
        ("ksparse:k=5,r=1", ("ksparse:k=5",)),
        ("l2:1", ("l2",)),
        ("nuclear:1", ("nuclear",)),
    ],
)
def test_the_demonstrations_owners_allow_its_own_set_alone(
    constraint: str, named: tuple[str, ...], app: Path
) -> None:
    demo = Demo.of_app(AppFolder.read(app), {"rounds": 1, "constraint": constraint})
    consent = owners_of(demo)
    assert consent.sets == (*USUAL_SETS, *named)
    assert ("by name" in allowed_by_name(consent)) is bool(named)
    consent.check(AppFolder.read(app).make_task({"constraint": constraint}))
    with pytest.raises(RefusedError, match="constraint=linf, expected l1, simplex"):
        consent.check(AppFolder.read(app).make_task({"constraint": "linf:1"}))


def test_an_app_and_the_demonstration_of_the_same_settings_simulate_the_same(app: Path) -> None:
    ours = Demo.of(RunConfig.of(**APP_DEFAULTS | {"clients": 2, "rounds": 3}))
    theirs = Demo.of_app(AppFolder.read(app), {"clients": 2, "rounds": 3})
    assert digest(ours.simulated.x) == digest(theirs.simulated.x)
    assert ours.rounds == theirs.rounds == 3


def test_a_new_app_learns_in_its_few_rounds(app: Path) -> None:
    accuracy = Demo.of_app(AppFolder.read(app), {}).simulated.history.last("accuracy")
    assert accuracy > 0.85


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_new_app_takes_every_algorithm_by_its_name(app: Path, algorithm: str) -> None:
    read = AppFolder.read(app)
    assert read.make_task(read.settings({"algorithm": algorithm})).algorithm.name == algorithm


# --- an owner's own commands ---


@pytest.fixture
def owner(capsys: pytest.CaptureFixture[str]) -> Path:
    assert (
        main(
            [
                "deploy",
                "init-node",
                "clinic",
                "--data-set",
                "clinic-7",
                "--eps",
                "4",
                "--delta",
                "1e-5",
            ]
        )
        == 0
    )
    assert f"fedfw deploy check-data {Path('clinic').absolute()} --app" in capsys.readouterr().out
    return Path("clinic")


def test_an_owner_checks_the_data_as_an_app_reads_them(
    app: Path, owner: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["deploy", "check-data", str(owner), "--app", str(app)]
    assert main([*command, "--clients", "10"]) == 0
    said = capsys.readouterr().out
    assert "samples of clinic-7 fit the app's model and loss" in said
    consent = Consent.read(owner / "consent.toml")
    [check] = consent.checks(0, owner / "state").made()
    assert f"The {check.samples} samples" in said
    assert main([*command, "--clients", "5", "--partition-id", "3"]) == 0
    assert len(consent.checks(0, owner / "state").made()) == 2


def test_data_that_are_not_finite_are_not_noted(
    app: Path, owner: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read = "return kind.samples(data.train.take(parts[client]))"
    spoilt = "inputs, targets = kind.samples(data.train.take(parts[client]))\n        inputs[4] = float('nan')"
    change(app / "federation" / "task.py", read, f"{spoilt}\n        return inputs, targets")
    assert main(["deploy", "check-data", str(owner), "--app", str(app)]) == 2
    said = capsys.readouterr().err
    assert "a NaN or an infinity in the input of sample 4" in said
    assert "Nothing was noted" in said
    assert Consent.read(owner / "consent.toml").checks(0, owner / "state").made() == []


def test_an_owner_looks_why_a_promise_was_closed_and_opens_it(
    owner: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["deploy", "reopen", str(owner)]
    assert main(command) == 0
    assert "is open: nothing to do" in capsys.readouterr().out
    Consent.read(owner / "consent.toml").promise(0, owner / "state").close(
        "run a, round 3", "MemoryError: too much"
    )
    assert main([*command, "--look"]) == 1
    assert main(command) == 0
    looked, _, opened = capsys.readouterr().out.partition("without --look.\n")
    for said in (looked, opened):
        assert "The promise of clinic-7 was closed on " in said
        assert "at run a, round 3:\n  MemoryError: too much" in said
    assert opened.endswith("It takes orders again.\n")
    assert main(command) == 0


@pytest.mark.parametrize("verb", ["check-data", "reopen"])
def test_an_owners_folder_that_is_missing_is_one_line(
    verb: str, app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--app", str(app)] if verb == "check-data" else []
    assert main(["deploy", verb, "nowhere", *more]) == 2
    assert "consent.toml" in capsys.readouterr().err.strip().splitlines()[0]
