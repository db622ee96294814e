"""Cells: the choice of a grid is the best one's, all points cost the same gradients, residuals are
against F*.
"""

from dataclasses import replace
from math import prod

import pytest
import torch

from fedfw.config import RunConfig
from fedfw_reproduction.cells import Cell, Central, data_of, placed, shrunk
from fedfw_reproduction.figures import RESIDUAL, Done, average
from fedfw_reproduction.lab import Site
from fedfw_reproduction.protocols import six

DIGITS = RunConfig.of(
    dataset="digits",
    model="mclr",
    partition="labels:3",
    constraint="l2:10",
    algorithm="fedfw",
    momentum=0.0,
    rounds=10,
)


def test_the_best_point_of_the_grid_is_run_with_every_seed() -> None:
    cell = Cell(DIGITS, (("penalty", (1e-6, 0.01)),), seeds=2)
    result = cell.compute(Site())
    losses = {trial["choice"]["penalty"]: trial["held_out_loss"] for trial in result["trials"]}
    assert set(losses) == {1e-6, 0.01}
    assert result["chosen"]["penalty"] == min(losses, key=losses.__getitem__)
    assert [run["seed"] for run in result["runs"]] == [0, 1]
    assert all(run["lam_0"] == result["chosen"]["penalty"] for run in result["runs"])
    plain = Cell(DIGITS.having(penalty=result["chosen"]["penalty"]), seeds=2).compute(Site())
    assert Done(cell, plain).ends("loss") == Done(cell, result).ends("loss")


def test_anchors_are_paid_for() -> None:
    config = DIGITS.having(algorithm="fedfw-anchored", momentum=None)
    result = Cell(config, (("anchor-every", (1,)),), seeds=1).compute(Site())
    assert result["runs"][0]["rounds"] == 5  # two gradients a round instead of one


def test_an_epoch_is_as_many_steps_as_batches() -> None:
    config = replace(DIGITS, batch_size=24, rounds=2)
    (run,) = Cell(config, seeds=1, epoch=True).compute(Site())["runs"]
    (steps,) = Cell(replace(config, local_steps=6), seeds=1).compute(Site())[
        "runs"
    ]  # 1437 / 10 / 24
    assert run["curve"]["loss"] == steps["curve"]["loss"]


def test_curves_have_every_evaluated_round_and_bytes_up_to_it() -> None:
    (run,) = Cell(DIGITS.having(penalty=0.01), seeds=1, every=5).compute(Site())["runs"]
    assert run["curve"]["round"] == [5, 10]
    assert run["curve"]["bytes_up"][1] == 2 * run["curve"]["bytes_up"][0] > 0


def test_residuals_are_zero_at_the_optimum_and_one_at_the_start() -> None:
    cell = Cell(DIGITS.having(penalty=0.01), seeds=2)
    central, result = Central.of(cell).compute(Site()), cell.compute(Site())
    done = Done(cell, result, central)
    assert all(-1e-6 < value < 1 for value in done.ends(RESIDUAL))
    for run, optimum in zip(result["runs"], central["seeds"], strict=True):
        assert optimum["lower_bound"] <= optimum["value"] <= run["curve"]["loss"][-1]
        run["curve"]["loss"][-1] = optimum["start_value"]
    assert done.ends(RESIDUAL) == pytest.approx([1.0, 1.0])


def test_a_blown_up_run_is_no_number() -> None:
    config = DIGITS.having(algorithm="fedavg", momentum=None, lr=1e38, rounds=3)
    result = Cell(config, seeds=1).compute(Site())
    assert result["runs"] == []
    assert average(Done(config, result).ends("accuracy")) == "blew up"


def test_shrunk_data_are_some_of_the_data() -> None:
    data = data_of(DIGITS, None)
    few = shrunk(data, 100, seed=3)
    assert len(few.train) == len(few.test) == 100
    rows = {tuple(row.flatten().tolist()) for row in data.train.inputs}
    assert all(tuple(row.flatten().tolist()) in rows for row in few.train.inputs)
    assert torch.equal(few.train.inputs, shrunk(data, 100, seed=3).train.inputs)


@pytest.mark.parametrize("constraint", ["l1:10", "l2:10"])
@pytest.mark.parametrize("model", ["mclr", "cnn"])
@pytest.mark.parametrize(
    "algorithm",
    [
        "fedfw",
        "fedfw+",
        "fedfw-sto",
        "fedfw-anchored",
        "fedlmo",
        "feddr",
        "fedadmm",
        "fedavg",
        "fedda",
    ],
)
def test_every_grid_of_a_table_has_six_points(algorithm: str, model: str, constraint: str) -> None:
    assert prod(len(values) for _, values in six(algorithm, constraint, model, "mnist")) == 6


def test_cells_without_a_momentum_have_the_default_of_their_time() -> None:
    """Their keys name none, so results that are kept stay theirs."""
    plain = DIGITS.having(momentum=None)
    assert placed(plain, Site()).get("momentum") == 0.0
    assert placed(DIGITS.having(momentum=0.5), Site()).get("momentum") == 0.5
    assert placed(plain.having(algorithm="fedavg"), Site()).get("momentum") is None
    assert placed(plain.having(model="mlp"), Site()).get("momentum") is None
