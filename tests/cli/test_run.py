"""The command line: what a user types, sees and finds afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfw

# now: imported while a test has replaced what saves pictures, it would keep the replacement
import fedfw.cli.compare
from fedfw.cli.closing import quick_optimum
from fedfw.cli.main import main
from fedfw.config import read_config
from fedfw.problems.digest import describe_problem, text_of
from fedfw.solving import Optimum

pytestmark = pytest.mark.xdist_group("runs")  # one worker, so that it finds their optima once
FOUND: dict[str, Optimum | None] = {}
"""Optima that runs of these tests were compared with; many have the same problem, and each is
solved once.
"""

SOLVED: dict[tuple[str, ...], Any] = {}
"""What `fedfw solve` said of the tasks that it was asked for."""


def found_once(problem: fedfw.Problem, constraint: Any) -> Optimum | None:
    key = f"{describe_problem(problem)} {text_of(problem.bind(constraint))}"
    if key not in FOUND:
        FOUND[key] = quick_optimum(problem, constraint)
    return FOUND[key]


@pytest.fixture(autouse=True)
def _elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("FEDFW_DATA", str(tmp_path / "no data here"))
    monkeypatch.setattr(
        "fedfw.cli.closing._SECONDS", 600.0
    )  # what is found must not depend on the machine
    monkeypatch.setattr("fedfw.cli.closing.quick_optimum", found_once)
    monkeypatch.chdir(tmp_path)
    if not request.node.get_closest_marker("plots"):
        request.getfixturevalue("no_plots")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["run", *arguments, "--json"]) == 0
    last: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return last


@pytest.mark.plots
def test_the_default_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out.splitlines()[-1])
    assert told["accuracy"] > 0.9
    assert told["rounds"] == 100
    assert told["residual"] < 0.02  # near the optimum, although the clients' data differ
    assert told["loss"] - told["lower_bound"] < 0.06
    assert told["total_bytes_up"] < 0.01 * told["total_bytes_dense"]
    assert "round 100/100" in captured.err
    assert "loss" in captured.err
    assert "is proven to be within" in captured.out
    folder = Path(told["run_folder"])
    assert {path.name for path in folder.iterdir()} >= {
        "config.toml",
        "history.jsonl",
        "model.pt",
        "plots.png",
    }
    assert (folder / "plots.png").read_bytes().startswith(b"\x89PNG")
    weights = torch.load(folder / "model.pt", weights_only=True)
    assert float(sum(w.abs().sum() for w in weights.values())) <= 65 * (1 + 1e-6)
    assert float(max(w.abs().max() for w in weights.values())) <= 1 + 1e-6
    stored = read_config(folder / "config.toml")
    assert (stored.own, stored.algorithm) == ((), "fedfw+")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--algorithm", "fedsgd"], "unknown algorithm 'fedsgd'"),
        (["--constraint", "l7:1"], "unknown constraint set 'l7', expected one of l1"),
        (["--dataset", "cats"], "unknown dataset 'cats', expected one of digits"),
        (["--model", "gpt"], "unknown model 'gpt', expected one of mclr"),
        (["--partition", "labels:11"], "unknown partition 'labels:11'"),
        (["--schedule", "cosine"], "unknown schedule 'cosine'"),
        (["--rounds", "many"], "rounds = 'many', expected a whole number of at least 1"),
        (["--participation", "1.5"], "participation=1.5"),
        (["--anchor-every", "3"], "anchor-every goes with fedfw-anchored, not with fedfw+"),
        (
            ["--algorithm", "fedfw-sto", "--momentum", "0.5"],
            "momentum goes with fedfw, fedfw+, fedfw-anchored, fedlmo, fedlmo-server, local-muon, "
            "fedmuon, fedmuon-cv, frank-wolfe, fedcm, not with fedfw-sto",
        ),
        (["--dataset", "fashion-mnist"], "fedfw data get fashion-mnist"),
        (["--dataset", "mnist", "--data-dir", "nowhere"], "train-images-idx3-ubyte.gz"),
        (["nothing.toml"], "no configuration file nothing.toml"),
        (["."], "no configuration file ."),
        (
            ["--algorithm", "fedfw-anchored", "--anchor-every", "0"],
            "anchor-every = 0, expected a whole number",
        ),
        (["--device", "tpu"], "device='tpu'"),
        (["--device", "mps"], "device='mps', expected cpu or cuda"),
        (["--seed", "-1"], "seed = -1, expected a whole number of at least 0"),
        (["--model", "linear"], "digits has classes for targets, expected numbers"),
        (["--algorithm", "fedavgg"], "unknown algorithm 'fedavgg' (did you mean 'fedavg'?)"),
        (["--constraint", "nuclar:5"], "unknown constraint set 'nuclar' (did you mean 'nuclear'?)"),
        (["--dataset", "digit"], "unknown dataset 'digit' (did you mean 'digits'?)"),
        (["--schedule", "convx"], "unknown schedule 'convx' (did you mean 'convex'?)"),
        (["--partition", "lables:3"], "unknown partition 'lables:3' (did you mean 'labels'?)"),
        (["--rounds", "1e-3"], "rounds = 0.001, expected a whole number of at least 1"),
        (["--model", "mlp", "--tol", "0.1"], "tol needs a certificate"),
        (["--algorithm", "frank-wolfe", "--local-steps", "2"], "takes one step a round"),
        (["--algorithm", "feddr", "--momentum", "0.9"], "momentum goes with fedfw, fedfw+"),
        (
            ["--algorithm", "feddr", "--alpha", "2"],
            "alpha = 2.0, expected a number above 0 and below 2",
        ),
        (
            ["--lr", "0.1"],
            "lr goes with fedpgd, fedavg, fedavgm, fedcm, scaffold, fedadam, fedadamw, feddr, "
            "fedadmm, fedpal, fedda, fast-fedda, not with fedfw+",
        ),
        (["--model", "logistic"], "logistic regression is for two classes, and digits has 10"),
        (["--model", "completion"], "digits has classes for targets, expected ratings"),
        (["--model", "cnn"], "expected images of at least 16x16"),
        (["--weights", "age"], "weights = 'age', expected one of equal, samples"),
        (["--l2", "-1"], "l2 = -1.0, expected a number of at least 0"),
        (["--dataset", "diabetes", "--model", "mclr"], "diabetes has numbers for targets"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_is_allowed(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["run", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()  # nothing is left behind


def test_a_finished_run_can_be_lengthened(capsys: pytest.CaptureFixture[str]) -> None:
    straight = run(capsys, "--rounds", "9", "--participation", "0.5", "--out", "straight")
    run(capsys, "--rounds", "4", "--participation", "0.5", "--out", "r")
    assert main(["resume", "r", "--rounds", "9", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    timed = {"seconds", "run_folder"}
    assert {k: v for k, v in told.items() if k not in timed} == {
        k: v for k, v in straight.items() if k not in timed
    }
    assert read_config(Path("r/config.toml")) == read_config(Path("straight/config.toml"))
    history = Path("r/history.jsonl").read_text()
    assert main(["resume", "r"]) == 0
    assert Path("r/history.jsonl").read_text() == history
    capsys.readouterr()
    assert main(["resume", "elsewhere"]) == 2
    assert "no run folder" in capsys.readouterr().err
    assert main(["resume", "r", "--rounds", "5"]) == 2
    assert "rounds=5, expected at least 9" in capsys.readouterr().err
    assert main(["resume", "r", "--rounds", "many"]) == 2
    assert read_config(Path("r/config.toml")).rounds == 9
    run(capsys, "--rounds", "4", "--schedule", "linear-decay:0.5", "--out", "h")
    assert main(["resume", "h", "--rounds", "9"]) == 2
    assert "the schedule goes by the number of rounds" in capsys.readouterr().err
    assert read_config(Path("h/config.toml")).rounds == 4


@pytest.mark.plots
def test_compare(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")  # a run is one line of the table
    with monkeypatch.context() as patch:  # nobody looks at the pictures of the two runs
        patch.setattr(
            "fedfw.report.plots.save_figure", lambda figure, path: Path(path).write_bytes(b"")
        )
        run(capsys, "--rounds", "5", "--out", "one")
        told = run(
            capsys,
            "--rounds",
            "5",
            "--out",
            "two",
            "--algorithm",
            "frank-wolfe",
            "--constraint",
            "l2:5",
        )
    assert main(["compare", "one", "two", "--out", "both.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.partition("  ")[0]: line.partition("  ")[2] for line in lines}
    assert rows["data"].count("digits, mclr, 10 clients, labels:3") == 2
    assert rows["algorithm"].split() == ["fedfw+", "frank-wolfe"]
    assert rows["set"].split() == ["ksparse:k=65,r=1", "l2:5"]
    residual = float(rows["residual"].split()[1])
    assert residual == pytest.approx(float(str(told["residual"])), rel=1e-3)
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert main(["compare", "nowhere"]) == 2


def test_runs_of_different_problems_are_not_compared_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(capsys, "--rounds", "2", "--out", "one")
    run(capsys, "--rounds", "2", "--out", "two", "--partition", "iid")
    run(capsys, "--rounds", "2", "--out", "three", "--seed", "1")
    assert main(["compare", "one", "two"]) == 0
    said = "partition is labels:3 in one and iid in two"
    assert (
        f"Different problems, so their losses cannot be compared: {said}" in capsys.readouterr().out
    )
    assert main(["compare", "one", "three"]) == 0
    assert "The seeds differ" in capsys.readouterr().out
    Path("two/config.toml").unlink()
    assert main(["compare", "one", "two"]) == 0
    assert (
        "two has no config.toml: it is not known whether it is of the same problem"
        in capsys.readouterr().out
    )


def test_a_flag_that_is_nearly_right(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--participaton", "0.5"])
    assert "did you mean '--participation'?" in capsys.readouterr().err


def test_an_interrupt_of_a_run_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run(capsys, "--rounds", "15", "--out", "straight")
    take = fedfw.simulation.Simulation._round

    def interrupted(self: fedfw.simulation.Simulation) -> None:
        if self.t == 13:
            raise KeyboardInterrupt
        take(self)

    with monkeypatch.context() as patch:
        patch.setattr(fedfw.simulation.Simulation, "_round", interrupted)
        assert main(["run", "--rounds", "15", "--out", "r"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; continue with: fedfw resume r"
    assert main(["resume", "r", "--json"]) == 0
    told = capsys.readouterr()
    assert "going on after round 10" in told.err
    assert json.loads(told.out.splitlines()[-1])["loss"] == straight["loss"]


@pytest.mark.parametrize(
    "task", [["--dataset", "digits"], ["--dataset", "digits", "--constraint", "l2:10"]]
)
@pytest.mark.parametrize(
    "algorithm", ["fedavg", "feddr", "fedadmm", "fedpal", "fedda", "fast-fedda"]
)
def test_default_steps_come_near_the_optimum(
    capsys: pytest.CaptureFixture[str], task: list[str], algorithm: str
) -> None:
    """Not only on the data they were chosen on."""
    if tuple(task) not in SOLVED:
        assert main(["solve", *task, "--json", "--tol", "0.01"]) == 0
        SOLVED[tuple(task)] = json.loads(capsys.readouterr().out.splitlines()[-1])
    optimum = SOLVED[tuple(task)]
    loss = run(capsys, *task, "--algorithm", algorithm, "--eval-every", "100", "--out", "r")["loss"]
    assert (float(str(loss)) - optimum["value"]) / (
        optimum["start_value"] - optimum["value"]
    ) < 0.15


def test_the_closing_lines_say_what_is_certified(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    flags = [
        "--model",
        "mclr",
        "--constraint",
        "lipschitz:1",
        "--partition",
        "iid",
        "--rounds",
        "20",
    ]
    assert main(["run", *flags, "--certify", "0.1,5", "--json"]) == 0
    out = capsys.readouterr().out
    told = json.loads(out.splitlines()[-1])
    shares = told["certified"]
    assert shares["0.1"] > 0.5
    assert told["lipschitz"] <= 1.0
    line = (
        f"at l2 radius 0.1: {shares['0.1']:.1%}, 5: {shares['5']:.1%} (Lipschitz constant at most "
    )
    assert line in out
    assert read_config(Path(told["run_folder"]) / "config.toml").certify == "0.1,5"
