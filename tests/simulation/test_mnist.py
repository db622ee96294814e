"""MNIST softmax regression: 10 clients with labels (i, i+1, i+2) mod 10, 100 rounds of one full-gradient step.

Runs where the MNIST files are at hand (../shared/data beside the checkout, or $FEDFW_DATA).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

import fedfw
from fedfw.command.build import build_problem
from fedfw.command.config import RunConfig

DATA = Path(os.environ.get("FEDFW_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="MNIST is not at hand")


@cache
def problem() -> fedfw.Problem:
    return build_problem(RunConfig(dataset="mnist", data_dir=str(DATA), partition="labels:3"))


def last(algorithm: fedfw.Algorithm) -> fedfw.Record:
    record = fedfw.simulate(problem(), algorithm, rounds=100, eval_every=100).history[-1]
    assert record.accuracy is not None
    assert record.loss is not None
    return record


@cache
def optimum(D: fedfw.ConstraintSet, steps: int) -> tuple[float, float]:
    """F* from below and above: accelerated projected gradient with its Frank-Wolfe gap."""
    p = problem()
    x = z = p.start
    momentum, step = 1.0, 1 / 15.0  # whatever the step, the gap below says how far the answer can be trusted
    for _ in range(steps):
        following = D.project(z - step * p.value_and_gradient(z)[1])
        faster = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        z = following + (momentum - 1) / faster * (following - x)
        x, momentum = following, faster
    value, gradient = p.value_and_gradient(x)
    gap = float((gradient * x).sum() - D.lmo(gradient).dot(gradient))
    return value - gap, value


def test_l2_ball() -> None:
    D = fedfw.L2Ball(10.0)
    assert last(fedfw.FedFW(D, penalty="auto")).accuracy >= 0.84
    assert last(fedfw.FedFWPlus(D, penalty="auto")).accuracy >= 0.86
    momentum = last(fedfw.FedFWPlus(D, penalty=1e-3, momentum=0.9))
    assert momentum.accuracy >= 0.91
    lowest, _ = optimum(D, 200)
    start, _ = problem().value_and_gradient(problem().start)
    assert momentum.loss - lowest < 0.02 * (start - lowest)


def test_l1_ball() -> None:
    D = fedfw.L1Ball(10.0)
    lowest, highest = optimum(D, 200)
    start, _ = problem().value_and_gradient(problem().start)
    assert highest - lowest < 0.015 * (start - lowest)
    plain = last(fedfw.FedFW(D, penalty=1e-3))
    anchored = last(fedfw.FedFWAnchored(D, anchor_every=20, momentum=0.9))
    assert (plain.loss - lowest) / (start - lowest) > 0.2
    assert (anchored.loss - lowest) / (start - lowest) < 0.02
