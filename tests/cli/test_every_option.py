"""Every option of every command changes what reaches its work, or is refused; so do keys of files
and variables.

Options are listed by the parsers themselves: one that is added has to be put into `CASES`.
"""

import argparse
import csv
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import tomlkit
import torch
from scripts.signatures import parsers

import fedfw
from fedfw.algorithms.registry import ALGORITHMS
from fedfw.cli.flags import configured
from fedfw.cli.main import COMMANDS, main
from fedfw.config import RunConfig, all_options
from fedfw.config.run_config import algorithm_options, owners
from fedfw.data.base import Data, Part, Request
from fedfw.data.datasets import DATASETS, Dataset, load_data
from fedfw.data.folder import data_folder
from fedfw.data.limits import memory_limit
from fedfw.deployment import Consent
from fedfw.deployment.settings import SIMULATED_ONLY
from fedfw.deployment.store import state_folder
from fedfw.environment import VARIABLES
from fedfw.options import options_of
from fedfw.problems.digest import describe_problem, digest_of
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.solving import Optimum
from fedfw.tuning import Trial
from tests.table import zero_layer

pytest.importorskip("flwr")

from fedfw.deployment.flower.apps import _of_node

# --- values ---

SMALL = {"clients": "3", "rounds": "3"}
TABLE = "table:mine.csv"
VALUES: dict[str, str] = {
    "dataset": "synthetic",
    "data_dir": "elsewhere",
    "target": "b",
    "time": "c",
    "client_column": "d",
    "model": "mlp",
    "width": "8",
    "depth": "1",
    "heads": "2",
    "mixed": "true",
    "separate": "true",
    "l2": "0.5",
    "clients": "4",
    "partition": "iid",
    "weights": "samples",
    "algorithm": "fedavg",
    "constraint": "l1:3",
    "per_parameter": "true",
    "rounds": "2",
    "participation": "0.5",
    "local_steps": "2",
    "batch_size": "7",
    "tol": "1e9",
    "eval_every": "2",
    "certify": "0.1",
    "polish": "support",
    "seed": "5",
    "device": "cpu",
    "privacy": "eps=4,delta=1e-5,not_private_seed=1",
    "schedule": "constant:0.1",
    "penalty": "0.01",
    "momentum": "0.5",
    "anchor_every": "2",
    "gradient_at": "own",
    "compress": "topk:5",
    "compress_down": "topk:5",
    "correction": "false",
    "renew_every": "2",
    "alignment": "0.2",
    "lr": "0.3",
    "decay": "linear",
    "extrapolation": "nesterov",
    "mu": "0.3",
    "server_momentum": "0.5",
    "server_lr": "0.5",
    "beta1": "0.5",
    "beta2": "0.5",
    "tau": "0.1",
    "weight_decay": "0.3",
    "eta": "1.0",
    "alpha": "1.2",
    "beta": "3.0",
    "multiplier_every": "2",
    "strong": "0.3",
}
"""A value of every option of a configuration that is not its default."""
OF_TEXT = {
    "dataset": "speeches",
    "model": "transformer",
    "constraint": "linf:10",
    "partition": "iid",
}
BESIDE: dict[str, dict[str, str]] = {
    "target": {"dataset": TABLE, "target": "a"},
    "time": {"dataset": TABLE, "target": "a", "model": "cox", "client_column": "d"},
    "client_column": {"dataset": TABLE, "target": "a"},
    "data_dir": OF_TEXT,
    "dataset": {"partition": "iid"},
    "compress_down": {"algorithm": "fedavg"},
    "mixed": {"model": "mlp"},
    "width": OF_TEXT,
    "depth": OF_TEXT,
    "heads": OF_TEXT,
    "momentum": {"algorithm": "fedfw"},
}
"""What some of them need beside them; options of single algorithms need their algorithm."""
REFUSED = {"run --mixed": "expected device=cuda"}  # on a machine without a GPU
"""Options that are refused, whatever is beside them, and what is said."""


def beside(name: str) -> dict[str, str]:
    """Return the context in which an option has a meaning."""
    if name in BESIDE or name not in algorithm_options():
        return BESIDE.get(name, {})
    return {"algorithm": owners(name)[0]}


def flag(name: str, value: str) -> list[str]:
    """Return an option as it is typed."""
    option = all_options()[name]
    if not option.is_flag:
        return [f"--{option.key}", value]
    return [f"--{'' if value == 'true' else 'no-'}{option.key}"]


def flags(values: Mapping[str, str]) -> list[str]:
    """Return several options as they are typed."""
    return [word for name, value in values.items() for word in flag(name, value)]


# --- probes: what reaches the work of a command ---


def text_of(value: Any) -> str:
    """Return a text that differs where two values do."""
    if isinstance(value, fedfw.Problem):
        return json.dumps(
            [describe_problem(value), digest_of([value.start]), str(value.start.device)]
        )
    if isinstance(value, torch.Tensor):
        return digest_of([value])
    if isinstance(value, torch.nn.Module):
        return digest_of(value.state_dict().values())
    if isinstance(value, Mapping):
        return json.dumps({str(key): text_of(one) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return json.dumps([text_of(one) for one in value])
    return repr(value)


Patch = pytest.MonkeyPatch


def watch_rounds(patch: Patch) -> None:
    """Let ``run`` and ``resume`` show what they would run, and where it is kept."""

    def to_the_end(
        simulation: Simulation, config: RunConfig, folder: Path, *, as_json: bool
    ) -> int:
        run = [simulation.problem, simulation.algorithm, simulation.options, simulation.t]
        print(text_of([*run, str(folder), as_json]))
        return 0

    for module in ("run", "resume"):
        patch.setattr(f"fedfw.cli.{module}.run_to_the_end", to_the_end)
    patch.setattr("fedfw.cli.run._new_folder", lambda config: Path("new"))


def watch_search(patch: Patch) -> None:
    """Let ``tune`` find one point of the grid best by its loss and the other by its accuracy."""

    def search(
        problem: Any, points: list[Trial], passes: float, show: Any = None, ranks: Any = None
    ) -> None:
        print(
            text_of([problem, [(one.choice, one.algorithm, one.options) for one in points], passes])
        )
        for number, one in enumerate(points):
            show(replace(one, held_out_loss=1.0 + number, held_out_accuracy=0.1 * number, loss=1.0))

    patch.setattr("fedfw.cli.tune.search", search)


def watch_solve(patch: Patch) -> None:
    """Let ``solve`` show what it would solve."""

    def solve(problem: Any, constraint: Any, **how: Any) -> Optimum:
        print(text_of([problem, constraint, how]))
        return Optimum(problem.start, 1.0, 1.0, 2.0, 3, "none")

    patch.setattr("fedfw.cli.solve.solve", solve)
    patch.setattr(
        "fedfw.cli.solve.usable_device", lambda device: print(device) or torch.device("cpu")
    )
    patch.setattr("fedfw.cli.solve.time", SimpleNamespace(monotonic=lambda: 0.0))


def watch_demo(patch: Patch) -> None:
    """Let ``deploy demo`` show the federation, the settings, and the task that the app makes of
    them.
    """
    from fedfw.cli import deploy_demo
    from fedfw.deployment.flower import local
    from fedfw.deployment.flower.template.federation.task import make_task

    class Federation:
        def __init__(self, *how: Any) -> None:
            self.how, self.names = how, ["superlink"]

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *of: object) -> None:
            pass

    def simulate(problem: Any, algorithm: Any, options: Any) -> Any:
        one = Simulation(problem, algorithm, options)
        return SimpleNamespace(algorithm=one.algorithm, problem=problem)

    def deploy(federation: Federation, app: Path, out: Path, one: Any) -> tuple[str, ...]:
        settings = {**one.settings, "out": str(out.absolute())}
        task = make_task(settings)
        of_task = [
            task.options,
            task.algorithm,
            task.model,
            task.data(0),
            task.clients,
            task.l2,
            task.convex,
        ]
        print(text_of([federation.how, str(app), settings, of_task]))
        return ("",) * len(deploy_demo.TOTALS_HEADER)

    patch.setattr(local, "LocalFederation", Federation)
    patch.setattr(deploy_demo, "_simulate", simulate)
    patch.setattr(deploy_demo, "_deploy", deploy)
    patch.setattr(deploy_demo, "copy_app", lambda folder: None)
    patch.setattr("fedfw.cli.deploy_demo.time", SimpleNamespace(strftime=lambda form: "now"))


def watch(*names: str) -> Callable[[Patch], None]:
    """Return a patch by which functions show what they are called with, and do nothing."""

    def set_up(patch: Patch) -> None:
        for name in names:

            def show(*given: Any, **named: Any) -> int:
                shown = [one for one in given if not callable(one)]
                print(text_of([shown, named]))
                return 0

            patch.setattr(name, show)

    return set_up


def watch_waiting(patch: Patch) -> None:
    """Let a node and an executor show for what they would wait, and what they would run."""
    patch.setattr("fedfw.cli.deploy_node.wait_for_server", lambda *how: print(text_of(how)))

    def run(words: list[str], wait: Callable[[], None] = lambda: None) -> None:
        wait()
        print(words)

    patch.setattr("fedfw.deployment.flower.executor.run_executor", run)
    patch.setattr("fedfw.cli.deploy_node.run_node", run)
    patch.setattr("fedfw.cli.deploy_node.require_free_port", lambda *how: None)


def watch_data(patch: Patch) -> None:
    """Let ``data`` show what it would download and draw."""
    patch.setattr("fedfw.cli.data.download", lambda source, folder: print(source, folder) or True)
    watch("fedfw.report.plots.plot_holdings")(patch)
    patch.setattr("fedfw.report.plots.save_figure", lambda figure, path: print(path))


def watch_pictures(patch: Patch) -> None:
    """Let ``compare`` draw nothing."""
    patch.setattr("fedfw.cli.compare.plot_runs", lambda runs, residuals=None: None)
    patch.setattr("fedfw.cli.compare.save_figure", lambda figure, path: Path(path).write_bytes(b""))


def watch_hub(patch: Patch) -> None:
    """Let ``deploy hub`` show what it would serve, and where."""

    @contextmanager
    def make_hub(*given: Any) -> Iterator[Any]:
        yield SimpleNamespace(serve_forever=lambda: print(text_of(given)))

    patch.setattr("fedfw.deployment.flower.hub.make_hub", make_hub)


def watch_check(patch: Patch) -> None:
    """Let ``deploy check`` show what it would look at."""
    from fedfw.deployment.flower.checks import Finding, Verdict

    def findings(checks: Any, looked_at: Any) -> list[Finding]:
        return [Finding(Verdict.OK, f"{len(checks)} {looked_at}")]

    patch.setattr("fedfw.deployment.flower.checks.findings", findings)


def watch_promise(patch: Patch) -> None:
    """Let ``privacy`` show what it would work out, without the accounting."""

    def of(*given: Any, rounds: int, **named: Any) -> Any:
        print(text_of([given, rounds, named]))
        accountant = SimpleNamespace(rate=1.0)
        return SimpleNamespace(
            noise=9.0, most_rounds=rounds, epsilon=float, how="how", accountant=accountant
        )

    patch.setattr("fedfw.cli.privacy.PrivacyPlan", SimpleNamespace(of=of))


WATCHES: dict[str, Callable[[Patch], None]] = {
    "run": watch_rounds,
    "resume": watch_rounds,
    "tune": watch_search,
    "solve": watch_solve,
    "compare": watch_pictures,
    "data list": watch_data,
    "data get": watch_data,
    "data show": watch_data,
    "deploy demo": watch_demo,
    "deploy hub": watch_hub,
    "deploy executor": watch_waiting,
    "deploy node": watch_waiting,
    "deploy check": watch_check,
    "privacy": watch_promise,
}
"""How the work of a command is watched, where it is not simply done."""


# --- what is typed ---


@dataclass(frozen=True)
class Case:
    """How an option is typed, and what it changes.

    Parameters
    ----------
    without, given : tuple of str
        The words of a command without the option, and with it.
    refused : str
        What is said where the option is refused, whatever stands beside it.
    """

    without: tuple[str, ...]
    given: tuple[str, ...]
    refused: str = ""


def with_option(typed: tuple[str, ...], *option: str) -> tuple[str, ...]:
    """Return a command with an option, in place of another value of it that is there."""
    if option[0] not in typed:
        return (*typed, *option)
    at = typed.index(option[0])
    return (*typed[:at], *option, *typed[at + len(option) :])


def added(base: str, option: str, refused: str = "") -> Case:
    """Return the case of an option that is added to a command, or of another value of it."""
    return Case(words(base), with_option(words(base), *words(option)), refused)


def words(text: str) -> tuple[str, ...]:
    """Return the words of a command; quotes are not needed."""
    return tuple(text.split())


def of_configuration(
    names: set[str], base: str = "", usual: Mapping[str, str] = SMALL
) -> dict[str, Case]:
    """Return the cases of options of the one list, by their flags."""
    found = {}
    for name in names:
        own = beside(name)
        context = {other: value for other, value in usual.items() if other != name} | own
        typed = [base, *flags(context)]
        if base == "tune":
            typed += [
                "--grid",
                "participation=0.5,0.6" if name == "batch_size" else "batch-size=5,6",
            ]
        if base == "deploy demo" and own.get("algorithm", "fedfw") != "fedfw":
            typed += ["--share-gradients"]
        option, without = flag(name, VALUES[name]), words(" ".join(typed))
        found[option[0]] = Case(
            without, with_option(without, *option), REFUSED.get(f"{base} {option[0]}", "")
        )
    return found


NODE = (
    "deploy node --superlink 10.0.0.1:8443 --root-certificates ca.crt --auth-supernode-private-key key "
    "--trusted-entities file --superexec-auth-secret-file file --node-config partition-id=0"
)
PROXY = "deploy proxy --config nginx --listen 127.0.0.1:1"
OWNER = "deploy init-node one --data-set a --eps 4 --delta 1e-5"
EXECUTOR = "deploy executor --superexec-auth-secret-file file"
RUN = "run --clients 3 --rounds 3"
PLAIN = "privacy --noise 9 --rounds 9"
ALL = set(all_options())
MATTERS = set(import_module("fedfw.cli.solve")._MATTERS)
PLAIN_CALLS = {"run": RUN, "tune": f"{RUN.replace('run', 'tune')} --grid batch-size=5,6"}
PLAIN_CALLS |= {"solve": "solve --clients 3", "deploy demo": "deploy demo --clients 3 --rounds 3"}
"""Commands as they are most often called: there an option changes something, too, or is refused."""
CASES: dict[str, dict[str, Case]] = {
    "run": of_configuration(ALL, "run")
    | {
        "--data": Case(words("run"), words("run --data mine.csv --target a")),
        "--out": added(RUN, "--out there"),
        "--json": added(RUN, "--json"),
        "config": added(RUN, "mine.toml"),
    },
    "resume": {
        "folder": Case(words("resume a"), words("resume b")),
        "--rounds": added("resume a", "--rounds 7"),
        "--model": added("resume own", "--model own_model:make"),
        "--json": added("resume a", "--json"),
    },
    "compare": {
        "folders": Case(words("compare a"), words("compare a b")),
        "--out": added("compare a", "--out there.png"),
    },
    "tune": of_configuration(ALL - {"tol", "eval_every", "polish"}, "tune")
    | {
        "--data": Case(words("tune"), words("tune --data mine.csv --target a --clients 2")),
        "config": added("tune --grid batch-size=5,6", "mine.toml"),
        "--grid": added("tune", "--grid batch-size=5,6"),
        "--budget": added("tune", "--budget 7"),
        "--by": added("tune --grid batch-size=5,6", "--by accuracy"),
        "--out": added("tune", "--out there.toml"),
        "--resume": added("tune", "--resume", "there is no tuned-fedfwplus.csv"),
    },
    "solve": of_configuration(MATTERS, "solve", {"clients": "3"})
    | {
        "--data": Case(words("solve"), words("solve --data mine.csv --target a")),
        "config": added("solve", "solve.toml"),
        "--device": added("solve", "--device meta"),
        "--tol": added("solve", "--tol 0.5"),
        "--max-steps": added("solve", "--max-steps 7"),
        "--json": added("solve", "--json"),
    },
    "advise": {
        "constraint": added("advise", "l2:3"),
        "--differ": added("advise l2:10", "--differ little"),
        "--sees": added("advise", "--sees gradients"),
        "--bytes-up": added("advise", "--bytes-up 1000"),
        "--residual": added("advise", "--residual 0.3"),
        "--projection": added("advise --sees gradients", "--projection costly"),
        "--partial": added("advise", "--partial"),
        "--table": added("advise", "--table measured.json"),
        "--json": added("advise", "--json"),
    },
    "privacy": {
        "--eps": added(PLAIN, "--eps 0.5"),
        "--noise": added("privacy --eps 4 --rounds 9", "--noise 9"),
        "--delta": added(PLAIN, "--delta 1e-7"),
        "--rounds": added(PLAIN, "--rounds 7"),
        "--local-steps": added(PLAIN, "--local-steps 2"),
        "--batch-size": added(f"{PLAIN} --samples 100 --batch-size 9", "--batch-size 8"),
        "--samples": added(f"{PLAIN} --samples 100 --batch-size 9", "--samples 200"),
        "--constraint": added(PLAIN, "--constraint l1:3"),
        "--shape": added(PLAIN, "--shape 3x4"),
        "--algorithm": added(f"{PLAIN} --constraint l1:3", "--algorithm fedavg"),
    },
    "data list": {
        "--data-dir": added("data list", "--data-dir elsewhere"),
    },
    "data get": {
        "name": Case(words("data get mnist"), words("data get a9a")),
        "--data-dir": added("data get mnist", "--data-dir elsewhere"),
    },
    "data show": {
        "name": Case(words("data show digits"), words("data show diabetes")),
        "--partition": added("data show digits", "--partition iid"),
        "--target": Case(
            words("data show table:mine.csv --target a"),
            words("data show table:mine.csv --target b"),
        ),
        "--time": added("data show table:mine.csv --target a", "--time c"),
        "--client-column": added(
            "data show table:mine.csv --target a --clients 2", "--client-column d"
        ),
        "--clients": added("data show digits", "--clients 3"),
        "--seed": added("data show digits --partition dirichlet:0.5", "--seed 7"),
        "--out": added("data show digits", "--out there.png"),
        "--data-dir": added(
            "data show speeches --clients 2 --partition iid", "--data-dir elsewhere"
        ),
    },
    "algorithms": {},
    "models": {},
    "sets": {"--shape": added("sets", "--shape 3x4")},
    "deploy init": {
        "folder": Case(words("deploy init one"), words("deploy init two")),
        "--estimator": Case(words("deploy init one --estimator cox"), words("deploy init one")),
    },
    "deploy init-node": {
        "folder": Case(
            words("deploy init-node one --data-set a"), words("deploy init-node two --data-set a")
        ),
        "--data-set": added("deploy init-node one --data-set a", "--data-set b"),
        "--eps": added(OWNER, "--eps 3"),
        "--delta": added(OWNER, "--delta 1e-6"),
        "--sets": added(OWNER, "--sets l1"),
    },
    "deploy demo": of_configuration(ALL - {*SIMULATED_ONLY, "eval_every", "weights"}, "deploy demo")
    | {
        "--data": Case(words("deploy demo"), words("deploy demo --data mine.csv --target a")),
        "--partition": added("deploy demo", "--partition dirichlet:0.5"),
        "--app": added("deploy demo", "--app app"),
        "--round-timeout": added("deploy demo", "--round-timeout 7"),
        "--tell-loss": added("deploy demo", "--tell-loss"),
        "--share-gradients": added(
            "deploy demo --algorithm frank-wolfe", "--share-gradients"
        ),  # refused without
        "--out": added("deploy demo", "--out there"),
    },
    "deploy sign": {
        "app": Case(words("deploy sign app --key key"), words("deploy sign other-app --key key")),
        "--key": added("deploy sign app --key key", "--key other-key"),
        "--out": added("deploy sign app --key key", "--out there"),
    },
    "deploy hub": {
        "folder": Case(words("deploy hub a"), words("deploy hub b")),
        "--listen": added("deploy hub a", "--listen 127.0.0.1:1"),
    },
    "deploy proxy": {
        "--config": added(PROXY, "--config haproxy"),
        "--listen": added(PROXY, "--listen 127.0.0.1:3"),
        **{
            f"--{name}": added(PROXY, f"--{name} {value}")
            for name, value in {
                "to": "127.0.0.1:3",
                "certificate": "/d",
                "key": "/d",
                "ca": "/d",
                "superlink-name": "server",
                "work-dir": "/d",
                "stream-module": "/d",
                "largest": "7",
                "connections": "7",
                "rate": "7",
                "bodies": "7",
            }.items()
        },
    },
    "deploy executor": {
        "--runtime-api-address": added(EXECUTOR, "--runtime-api-address 127.0.0.1:1"),
        "--superexec-auth-secret-file": added(EXECUTOR, "--superexec-auth-secret-file key"),
        "--root-certificates": added(EXECUTOR, "--root-certificates ca.crt"),
        "--parent-pid": added(EXECUTOR, "--parent-pid 7"),
        "--wait": added(EXECUTOR, "--wait 7"),
    },
    "deploy node": {
        "--superlink": added(NODE, "--superlink 10.0.0.2:8443"),
        "--root-certificates": added(NODE, "--root-certificates other.crt"),
        "--auth-supernode-private-key": added(NODE, "--auth-supernode-private-key other-key"),
        "--trusted-entities": added(NODE, "--trusted-entities key"),
        "--superexec-auth-secret-file": added(NODE, "--superexec-auth-secret-file key"),
        "--node-config": added(NODE, "--node-config partition-id=1"),
        "--host": added(NODE, "--host 127.0.0.2"),
        "--port": added(NODE, "--port 9095"),
        "--wait": added(NODE, "--wait 7"),
    },
    "deploy check": {
        "--address": added(
            "deploy check --address 127.0.0.1:1 --ca ca.crt", "--address 127.0.0.1:2"
        ),
        "--ca": added("deploy check --address 127.0.0.1:1 --ca ca.crt", "--ca other.crt"),
        "--server-dir": added("deploy check --node-dir a", "--server-dir a"),
        "--node-dir": added("deploy check --server-dir a", "--node-dir a"),
    },
}
"""Every command, and each of its options by its flag, or by its name where it has none."""
OF_OWNERS = ("deploy check-data", "deploy reopen")
"""What owners do with their data: `test_deploy.py`."""


# --- a folder with files, and what a command does in it ---


RUNS = ("a", "b", "other", "own")
"""Folders of runs: two of one problem, one of another, and one with a model of the user's own."""


def speeches(request: Request) -> Data:
    """A small text; the file holds the seed and the number of its letters."""
    seed = int(request.files[0].read_text())
    letters = torch.randint(
        0, 5, (20 + seed, 9), generator=torch.Generator().manual_seed(seed), dtype=torch.int8
    )
    part = Part(letters[:, :8], letters[:, 1:], starts=9 * torch.arange(len(letters)))
    return Data("speeches", part, part, 5)


@cache
def part_of_digits() -> Data:
    """A tenth of the digits, which are read but once."""
    data = load_data("digits")
    train, test = (Part(part.inputs[::10], part.targets[::10]) for part in (data.train, data.test))
    return replace(data, train=train, test=test)


@pytest.fixture(autouse=True)
def _small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Dataset("speeches", "a text", speeches, folder="speeches", layouts=(("seed.txt",),))
    digits = part_of_digits()
    monkeypatch.setattr("os.fsync", lambda file: None)  # no file of these has to outlive a crash
    monkeypatch.setitem(DATASETS, "speeches", text)
    monkeypatch.setitem(
        DATASETS, "digits", replace(DATASETS["digits"], load=lambda request: digits)
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What commands read: runs, tables, keys, apps, configurations."""
    from fedfw.cli.deploy_init import copy_app
    from fedfw.deployment.flower.keys import make_certificates, make_signing_key

    folder = tmp_path_factory.mktemp("files")
    rows = [(i % 2, (i // 2) % 2, i + 1, i % 3, 0.1 * i, (i * 7) % 5) for i in range(40)]
    with open(folder / "mine.csv", "w", newline="") as file:
        csv.writer(file).writerows([("a", "b", "c", "d", "e", "f"), *rows])
    (folder / "mine.toml").write_text('rounds = 2\nconstraint = "l2:3"\n')
    (folder / "out.toml").write_text('out = "there"\n')
    (folder / "misspelt.toml").write_text("round = 2\n")
    (folder / "solve.toml").write_text('constraint = "l2:3"\n')
    (folder / "own_model.py").write_text(
        "import torch\ndef make(data):\n    torch.manual_seed(0)\n"
    )
    with open(folder / "own_model.py", "a") as code:
        code.write("    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n")
    for name, seed in (("usual", 1), ("elsewhere", 2)):
        (folder / name / "speeches").mkdir(parents=True)
        (folder / name / "speeches" / "seed.txt").write_text(str(seed))
    for name in ("key", "other-key"):
        make_signing_key(folder / name)
    make_certificates(folder / "authority")
    for name in ("ca.crt", "other.crt"):
        shutil.copy(folder / "authority" / "ca.crt", folder / name)
    (folder / "file").write_text("42")
    copy_app(folder / "app")
    copy_app(folder / "other-app")
    project = folder / "other-app" / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "1.0.0"', 'version = "1.0.1"'))
    table = json.loads((Path(fedfw.__file__).parent / "measured.json").read_text())
    table["quick"] = not table["quick"]
    (folder / "measured.json").write_text(json.dumps(table))
    config = RunConfig.of(clients=3, rounds=3, constraint="l2:5", algorithm="fedavg")
    history = fedfw.History([fedfw.Record(round=1, accuracy=0.5)]).to_jsonl()
    changes: list[dict[str, Any]] = [
        {},
        {"constraint": "l2:4"},
        {"clients": 4},
        {"model": "own_model:make", "lr": 0.1},
    ]
    for name, change in zip(RUNS, changes, strict=True):
        one = config.having(**change)
        (folder / name).mkdir()
        (folder / name / "config.toml").write_text(one.to_toml())
        if name != "own":
            (folder / name / "history.jsonl").write_text(history)
    return folder


@pytest.fixture
def call(
    files: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[bool, str]]]:
    """Return a function that calls a command: whether it was accepted, and all that it did and
    said.
    """
    monkeypatch.setenv("FEDFW_DATA", str(files / "usual"))
    kept, handler, paths = dict(sys.modules), signal.getsignal(signal.SIGTERM), list(sys.path)

    def do(command: str, typed: tuple[str, ...]) -> tuple[bool, str]:
        folder = tmp_path_factory.mktemp("called")
        for path in files.iterdir():
            if path.name in RUNS:
                shutil.copytree(path, folder / path.name)
            else:
                (folder / path.name).symlink_to(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            WATCHES.get(command, lambda patch: None)(patch)
            said, errors = StringIO(), StringIO()
            with redirect_stdout(said), redirect_stderr(errors):
                try:
                    status = main(typed)
                except SystemExit as end:
                    status = int(str(end.code))
        for name in set(sys.modules) - set(kept):
            if name.partition(".")[0] in ("federation", "own_model"):
                del sys.modules[name]
        sys.path[:] = paths
        if status == 2:
            return False, errors.getvalue()
        made = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and not path.is_symlink()
            and path.suffix not in (".sig", ".pyc", ".html")
            and path.name != ".lock"
        }
        return True, f"{status} {said.getvalue()} {made}".replace(str(folder), "FOLDER")

    yield do
    signal.signal(signal.SIGTERM, handler)


# --- the walk ---


def options_of_parser(parser: argparse.ArgumentParser) -> list[str]:
    """Return the flags of a parser, and the names of arguments without one."""
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    return [
        action.option_strings[0] if action.option_strings else action.dest for action in actions
    ]


def test_every_option_of_every_command_has_its_case() -> None:
    found = {command: sorted(options_of_parser(one)) for command, one in parsers()}
    assert found == {command: sorted(cases) for command, cases in CASES.items()} | {
        command: found[command] for command in OF_OWNERS
    }


@pytest.mark.parametrize("command", CASES)
def test_every_option_changes_what_reaches_the_work_or_is_refused(
    command: str, call: Callable[..., tuple[bool, str]]
) -> None:
    results = cache(lambda typed: call(command, typed))
    wrong = {}
    for name, case in CASES[command].items():
        accepted, given = results(case.given)
        if case.refused and (accepted or case.refused not in given):
            wrong[name] = f"expected {case.refused!r}, found {given[:300]}"
        elif not case.refused and not accepted:
            wrong[name] = given
        elif not case.refused and (accepted, given) == results(case.without):
            wrong[name] = "changes nothing"
        plain = words(PLAIN_CALLS.get(command, ""))
        option = case.given[len(case.without) :]
        if (
            plain
            and option
            and option[0] not in plain
            and case.given[: len(case.without)] == case.without
        ):
            accepted, given = results((*plain, *option))
            if accepted and (accepted, given) == results(plain):
                wrong[name] = f"changes nothing in {' '.join(plain)}"
    assert not wrong


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("run --data-dir elsewhere", "data-dir='elsewhere' changes nothing: digits is built in"),
        (
            "run --data mine.csv --target a --data-dir elsewhere",
            "changes nothing: table is your own file",
        ),
        ("run --mixed", "mixed=True changes nothing for Linear, whose gradient has a closed form"),
        ("run --algorithm local-muon --momentum 0.5", "momentum=0.5 changes nothing"),
        ("run --target a", "goes with your own table"),
        ("run --rounds 3 --seed 1 --rounds=4", "--rounds is given 2 times, expected once"),
        ("run --width 8", "width=8 goes with transformer"),
        ("run --mu 1", "mu goes with fedavg, not with fedfw+"),
        (
            "tune --budget 5 --rounds 3",
            "rounds with --budget 5, which says how many rounds a trial has",
        ),
        (
            "tune --algorithm fedavg --lr 0.1",
            "lr is given, and the algorithm's own grid tries other values",
        ),
        ("tune --grid eta=1,2 --eta 3 --algorithm feddr", "eta is given and is in the grid, too"),
        ("tune mine.toml --budget 5", "rounds with --budget 5"),
        ("solve mine.toml", "solve does not use rounds, expected a file without"),
        ("solve out.toml", "unknown key 'out'"),
        ("run misspelt.toml", "unknown key 'round' (did you mean 'rounds'?)"),
        ("tune misspelt.toml", "unknown key 'round' (did you mean 'rounds'?)"),
        ("solve misspelt.toml", "unknown key 'round' (did you mean 'rounds'?)"),
        (
            "advise --bytes-up 100 --residual 0.1",
            "within a budget the least residual wins, leave one out",
        ),
        ("privacy --eps 4 --samples 100", "--batch-size and --samples, the number of samples"),
        ("data show digits --data-dir elsewhere", "changes nothing: digits is built in"),
        (
            "deploy demo --privacy eps=4,delta=1e-5 --tell-loss",
            "tell-loss changes nothing in a private run",
        ),
        ("deploy demo --data-dir elsewhere", "changes nothing: digits is built in"),
        ("deploy demo --app app --partition iid --target a", "goes with your own table"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    typed: str, said: str, call: Callable[..., tuple[bool, str]]
) -> None:
    command = " ".join(typed.split()[: 2 if typed.startswith(("data", "deploy")) else 1])
    accepted, given = call(command, words(typed))
    assert not accepted
    assert said in given
    assert "Traceback" not in given


# --- files ---


def configured_by(typed: str) -> RunConfig:
    """Return the configuration of ``fedfw run`` with these words."""
    parser = argparse.ArgumentParser()
    import_module("fedfw.cli.run").add_arguments(parser)
    return configured(parser.parse_args(words(typed)))


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_key_of_a_file_is_the_flag(name: str, tmp_path: Path) -> None:
    context = beside(name)
    table = {
        all_options()[one].key: value for one, value in (context | {name: VALUES[name]}).items()
    }
    (tmp_path / "mine.toml").write_text(tomlkit.dumps(table))
    by_flag = configured_by(" ".join([*flags(context), *flag(name, VALUES[name])]))
    assert configured_by(str(tmp_path / "mine.toml")) == by_flag != RunConfig()


def test_a_file_of_a_run_is_solved_with_what_matters(
    call: Callable[..., tuple[bool, str]], files: Path
) -> None:
    """A user's own file with a key that is not used is refused; one that fedfw wrote has them all."""
    accepted, given = call("solve", ("solve", str(files / "a" / "config.toml")))
    assert (accepted, given) == call("solve", ("solve", "--clients", "3", "--constraint", "l2:5"))


# --- the environment ---


def test_every_variable_is_read(
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., tuple[bool, str]],
) -> None:
    def places() -> dict[str, str]:
        context: Any = SimpleNamespace(node_config={"partition-id": 0})
        return {
            "FEDFW_DATA": str(data_folder()),
            "FEDFW_DATA_MEMORY": str(memory_limit(1)),
            "FEDFW_STATE": str(state_folder()),
            "FEDFW_CONSENT": repr(_of_node(context)[1]),
        }

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    usual, consent = places(), Consent("other").write(tmp_path / "owner")
    assert set(usual) == set(VARIABLES) - {"FEDFW_FRAMEWORKS"}  # which the laboratory reads
    for name in usual:
        with monkeypatch.context() as patch:
            patch.setenv(name, "2" if name == "FEDFW_DATA_MEMORY" else str(consent))
            changed = places()
        assert {other for other in changed if changed[other] != usual[other]} == {name}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_variable_that_nothing_reads_is_refused_by_every_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDFW_DATE", "/data")
    assert main([command]) == 2
    assert (
        f"fedfw {command}: environment: FEDFW_DATE is not read (did you mean 'FEDFW_DATA'?)"
        in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="FEDFW_DATE is not read"):
        data_folder()


# --- Python: what reaches the algorithms changes what they do ---

OF_RUNS = {
    "participation": 0.5,
    "local_steps": 2,
    "batch_size": 7,
    "tol": 1e9,
    "eval_every": 3,
    "rounds": 2,
    "seed": 5,
}
OF_RUNS |= {"certify": "0.1", "polish": "support", "privacy": "eps=4,delta=1e-5,not_private_seed=1"}


@cache
def outcome(algorithm: str, **given: Any) -> str:
    """Return what comes out of a few rounds with these options, or why they are refused."""
    own = {
        name: value for name, value in given.items() if name in options_of(ALGORITHMS[algorithm])
    }
    options = {"rounds": 4, "batch_size": 9} | {
        name: value for name, value in given.items() if name not in own
    }
    try:
        run = fedfw.simulate(few_digits(), ALGORITHMS[algorithm]("l2:5", **own), **options)
    except ValueError as error:
        return f"refused: {error}"
    records = [
        {key: value for key, value in asdict(one).items() if key != "seconds"}
        for one in run.history
    ]
    return json.dumps([digest_of([run.x]), records, run.stopped])


@cache
def few_digits() -> fedfw.Problem:
    """Six clients with few samples."""
    data = part_of_digits()
    samples = [data.train.take(torch.arange(20 * i, 20 * i + 12 + i)) for i in range(6)]
    flat = [(inputs.flatten(1), targets) for inputs, targets in samples]
    model = zero_layer(64, 10)
    return fedfw.Problem(model, torch.nn.functional.cross_entropy, flat, flat[0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_option_of_an_algorithm_and_of_a_run_changes_its_run(algorithm: str) -> None:
    own = {name: VALUES[name] for name in options_of(ALGORITHMS[algorithm])}
    parsed = {name: all_options()[name].parse(value, "here") for name, value in own.items()}
    if algorithm == "local-muon":
        assert "momentum=0.5 changes nothing" in outcome(algorithm, momentum=0.5)
        parsed.pop("momentum")
    without = outcome(algorithm)
    assert not without.startswith("refused")
    wrong = []
    for name, value in (parsed | OF_RUNS).items():
        given = outcome(algorithm, **{name: value})
        if given == without or (name in parsed and given.startswith("refused")):
            wrong.append((name, given[:200]))
    assert not wrong


def test_the_values_of_this_file_are_of_every_option() -> None:
    assert set(VALUES) == ALL
    assert set(OF_RUNS) == {name for name, one in options_of(Options).items() if one.textual} - {
        "device"
    }
