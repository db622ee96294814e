"""f_i is the loss of all of client i's samples, whatever the padding and the splitting; other
losses are refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.nn.utils import parametrize

import fedfw
from fedfw.problems import evaluation, modules
from fedfw.problems.completion import MatrixCompletion
from fedfw.problems.known_losses import (
    KINDS,
    ScaledCrossEntropy,
    floor_of,
    is_convex,
    known_loss,
    scaled_cross_entropy,
)
from fedfw.problems.modules import ModuleLosses

Pair = tuple[Tensor, Tensor]
SIZES = (10, 9, 8, 3, 10)
WEIGHT = torch.tensor([1.0, 5.0, 20.0])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def inputs(size: int, seed: int, *shape: int) -> Tensor:
    return torch.randn(
        size, *(shape or (4,)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def labels(size: int, seed: int, *shape: int) -> Tensor:
    return torch.randint(0, 3, (size, *shape), generator=torch.Generator().manual_seed(seed + 100))


def some_ignored(size: int, seed: int) -> Tensor:
    y = labels(size, seed)
    y[1:][y[1:] == 2] = -100
    return y


def network(last: nn.Module | None = None, outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs), last or nn.Identity())


def layer(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, outputs)


class Pixels(nn.Module):
    """Scores (m, 3, 4) for each of four places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scores = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x.unsqueeze(2)).mT


Targets = Callable[[int, int], Tensor]
probabilities: Targets = lambda m, seed: inputs(m, seed + 7, 3).softmax(1)  # noqa: E731
numbers: Targets = lambda m, seed: inputs(m, seed + 7, 3)  # noqa: E731
signs: Targets = lambda m, seed: inputs(m, seed + 7, 3).sign()  # noqa: E731
counts: Targets = lambda m, seed: labels(m, seed, 3)  # noqa: E731
weighted_places = nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1)

CASES: dict[str, tuple[Callable[[], nn.Module], Any, Targets]] = {
    "cross-entropy": (network, nnf.cross_entropy, labels),
    "its module": (network, nn.CrossEntropyLoss(), labels),
    "on a layer": (layer, nn.CrossEntropyLoss(), labels),
    "class weights": (network, nn.CrossEntropyLoss(weight=WEIGHT), labels),
    "class weights on a layer": (layer, nn.CrossEntropyLoss(weight=WEIGHT), labels),
    "class weights by keyword": (network, partial(nnf.cross_entropy, weight=WEIGHT), labels),
    "ignored class": (network, nn.CrossEntropyLoss(ignore_index=0), labels),
    "ignored -100 on a layer": (layer, nn.CrossEntropyLoss(), some_ignored),
    "smoothing": (network, nn.CrossEntropyLoss(label_smoothing=0.2), labels),
    "all three": (
        layer,
        nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1, label_smoothing=0.2),
        labels,
    ),
    "probabilities": (network, nn.CrossEntropyLoss(weight=WEIGHT), probabilities),
    "places": (Pixels, weighted_places, lambda m, seed: labels(m, seed, 4)),
    "likelihood": (
        lambda: network(nn.LogSoftmax(1)),
        nn.NLLLoss(weight=WEIGHT, ignore_index=2),
        labels,
    ),
    "scaled": (network, ScaledCrossEntropy(3.0), labels),
    "squared": (network, nn.MSELoss(), numbers),
    "absolute": (layer, nnf.l1_loss, numbers),
    "smooth absolute": (network, nn.SmoothL1Loss(beta=0.3), numbers),
    "huber": (layer, nn.HuberLoss(delta=0.3), numbers),
    "logistic": (network, nn.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=WEIGHT), probabilities),
    "binary": (lambda: network(nn.Sigmoid()), nn.BCELoss(weight=WEIGHT), probabilities),
    "poisson": (layer, nn.PoissonNLLLoss(full=True), counts),
    "hinge": (layer, nn.HingeEmbeddingLoss(margin=0.5), signs),
    "one's own": (
        network,
        lambda o, t: (o.softmax(1) - torch.eye(3, dtype=o.dtype)[t]).square().mean(),
        labels,
    ),
    "batch norm": (
        lambda: network(nn.BatchNorm1d(3, track_running_stats=False)),
        nnf.cross_entropy,
        labels,
    ),
    "batch norm, weights": (
        lambda: network(nn.BatchNorm1d(3, track_running_stats=False)),
        nn.CrossEntropyLoss(weight=WEIGHT),
        labels,
    ),
}


def case(name: str, dtype: torch.dtype) -> tuple[fedfw.Problem, list[Pair], Any]:
    build, loss, targets = CASES[name]
    clients = [(inputs(m, i).to(dtype), targets(m, i)) for i, m in enumerate(SIZES)]
    clients = [(x, y.to(dtype) if y.is_floating_point() else y) for x, y in clients]
    return fedfw.Problem(build().to(dtype), loss, clients, test=clients[0]), clients, loss


def by_autograd(p: fedfw.Problem, loss: Any, x: Tensor, data: Pair) -> tuple[Tensor, Tensor]:
    """Plain torch on one batch; weights of a loss are moved to the model's dtype."""
    model = p.trained(x)
    if isinstance(loss, nn.Module):
        loss = loss.to(x.dtype)
    elif isinstance(loss, partial):
        loss = partial(loss.func, weight=WEIGHT.to(x.dtype))
    targets = data[1].to(x.dtype) if isinstance(loss, nn.PoissonNLLLoss) else data[1]
    value = loss(model(data[0]), targets)
    value.backward()
    return value.detach(), torch.cat(
        [q.grad.flatten() for q in model.parameters() if q.grad is not None]
    )


@cache  # they are the same however samples are split
def references(name: str, dtype: torch.dtype) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Some clients, a point for each, and their losses and gradients there by plain torch."""
    p, clients, loss = case(name, dtype)
    generator = torch.Generator().manual_seed(1)
    found = []
    for who in (torch.arange(5), torch.tensor([3, 1])):
        x = p.start + 0.3 * torch.randn(len(who), len(p.start), generator=generator, dtype=dtype)
        pairs = [by_autograd(p, loss, x[row], clients[i]) for row, i in enumerate(who.tolist())]
        found.append(
            (
                who,
                x,
                torch.stack([value for value, _ in pairs]),
                torch.stack([slope for _, slope in pairs]),
            )
        )
    return found


@DTYPES
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_clients_loss_is_that_of_all_its_samples(
    name: str, split: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = references(name, dtype)
    if split:
        monkeypatch.setattr(modules, "_WORKING_FLOATS", 40)
    p, _, _ = case(name, dtype)
    at = 1e-5 if dtype == torch.float32 else 1e-12
    for who, x, wanted_values, wanted_gradients in expected:
        values, gradients = p.losses.value_and_gradient(x, who, None)
        assert torch.allclose(p.losses.value(x, who), values, atol=at)
        assert gradients.dtype == dtype
        assert torch.allclose(values, wanted_values, atol=at, rtol=at)
        assert torch.allclose(gradients, wanted_gradients, atol=at, rtol=at)


@DTYPES
@pytest.mark.parametrize("name", [name for name in CASES if "batch norm" not in name])
def test_a_minibatch_has_torchs_own_formula(name: str, dtype: torch.dtype) -> None:
    p, clients, loss = case(name, dtype)
    at = 1e-5 if dtype == torch.float32 else 1e-12
    picks = torch.tensor([[0, 5, 9, 5], [3, 3, 7, 1], [7, 0, 1, 2]])
    x = p.start.repeat(3, 1)
    values, gradients = p.losses.value_and_gradient(x, torch.arange(3), picks)
    for i in range(3):
        batch = clients[i][0][picks[i]], clients[i][1][picks[i]]
        value, gradient = by_autograd(p, loss, x[i], batch)
        assert torch.allclose(values[i], value, atol=at, rtol=at)
        assert torch.allclose(gradients[i], gradient, atol=at, rtol=at)


def test_accuracy_is_over_samples_that_are_not_ignored() -> None:
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    data = (torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]), torch.tensor([0, -100, 1, 0]))
    p = fedfw.Problem(model, nn.CrossEntropyLoss(), [data], test=data)
    assert p.test(p.start).accuracy == pytest.approx(2 / 3)


# --- losses of whole clients, and models that mix samples ---


def cox(risks: Tensor, targets: Tensor) -> Tensor:
    """A partial likelihood: targets are times and whether the event was seen."""
    order = targets[:, 0].argsort(descending=True)
    risks, seen = risks[order, 0], targets[order, 1] > 0
    return -(risks - risks.logcumsumexp(0))[seen].sum() / seen.sum()


def auc(scores: Tensor, targets: Tensor) -> Tensor:
    """Every sample of the one class against every sample of the other: their numbers differ from
    client to client.
    """
    return nnf.softplus(scores[targets == 0] - scores[targets == 1].T).mean()


def events(m: int, seed: int) -> Tensor:
    times = inputs(m, seed + 3, 1).abs()
    return torch.cat([times, (torch.arange(m)[:, None] % 3 < 2).double()], 1)


@DTYPES
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (cox, events),
        (auc, lambda m, seed: torch.arange(m) % 2),
        (nn.MSELoss(reduction="sum"), None),
    ],
)
def test_a_loss_of_whole_clients(
    loss: Any, targets: Any, split: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if split:
        monkeypatch.setattr(modules, "_WORKING_FLOATS", 10)
    targets = targets or (lambda m, seed: inputs(m, seed, 1))
    clients = [(inputs(m, i).to(dtype), targets(m, i)) for i, m in enumerate(SIZES)]
    clients = [(x, y.to(dtype) if y.is_floating_point() else y) for x, y in clients]
    p = fedfw.Problem(layer(1).to(dtype), loss, clients, test=clients[1], per="client")
    assert p.convex is None
    assert p.losses.per == "client"
    x = p.start.repeat(5, 1)
    values, gradients = p.losses.value_and_gradient(x, torch.arange(5), None)
    at = 1e-4 if dtype == torch.float32 else 1e-12
    for i in range(5):
        value, gradient = by_autograd(p, loss, x[i], clients[i])
        assert torch.allclose(values[i], value, atol=at)
        assert torch.allclose(gradients[i], gradient, atol=at)
    monkeypatch.setattr(evaluation, "_SAMPLES_AT_ONCE", 4)
    assert p.test(p.start).loss == pytest.approx(float(values[1]), rel=1e-5)
    if not split:
        run = fedfw.simulate(p, fedfw.FedFW(fedfw.L2Ball(1.0), penalty=0.1), rounds=2)
        assert len(run.history) == 2


@pytest.mark.parametrize("kind", ["per client", "batch norm", "images"])
def test_whole_clients_have_no_minibatches_and_no_privacy(kind: str) -> None:
    clients = [(inputs(m, i).float(), torch.arange(m) % 2) for i, m in enumerate(SIZES)]
    if kind == "images":
        norm = nn.BatchNorm2d(2, track_running_stats=False)
        model: nn.Module = nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1), norm, nn.Flatten(), layer()
        )
        model[-1] = nn.Linear(8, 2)
        p = fedfw.Problem(model, nnf.cross_entropy, clients)
    elif kind == "batch norm":
        p = fedfw.Problem(
            network(nn.BatchNorm1d(3, track_running_stats=False)), nnf.cross_entropy, clients
        )
    else:
        p = fedfw.Problem(layer(1), auc, clients, per="client", l2=0.1)
    algorithm = fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1)
    assert len(fedfw.simulate(p, algorithm, rounds=1).history) == 1
    with pytest.raises(
        ValueError, match="batch_size=3, expected none: the loss is a function of all of a client's"
    ):
        fedfw.simulate(p, algorithm, rounds=1, batch_size=3)
    with pytest.raises(ValueError, match='privacy does not go with per="client"'):
        fedfw.simulate(p, algorithm, rounds=1, privacy="eps=1,delta=1e-5")


# --- what is plain, and what is convex ---


HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "forward hook": lambda model: model.register_forward_hook(lambda m, given, output: 5 * output),
    "forward pre-hook": lambda model: model.register_forward_pre_hook(
        lambda m, given: (given[0].square(),)
    ),
    "parametrization": lambda model: parametrize.register_parametrization(
        model, "weight", nn.Tanh()
    ),
    "new forward": lambda model: setattr(model, "forward", lambda x: x @ model.weight.T),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_layer_that_does_more_is_no_plain_layer(kind: str) -> None:
    model = layer()
    HOOKS[kind](model)
    p = fedfw.Problem(model, nnf.cross_entropy, three(labels))
    assert isinstance(p.losses, ModuleLosses)
    assert (p.convex is True, p.classes) == (False, None)
    if kind != "new forward":  # its closure holds the model that was given
        value, gradient = by_autograd(p, nnf.cross_entropy, p.start, three(labels)[0])
        found = p.losses.value_and_gradient(p.start[None], torch.tensor([0]), None)
        assert torch.allclose(found[0][0], value, atol=1e-5)
        assert torch.allclose(found[1][0], gradient, atol=1e-5)


# --- refusals ---


def refused(message: str, model: nn.Module, loss: Any, clients: list[Any], **options: Any) -> None:
    with pytest.raises(ValueError, match=message):
        fedfw.Problem(model, loss, clients, **options)


def three(targets: Callable[[int, int], Tensor]) -> list[Pair]:
    return [(inputs(m, i).float(), targets(m, i)) for i, m in enumerate((6, 5, 4))]


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_reductions_that_are_no_means(reduction: str) -> None:
    function = partial(nnf.cross_entropy, reduction=reduction)
    for loss in (
        nn.CrossEntropyLoss(reduction=reduction),
        nn.KLDivLoss(reduction=reduction),
        function,
    ):
        refused(
            f"the loss has reduction='{reduction}', expected 'mean'", layer(), loss, three(labels)
        )


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nnf.dropout(torch.relu(self.first(x)), 0.01, training=self.training))


def test_models_that_draw_at_random_are_refused() -> None:
    before = torch.get_rng_state()
    model = Drops()
    after = torch.get_rng_state()
    refused(r"draws at random .* model\.eval\(\)", model, nnf.cross_entropy, three(labels))
    refused("draws at random", nn.Sequential(layer(), nn.RReLU()), nnf.cross_entropy, three(labels))
    torch.set_rng_state(after)
    fedfw.Problem(model.eval(), nnf.cross_entropy, three(labels))
    assert torch.equal(torch.get_rng_state(), after)  # a trial leaves no trace
    assert not torch.equal(before, after)


def last_with(value: Any, *shape: int) -> list[Pair]:
    data = three(labels)
    data[2] = (data[2][0], torch.full((4, *shape), value))
    return data


@pytest.mark.parametrize("model", [layer(), network()], ids=["layer", "network"])
@pytest.mark.parametrize(
    ("loss", "clients", "message"),
    [
        (nnf.cross_entropy, last_with(3), "a target of 3, expected class numbers from 0 to 2"),
        (nnf.cross_entropy, last_with(-1), "a target of -1, expected class"),
        (nnf.cross_entropy, last_with(-100), "a target of -100, .*ignore_index=-100"),
        (nn.CrossEntropyLoss(), last_with(-100), "the loss ignores all of its samples"),
        (
            nn.CrossEntropyLoss(ignore_index=0),
            last_with(-1),
            "a target of -1, .* or 0, which the loss ignores",
        ),
        (nnf.cross_entropy, last_with(1.0), r"targets are torch\.float32 numbers"),
        (nnf.cross_entropy, last_with(1, 1), r"class numbers of shape \(4, 1\)"),
    ],
)
def test_targets_that_the_loss_must_not_get_name_their_client(
    loss: Any, clients: list[Pair], message: str, model: nn.Module
) -> None:
    refused(f"client 2: {message}", model, loss, clients)


def test_targets_of_test_data_and_numbers_are_refused_as_well() -> None:
    test = inputs(1, 0), torch.tensor([7])
    message = r"the test data: a target of 7"
    refused(message, layer(), nnf.cross_entropy, three(labels), test=test)
    minus = three(lambda m, seed: inputs(m, seed, 1).sign().float())
    message = "client 0: a target of -1.0, expected numbers from 0 to 1"
    refused(message, layer(1), nnf.binary_cross_entropy_with_logits, minus)


# --- What is claimed of a loss, its floor and its convexity, holds for every option that is
# accepted ---

SAMPLES = 6
PAIRS = 20  # every pair of a scale and a start
KNOWN_LOSSES_WEIGHT = torch.tensor([0.0, 2.5, 1.0])
Draw = Callable[[torch.Generator], Tensor]


def classes(draw: torch.Generator) -> Tensor:
    """All three classes, so that a class of weight 0 or an ignored one is never alone."""
    return torch.randperm(SAMPLES, generator=draw) % 3


def simplex(draw: torch.Generator) -> Tensor:
    return torch.randn(SAMPLES, 3, generator=draw, dtype=torch.float64).softmax(1)


def corners(draw: torch.Generator) -> Tensor:
    """Between 0 and 1 with both ends, and no rows that sum to 1."""
    return torch.randint(0, 5, (SAMPLES, 3), generator=draw).double() / 4


def numbers_of_known_losses(draw: torch.Generator) -> Tensor:
    return 3 * torch.randn(SAMPLES, 3, generator=draw, dtype=torch.float64)


def counts_of_known_losses(draw: torch.Generator) -> Tensor:
    return torch.randint(0, 40, (SAMPLES, 3), generator=draw)


def signs_of_known_losses(draw: torch.Generator) -> Tensor:
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
    """Where the loss is only defined for outputs above a number, that number: the outputs are then
    the parameters.
    """
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
        layer = nn.Linear(
            4, 1 if self.targets is patients else 3, bias=self.targets is not patients, dtype=dtype
        )
        model = layer
        if self.module:
            model = nn.Sequential(layer)
            model.register_forward_hook(lambda module, given, outputs: outputs)
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


KNOWN_LOSSES_CASES = {
    "cross-entropy": Case(nn.CrossEntropyLoss(), classes),
    "cross-entropy in a module": Case(nnf.cross_entropy, classes, module=True),
    "smoothing 1": Case(nn.CrossEntropyLoss(label_smoothing=1.0), classes),
    "smoothing 0.3 with zero weights": Case(
        nn.CrossEntropyLoss(weight=KNOWN_LOSSES_WEIGHT, label_smoothing=0.3), classes
    ),
    "ignored class": Case(nn.CrossEntropyLoss(weight=KNOWN_LOSSES_WEIGHT, ignore_index=2), classes),
    "probabilities": Case(nn.CrossEntropyLoss(), simplex),
    "probabilities outside of the simplex": Case(
        nn.CrossEntropyLoss(weight=KNOWN_LOSSES_WEIGHT), corners
    ),
    "probabilities, smoothing 1": Case(partial(nnf.cross_entropy, label_smoothing=1.0), corners),
    "scaled": Case(ScaledCrossEntropy(1e-3), classes),
    "likelihood": Case(nn.NLLLoss(weight=KNOWN_LOSSES_WEIGHT), classes, floor=None),
    "likelihood with an ignored class": Case(
        partial(nnf.nll_loss, ignore_index=0), classes, floor=None
    ),
    "squared": Case(nn.MSELoss(), numbers_of_known_losses),
    "squared in a module": Case(nn.MSELoss(), numbers_of_known_losses, module=True),
    "absolute": Case(nn.L1Loss(), numbers_of_known_losses),
    "smooth absolute": Case(nn.SmoothL1Loss(), numbers_of_known_losses),
    "smooth absolute, beta 0": Case(nn.SmoothL1Loss(beta=0.0), numbers_of_known_losses),
    "smooth absolute, beta 1e6": Case(
        partial(nnf.smooth_l1_loss, beta=1e6), numbers_of_known_losses
    ),
    "huber, delta 1e-6": Case(nn.HuberLoss(delta=1e-6), numbers_of_known_losses),
    "huber, delta 1e6": Case(partial(nnf.huber_loss, delta=1e6), numbers_of_known_losses),
    "logistic": Case(nn.BCEWithLogitsLoss(), corners),
    "logistic with zero weights": Case(
        nn.BCEWithLogitsLoss(weight=KNOWN_LOSSES_WEIGHT, pos_weight=KNOWN_LOSSES_WEIGHT.flip(0)),
        corners,
    ),
    "logistic, pos_weight 1e3": Case(
        nn.BCEWithLogitsLoss(pos_weight=torch.full((3,), 1e3)), corners
    ),
    "poisson": Case(nn.PoissonNLLLoss(), counts_of_known_losses, floor=None, scale=2.0),
    "poisson, full": Case(nn.PoissonNLLLoss(full=True), counts_of_known_losses, scale=2.0),
    "poisson, full, few": Case(nn.PoissonNLLLoss(full=True), corners, scale=2.0),
    "poisson of rates, full": Case(
        nn.PoissonNLLLoss(log_input=False, full=True),
        counts_of_known_losses,
        floor=-1e-8,
        least=0.0,
    ),
    "poisson of rates, full, few": Case(
        nn.PoissonNLLLoss(log_input=False, full=True), corners, floor=-1e-8, least=0.0
    ),
    "poisson, full, eps 2": Case(
        partial(nnf.poisson_nll_loss, log_input=False, full=True, eps=2.0),
        corners,
        floor=-2.0,
        least=-2.0,
    ),
    "poisson, full, eps -1": Case(
        nn.PoissonNLLLoss(log_input=False, full=True, eps=-1.0), corners, floor=1.0, least=1.0
    ),
    "poisson of rates": Case(
        nn.PoissonNLLLoss(log_input=False), counts_of_known_losses, floor=None, least=0.0
    ),
    "poisson, eps 2": Case(
        nn.PoissonNLLLoss(log_input=False, eps=2.0), counts_of_known_losses, floor=None, least=-2.0
    ),
    "poisson, eps -1": Case(
        nn.PoissonNLLLoss(log_input=False, eps=-1.0), counts_of_known_losses, floor=None, least=1.0
    ),
    "hinge": Case(nn.HingeEmbeddingLoss(), signs_of_known_losses, floor=None),
    "hinge, margin 0": Case(nn.HingeEmbeddingLoss(margin=0.0), signs_of_known_losses, floor=None),
    "hinge, margin -4": Case(
        partial(nnf.hinge_embedding_loss, margin=-4.0), signs_of_known_losses, floor=None
    ),
    "cox": Case(fedfw.cox_loss, patients),
    "cox in a module": Case(fedfw.cox_loss, patients, module=True),
    "cox, large scores": Case(fedfw.cox_loss, patients, scale=1e4),
    "cox, efron": Case(partial(fedfw.cox_loss, ties="efron"), patients),
}


def values_and_gradients(p: fedfw.Problem, points: Tensor) -> tuple[Tensor, Tensor]:
    """Of the only client, (m,) and (m, p)."""
    found = [p.losses.value_and_gradient(point[None], torch.tensor([0]), None) for point in points]
    return torch.cat([value for value, _ in found]).double(), torch.cat(
        [slope for _, slope in found]
    ).double()


def rounding(
    p: fedfw.Problem, case: Case, points: Tensor, values: Tensor, gradients: Tensor
) -> float:
    """What arithmetic may change, from the sizes of what is added up."""
    sizes = values.abs().max() + gradients.abs().max() * points.double().abs().max()
    targets = case.targets(torch.Generator().manual_seed(0)).double().abs().max()
    return 100 * torch.finfo(p.start.dtype).eps * float(1 + targets + sizes)


@DTYPES
@pytest.mark.parametrize("name", KNOWN_LOSSES_CASES)
def test_claims_hold_at_random_points(name: str, dtype: torch.dtype) -> None:
    case = KNOWN_LOSSES_CASES[name]
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


def test_binary_cross_entropy_of_probabilities_has_a_floor_and_is_not_convex() -> None:
    """torch cuts its logarithm off at -100, and its slope at -1e12."""
    loss = nn.BCELoss()
    assert floor_of(loss) == 0.0
    assert not is_convex(loss)
    p = fedfw.Problem(
        MatrixCompletion(2, 2), nn.BCELoss(), [(torch.tensor([[0, 1]]), torch.ones(1))]
    )
    assert p.convex is None
    with pytest.raises(ValueError, match="solve needs losses that are known to be convex"):
        fedfw.solve(p, "box:0,1")


def test_every_loss_of_the_table_is_tested() -> None:
    tested = {
        known.kind for case in KNOWN_LOSSES_CASES.values() if (known := known_loss(case.loss))
    }
    assert tested == {kind for kind in KINDS if kind.convex}
    assert [kind.module for kind in KINDS if not kind.convex] == [nn.BCELoss]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            nn.CrossEntropyLoss(label_smoothing=-0.5),
            r"label_smoothing=-0\.5, expected a number from 0 to 1",
        ),
        (
            partial(nnf.cross_entropy, label_smoothing=1.5),
            r"label_smoothing=1\.5, expected a number from 0 to 1",
        ),
        (partial(nnf.cross_entropy, label_smoothing=float("nan")), "label_smoothing=nan"),
        (
            nn.CrossEntropyLoss(weight=-KNOWN_LOSSES_WEIGHT),
            r"weight=.*, expected numbers of at least 0",
        ),
        (
            nn.CrossEntropyLoss(weight=KNOWN_LOSSES_WEIGHT / 0),
            "weight=.*, expected numbers of at least 0",
        ),
        (
            nn.NLLLoss(weight=torch.tensor([1.0, -1e-30, 0.0])),
            "weight=.*, expected numbers of at least 0",
        ),
        (
            nn.BCEWithLogitsLoss(pos_weight=-KNOWN_LOSSES_WEIGHT),
            "pos_weight=.*, expected numbers of at least 0",
        ),
        (
            nn.BCEWithLogitsLoss(weight=torch.full((3,), torch.inf)),
            "weight=.*, expected numbers of at least 0",
        ),
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
@pytest.mark.parametrize(
    "loss", [Doubled(), hooked(), replaced()], ids=["subclass", "hook", "new forward"]
)
def test_a_loss_module_that_computes_something_else_has_no_claims(
    loss: nn.Module, dtype: torch.dtype
) -> None:
    assert known_loss(loss) is None
    for one in (loss, nn.MSELoss(reduction="sum"), partial(nnf.mse_loss, weight=torch.ones(3))):
        assert floor_of(one) is None
        assert not is_convex(one)
    inputs, targets = torch.randn(SAMPLES, 4, dtype=dtype), torch.randn(SAMPLES, 3, dtype=dtype)
    model = nn.Linear(4, 3, dtype=dtype)
    p = fedfw.Problem(model, loss, [(inputs, targets)])
    assert (p.convex, p.floor) == (None, None)
    assert p.value(p.start) == pytest.approx(
        float(1 - nnf.mse_loss(model(inputs), targets)), rel=1e-5
    )


@pytest.mark.parametrize("value", [0.0, 2.0, float("nan")])
def test_hinge_targets_are_plus_or_minus_one(value: float) -> None:
    targets = torch.ones(4, 3)
    targets[2, 1] = value
    with pytest.raises(ValueError, match=r"client 0: a target of .*, expected -1 or 1"):
        fedfw.Problem(nn.Linear(4, 3), nn.HingeEmbeddingLoss(), [(torch.randn(4, 4), targets)])


# --- What is done to models that a problem refuses ---


def network_of_model_fixes(dtype: torch.dtype) -> nn.Module:
    block = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(
        block, nn.Flatten(), nn.Linear(32, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
    ).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_with_batch_norm_trains_after_the_fix_that_the_refusal_names(
    dtype: torch.dtype,
) -> None:
    model = network_of_model_fixes(dtype)
    with torch.no_grad():
        model[0][1].weight.copy_(torch.arange(1.0, 9.0))
    clients = [(torch.randn(6, 1, 4, 4, dtype=dtype), torch.arange(6) % 2) for _ in range(2)]
    with pytest.raises(
        ValueError, match=r"'0\.1' keeps .*BatchNorm2d.* fedfw\.batch_norm_to_group_norm\(model\)"
    ):
        fedfw.Problem(model, nnf.cross_entropy, clients)
    fixed = fedfw.batch_norm_to_group_norm(model)
    assert isinstance(model[0][1], nn.BatchNorm2d)  # the given model stays as it is
    assert torch.equal(fixed[0][1].weight, model[0][1].weight)
    assert fixed[0][1].weight.dtype == dtype
    assert [fixed[0][1].num_groups, fixed[3].num_groups] == [2, 1]
    problem = fedfw.Problem(fixed, nnf.cross_entropy, clients)
    assert problem.losses.per == "sample"  # no sample sees another one
    run = fedfw.simulate(problem, fedfw.FedAvg("l2:10", lr=0.1), rounds=5)
    assert run.history[-1].loss < run.history[0].loss


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
