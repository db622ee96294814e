"""Runs that go on: only the same run, to the same bits, also behind an anchor and to more rounds."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

import fedfw
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.options import Options
from fedfw.rounds.records import Record
from fedfw.simulation import Callback, Run, Simulation
from fedfw_reproduction.known_quadratics import Quadratics
from tests.table import zero_layer

pytestmark = pytest.mark.usefixtures("no_plots")
Q = Quadratics.on("l1")
ALGORITHM = fedfw.FedFWPlus(Q.constraint, penalty=0.05)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def quadratics(dtype: torch.dtype = torch.float64, **options: Any) -> fedfw.Problem:
    return quadratic_problem(Q.A.to(dtype), Q.c.to(dtype), Q.start.to(dtype), **options)


def samples(*, change: float = 0.0, **options: Any) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(9, 4, generator=generator), torch.arange(9) % 3) for _ in range(4)]
    clients[2][0][5, 1] += change
    model = zero_layer(4, 3)
    return fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0], **options)


def kept(run: Run) -> list[dict[str, Any]]:
    """The records without the seconds, which differ from run to run."""
    return [{**vars(record), "seconds": None} for record in run.history]


# --- another run is refused ---


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"participation": 3}, {"participation": 2}, "participation was 3, is 2"),
        (
            {"participation": 0.5},
            {"participation": [0.5, 0.5, 0.5, 0.6]},
            r"participation was 0.5, is \[0.5, 0.5, 0.5",
        ),
        ({}, {"relax": {1: fedfw.L2Ball(5.0)}}, r"relax was {}, is {1: L2Ball\(r=5.0\)}"),
        ({"seed": 1}, {"seed": 2}, "seed was 1, is 2"),
        ({"batch_size": 3}, {}, "batch_size was 3, is None"),
        ({}, {"local_steps": 2}, "local_steps was 1, is 2"),
        ({"problem": {"l2": 0.001}}, {"problem": {"l2": 0.002}}, "l2 was 0.001, is 0.002"),
        (
            {},
            {"problem": {"weights": [1, 1, 1, 2]}},
            r"weights was \[0.25, 0.25, 0.25, 0.25\], is \[0.2,",
        ),
        ({}, {"problem": {"change": 1e-6}}, "data was [0-9a-f]{16}, is [0-9a-f]{16}$"),
        ({}, {"schedule": "constant:0.5"}, "schedule was"),
    ],
)
def test_another_run_is_refused_in_a_sentence(
    before: dict[str, Any], after: dict[str, Any], said: str, tmp_path: Path
) -> None:
    def start(choice: dict[str, Any], **more: Any) -> Run:
        problem = samples(**choice.get("problem", {}))
        algorithm = fedfw.FedFW(fedfw.L1Ball(3.0), penalty=0.1, schedule=choice.get("schedule"))
        options = {
            name: value for name, value in choice.items() if name not in ("problem", "schedule")
        }
        return fedfw.simulate(problem, algorithm, rounds=3, out=tmp_path, **options, **more)

    first = start(before)
    with pytest.raises(ValueError, match=f"holds another run: .*{said}"):
        start(after, resume=True)
    assert torch.equal(start(before, resume=True).x, first.x)


def test_a_model_that_was_not_seeded_is_refused_with_what_to_do(tmp_path: Path) -> None:
    inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    clients = [(inputs, torch.arange(12) % 3)] * 2

    def start(**more: Any) -> Run:
        problem = fedfw.Problem(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, clients)
        algorithm = fedfw.FedFW(fedfw.L2Ball(9.0), penalty=0.1)
        return fedfw.simulate(problem, algorithm, rounds=2, out=tmp_path, **more)

    start()
    with pytest.raises(ValueError, match=r"call torch\.manual_seed before the model is made"):
        start(resume=True)


# --- longer ---


@DTYPES
@pytest.mark.parametrize(
    "name",
    [
        "fedfw",
        "fedfw+",
        "fedfw-sto",
        "fedfw-anchored",
        "fedavg",
        "scaffold",
        "fedadamw",
        "frank-wolfe",
        "fast-fedda",
        "fedpal",
        "feddr",
        "fedadmm",
        "fedda",
        "fedpgd",
    ],
)
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_a_longer_run_is_the_straight_one(
    name: str, participation: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    given = (
        {"penalty": 0.05}
        if name.startswith("fedfw")
        else {}
        if name == "frank-wolfe"
        else {"lr": 0.1}
    )
    algorithm = fedfw.ALGORITHMS[name](Q.constraint, **given)
    options: dict[str, Any] = {"participation": participation, "seed": 3, "eval_every": 11}
    straight = fedfw.simulate(quadratics(dtype), algorithm, rounds=24, **options)
    fedfw.simulate(quadratics(dtype), algorithm, rounds=11, out=tmp_path, **options)
    longer = fedfw.simulate(
        quadratics(dtype), algorithm, rounds=24, out=tmp_path, resume=True, **options
    )
    assert torch.equal(longer.x, straight.x)
    assert kept(longer) == kept(straight)


@pytest.mark.parametrize(
    ("algorithm", "options", "why"),
    [
        (
            fedfw.FedFW(Q.constraint, penalty=0.1, schedule="nonconvex"),
            {},
            "the schedule goes by the number of rounds",
        ),
        (
            fedfw.FedFW(Q.constraint, penalty=0.0, schedule="linear-decay:0.5"),
            {},
            "the schedule goes by the number of rounds",
        ),
        (
            fedfw.FedAvg(Q.constraint, lr=0.1, decay="linear"),
            {},
            "the schedule goes by the number of rounds",
        ),
        (fedfw.FedFW(fedfw.L1Ball(1.0)), {}, "the default penalty goes by the number of rounds"),
        (
            ALGORITHM,
            {"participation": lambda t: [t % 8]},
            "how often a function chooses each client",
        ),
    ],
)
def test_what_goes_by_the_number_of_rounds_is_not_lengthened(
    algorithm: fedfw.Algorithm, options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    fedfw.simulate(Q.problem, algorithm, rounds=2, out=tmp_path, **options)
    with pytest.raises(ValueError, match=f"holds another run: .*{why}"):
        fedfw.simulate(Q.problem, algorithm, rounds=90, out=tmp_path, resume=True, **options)


def test_a_run_has_no_fewer_rounds_than_it_has_done(tmp_path: Path) -> None:
    fedfw.simulate(Q.problem, ALGORITHM, rounds=9, out=tmp_path)
    with pytest.raises(
        ValueError, match=r"rounds=4, expected at least 9: .* holds a run that has done so many"
    ):
        fedfw.simulate(Q.problem, ALGORITHM, rounds=4, out=tmp_path, resume=True)


# --- behind an anchor ---


class AtAnchor(Callback):
    """Ends a run after one round."""

    def __init__(self, at: int) -> None:
        self._at = at

    def after_round(self, simulation: Simulation) -> bool:
        return simulation.t == self._at


def memories(folder: Path) -> dict[str, Tensor]:
    found = RunFolder(folder, resume=True).latest()
    return found[0]


@DTYPES
@pytest.mark.parametrize(
    ("at", "how"),
    [
        *(
            (at, {"anchor_every": 4, "gradient_at": where})
            for at in (1, 5, 9)
            for where in ("xbar", "own")
        ),
        *((at, {"compress": "bits:4"}) for at in (1, 6)),
    ],
)
@pytest.mark.parametrize(
    "participation", [1.0, 0.6, lambda t: range(8) if t % 4 == 1 else [t % 8, (t + 2) % 8]]
)
def test_behind_an_anchor_a_run_goes_on_as_if_it_had_not_stopped(
    at: int,
    how: dict[str, Any],
    participation: float | Callable[[int], list[int]],
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    algorithm = fedfw.FedFWAnchored(Q.constraint, momentum=0.5, **how)
    options: dict[str, Any] = {"rounds": 9, "participation": participation, "seed": 5}
    problem = quadratics(dtype, weights=[0.3, 0.05, 0.1, 0.15, 0.1, 0.1, 0.1, 0.1])
    straight = fedfw.simulate(problem, algorithm, out=tmp_path / "straight", **options)
    first = fedfw.simulate(
        problem, algorithm, out=tmp_path / "run", callbacks=AtAnchor(at), **options
    )
    assert len(first.history) == at
    resumed = fedfw.simulate(problem, algorithm, out=tmp_path / "run", resume=True, **options)
    assert torch.equal(resumed.x, straight.x)
    assert kept(resumed) == kept(straight)
    assert (resumed.lower_bound, resumed.dense_sums) == (straight.lower_bound, straight.dense_sums)
    one, other = memories(tmp_path / "run"), memories(tmp_path / "straight")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# --- functions that draw at random ---


def test_a_private_run_spends_no_more_than_promised_whatever_a_function_draws() -> None:
    """The plan, the check and the round see one draw: with three draws 11 of 25 such runs spent too
    much.
    """
    pytest.importorskip("dp_accounting")
    for seed in range(25):
        chance, asked, seen = random.Random(seed), [], []

        def attend(t: int, chance: random.Random = chance, asked: list[int] = asked) -> list[int]:
            asked.append(t)
            return chance.sample(range(4), 2)

        def watch(simulation: Simulation, seen: list[int] = seen) -> None:
            seen.extend(simulation.now.who.tolist())

        promise = fedfw.Privacy(2.0, 1e-3, noise=4.0)
        options = Options(rounds=40, eval_every=40, participation=attend, privacy=promise)
        simulation = Simulation(
            samples(), fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1), options, callbacks=watch
        )
        last: Record = simulation.run().history[-1]
        assert asked == [*range(1, 41)]
        assert last.epsilon <= 2.0
        # It is what the rounds really took.
        assert last.epsilon == simulation.privacy.epsilon(max(Counter(seen).values()))
