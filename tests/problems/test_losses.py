"""f_i is the loss of all of client i's samples, whatever the padding and the splitting; other losses are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import fedfw
from fedfw.problems import modules, problem
from fedfw.problems.completion import MatrixCompletion
from fedfw.problems.known_losses import known_loss
from fedfw.problems.linear import LinearLosses
from fedfw.problems.modules import ModuleLosses, with_products

Pair = tuple[Tensor, Tensor]
SIZES = (10, 9, 8, 3, 10)
WEIGHT = torch.tensor([1.0, 5.0, 20.0])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def inputs(size: int, seed: int, *shape: int) -> Tensor:
    return torch.randn(size, *(shape or (4,)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
    "all three": (layer, nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1, label_smoothing=0.2), labels),
    "probabilities": (network, nn.CrossEntropyLoss(weight=WEIGHT), probabilities),
    "places": (Pixels, weighted_places, lambda m, seed: labels(m, seed, 4)),
    "likelihood": (lambda: network(nn.LogSoftmax(1)), nn.NLLLoss(weight=WEIGHT, ignore_index=2), labels),
    "squared": (network, nn.MSELoss(), numbers),
    "absolute": (layer, nnf.l1_loss, numbers),
    "smooth absolute": (network, nn.SmoothL1Loss(beta=0.3), numbers),
    "huber": (layer, nn.HuberLoss(delta=0.3), numbers),
    "logistic": (network, nn.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=WEIGHT), probabilities),
    "binary": (lambda: network(nn.Sigmoid()), nn.BCELoss(weight=WEIGHT), probabilities),
    "poisson": (layer, nn.PoissonNLLLoss(full=True), counts),
    "hinge": (layer, nn.HingeEmbeddingLoss(margin=0.5), signs),
    "one's own": (network, lambda o, t: (o.softmax(1) - torch.eye(3, dtype=o.dtype)[t]).square().mean(), labels),
    "batch norm": (lambda: network(nn.BatchNorm1d(3, track_running_stats=False)), nnf.cross_entropy, labels),
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
    return value.detach(), torch.cat([q.grad.flatten() for q in model.parameters() if q.grad is not None])


@cache  # they are the same however samples are split
def references(name: str, dtype: torch.dtype) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Some clients, a point for each, and their losses and gradients there by plain torch."""
    p, clients, loss = case(name, dtype)
    generator = torch.Generator().manual_seed(1)
    found = []
    for who in (torch.arange(5), torch.tensor([3, 1])):
        x = p.start + 0.3 * torch.randn(len(who), len(p.start), generator=generator, dtype=dtype)
        pairs = [by_autograd(p, loss, x[row], clients[i]) for row, i in enumerate(who.tolist())]
        found.append((who, x, torch.stack([value for value, _ in pairs]), torch.stack([slope for _, slope in pairs])))
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


def test_a_minibatch_of_ignored_samples_has_nothing_to_say() -> None:
    clients = [(inputs(4, 0), torch.tensor([0, 0, 1, 2]))]
    p = fedfw.Problem(layer().double(), nn.CrossEntropyLoss(ignore_index=0), clients)
    value, gradient = p.losses.value_and_gradient(p.start[None], torch.tensor([0]), torch.tensor([[0, 1]]))
    assert float(value) == 0.0
    assert not bool(gradient.any())


@DTYPES
@pytest.mark.parametrize("name", CASES)
def test_test_losses_are_exact_over_their_chunks(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem, "_EVALUATION_CHUNK", 4)
    p, clients, loss = case(name, dtype)
    expected, _ = by_autograd(p, loss, p.start, clients[0])
    assert p.test(p.start).loss == pytest.approx(float(expected), rel=1e-5 if dtype == torch.float32 else 1e-12)


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
    """Every sample of the one class against every sample of the other: their numbers differ from client to client."""
    return nnf.softplus(scores[targets == 0] - scores[targets == 1].T).mean()


def events(m: int, seed: int) -> Tensor:
    times = inputs(m, seed + 3, 1).abs()
    return torch.cat([times, (torch.arange(m)[:, None] % 3 < 2).double()], 1)


@DTYPES
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    ("loss", "targets"),
    [(cox, events), (auc, lambda m, seed: torch.arange(m) % 2), (nn.MSELoss(reduction="sum"), None)],
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
    monkeypatch.setattr(problem, "_EVALUATION_CHUNK", 4)
    assert p.test(p.start).loss == pytest.approx(float(values[1]), rel=1e-5)
    if not split:
        run = fedfw.simulate(p, fedfw.FedFW(fedfw.L2Ball(1.0), penalty=0.1), rounds=2)
        assert len(run.history) == 2


@pytest.mark.parametrize("kind", ["per client", "batch norm", "images"])
def test_whole_clients_have_no_minibatches_and_no_privacy(kind: str) -> None:
    clients = [(inputs(m, i).float(), torch.arange(m) % 2) for i, m in enumerate(SIZES)]
    if kind == "images":
        norm = nn.BatchNorm2d(2, track_running_stats=False)
        model: nn.Module = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1), norm, nn.Flatten(), layer())
        model[-1] = nn.Linear(8, 2)
        p = fedfw.Problem(model, nnf.cross_entropy, clients)
    elif kind == "batch norm":
        p = fedfw.Problem(network(nn.BatchNorm1d(3, track_running_stats=False)), nnf.cross_entropy, clients)
    else:
        p = fedfw.Problem(layer(1), auc, clients, per="client", l2=0.1)
    algorithm = fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1)
    assert len(fedfw.simulate(p, algorithm, rounds=1).history) == 1
    with pytest.raises(ValueError, match="batch_size=3, expected none: the loss is a function of all of a client's"):
        fedfw.simulate(p, algorithm, rounds=1, batch_size=3)
    with pytest.raises(ValueError, match='privacy does not go with per="client"'):
        fedfw.simulate(p, algorithm, rounds=1, privacy="eps=1,delta=1e-5")


def test_class_weights_do_not_go_with_privacy() -> None:
    clients = [(inputs(m, i).float(), labels(m, i)) for i, m in enumerate(SIZES)]
    for model in (layer(), network()):
        p = fedfw.Problem(model, nn.CrossEntropyLoss(weight=WEIGHT), clients)
        with pytest.raises(ValueError, match="privacy does not go with class weights or ignored samples"):
            fedfw.simulate(p, fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=1, privacy="eps=1,delta=1e-5")


def test_generated_clients_have_the_same_losses() -> None:
    def make(who: Tensor) -> Pair:
        return (
            torch.stack([inputs(6, int(i)).float() for i in who]),
            torch.stack([labels(6, int(i)).byte() for i in who]),
        )

    for model, loss in ((layer(), nnf.cross_entropy), (network(), nn.CrossEntropyLoss(weight=WEIGHT))):
        p = fedfw.Problem.generated(model, loss, 50, make)
        x, who = p.start.repeat(2, 1), torch.tensor([7, 31])
        values, gradients = p.losses.value_and_gradient(x, who, None)
        assert p.losses.weighs is (loss is not nnf.cross_entropy)
        for row, i in enumerate(who.tolist()):
            value, gradient = by_autograd(p, loss, x[row], (inputs(6, i).float(), labels(6, i)))
            assert torch.allclose(values[row], value, atol=1e-5)
            assert torch.allclose(gradients[row], gradient, atol=1e-5)


@pytest.mark.parametrize("model", [layer, network], ids=["layer", "network"])
def test_a_label_that_nobody_was_to_have_is_not_left_out_in_silence(model: Callable[[], nn.Module]) -> None:
    """The first clients of a generated problem have no class that torch ignores; a later one does."""

    def make(who: Tensor) -> Pair:
        ys = [torch.full((6,), -100) if int(i) > 2 else labels(6, int(i)) for i in who]
        return torch.stack([inputs(6, int(i)).float() for i in who]), torch.stack(ys)

    p = fedfw.Problem.generated(model(), nnf.cross_entropy, 5, make)
    x = p.start.repeat(2, 1)
    p.losses.value_and_gradient(x, torch.tensor([1, 2]), None)
    with pytest.raises((ValueError, IndexError, RuntimeError), match=r"out of bounds|index -100|has targets"):
        p.losses.value_and_gradient(x, torch.tensor([2, 3]), None)


# --- what is plain, and what is convex ---


@DTYPES
@pytest.mark.parametrize("kind", ["forward hook", "forward pre-hook", "parametrization", "new forward"])
def test_a_layer_that_does_more_is_no_plain_layer(kind: str, dtype: torch.dtype) -> None:
    model = layer()
    if kind == "forward hook":
        model.register_forward_hook(lambda module, given, output: 5 * output)
    elif kind == "forward pre-hook":
        model.register_forward_pre_hook(lambda module, given: (given[0].square(),))
    elif kind == "parametrization":
        parametrize.register_parametrization(model, "weight", nn.Tanh())
    else:
        model.forward = lambda x: nnf.linear(x, model.weight, model.bias).exp()  # type: ignore[method-assign]
    model = model.to(dtype)
    clients = [(inputs(m, i).to(dtype), labels(m, i)) for i, m in enumerate(SIZES)]
    p = fedfw.Problem(model, nnf.cross_entropy, clients)
    assert isinstance(p.losses, ModuleLosses)
    assert p.convex is not True
    assert p.classes is None
    if kind == "new forward":  # its closure holds the model that was given
        return
    x = p.start.repeat(5, 1)
    values, gradients = p.losses.value_and_gradient(x, torch.arange(5), None)
    for i in range(5):
        value, gradient = by_autograd(p, nnf.cross_entropy, x[i], clients[i])
        assert torch.allclose(values[i], value, atol=1e-5)
        assert torch.allclose(gradients[i], gradient, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["spectral_norm", "weight_norm", "pruning"])
def test_old_style_hooks_are_refused(kind: str) -> None:
    model = nn.Linear(4, 3)
    if kind == "pruning":
        prune.random_unstructured(model, "weight", 0.5)
    else:
        getattr(nn.utils, kind)(model)
    with pytest.raises(ValueError, match="module '' works out its 'weight' in a hook"):
        fedfw.Problem(model, nnf.cross_entropy, [(inputs(5, 0).float(), labels(5, 0))])


def test_a_buffer_that_changes_is_refused() -> None:
    class Counts(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    for model, name in ((Counts(), "calls"), (parametrizations.spectral_norm(layer()), "parametrizations.weight.0._u")):
        refused(f"changes its buffer '{name}' when it is called", model, nnf.cross_entropy, three(labels))


def welsch(outputs: Tensor, targets: Tensor) -> Tensor:
    return (1 - torch.exp(-((outputs - targets) ** 2))).mean()


def test_convexity_is_claimed_for_known_losses_only() -> None:
    pairs = (torch.tensor([[0, 0], [1, 1]]), torch.full((2,), 5.0))
    for loss in (nnf.mse_loss, nn.MSELoss(), nnf.l1_loss, nn.SmoothL1Loss(), nn.HuberLoss(delta=2.0)):
        assert fedfw.Problem(MatrixCompletion(2, 2), loss, [pairs]).convex is True
    unknown = fedfw.Problem(MatrixCompletion(2, 2), welsch, [pairs])
    assert unknown.convex is None
    assert fedfw.Problem(MatrixCompletion(2, 2), welsch, [pairs], convex=True).convex is True
    run = fedfw.simulate(unknown, fedfw.FedFW(fedfw.L2Ball(8.0), penalty=0.1), rounds=2)
    assert run.lower_bound is None or run.lower_bound <= unknown.value(torch.tensor([5.0, 0, 0, 5.0]))
    linear = [(inputs(5, 0).float(), inputs(5, 1, 3).float())]
    assert fedfw.Problem(layer(), welsch, linear).convex is None
    assert fedfw.Problem(layer(), nnf.l1_loss, linear).convex is True


def test_known_losses_are_convex_in_the_outputs() -> None:
    """Along random segments the value in the middle is at most the mean of the ends."""
    for name, (_, loss, targets) in CASES.items():
        known = known_loss(loss)
        if known is None or name == "places":
            continue
        y = known.converted(targets(6, 0), torch.float64)
        for seed in range(20):
            a, b = (inputs(6, seed + shift, 3) * 3 for shift in (0, 50))
            if name == "binary":
                a, b = a.sigmoid(), b.sigmoid()
            assert float(known((a + b) / 2, y)) <= float(known(a, y) + known(b, y)) / 2 + 1e-12


# --- refusals ---


def refused(message: str, model: nn.Module, loss: Any, clients: list[Any], **options: Any) -> None:
    with pytest.raises(ValueError, match=message):
        fedfw.Problem(model, loss, clients, **options)


def three(targets: Callable[[int, int], Tensor]) -> list[Pair]:
    return [(inputs(m, i).float(), targets(m, i)) for i, m in enumerate((6, 5, 4))]


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_reductions_that_are_no_means(reduction: str) -> None:
    function = partial(nnf.cross_entropy, reduction=reduction)
    for loss in (nn.CrossEntropyLoss(reduction=reduction), nn.KLDivLoss(reduction=reduction), function):
        refused(f"the loss has reduction='{reduction}', expected 'mean'", layer(), loss, three(labels))


def test_ones_own_losses_are_tried() -> None:
    weighted = lambda o, t: nnf.cross_entropy(o, t, weight=WEIGHT)  # noqa: E731
    total = lambda o, t: nnf.cross_entropy(o, t, reduction="sum")  # noqa: E731
    for loss in (weighted, total):
        for model in (layer(), network()):
            refused("expected the same: say per='client' for a loss", model, loss, three(labels))
    each = lambda o, t: nnf.cross_entropy(o, t, reduction="none")  # noqa: E731
    refused("the loss gives a tensor of shape", layer(), each, three(labels))
    refused("expected the same", layer(1), cox, three(lambda m, seed: events(m, seed).float()))
    refused("per='row', expected 'sample' or 'client'", layer(), nnf.mse_loss, three(numbers), per="row")
    # One client may have one class only; the others' samples show the weights.
    sorted_labels = three(lambda m, seed: torch.full((m,), seed))
    refused("expected the same", layer(), weighted, sorted_labels)
    plain = lambda o, t: nnf.cross_entropy(o, t)  # noqa: E731
    assert fedfw.Problem(layer(), plain, three(labels)).losses.per == "sample"


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_small_integers_are_class_numbers(dtype: torch.dtype) -> None:
    for model in (layer(), network()):
        wide, narrow = (
            fedfw.Problem(model, nnf.cross_entropy, three(lambda m, seed, t=t: labels(m, seed).to(t)))  # type: ignore[misc]
            for t in (torch.int64, dtype)
        )
        assert wide.value(wide.start) == narrow.value(narrow.start)
        assert isinstance(wide.losses, LinearLosses) == isinstance(narrow.losses, LinearLosses)


def last_with(value: Any, shape: tuple[int, ...] = ()) -> list[Pair]:
    data = three(labels)
    data[2] = (data[2][0], torch.full((4, *shape), value))
    return data


def test_targets_that_the_loss_must_not_get_name_their_client() -> None:
    for model in (layer(), network()):
        refused("client 2: a target of 3, expected class numbers from 0 to 2", model, nnf.cross_entropy, last_with(3))
        refused("client 2: a target of -1, expected class", model, nnf.cross_entropy, last_with(-1))
        refused("client 2: a target of -100, .*ignore_index=-100", model, nnf.cross_entropy, last_with(-100))
        refused("client 2: the loss ignores all of its samples", model, nn.CrossEntropyLoss(), last_with(-100))
        refused(
            "client 2: a target of -1, .* or 0, which the loss ignores",
            model,
            nn.CrossEntropyLoss(ignore_index=0),
            last_with(-1),
        )
        refused(r"client 2: targets are torch\.float32 numbers", model, nnf.cross_entropy, last_with(1.0))
        refused(r"client 2: class numbers of shape \(4, 1\)", model, nnf.cross_entropy, last_with(1, (1,)))
    refused(
        r"the test data: a target of 7",
        layer(),
        nnf.cross_entropy,
        three(labels),
        test=(inputs(1, 0), torch.tensor([7])),
    )
    minus = three(lambda m, seed: inputs(m, seed, 1).sign().float())
    refused(
        "client 0: a target of -1.0, expected numbers from 0 to 1",
        layer(1),
        nnf.binary_cross_entropy_with_logits,
        minus,
    )


@pytest.mark.parametrize("loss", [nnf.mse_loss, nn.L1Loss(), nn.HuberLoss(), nnf.binary_cross_entropy_with_logits])
def test_targets_are_not_broadcast(loss: Any) -> None:
    for outputs, shape in ((1, ()), (3, (1,))):
        data = three(lambda m, seed, outputs=outputs: inputs(m, seed, outputs).sigmoid().float())  # type: ignore[misc]
        data[1] = (data[1][0], torch.ones(5, *shape))
        message = rf"client 1: targets of shape \(5,.*\) for outputs of shape \(5, {outputs}\), expected equal shapes"
        refused(message, layer(outputs), loss, data)


def test_weights_are_for_classes_and_outputs_not_for_samples() -> None:
    refused("weight=.*, expected numbers of at least 0", layer(), nn.CrossEntropyLoss(weight=-WEIGHT), three(labels))
    each = nn.BCEWithLogitsLoss(weight=torch.ones(6, 1))
    data = three(lambda m, seed: inputs(m, seed, 1).sigmoid().float())
    refused(r"a weight of shape \(6, 1\), expected one for the outputs of a sample", layer(1), each, data)


def test_datasets_of_triples_are_refused() -> None:
    class Triples(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, j: int) -> tuple[Tensor, int, float]:
            return torch.zeros(4), j % 3, 7.0

    data: list[Any] = [*three(labels), Triples()]
    refused("client 3: item 0 of the dataset is 3 parts, expected a pair", layer(), nnf.cross_entropy, data)
    parts = torch.utils.data.TensorDataset(torch.zeros(5, 4), torch.zeros(5), torch.zeros(5))
    refused("client 0: expected a pair .* got 3 parts", layer(), nnf.cross_entropy, [parts])


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 4, 5),
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(2, 5, (3, 2), stride=(2, 1), padding=(0, 1), bias=False),
    ],
)
def test_convolutions_of_few_channels_are_the_same_as_products(layer: nn.Conv2d) -> None:
    model = nn.Sequential(layer)
    products = with_products(model)
    assert type(products[0]) is not nn.Conv2d
    assert type(model[0]) is nn.Conv2d
    images = torch.rand(6, layer.in_channels, 11, 9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(products(images), model(images))
    for own, other in zip(_gradients(products, images), _gradients(model, images), strict=True):
        torch.testing.assert_close(own, other)


def test_other_convolutions_stay_as_they_are() -> None:
    layers = (
        nn.Conv2d(8, 4, 3),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    )
    assert all(type(layer) is nn.Conv2d for layer in with_products(nn.ModuleList(layers)))


def _gradients(model: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(model(images).square().mean(), list(model.parameters()))
