"""A grid search: the same budget for every point, the best by what was asked for, runs that blew up
last.
"""

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import fedfw
from fedfw.rounds.options import Options
from fedfw.tuning import Trial, Tuning, points_of, tune, usual_grid

D = fedfw.L2Ball(5.0)


def problem(test: bool = True, network: bool = False) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(25, 4, generator=generator) + i,
            torch.randint(0, 3, (25,), generator=generator),
        )
        for i in range(4)
    ]
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)) if network else nn.Linear(4, 3)
    )
    return fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0] if test else None)


# --- the budget ---


def test_every_point_has_the_rounds_that_the_budget_pays_for() -> None:
    grid = {"local_steps": (1, 2, 5), "batch_size": (None, 5)}
    found = tune(problem(), fedfw.FedFW(D, penalty=0.01), grid=grid, rounds=10)
    passes = {(t.choice["local_steps"], t.choice["batch_size"]): t.rounds for t in found.trials}
    # Clients keep 20 of 25 samples. A full gradient a step costs one, five of twenty samples a quarter.
    assert passes == {(1, None): 10, (1, 5): 40, (2, None): 5, (2, 5): 20, (5, None): 2, (5, 5): 8}
    assert [trial.choice for trial in found.trials] == points_of(grid)


# --- what is found ---


def test_the_best_is_the_one_that_a_run_of_its_own_confirms() -> None:
    grid = {"lr": (0.001, 0.3, 1.0), "mu": (0.0, 1.0)}
    for by in ("loss", "accuracy"):
        told: list[Trial] = []
        found = tune(problem(), fedfw.FedAvg(D), grid=grid, by=by, rounds=6, progress=told.append)  # type: ignore[arg-type]
        assert found.by == by
        assert told == found.trials
        assert len(found.trials) == 6
        for trial in found.trials:
            last = fedfw.simulate(
                problem().with_held_out(0.2),
                fedfw.FedAvg(D, **trial.choice),
                rounds=6,
                eval_every=6,
            ).history[-1]
            assert trial.held_out_loss == pytest.approx(last.test_loss)
            assert trial.held_out_accuracy == last.accuracy
            assert trial.loss == pytest.approx(last.loss)
            assert trial.algorithm == fedfw.FedAvg(D, **trial.choice)
        losses = [trial.held_out_loss for trial in found.trials]
        accuracies = [trial.held_out_accuracy or 0.0 for trial in found.trials]
        if by == "loss":
            assert found.best.held_out_loss == min(losses)
        else:
            assert found.best.held_out_accuracy == max(accuracies)


def test_runs_that_blow_up_rank_last() -> None:
    """A step size at which numbers overflow, and a loss that is not finite without an error."""
    found = tune(
        problem(network=True), fedfw.FedAvg(D), grid={"lr": (1e38, 0.01, 9.9e37)}, rounds=5
    )
    assert [math.isinf(trial.held_out_loss) for trial in found.trials] == [True, False, True]
    assert found.best.choice == {"lr": 0.01}
    method = fedfw.FedAvg(D)
    fine, blown = Trial({}, method, Options(), 0.5, 0.1), Trial({}, method, Options())
    for by in ("loss", "accuracy"):
        assert Tuning([blown, fine], by).best is fine
        assert blown.rank(by) == math.inf
    for loss in (math.nan, math.inf, -math.inf):
        assert replace(fine, held_out_loss=loss).rank("loss") == math.inf


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_every_algorithm_is_tuned_on_its_own_grid(name: str) -> None:
    algorithm = fedfw.ALGORITHMS[name](D)
    for there in (problem(), problem(network=True)):
        grid = usual_grid(there.with_held_out(0.2), algorithm, Options(rounds=2))
        found = tune(there, algorithm, rounds=2)
        assert len(found.trials) == math.prod(len(values) for values in grid.values())
        assert math.isfinite(found.best.held_out_loss)


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {"rounds": (1, 2)}}, "'rounds' cannot vary here, expected one of penalty, sch"),
        ({"grid": {"lr": (0.1,)}}, "grid: 'lr' cannot vary here"),
        ({"grid": {"penalty": (0.1, -1.0)}, "rounds": 1}, r"penalty=-1\.0, expected"),
        ({"round": 3}, r"tune has no option 'round' \(did you mean 'rounds'\?\)"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        tune(problem(), fedfw.FedFW(D), **options)


def test_test_data_are_never_looked_at() -> None:
    grid = {"lr": (0.01, 0.3)}
    without, beside = (
        tune(problem(test=test), fedfw.FedAvg(D), grid=grid, rounds=3) for test in (False, True)
    )
    assert without.trials == beside.trials
    lent = problem().with_held_out(0.2)
    assert lent.tests_lent
    assert (int(lent.losses.sizes.sum()), len(lent.test_data[0])) == (80, 20)
    assert tune(lent, fedfw.FedAvg(D), grid=grid, rounds=3).trials == without.trials
    copied = pickle.loads(pickle.dumps(problem().to(torch.device("cpu"))))
    with pytest.raises(ValueError, match="no samples that its clients could lend"):
        tune(copied, fedfw.FedAvg(D), grid=grid, rounds=3)


def test_problems_of_data_sets_and_sparse_ones_lend_samples() -> None:
    digits = fedfw.load_problem("digits", clients=5)
    lent = fedfw.load_problem("digits", clients=5, held_out=0.2)
    assert torch.equal(digits.with_held_out(0.2).test_data[0], lent.test_data[0])
    clients = [(torch.eye(10).to_sparse_csr(), torch.arange(10) % 3) for _ in range(2)]
    sparse = fedfw.Problem(nn.Linear(10, 3), nnf.cross_entropy, clients).with_held_out(0.2)
    assert sparse.test_data[0].shape == (4, 10)
    assert sparse.test_data[0].is_sparse_csr


def test_a_search_needs_samples_and_options_by_name() -> None:
    with pytest.raises(ValueError, match="no samples that its clients could lend"):
        tune(fedfw.testing.two_quadratics(), fedfw.FedFW("box:-1,1"), rounds=1)
    with pytest.raises(TypeError, match="positional"):
        tune(problem(), fedfw.FedFW(D), {"penalty": (0.1,)})


@pytest.mark.parametrize("option", [{"tol": 0.1}, {"eval_every": 5}, {"polish": "support"}])
def test_options_that_trials_do_not_have_are_refused(option: dict[str, Any]) -> None:
    problem = fedfw.load_problem("digits", clients=2, partition="iid")
    with pytest.raises(ValueError, match="would change nothing"):
        fedfw.tune(problem, fedfw.FedAvg("l2:10"), grid={"lr": [0.1]}, rounds=2, **option)
