"""A proof is never contradicted by its own run: losses below bounds and tangents, negative gaps."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw import ContradictionError
from fedfw.certificates import validate_gap
from fedfw.rounds.contradictions import (
    ContradictionCheck,
    ReportedLosses,
)
from fedfw.simulation import Simulation

pytestmark = [
    pytest.mark.usefixtures("no_plots"),
    pytest.mark.filterwarnings("ignore:the model's parameters lie outside"),
]
FLOATS = [torch.float32, torch.float64]
Function = Callable[[Tensor], Tensor]


def waves(dtype: torch.dtype, clients: int = 3) -> fedfw.Problem:
    """Losses that are not convex, and are said to be."""
    start = torch.full((4,), 0.3, dtype=dtype)
    losses: list[Function] = [lambda x: torch.cos(x).sum() + 2.0] * clients
    return fedfw.Problem.from_losses(losses, start, convex=True)


ALGORITHMS: dict[str, Any] = {
    "fedfw": fedfw.FedFW("linf:4"),
    "fedfw+": fedfw.FedFWPlus("linf:4"),
    "fedfw+ with momentum": fedfw.FedFWPlus("linf:4", momentum=0.9),
    "frank-wolfe": fedfw.FrankWolfe("linf:4"),
    "fedavg": fedfw.FedAvg("linf:4", lr=0.5),
    "anchored": fedfw.FedFWAnchored("linf:4", anchor_every=2),
    "fedlmo": fedfw.FedLMO("linf:4"),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_that_refutes_its_bound_has_none_and_does_not_stop_by_it(
    name: str,
    dtype: torch.dtype,
) -> None:
    seen: list[Simulation] = []

    def watch(simulation: Simulation) -> None:
        seen[:] = [simulation]

    with pytest.raises(ContradictionError, match=r"round \d+: .*convex=True") as caught:
        fedfw.simulate(waves(dtype), ALGORITHMS[name], rounds=60, tol=1e-3, callbacks=watch)
    assert sum(part[0].isdigit() for part in str(caught.value).replace("-", "").split()) >= 2
    for simulation in seen:  # those that went on after a first round
        assert simulation.refuted
        assert simulation.best_bound is None
        assert all(record.lower_bound is None for record in simulation.history)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "options",
    [
        {"participation": 0.5},
        {"participation": 2, "eval_every": 3},
        {"local_steps": 3},
        {"eval_every": 7},
        {"relax": {0: fedfw.LinfBall(6.0)}},
    ],
    ids=str,
)
def test_absentees_local_steps_and_relaxed_clients_change_nothing(
    options: dict[str, Any],
    dtype: torch.dtype,
) -> None:
    with pytest.raises(ContradictionError, match="convex"):
        fedfw.simulate(waves(dtype), fedfw.FedFW("linf:4"), rounds=40, **options)


def squares(dtype: torch.dtype) -> fedfw.Problem:
    """F(x) = ||x||^2 + 1, from (2, 2)."""
    losses: list[Function] = [lambda x: x.square().sum() + 1] * 2
    return fedfw.Problem.from_losses(losses, torch.full((2,), 2.0, dtype=dtype), convex=True)


def stop(simulation: Simulation) -> bool:
    return simulation.t == 20


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("floor", "algorithm", "options", "message"),
    [
        (9.5, fedfw.FedFW("l2:4"), {}, r"^the start: the loss F = 9 .* below 9.5.*floor"),
        # The model that is returned is evaluated, although round 20 has no evaluation.
        (5.0, fedfw.FrankWolfe("l2:4"), {"callbacks": stop}, r"round 20: .* below 5"),
        # A gathered sum is compared with the bound before the tolerance is.
        (
            5.0,
            fedfw.FedFWAnchored("l2:4", anchor_every=1, schedule="constant:0.1"),
            {"tol": 1e-3},
            "below 5",
        ),
    ],
    ids=["start", "end", "anchors"],
)
def test_a_floor_that_is_none_is_found(
    floor: float,
    algorithm: fedfw.Algorithm,
    options: dict[str, Any],
    message: str,
    dtype: torch.dtype,
) -> None:
    problem = squares(dtype)
    problem.floor = floor  # F is 9 at the start and below 5 after a few rounds
    with pytest.raises(ContradictionError, match=message):
        fedfw.simulate(problem, algorithm, rounds=1000, eval_every=900, **options)
    if floor == 5.0:
        with pytest.raises(ContradictionError, match=r"step .* below 5"):
            fedfw.solve(problem, "l2:4")


@pytest.mark.parametrize("dtype", FLOATS)
def test_clients_are_looked_at_each_by_itself(dtype: torch.dtype) -> None:
    """The clients' waves cancel: F is convex, and no value of it says that the clients are not."""
    losses: list[Function] = [
        lambda x: 3 * torch.cos(2 * x).sum() + x.square().sum(),
        lambda x: -3 * torch.cos(2 * x).sum() + x.square().sum(),
    ]
    start = torch.full((3,), 0.4, dtype=dtype)
    problem = fedfw.Problem.from_losses(losses, start, convex=True)
    with pytest.raises(ContradictionError, match=r"the loss of client [01] at"):
        fedfw.simulate(problem, fedfw.FedFW("linf:2", penalty=0.01), rounds=20)


# --- honest runs, however badly they round ---


def regression(dtype: torch.dtype, offset: float) -> fedfw.Problem:
    """Targets far from zero that the model meets to the last bit or so: losses are all rounding."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 12, 3, dtype=torch.float64, generator=generator)
    inputs[..., 0] = 1
    targets = offset + (inputs @ torch.tensor([0.0, 0.3, -0.2], dtype=torch.float64))[..., None]
    model = nn.Linear(3, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[offset, 0.0, 0.0]]))
    clients = list(zip(inputs.to(dtype), targets.to(dtype), strict=True))
    return fedfw.Problem(model, nnf.mse_loss, clients)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4, 1e6])
@pytest.mark.parametrize("method", ["fedfw", "frank-wolfe", "fedavg", "fedfw-anchored"])
def test_rounding_is_no_contradiction(method: str, offset: float, dtype: torch.dtype) -> None:
    box = fedfw.Box(torch.tensor([offset - 1, -1, -1.0]), torch.tensor([offset + 1, 1, 1.0]))
    options = {"lr": 0.2} if method == "fedavg" else {}
    run = fedfw.simulate(
        regression(dtype, offset),
        fedfw.ALGORITHMS[method](box, **options),
        rounds=60,
    )
    assert run.lower_bound is not None
    assert not torch.isnan(run.x).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_loss_that_rounds_to_float32_inside_is_no_contradiction(dtype: torch.dtype) -> None:
    """Its type says float64, and its values are off by 1e-7: that is measured."""

    def coarse(x: Tensor) -> Tensor:
        return ((x.float() - 0.3).square().sum() + 100).to(x.dtype)

    start = torch.full((4,), 0.3, dtype=dtype)
    problem = fedfw.Problem.from_losses([coarse] * 2, start, convex=True)
    run = fedfw.simulate(problem, fedfw.FrankWolfe("l2:1"), rounds=60)
    assert run.lower_bound is not None
    assert fedfw.solve(problem, "l2:1", max_steps=60, tol=1e-12).lower_bound <= 100.001


def test_what_rounding_explains_is_not_measured_in_every_round() -> None:
    """What explained a suspicion explains the next one, too; to measure it takes 16 evaluations."""
    calls = []

    def coarse(x: Tensor) -> Tensor:
        calls.append(x)
        return ((x.float() - 1).square().sum() + 1e4).to(x.dtype)

    start = torch.zeros(20, dtype=torch.float64)
    problem = fedfw.Problem.from_losses([coarse], start, convex=True, smoothness=2.0)
    fedfw.simulate(problem, fedfw.FedAvg("l2:1", lr=1e-3), rounds=100)
    assert len(calls) < 400


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("loss", [nnf.l1_loss, nnf.huber_loss, nnf.smooth_l1_loss])
def test_kinks_are_no_contradiction(loss: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=dtype)
    inputs = torch.randn(3, 6, 3, dtype=dtype)
    targets = torch.randint(-1, 2, (3, 6, 1)).to(dtype)
    clients = list(zip(inputs, targets, strict=True))
    problem = fedfw.Problem(model, loss, clients, convex=True)
    run = fedfw.simulate(problem, fedfw.FedFWPlus("l1:2"), rounds=40)
    assert run.lower_bound is not None


def test_what_cancels_in_a_gradient_is_no_contradiction() -> None:
    """Two patients are alike, so F is flat far out, and its gradient is what rounding leaves."""
    features = torch.tensor([[9.0, 7.0], [9.0, 7.0], [5.0, 6.0]], dtype=torch.float64) * 1000
    targets = torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], dtype=torch.float64)
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    problem = fedfw.Problem(model, fedfw.cox_loss, [(features, targets)])
    for radius in (1e4, 1e6, 1e8):
        run = fedfw.simulate(problem, fedfw.FrankWolfe(f"capped-simplex:{radius:g}"), rounds=15)
        least = min(record.loss for record in run.history if record.loss is not None)
        assert run.lower_bound <= least + 1e-6 * (1 + least)


# --- gaps ---


@dataclass(frozen=True, eq=False)
class Wrong(fedfw.L2Ball):
    """A ball whose oracle finds the maximum."""

    def _lmo(self, g: Tensor, shape: Any, request: Any) -> fedfw.Atom:
        return replace(super()._lmo(-g, shape, request), bound=None)


WRONG = {
    "fedfw": fedfw.FedFW(Wrong(1.0), penalty=0.1, schedule="constant:0.1"),
    "frank-wolfe": fedfw.FrankWolfe(Wrong(1.0), schedule="constant:0.1"),
    "anchored": fedfw.FedFWAnchored(Wrong(1.0), penalty=0.1, schedule="constant:0.1"),
    "fedavg": fedfw.FedAvg(Wrong(1.0), lr=0.01),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("method", WRONG)
def test_a_negative_gap_names_the_oracle(method: str, dtype: torch.dtype) -> None:
    losses: list[Function] = [lambda x: (x - 2).square().sum()] * 2
    problem = fedfw.Problem.from_losses(losses, torch.zeros(3, dtype=dtype), convex=True)
    with pytest.raises(ContradictionError, match=r"round 1: the Frank-Wolfe gap is -.*oracle"):
        fedfw.simulate(problem, WRONG[method], rounds=3)
    with pytest.raises(ContradictionError, match=r"step 0: the Frank-Wolfe gap is -.*oracle"):
        fedfw.solve(problem, Wrong(1.0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_gap_may_be_negative_by_rounding_and_outside_of_the_set(dtype: torch.dtype) -> None:
    ball, gradient = fedfw.L2Ball(1.0), torch.tensor([3.0, 4.0], dtype=dtype)
    inside = -gradient / 5
    for x in (inside, inside * (1 + 1e-6), 2 * inside):
        gap = float((gradient.double() * x.double()).sum()) + 5
        validate_gap(ball, x, gradient, gap, "here")
    validate_gap(ball, inside, gradient, float("nan"), "here")
    with pytest.raises(ContradictionError, match=r"^here"):
        validate_gap(ball, inside, gradient, -1e-3, "here")


@pytest.mark.parametrize("lr", [1e3, 1e8])
def test_a_projection_that_iterates_leaves_no_negative_gap(lr: float) -> None:
    """The optimum is a vertex of the Birkhoff polytope, and the model misses it by 1e-13."""
    corner = 3 * torch.eye(4, dtype=torch.float64)
    losses: list[Function] = [lambda x: (x - corner).square().sum()]
    start = torch.full((4, 4), 0.25, dtype=torch.float64)
    problem = fedfw.Problem.from_losses(losses, start, convex=True)
    run = fedfw.simulate(problem, fedfw.FedPGD("birkhoff", lr=lr), rounds=3)
    assert run.lower_bound == pytest.approx(16)


@pytest.mark.parametrize("dtype", FLOATS)
def test_relaxed_clients_may_bring_the_gap_below_zero(dtype: torch.dtype) -> None:
    """xbar may be outside of the set, where F is below the optimum: that refutes nothing."""
    losses: list[Function] = [lambda x: (x - 5).square().sum()] * 3
    problem = fedfw.Problem.from_losses(losses, torch.zeros(2, dtype=dtype), convex=True)
    relax = {0: fedfw.L2Ball(2.0), 1: fedfw.L2Ball(2.0)}
    run = fedfw.simulate(problem, fedfw.FedFW("l2:1", penalty=0.01), rounds=60, relax=relax)
    assert min(record.gap for record in run.history) < 0
    optimum = 2 * (5 - 0.5**0.5) ** 2
    assert min(record.loss for record in run.history) < optimum
    assert run.lower_bound <= optimum * (1 + 1e-9)


# --- the central solver ---


@dataclass(frozen=True, eq=False)
class OracleOnly(fedfw.LinfBall):
    """A box without projection."""

    _project = fedfw.ConstraintSet._project


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("box", [fedfw.LinfBall(4.0), OracleOnly(4.0)])
def test_the_solver_refuses_losses_that_are_not_convex(box: Any, dtype: torch.dtype) -> None:
    with pytest.raises(ContradictionError, match=r"step .*convex"):
        fedfw.solve(waves(dtype), box)


def test_the_solver_looks_at_losses_that_work_in_float32_only() -> None:
    matrix = torch.eye(4)
    waves_in_float32: Function = lambda x: torch.cos(matrix @ x).sum()  # noqa: E731
    start = torch.full((4,), 0.3)
    problem = fedfw.Problem.from_losses([waves_in_float32], start, convex=True)
    with pytest.raises(ContradictionError, match="convex"):
        fedfw.solve(problem, "linf:4")


# --- what is kept ---


def test_a_folder_keeps_no_bound_of_a_run_that_refuted_it(tmp_path: Path) -> None:
    problem = squares(torch.float64)
    problem.floor = 1.7  # F falls below it after some checkpoints
    algorithm = fedfw.FrankWolfe("l2:4", schedule="constant:0.02")

    def take(resume: bool) -> None:
        fedfw.simulate(problem, algorithm, rounds=400, out=tmp_path, resume=resume)

    for resume in (False, True):  # a resumed run comes to the same end
        with pytest.raises(ContradictionError, match=r"below 1\.7") as caught:
            take(resume)
        lines = (tmp_path / "history.jsonl").read_text().splitlines()
        assert len(lines) > 10
        assert all(json.loads(line)["lower_bound"] is None for line in lines)
    assert caught.value is not None


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_lowest_loss_survives_a_checkpoint(dtype: torch.dtype) -> None:
    problem = squares(dtype)
    ball = problem.bind("l2:4")
    check = ContradictionCheck(problem, ball)
    assert check.state() == {}
    x = torch.tensor([0.5, 0.0], dtype=dtype)
    check.add_loss(7, x, problem.value(x))
    check.add_loss(8, 2 * x, problem.value(2 * x))
    again, older = ContradictionCheck(problem, ball), ContradictionCheck(problem, ball)
    again.load(check.state())
    older.load({})  # of a checkpoint from before these checks
    again.compare(9, 1.25 * (1 - 1e-12))
    older.compare(9, 2.0)
    with pytest.raises(ContradictionError, match=r"round 9: .* of round 7 is below 1\.3"):
        again.compare(9, 1.3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_loss_outside_of_the_set_counts_at_the_nearest_point_inside(dtype: torch.dtype) -> None:
    """Rounding to float32 may bring the model outside, and the loss there below the optimum."""
    losses: list[Function] = [lambda x: 1e6 * (x - 5).square().sum()]
    problem = fedfw.Problem.from_losses(losses, torch.zeros(1, dtype=dtype), convex=True)
    ball = problem.bind("l2:1")
    check = ContradictionCheck(problem, ball)
    outside = torch.tensor([1 + 1e-6], dtype=dtype)
    check.add_loss(1, outside, problem.value(outside))
    check.compare(2, 16e6)  # the optimum; F is 8 less outside
    with pytest.raises(ContradictionError):
        check.compare(2, 16e6 + 1)


def test_reported_losses() -> None:
    for dtype, slack in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        losses = ReportedLosses(dtype)
        assert losses.compare(1, 5.0, None) is None
        losses.add_loss(0, 9.0)
        losses.add_loss(3, 2.0)
        losses.add_loss(4, 3.0)
        assert losses.compare(5, 2.0 + slack * 5, None) is None
        error = losses.compare(5, 2.1, None)
        assert isinstance(error, ContradictionError)
        assert str(error).startswith("round 5: the loss F = 2 at the model of round 3 is below 2.1")
        again = ReportedLosses(dtype)
        again.load(json.loads(json.dumps(losses.state())))
        assert str(again.compare(5, 2.1, None)) == str(error)
        again.load({})
        assert again.compare(5, 2.1, None) is None
        losses.begin()  # another sum of losses has another optimum
        assert losses.compare(5, 2.1, None) is None
