"""MNIST softmax regression: 10 clients with labels (i, i+1, i+2) mod 10, 100 rounds of one
full-gradient step.

Runs where the MNIST files are at hand (../shared/data beside the checkout, or $FEDFW_DATA). By
default it is every fourth or eighth image, which costs up to two percent of accuracy; with `pytest
-m slow` it is all of them.
"""

from functools import cache
from pathlib import Path

import pytest

import fedfw
from fedfw.data import Data, Part, load_data
from fedfw.presets import ProblemOptions, make_problem
from tests.data.files import DATA, needs
from tests.processes import run_python

MNIST = needs("mnist")
ALL = pytest.param(1, marks=pytest.mark.slow)
QUARTER, EIGHTH = [4, ALL], [8, ALL]


@cache
def loaded() -> Data:
    return load_data("mnist", DATA)


@cache
def data(every: int) -> Data:
    whole = loaded()
    train = Part(whole.train.inputs[::every], whole.train.targets[::every])
    return Data(whole.name, train, whole.test, whole.classes)


@cache
def problem(every: int) -> fedfw.Problem:
    return make_problem(data(every), ProblemOptions(model="mclr", clients=10, partition="labels:3"))


def floor(accuracy: float, every: int) -> float:
    return accuracy if every == 1 else accuracy - 0.02


def last(every: int, algorithm: fedfw.Algorithm) -> fedfw.Record:
    record = fedfw.simulate(problem(every), algorithm, rounds=100, eval_every=100).history[-1]
    assert record.accuracy is not None
    assert record.loss is not None
    return record


@MNIST
@pytest.mark.parametrize("every", EIGHTH)
def test_l2_ball(every: int) -> None:
    D = fedfw.L2Ball(10.0)
    assert last(every, fedfw.FedFW(D, penalty="theory")).accuracy >= floor(0.84, every)
    assert last(every, fedfw.FedFWPlus(D, penalty="theory")).accuracy >= floor(0.86, every)
    momentum = last(every, fedfw.FedFWPlus(D, penalty="theory:0.1", momentum=0.9))
    assert momentum.accuracy >= floor(0.91, every)
    usual = last(every, fedfw.FedFWPlus(D, momentum=0.9))
    assert usual.accuracy >= floor(0.91, every)
    optimum = fedfw.solve(problem(every), D, tol=0.005)
    assert optimum.uncertainty <= 0.005
    for record in (momentum, usual):
        assert record.loss - optimum.lower_bound < 0.02 * (
            optimum.start_value - optimum.lower_bound
        )


@MNIST
@pytest.mark.parametrize("every", QUARTER)
def test_l1_ball(every: int) -> None:
    D = fedfw.L1Ball(10.0)
    optimum = fedfw.solve(problem(every), D, tol=0.01)
    assert optimum.uncertainty <= 0.01
    plain = last(every, fedfw.FedFW(D, penalty=1e-3))
    anchored = last(every, fedfw.FedFWAnchored(D, anchor_every=20, momentum=0.9))
    below, start = optimum.lower_bound, optimum.start_value
    assert (plain.loss - below) / (start - below) > 0.2
    assert (anchored.loss - below) / (start - below) < 0.02


@MNIST
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc"
)
def test_a_run_stays_under_a_gigabyte(tmp_path: Path) -> None:
    arguments = [
        "run",
        "--dataset",
        "mnist",
        "--data-dir",
        str(DATA),
        "--constraint",
        "l2:10",
        "--rounds",
        "3",
    ]
    # The peak of this program alone, which forked from one that holds little more than torch.
    script = (
        # The solver that the run is compared with has all its memory in its first steps: one
        # second, and not five.
        "import fedfw.cli.closing; fedfw.cli.closing._SECONDS = 1.0; "
        f"from fedfw.cli import main; assert main({[*arguments, '--out', str(tmp_path / 'run')]!r}) == 0; "
        "print(dict(line.split(':') for line in open('/proc/self/status'))['VmHWM'].split()[0])"
    )
    done = run_python(["-c", script])
    assert int(done.stdout.splitlines()[-1]) * 1024 < 1e9  # told in kB


# --- Logistic regression on a9a, l1 ball of radius 2, 10 clients: the certificate closes on
# scikit-learn's answer ---
