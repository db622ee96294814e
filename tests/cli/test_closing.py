"""The last lines of a run: sums of gradients are spoken of where the clients' disagreement costs, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedfw
from fedfw.advice import measured
from fedfw.cli import main
from fedfw.cli.closing import cost_of_disagreement
from fedfw.problems.quadratics import quadratic_problem


def test_what_disagreement_costs_two_clients_who_want_opposite_things() -> None:
    """Without a penalty they go to 1 and -1, where their losses are 4 and 0; the model stays at 0, where F is 5."""
    algorithm = fedfw.FedFW(fedfw.Box(-1.0, 1.0), penalty=0.0)
    run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=1)
    assert cost_of_disagreement(run) == pytest.approx(3.0, abs=1e-12)
    held = fedfw.simulate(fedfw.testing.two_quadratics(), replace(algorithm, penalty=2.0), rounds=9)
    assert cost_of_disagreement(held) < 3.0  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_disagreement_costs_nothing_where_all_have_the_same_loss(dtype: torch.dtype) -> None:
    """F is convex: at the mean of some points it is at most its mean at them, however far apart they are."""
    centre = torch.tensor([[0.3, -0.2, 0.5]], dtype=dtype).expand(8, -1)
    problem = quadratic_problem(torch.eye(3, dtype=dtype).expand(8, 3, 3), centre, torch.zeros(3, dtype=dtype))
    run = fedfw.simulate(problem, fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.0), rounds=9, participation=0.5)
    assert run.history.last("consensus") > 0.1 * float(run.x.norm())
    assert cost_of_disagreement(run) <= 1e-6  # type: ignore[operator]


def test_it_is_not_known_of_methods_without_points_of_their_own() -> None:
    run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.FrankWolfe(fedfw.Box(-1.0, 1.0)), rounds=2)
    assert cost_of_disagreement(run) is None


@pytest.mark.parametrize(
    ("flags", "advised"),
    [
        (("--partition", "labels:3", "--constraint", "l1:10"), True),
        (("--partition", "dirichlet:0.1", "--constraint", "l1:30"), True),
        (("--partition", "iid", "--constraint", "l1:10"), False),
        (("--partition", "iid", "--constraint", "l1:30"), False),
        (("--partition", "dirichlet:1", "--constraint", "l1:100"), False),  # anchors would cost 4 points of accuracy
        (("--partition", "labels:3", "--constraint", "l1:10", "--algorithm", "fedfw-anchored"), False),
        (("--partition", "labels:3", "--constraint", "l2:10"), False),
    ],
)
def test_sums_are_advised_where_they_lower_the_loss(
    flags: tuple[str, ...],
    advised: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_plots: None,
) -> None:
    """Following the advice lowers the loss."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", *flags, "--eval-every", "100", "--out", "first"]) == 0  # the end is what counts
    told = capsys.readouterr().out
    assert ("The clients disagree" in told) is advised
    if advised:
        assert any(f"Measured on {problem.title}" in told for problem in measured().problems)
        command = next(line for line in told.splitlines() if line.startswith("  fedfw run")).split()[2:]
        assert main(["run", *command, "--out", "second"]) == 0
        first, second = (fedfw_loss(text) for text in (told, capsys.readouterr().out))
        assert second < first


def fedfw_loss(told: str) -> float:
    """The loss in the closing table."""
    return float(next(line for line in told.splitlines() if line.startswith("loss ")).split()[1])


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (("--partition", "dirichlet:1", "--constraint", "l1:10"), True),  # it falls from 63 to 57 %
        (("--partition", "labels:3", "--constraint", "l1:30"), True),  # from 86 to 79 %
        (("--partition", "dirichlet:0.1", "--constraint", "l1:30"), False),  # it rises from 42 to 54 %
        (("--partition", "labels:1", "--constraint", "l1:100"), False),  # from 24 to 85 %
    ],
)
def test_where_the_set_keeps_the_loss_up_it_is_said_that_accuracy_may_fall(
    flags: tuple[str, ...],
    warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_plots: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *flags, "--eval-every", "100", "--out", "here"]) == 0
    told = capsys.readouterr().out
    assert "The clients disagree" in told
    assert ("Test accuracy may fall" in told) is warned
