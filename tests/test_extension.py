"""One file and one line: an algorithm with a new option and one without options run, tune, compare
and deploy.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pytest
import torch
from torch import Tensor

import fedfw
import fedfw.cli
from fedfw.algorithms import (
    Affine,
    Client,
    GradientSteps,
    Kind,
    Message,
    Oracles,
    Payload,
    Rates,
    Reveals,
    Run,
    Setting,
    State,
    StepRule,
    Sums,
)
from fedfw.cli.main import main
from fedfw.config import build_algorithm, completed, load, read_app_config, run_options
from fedfw.config.app import app_table
from fedfw.deployment import DeployedServer, Deployment, Task
from fedfw.models import MODELS, make_model
from fedfw.options import option
from tests.deployment.loopback import Loopback


@dataclass(frozen=True, kw_only=True)
class SlowFW(fedfw.FedFW):
    """FedFW whose penalty pulls towards a slowly moving average of xbar."""

    slowness: Annotated[float, option("how much of its old centre a client keeps", ge=0, lt=1)] = (
        0.5
    )

    name: ClassVar[str] = "slow"
    title: ClassVar[str] = "SlowFW"
    proves_bounds: ClassVar[bool] = False

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"slowness": (0.1, 0.9)}

    def init_client(self, run: Run, x: Tensor) -> Client:
        shared, private = super().init_client(run, x)
        return Client(shared | {"z": shared["x"].clone()}, private)

    def receive(self, run: Run, shared: State, msg: Message) -> State:
        return shared | {"z": torch.lerp(msg.xbar.double(), shared["z"], self.slowness)}

    def direction(self, d: Tensor, shared: State, msg: Message, rates: Rates) -> Tensor:
        return d + rates.lam * (shared["x"] - shared["z"])


@dataclass(frozen=True)
class Descent(fedfw.Algorithm):
    """Projected gradient descent with one fixed step: an algorithm without options."""

    name: ClassVar[str] = "descent"
    title: ClassVar[str] = "Descent"
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = "every client's gradient"
    weighted: ClassVar[bool] = True
    projects: ClassVar[bool] = True
    uploads: ClassVar[Mapping[str, Kind]] = {"gradient": Kind.VALUE}

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        return self, GradientSteps(0.1, setting.local_steps)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        x = msg.xbar.expand(oracles.m, -1)
        return client.private, {"gradient": oracles.gradient(x, times="1")}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        x = server["xbar"] - msg.rates[0].eta * sums.mean("gradient")
        return {"xbar": run.constraint.project(x)}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cls in (SlowFW, Descent):
        monkeypatch.setitem(fedfw.ALGORITHMS, cls.name, cls)  # the one line
    for command in ("run", "tune"):  # their flags are listed when they are imported
        monkeypatch.setattr(fedfw.cli, command, import_module(f"fedfw.cli.{command}"), False)
        monkeypatch.delitem(sys.modules, f"fedfw.cli.{command}")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "algorithm", [SlowFW(fedfw.L2Ball(1.0), penalty=0.1), Descent(fedfw.L2Ball(1.0))]
)
def test_they_keep_their_contract(algorithm: fedfw.Algorithm) -> None:
    fedfw.testing.check_algorithm(algorithm)


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize(("name", "flags"), [("slow", ["--slowness", "0.2"]), ("descent", [])])
def test_they_run_resume_tune_and_compare(
    name: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        "--algorithm",
        name,
        "--constraint",
        "l2:10",
        "--rounds",
        "3",
        "--clients",
        "3",
        "--partition",
        "iid",
    ]
    assert main(["run", *common, *flags, "--out", "one", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["rounds"] == 3
    if flags:
        assert "slowness = 0.2" in Path("one/config.toml").read_text()
    assert main(["run", "one/config.toml", "--out", "two"]) == 0
    assert (Path("one") / "model.pt").read_bytes() == (Path("two") / "model.pt").read_bytes()
    assert main(["resume", "one"]) == 0
    assert main(["compare", "one", "two", "--out", "both.png"]) == 0
    assert main(["tune", *common, "--out", "tuned.toml"]) == 0
    assert main(["run", "tuned.toml", "--out", "three"]) == 0


def test_a_bad_value_of_the_new_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--algorithm", "slow", "--slowness", "2", "--out", "x"]) == 2
    assert "slowness = 2.0, expected a number of at least 0 and below 1" in capsys.readouterr().err
    assert main(["run", "--algorithm", "descent", "--slowness", "0.5", "--out", "x"]) == 2
    assert "slowness goes with slow, not with descent" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["slow", "descent"])
def test_they_deploy_from_the_keys_of_an_app(name: str, tmp_path: Path) -> None:
    """The app's table has the new option, and the deployed run has the simulator's bits."""
    table = {
        key: value.unwrap() if hasattr(value, "unwrap") else value
        for key, value in app_table().items()
    }
    assert table["slowness"] == ""
    chosen = {
        "algorithm": name,
        "constraint": "l2:10",
        "rounds": 4,
        "penalty": 0.01 if name == "slow" else "",
    }
    chosen |= {"slowness": 0.3} if name == "slow" else {}
    config = read_app_config(table | chosen)
    data = load(config)
    config = completed(config, data)
    assert config.model is not None
    kind = MODELS[config.model]
    problem = fedfw.load_problem(
        "digits", "mclr", clients=config.clients, partition=config.partition
    )
    parts = fedfw.data.partition(
        config.partition or "", data.train, config.clients, data.classes, config.seed
    )
    task = Task(
        make_model(config.model, data, config.seed),
        kind.loss,
        build_algorithm(config),
        lambda client: kind.samples(data.train.take(parts[client])),
        config.clients,
        options=run_options(config),
        test=kind.samples(data.test.take()),
        convex=kind.convex,
    )
    loop = Loopback(DeployedServer(task, Deployment(share_gradients=True)), tmp_path / "state")
    loop.run(4)
    run = fedfw.simulate(problem, task.algorithm, rounds=4)
    assert torch.equal(loop.server.xbar, run.x)
    assert [r.bytes_down for r in loop.server.history] == [r.bytes_down for r in run.history]


class Leaky(fedfw.L1Ball):
    """An l1 ball whose membership test looks at signs alone."""

    def _violation(self, x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(len(x), dtype=x.dtype)


def test_a_set_that_accepts_points_outside_is_refused() -> None:
    with pytest.raises(AssertionError, match="a point outside counts as inside"):
        fedfw.testing.check_constraint(Leaky(1.0), (4,))
