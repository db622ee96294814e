"""The last lines of a run: sums of gradients are spoken of where the clients' disagreement costs, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedfw
from fedfw.cli import closing, main
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
    """Following the advice lowers the loss; without it there was no more than a tenth of what was gained to be had."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", *flags, "--out", "first"]) == 0
    told = capsys.readouterr().out
    assert ("The clients disagree" in told) is advised
    if advised:
        command = next(line for line in told.splitlines() if line.startswith("  fedfw run")).split()[2:]
        assert main(["run", *command, "--out", "second"]) == 0
        first, second = (fedfw_loss(text) for text in (told, capsys.readouterr().out))
        assert second < first


def fedfw_loss(told: str) -> float:
    """The loss in the closing table."""
    return float(next(line for line in told.splitlines() if line.startswith("loss ")).split()[1])


def test_where_the_set_itself_holds_the_loss_up_a_larger_one_is_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_plots: None
) -> None:
    """In a small ball the least loss is not the best accuracy."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--constraint", "l1:10", "--partition", "dirichlet:1", "--out", "here"]) == 0
    assert "For accuracy try a larger set" in capsys.readouterr().out
    monkeypatch.setattr(closing, "advise", lambda *a, **k: pytest.fail("not asked for"))
    assert main(["run", "--constraint", "l1:100", "--partition", "iid", "--out", "there"]) == 0
    assert "larger set" not in capsys.readouterr().out
