"""MNIST softmax regression: 10 clients with labels (i, i+1, i+2) mod 10, 100 rounds of one full-gradient step.

Runs where the MNIST files are at hand (../shared/data beside the checkout, or $FEDFW_DATA).
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fedfw
from fedfw.command.build import build_algorithm
from fedfw.command.config import RunConfig
from fedfw.command.defaults import resolved
from fedfw.data import load_data
from tests.data.files import DATA, needs

pytestmark = needs("mnist")


@cache
def problem() -> fedfw.Problem:
    return fedfw.load_problem("mnist", "mclr", clients=10, rule="labels:3", data_dir=DATA)


def last(algorithm: fedfw.Algorithm) -> fedfw.Record:
    record = fedfw.simulate(problem(), algorithm, rounds=100, eval_every=100).history[-1]
    assert record.accuracy is not None
    assert record.loss is not None
    return record


def test_l2_ball() -> None:
    D = fedfw.L2Ball(10.0)
    assert last(fedfw.FedFW(D, penalty="auto")).accuracy >= 0.84
    assert last(fedfw.FedFWPlus(D, penalty="auto")).accuracy >= 0.86
    momentum = last(fedfw.FedFWPlus(D, penalty="auto:0.1", momentum=0.9))
    assert momentum.accuracy >= 0.91
    optimum = fedfw.solve(problem(), D, tol=0.005)
    assert optimum.uncertainty <= 0.005
    assert momentum.loss - optimum.lower_bound < 0.02 * (optimum.start_value - optimum.lower_bound)


def test_l1_ball() -> None:
    D = fedfw.L1Ball(10.0)
    optimum = fedfw.solve(problem(), D, tol=0.01)
    assert optimum.uncertainty <= 0.01
    plain = last(fedfw.FedFW(D, penalty=1e-3))
    anchored = last(fedfw.FedFWAnchored(D, anchor_every=20, momentum=0.9))
    below, start = optimum.lower_bound, optimum.start_value
    assert (plain.loss - below) / (start - below) > 0.2
    assert (anchored.loss - below) / (start - below) < 0.02


def test_projected_baselines_at_their_defaults() -> None:
    """What the command line gives for softmax regression; on the digits all four are held against the optimum."""
    data = load_data("mnist", DATA)
    for name, least in {"fedavg": 0.89, "feddr": 0.89}.items():
        config = resolved(RunConfig(dataset="mnist", constraint="l2:10", algorithm=name), data, True)
        assert last(build_algorithm(config)).accuracy >= least, name


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_a_run_stays_under_a_gigabyte(tmp_path: Path) -> None:
    arguments = ["run", "--dataset", "mnist", "--data-dir", str(DATA), "--constraint", "l2:10", "--rounds", "3"]
    # The peak of this program alone: getrusage would count what this test's process held when it started it.
    script = (
        f"import fedfw.cli; assert fedfw.cli.main({[*arguments, '--out', str(tmp_path / 'run')]!r}) == 0; "
        "print(dict(line.split(':') for line in open('/proc/self/status'))['VmHWM'].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) * 1024 < 1e9  # told in kB
