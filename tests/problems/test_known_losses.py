"""What is claimed of a loss, its floor and its convexity, holds for every option that is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.problems.completion import MatrixCompletion
from fedfw.problems.known_losses import KINDS, ScaledCrossEntropy, floor_of, is_convex, known_loss, scaled_cross_entropy

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
SAMPLES = 6
PAIRS = 40
WEIGHT = torch.tensor([0.0, 2.5, 1.0])
Draw = Callable[[torch.Generator], Tensor]


def classes(draw: torch.Generator) -> Tensor:
    """All three classes, so that a class of weight 0 or an ignored one is never alone."""
    return torch.randperm(SAMPLES, generator=draw) % 3


def simplex(draw: torch.Generator) -> Tensor:
    return torch.randn(SAMPLES, 3, generator=draw, dtype=torch.float64).softmax(1)


def corners(draw: torch.Generator) -> Tensor:
    """Between 0 and 1 with both ends, and no rows that sum to 1."""
    return torch.randint(0, 5, (SAMPLES, 3), generator=draw).double() / 4


def numbers(draw: torch.Generator) -> Tensor:
    return 3 * torch.randn(SAMPLES, 3, generator=draw, dtype=torch.float64)


def counts(draw: torch.Generator) -> Tensor:
    return torch.randint(0, 40, (SAMPLES, 3), generator=draw)


def signs(draw: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (SAMPLES, 3), generator=draw) * 2 - 1


def patients(draw: torch.Generator) -> Tensor:
    events = torch.randint(0, 2, (SAMPLES,), generator=draw)
    return torch.stack([events, torch.randint(-3, 4, (SAMPLES,), generator=draw)], 1).double()


@dataclass(frozen=True)
class Case:
    """A loss with what is to be claimed of it."""

    loss: Any
    targets: Draw
    floor: float | None = 0.0
    least: float | None = None
    """Where the loss is only defined for outputs above a number, that number: the outputs are then the parameters."""
    scale: float = 10.0
    module: bool = False
    """Whether the layer is hidden in a module, so that torch differentiates the loss."""

    def problem(self, dtype: torch.dtype) -> fedfw.Problem:
        draw = torch.Generator().manual_seed(0)
        targets = self.targets(draw)
        targets = targets.to(dtype) if targets.is_floating_point() else targets
        if self.least is not None:
            pairs = torch.cartesian_prod(torch.arange(SAMPLES), torch.arange(3))
            model: nn.Module = MatrixCompletion(SAMPLES, 3)
            nn.init.ones_(model.weight)  # type: ignore[arg-type]
            return fedfw.Problem(model.to(dtype), self.loss, [(pairs, targets.flatten())])
        inputs = torch.randn(SAMPLES, 4, generator=draw, dtype=torch.float64).to(dtype)
        layer = nn.Linear(4, 1 if self.targets is patients else 3, bias=self.targets is not patients, dtype=dtype)
        model = nn.Sequential(layer) if self.module else layer
        return fedfw.Problem(model, self.loss, [(inputs, targets)])

    def points(self, p: fedfw.Problem, seed: int) -> Tensor:
        """(3, p): two random points and the one in the middle."""
        draw = torch.Generator().manual_seed(seed)
        scale = self.scale ** (1 - seed % 4)
        ends = scale * torch.randn(2, len(p.start), generator=draw, dtype=torch.float64)
        if self.least is not None:
            ends = self.least + ends.abs()
        if seed % 5 == 0 and self.least is None:  # kinks: outputs that are all 0
            ends[0] = 0
        return torch.cat([ends, ends.mean(0, keepdim=True)]).to(p.start.dtype)


CASES = {
    "cross-entropy": Case(nn.CrossEntropyLoss(), classes),
    "cross-entropy in a module": Case(nnf.cross_entropy, classes, module=True),
    "smoothing 1": Case(nn.CrossEntropyLoss(label_smoothing=1.0), classes),
    "smoothing 0.3 with zero weights": Case(nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.3), classes),
    "ignored class": Case(nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=2), classes),
    "probabilities": Case(nn.CrossEntropyLoss(), simplex),
    "probabilities outside of the simplex": Case(nn.CrossEntropyLoss(weight=WEIGHT), corners),
    "probabilities, smoothing 1": Case(partial(nnf.cross_entropy, label_smoothing=1.0), corners),
    "scaled": Case(ScaledCrossEntropy(1e-3), classes),
    "likelihood": Case(nn.NLLLoss(weight=WEIGHT), classes, floor=None),
    "likelihood with an ignored class": Case(partial(nnf.nll_loss, ignore_index=0), classes, floor=None),
    "squared": Case(nn.MSELoss(), numbers),
    "squared in a module": Case(nn.MSELoss(), numbers, module=True),
    "absolute": Case(nn.L1Loss(), numbers),
    "smooth absolute": Case(nn.SmoothL1Loss(), numbers),
    "smooth absolute, beta 0": Case(nn.SmoothL1Loss(beta=0.0), numbers),
    "smooth absolute, beta 1e6": Case(partial(nnf.smooth_l1_loss, beta=1e6), numbers),
    "huber, delta 1e-6": Case(nn.HuberLoss(delta=1e-6), numbers),
    "huber, delta 1e6": Case(partial(nnf.huber_loss, delta=1e6), numbers),
    "logistic": Case(nn.BCEWithLogitsLoss(), corners),
    "logistic with zero weights": Case(nn.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=WEIGHT.flip(0)), corners),
    "logistic, pos_weight 1e3": Case(nn.BCEWithLogitsLoss(pos_weight=torch.full((3,), 1e3)), corners),
    "poisson": Case(nn.PoissonNLLLoss(), counts, floor=None, scale=2.0),
    "poisson, full": Case(nn.PoissonNLLLoss(full=True), counts, scale=2.0),
    "poisson, full, few": Case(nn.PoissonNLLLoss(full=True), corners, scale=2.0),
    "poisson of rates, full": Case(nn.PoissonNLLLoss(log_input=False, full=True), counts, floor=-1e-8, least=0.0),
    "poisson of rates, full, few": Case(nn.PoissonNLLLoss(log_input=False, full=True), corners, floor=-1e-8, least=0.0),
    "poisson, full, eps 2": Case(
        partial(nnf.poisson_nll_loss, log_input=False, full=True, eps=2.0), corners, floor=-2.0, least=-2.0
    ),
    "poisson, full, eps -1": Case(
        nn.PoissonNLLLoss(log_input=False, full=True, eps=-1.0), corners, floor=1.0, least=1.0
    ),
    "poisson of rates": Case(nn.PoissonNLLLoss(log_input=False), counts, floor=None, least=0.0),
    "poisson, eps 2": Case(nn.PoissonNLLLoss(log_input=False, eps=2.0), counts, floor=None, least=-2.0),
    "poisson, eps -1": Case(nn.PoissonNLLLoss(log_input=False, eps=-1.0), counts, floor=None, least=1.0),
    "hinge": Case(nn.HingeEmbeddingLoss(), signs, floor=None),
    "hinge, margin 0": Case(nn.HingeEmbeddingLoss(margin=0.0), signs, floor=None),
    "hinge, margin -4": Case(partial(nnf.hinge_embedding_loss, margin=-4.0), signs, floor=None),
    "cox": Case(fedfw.cox_loss, patients),
    "cox in a module": Case(fedfw.cox_loss, patients, module=True),
    "cox, large scores": Case(fedfw.cox_loss, patients, scale=1e4),
}


def values_and_gradients(p: fedfw.Problem, points: Tensor) -> tuple[Tensor, Tensor]:
    """Of the only client, (m,) and (m, p)."""
    found = [p.losses.value_and_gradient(point[None], torch.tensor([0]), None) for point in points]
    return torch.cat([value for value, _ in found]).double(), torch.cat([slope for _, slope in found]).double()


def rounding(p: fedfw.Problem, case: Case, points: Tensor, values: Tensor, gradients: Tensor) -> float:
    """What arithmetic may change, from the sizes of what is added up."""
    sizes = values.abs().max() + gradients.abs().max() * points.double().abs().max()
    targets = case.targets(torch.Generator().manual_seed(0)).double().abs().max()
    return 100 * torch.finfo(p.start.dtype).eps * float(1 + targets + sizes)


@DTYPES
@pytest.mark.parametrize("name", CASES)
def test_claims_hold_at_random_points(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    p = case.problem(dtype)
    assert p.floor == floor_of(case.loss) == case.floor
    assert is_convex(case.loss)
    assert p.convex is (None if case.module else True)
    lowest = torch.inf
    for seed in range(PAIRS):
        points = case.points(p, seed)
        values, gradients = values_and_gradients(p, points)
        error = rounding(p, case, points, values, gradients)
        one, other, middle = values.tolist()
        assert middle <= (one + other) / 2 + error
        # A certificate is made from this: the loss is nowhere below its linearisation.
        forward = float((gradients[0] * (points[1].double() - points[0].double())).sum())
        assert other >= one + forward - error
        lowest = min(lowest, *values.tolist())
        if case.floor is not None:
            assert min(values.tolist()) >= case.floor - error
    assert case.floor is not None or lowest < 0  # where no floor is claimed, 0 is none


@DTYPES
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_binary_cross_entropy_of_probabilities_has_a_floor_and_is_not_convex(
    weight: Tensor | None, dtype: torch.dtype
) -> None:
    """torch cuts its logarithm off at -100, and its slope at -1e12."""
    loss = nn.BCELoss(weight=weight)
    assert floor_of(loss) == 0.0
    assert not is_convex(loss)
    targets = torch.ones(1, 3, dtype=dtype)
    known = known_loss(loss)
    assert known is not None
    for seed in range(PAIRS):
        draw = torch.Generator().manual_seed(seed)
        outputs = torch.rand(1, 3, generator=draw, dtype=torch.float64).pow(1 + seed).to(dtype)
        assert float(known(outputs, targets)) >= 0
    at = torch.full((1, 3), 1e-14, dtype=dtype, requires_grad=True)
    value = known(at, targets)
    value.backward()
    assert at.grad is not None
    further = torch.full((1, 3), 1e-13, dtype=dtype)
    linear = float(value.detach()) + float((at.grad * (further - at.detach())).sum())
    assert float(known(further, targets)) < linear - 1
    p = fedfw.Problem(MatrixCompletion(2, 2), nn.BCELoss(), [(torch.tensor([[0, 1]]), torch.ones(1))])
    assert p.convex is None
    with pytest.raises(ValueError, match="solve needs losses that are known to be convex"):
        fedfw.solve(p, "box:0,1")


def test_every_loss_of_the_table_is_tested() -> None:
    tested = {known.kind for case in CASES.values() if (known := known_loss(case.loss))}
    assert tested == {kind for kind in KINDS if kind.convex}
    assert [kind.module for kind in KINDS if not kind.convex] == [nn.BCELoss]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(label_smoothing=-0.5), r"label_smoothing=-0\.5, expected a number from 0 to 1"),
        (partial(nnf.cross_entropy, label_smoothing=1.5), r"label_smoothing=1\.5, expected a number from 0 to 1"),
        (partial(nnf.cross_entropy, label_smoothing=float("nan")), "label_smoothing=nan"),
        (nn.CrossEntropyLoss(weight=-WEIGHT), r"weight=.*, expected numbers of at least 0"),
        (nn.CrossEntropyLoss(weight=WEIGHT / 0), "weight=.*, expected numbers of at least 0"),
        (nn.NLLLoss(weight=torch.tensor([1.0, -1e-30, 0.0])), "weight=.*, expected numbers of at least 0"),
        (nn.BCEWithLogitsLoss(pos_weight=-WEIGHT), "pos_weight=.*, expected numbers of at least 0"),
        (nn.BCEWithLogitsLoss(weight=torch.full((3,), torch.inf)), "weight=.*, expected numbers of at least 0"),
        (nn.SmoothL1Loss(beta=-1.0), r"beta=-1\.0, expected a number of at least 0"),
        (nn.HuberLoss(delta=0.0), r"delta=0\.0, expected a number above 0"),
        (nn.HuberLoss(delta=float("nan")), "delta=nan, expected a number above 0"),
        (nn.HingeEmbeddingLoss(margin=float("nan")), "margin=nan, expected a number"),
        (partial(scaled_cross_entropy, scale=-2.0), r"scale=-2\.0, expected a number above 0"),
    ],
)
def test_options_for_which_nothing_can_be_claimed_are_refused(loss: Any, message: str) -> None:
    for function in (known_loss, floor_of, is_convex):
        with pytest.raises(ValueError, match=message):
            function(loss)
    draw = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=message):
        fedfw.Problem(nn.Linear(4, 3), loss, [(torch.randn(SAMPLES, 4), classes(draw))])


class Doubled(nn.MSELoss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return 1 - super().forward(input, target)


def hooked() -> nn.Module:
    loss = nn.MSELoss()
    loss.register_forward_hook(lambda module, given, value: 1 - value)
    return loss


def replaced() -> nn.Module:
    loss = nn.MSELoss()
    loss.forward = lambda outputs, targets: 1 - nnf.mse_loss(outputs, targets)  # type: ignore[method-assign]
    return loss


@DTYPES
@pytest.mark.parametrize("loss", [Doubled(), hooked(), replaced()], ids=["subclass", "hook", "new forward"])
def test_a_loss_module_that_computes_something_else_has_no_claims(loss: nn.Module, dtype: torch.dtype) -> None:
    assert known_loss(loss) is None
    assert floor_of(loss) is None
    assert not is_convex(loss)
    inputs, targets = torch.randn(SAMPLES, 4, dtype=dtype), torch.randn(SAMPLES, 3, dtype=dtype)
    model = nn.Linear(4, 3, dtype=dtype)
    p = fedfw.Problem(model, loss, [(inputs, targets)])
    assert (p.convex, p.floor) == (None, None)
    assert p.value(p.start) == pytest.approx(float(1 - nnf.mse_loss(model(inputs), targets)), rel=1e-5)


def test_other_reductions_and_weights_of_samples_have_no_claims() -> None:
    for loss in (nn.MSELoss(reduction="sum"), partial(nnf.mse_loss, weight=torch.ones(3))):
        assert floor_of(loss) is None
        assert not is_convex(loss)


@pytest.mark.parametrize("value", [0.0, 2.0, float("nan")])
def test_hinge_targets_are_plus_or_minus_one(value: float) -> None:
    targets = torch.ones(4, 3)
    targets[2, 1] = value
    with pytest.raises(ValueError, match=r"client 0: a target of .*, expected -1 or 1"):
        fedfw.Problem(nn.Linear(4, 3), nn.HingeEmbeddingLoss(), [(torch.randn(4, 4), targets)])


@DTYPES
def test_a_run_with_a_loss_below_zero_proves_nothing_false(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    clients = [(torch.randn(20, 3, dtype=dtype), torch.ones(20, 1, dtype=dtype)) for _ in range(3)]
    p = fedfw.Problem(nn.Linear(3, 1, dtype=dtype), nn.HingeEmbeddingLoss(), clients)
    run = fedfw.simulate(p, fedfw.FedFW(fedfw.L2Ball(5.0)), rounds=30, tol=1e-3)
    losses = [record.loss for record in run.history if record.loss is not None]
    assert min(losses) < -1
    assert run.lower_bound is not None
    assert run.lower_bound <= min(losses) + 1e-6
    optimum = fedfw.solve(p, fedfw.L2Ball(5.0))
    assert run.lower_bound <= optimum.value + 1e-6
    assert optimum.lower_bound <= optimum.value
