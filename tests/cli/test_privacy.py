"""The epsilon calculator against the formula of the Gaussian mechanism, and against what a run plans."""

from __future__ import annotations

import json
import math
import sys
from statistics import NormalDist

import pytest

import fedfw
from fedfw.cli.main import main


def told(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    assert main(["privacy", *flags, "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def delta_of(eps: float, noise: float, rounds: int) -> float:
    """Balle and Wang (2018): the exact delta of so many Gaussian releases."""
    mu, cdf = math.sqrt(rounds) / noise, NormalDist().cdf
    return cdf(mu / 2 - eps / mu) - math.exp(eps) * cdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize(("eps", "rounds"), [(4.0, 100), (0.5, 10)])
def test_the_noise_of_a_promise_is_the_least(capsys: pytest.CaptureFixture[str], eps: float, rounds: int) -> None:
    noise = told(capsys, "--eps", str(eps), "--rounds", str(rounds))["noise"]
    assert isinstance(noise, float)
    assert delta_of(eps, noise, rounds) <= 1e-5 * 1.01
    assert delta_of(eps, 0.99 * noise, rounds) > 1e-5


def test_what_a_noise_spends_grows_to_the_promise_it_was_made_for(capsys: pytest.CaptureFixture[str]) -> None:
    noise = told(capsys, "--eps", "2", "--rounds", "1e2")["noise"]
    spent = told(capsys, "--noise", str(noise), "--rounds", "100")["epsilon"]
    assert isinstance(spent, dict)
    assert list(spent.values()) == sorted(spent.values())
    assert spent["100"] == pytest.approx(2, rel=0.01)
    fit = told(capsys, "--eps", "1", "--noise", str(noise), "--rounds", "100")["most_rounds"]
    assert isinstance(fit, int)
    assert delta_of(1.0, float(str(noise)), fit) <= 1e-5 < delta_of(1.0, float(str(noise)), fit + 2)


def test_it_says_what_a_run_plans(capsys: pytest.CaptureFixture[str]) -> None:
    problem = fedfw.load_problem("digits", clients=4, partition="iid")
    run = fedfw.simulate(problem, fedfw.FedFWPlus("l1:10"), rounds=3, privacy="eps=4,delta=1e-5,not_private_seed=1")
    assert main(["privacy", "--eps", "4", "--rounds", "3", "--constraint", "l1:10", "--shape", "10x65"]) == 0
    out = capsys.readouterr().out
    assert run.privacy is not None
    assert "private choice of vertices" in out
    assert "private choice of vertices" in run.privacy
    assert f"{run.history[-1].epsilon:.4g}" in out
    assert "--privacy eps=4,delta=1e-05" in out
    sampled = told(capsys, "--noise", "5", "--rounds", "10", "--batch-size", "10", "--samples", "1000")
    assert sampled["rate"] == 0.01


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "neither --eps nor --noise is given"),
        (["--eps", "4", "--batch-size", "4"], "--batch-size 4 needs --samples"),
        (["--eps", "4", "--rounds", "0"], "rounds = 0, expected a whole number of at least 1"),
        (["--eps", "-1"], "eps=-1.0, expected a number from 1e-12"),
        (["--eps", "4", "--algorithm", "fedfw-anchored"], "shares exact sums of gradients"),
        (["--eps", "4", "--constraint", "nuclar:1"], "did you mean 'nuclear'?"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert main(["privacy", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [["privacy", "--eps", "4"], ["run", "--privacy", "eps=4,delta=1e-5"]])
def test_without_the_extra_there_is_one_line_that_names_no_package_index(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str], tmp_path: object
) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setattr("fedfw.privacy.accounting._spent", __import__("fedfw").privacy.accounting._spent.__wrapped__)
    assert main(command) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines == [
        f"fedfw {command[0]}: privacy needs dp-accounting, which is not installed: "
        'run  pip install -e ".[privacy]"  in fedfw\'s repository'
    ]
