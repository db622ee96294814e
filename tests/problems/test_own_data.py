"""Data and models as users have them give the problem that plain tensors and layers give."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

import fedfw
from fedfw.problems.digest import describe_problem

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
Pair = tuple[Tensor, Tensor]


def pairs(dtype: torch.dtype, sizes: tuple[int, ...] = (12, 9, 12)) -> list[Pair]:
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(m, 6, generator=draw, dtype=dtype), torch.randint(3, (m,), generator=draw))
        for m in sizes
    ]


def layer(dtype: torch.dtype, seed: int = 1) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(6, 3, dtype=dtype)


def problem(model: nn.Module, clients: Any, **options: Any) -> fedfw.Problem:
    return fedfw.Problem(model, nnf.cross_entropy, clients, **options)


def gradient(p: fedfw.Problem) -> Tensor:
    return p.value_and_gradient(p.start)[1]


# --- models ---


@DTYPES
def test_a_layer_behind_flatten_has_the_bits_of_the_layer(dtype: torch.dtype) -> None:
    clients = pairs(dtype)
    images = [(x.view(-1, 2, 3), y) for x, y in clients]
    alone = problem(layer(dtype), clients, test=clients[0])
    behind = problem(nn.Sequential(nn.Flatten(), layer(dtype)), images, test=images[0])
    assert behind.convex is True
    assert (behind.classes, behind.smoothness()) == (3, alone.smoothness())
    runs = [fedfw.simulate(p, fedfw.FedFWPlus("l1:3"), rounds=4, seed=0) for p in (alone, behind)]
    assert torch.equal(runs[0].x.flatten(), runs[1].x.flatten())
    for one, other in zip(runs[0].history, runs[1].history, strict=True):
        assert (one.loss, one.lower_bound, one.accuracy) == (
            other.loss,
            other.lower_bound,
            other.accuracy,
        )
    assert runs[1].history[-1].lower_bound is not None


class Pretrained(nn.Module):
    """A body with BatchNorm that is not trained, and a last layer that is."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.last = nn.Linear(5, 3)
        self.body[1].running_mean.normal_()
        self.body[1].running_var.uniform_(0.5, 2.0)
        self.to(dtype).eval()
        self.body.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.last(self.body(inputs))
        return scores


@DTYPES
def test_a_last_layer_on_frozen_features_is_linear(dtype: torch.dtype) -> None:
    clients = pairs(dtype)
    model = Pretrained(dtype)
    tuned = problem(model, clients)
    assert (tuned.convex, len(tuned.start)) == (True, 18)
    run = fedfw.simulate(tuned, fedfw.FedFW("l1:2"), rounds=5)
    assert run.history[-1].lower_bound is not None
    assert fedfw.L1Ball(2.0).contains(run.x)
    for name, value in model.state_dict().items():
        if not name.startswith("last"):
            assert torch.equal(run.model.state_dict()[name], value)
    # By automatic differentiation of the whole model, whose hook no graph shows.
    model.register_forward_hook(lambda module, given, outputs: outputs)
    opaque = problem(model, clients)
    assert opaque.convex is None
    tol = 1e-5 if dtype is torch.float32 else 1e-12
    assert torch.allclose(gradient(tuned), gradient(opaque), rtol=tol, atol=tol)


def test_layers_that_are_used_twice_or_trained_before_are_not_linear() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 6)

        def forward(self, inputs: Tensor) -> Tensor:
            scores: Tensor = self.last(self.last(inputs))
            return scores

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            scores: Tensor = self.last(inputs * self.last.weight.sum())
            return scores

    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    for each in (Twice(), Reads(), model, nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3))):
        assert problem(each, pairs(torch.float32)).convex is None


def test_batch_norm_that_still_counts_is_refused_with_a_way_out() -> None:
    model = Pretrained(torch.float32).train()
    with pytest.raises(ValueError, match=r"running statistics.*model\.eval\(\)"):
        problem(model, pairs(torch.float32))


class Masked(nn.Module):
    """Takes texts as numbers with a mask, and gives an object."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed = nn.Embedding(11, 3, dtype=dtype)

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        words = self.embed(ids) * mask.unsqueeze(2)
        return SimpleNamespace(logits=words.sum(1), hidden=words)


class Tokens(Dataset[Any]):
    def __init__(self, inputs: dict[str, Tensor], targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, j: int) -> Any:
        return {name: part[j] for name, part in self.inputs.items()}, int(self.targets[j])


@DTYPES
@pytest.mark.parametrize("form", ["dictionary", "several", "dataset"])
def test_several_inputs_and_logits(form: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    data = []
    for m in (7, 5):
        ids = torch.randint(11, (m, 4), generator=draw)
        mask = torch.rand(m, 4, generator=draw, dtype=dtype)
        data.append(({"ids": ids, "mask": mask}, torch.randint(3, (m,), generator=draw)))
    forms: dict[str, Callable[[Any, Tensor], Any]] = {
        "dictionary": lambda inputs, targets: (inputs, targets),
        "several": lambda inputs, targets: (tuple(inputs.values()), targets),
        "dataset": Tokens,
    }
    model = Masked(dtype)
    p = problem(model, [forms[form](*each) for each in data], test=forms[form](*data[0]))
    found = gradient(p)
    expected = sum(nnf.cross_entropy(model(**x).logits, y) for x, y in data) / 2
    (slope,) = torch.autograd.grad(expected, model.embed.weight)  # type: ignore[arg-type]
    tol = 1e-6 if dtype is torch.float32 else 1e-14
    assert torch.allclose(found, slope.flatten(), rtol=tol, atol=tol)
    run = fedfw.simulate(p, fedfw.FedFW("l1:20"), rounds=2, batch_size=3)
    inputs, targets = data[0]
    outputs = run.model(**inputs)  # takes and gives what the user's model does
    share = float((outputs.logits.argmax(1) == targets).double().mean())
    assert run.history[-1].accuracy == pytest.approx(share)


def test_whole_numbers_that_float32_does_not_hold_are_refused() -> None:
    inputs = (torch.tensor([[2**24 + 1]]), torch.ones(1, 1))
    with pytest.raises(ValueError, match=r"whole number that torch\.float32 does not hold"):
        problem(Masked(torch.float32), [(inputs, torch.tensor([0]))])


# --- data ---


@DTYPES
def test_arrays_loaders_and_texts_are_the_tensors_that_they_hold(dtype: torch.dtype) -> None:
    clients = pairs(dtype)
    plain = problem(layer(dtype), clients)
    names = np.array(["ant", "bee", "cat"])
    frozen = [(x.numpy().copy(), y.numpy().copy()) for x, y in clients]
    for part in (part for pair in frozen for part in pair):
        part.setflags(write=False)
    forms = {
        "arrays": [(x.numpy(), y.numpy()) for x, y in clients],
        "backwards": [(x.flip(1).numpy()[:, ::-1], y.numpy()) for x, y in clients],
        "read-only": frozen,
        "texts": [(x, names[y.numpy()]) for x, y in clients],
        "lists of texts": [(x, names[y.numpy()].tolist()) for x, y in clients],
        "loaders": [DataLoader(TensorDataset(x, y), batch_size=4) for x, y in clients],
    }
    for form, data in forms.items():
        p = problem(layer(dtype), data, test=data[0], weights="samples")
        assert describe_problem(p)["data"] == describe_problem(plain)["data"], form
        assert p.class_names == (("ant", "bee", "cat") if "texts" in form else ())
        assert p.batch_size == (4 if form == "loaders" else None)
        assert p.weights.tolist() == pytest.approx([12 / 33, 9 / 33, 12 / 33])


@DTYPES
def test_whole_numbers_are_inputs_of_layers_and_of_embeddings(dtype: torch.dtype) -> None:
    whole = torch.arange(24).reshape(4, 6) % 5
    targets = torch.tensor([0, 1, 2, 0])
    p = problem(layer(dtype), [(whole.numpy().astype(np.uint8), targets)])
    assert torch.equal(next(iter(p.losses.data())), whole.to(dtype))
    words = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(12, 3)).to(dtype)
    assert torch.equal(next(iter(problem(words, [(whole, targets)]).losses.data())), whole)
    for model in (words, nn.Sequential(nn.Linear(7, 3), nn.ReLU()).to(dtype)):
        with pytest.raises(ValueError, match="do not fit client 0's data"):
            problem(model, [(whole + 9, targets)])


def test_the_batch_size_of_loaders_is_that_of_the_run() -> None:
    clients = pairs(torch.float32)
    loaders = [DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True) for x, y in clients]
    method = fedfw.FedFWSto("l1:3")
    taken, given, whole = (
        fedfw.simulate(problem(layer(torch.float32), data), method, rounds=3, seed=1, **options).x
        for data, options in (
            (loaders, {}),
            (clients, {"batch_size": 4}),
            (loaders, {"batch_size": None}),
        )
    )
    assert torch.equal(taken, given)
    tuning = fedfw.tune(
        problem(layer(torch.float32), loaders, test=clients[0]),
        method,
        grid={"penalty": ("auto", "auto:3")},
        rounds=2,
    )
    assert {trial.options.batch_size for trial in tuning.trials} == {4}
    assert not torch.equal(taken, whole)


def test_outputs_that_are_no_tensor_are_refused() -> None:
    class InDictionary(nn.Linear):
        def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            return {"logits": super().forward(x)}

    with pytest.raises(ValueError, match="the model returns dict, expected a tensor"):
        problem(InDictionary(6, 3), pairs(torch.float32, (6,)))


def test_data_that_would_mean_something_else_are_refused() -> None:
    x, y = pairs(torch.float32, (6,))[0]
    weighted = DataLoader(TensorDataset(x, y), sampler=WeightedRandomSampler([1.0] * 6, 6))
    refused: list[tuple[list[Any], str]] = [
        ([weighted], "WeightedRandomSampler"),
        ([(x, y), (x, ["a"] * 6)], "some targets are texts and some numbers"),
        ([(np.array([["a"] * 6] * 6), y)], "inputs are texts"),
        ([(np.array([[object()] * 6] * 6), y)], "missing or no numbers"),
        ([(x, y), (scipy.sparse.csr_matrix(x.numpy()), y)], "client 1: layout"),
        ([({"left": x, "right": x[1:]}, y)], "client 0: several inputs of .* samples"),
        ([((x, scipy.sparse.csr_matrix(x.numpy())), y)], "to be a dense tensor or array"),
        ([((x, x), y), (x, y)], "client 1: inputs None, expected the same"),
        ([TensorDataset(x, x, y)], "got 3 parts"),
    ]
    for clients, message in refused:
        with pytest.raises(ValueError, match=message):
            problem(layer(torch.float32), clients)
    with pytest.raises(ValueError, match="expected a loss of classes"):
        fedfw.Problem(nn.Linear(6, 1), nnf.mse_loss, [(x, ["a", "b"] * 3)])


def test_frames_keep_their_columns_and_name_identifiers() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = pairs(torch.float64, (12,))[0]
    frame = pandas.DataFrame(x.numpy(), columns=list("abcdef"))
    target = pandas.Series(np.array(["no", "yes", "so"])[y.numpy()], dtype="category")
    p = problem(layer(torch.float64), [(frame, target)])
    assert torch.equal(next(iter(p.losses.data())), x)
    assert (p.columns, p.class_names) == (tuple("abcdef"), ("no", "so", "yes"))
    assert "a, b, c, d, e, f" in repr(p)
    mixed = frame.assign(f=range(100, 112), a=[True, False] * 6)
    with pytest.warns(UserWarning, match="input 'f' has another number"):
        p = problem(layer(torch.float64), [(mixed, target)])
    assert next(iter(p.losses.data()))[1].tolist()[0] == 0.0
    with pytest.raises(ValueError, match="client 1: columns"):
        problem(layer(torch.float64), [(frame, target), (frame[list("bacdef")], target)])
    with pytest.raises(ValueError, match="are texts"):
        problem(layer(torch.float64), [(frame.assign(c="x"), target)])


# --- sparse ---


LOSSES = {
    "cross-entropy": (nnf.cross_entropy, 3),
    "logistic": (nnf.binary_cross_entropy_with_logits, 1),
    "squared": (nnf.mse_loss, 2),
}


def sparse_pairs(dtype: torch.dtype, outputs: int, classes: bool) -> list[tuple[Any, Tensor]]:
    kind = np.float32 if dtype is torch.float32 else np.float64
    draw = torch.Generator().manual_seed(0)
    found = []
    for i, m in enumerate((11, 1, 8)):
        rows = scipy.sparse.random(m, 40, 0.1, "csr", kind, np.random.default_rng(i))
        targets = torch.rand(m, outputs, generator=draw, dtype=dtype)
        found.append((rows, targets.argmax(1) if classes else targets))
    return found


@DTYPES
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_sparse_and_dense_samples_give_the_same(name: str, bias: bool, dtype: torch.dtype) -> None:
    loss, outputs = LOSSES[name]
    clients = sparse_pairs(dtype, outputs, name == "cross-entropy")
    dense = [(rows.toarray(), targets) for rows, targets in clients]
    torch.manual_seed(2)
    model = nn.Linear(40, outputs, bias=bias, dtype=dtype)
    ours, theirs = (fedfw.Problem(model, loss, each, test=each[0]) for each in (clients, dense))
    tol = 1e-5 if dtype is torch.float32 else 1e-13
    who = torch.tensor([2, 0, 1])
    x = torch.randn(3, len(ours.start), dtype=dtype)
    for picks in (None, torch.tensor([[7, 0], [3, 3], [0, 0]])):
        for one, other in zip(
            ours.losses.value_and_gradient(x, who, picks),
            theirs.losses.value_and_gradient(x, who, picks),
            strict=True,
        ):
            assert torch.allclose(one, other, rtol=tol, atol=tol)
    for one, other in zip(ours.losses.exactly(x, who), theirs.losses.exactly(x, who), strict=True):
        assert one.dtype == torch.float64
        assert torch.allclose(one, other, rtol=1e-13, atol=1e-13)
    assert (ours.convex, ours.smoothness()) == (True, pytest.approx(theirs.smoothness(), rel=2e-3))
    assert ours.test(x[0])[:2] == pytest.approx(theirs.test(x[0])[:2], rel=tol)
    run = fedfw.simulate(ours, fedfw.FedAvg("l1:3"), rounds=3, batch_size=4)
    assert run.history[-1].loss is not None


def test_what_sparse_samples_cannot_do_is_refused() -> None:
    clients = sparse_pairs(torch.float32, 3, True)
    with pytest.raises(ValueError, match=r"sparse inputs need torch\.nn\.Linear"):
        problem(nn.Sequential(nn.Linear(40, 4), nn.ReLU(), nn.Linear(4, 3)), clients)
    p = problem(nn.Linear(40, 3), clients)
    with pytest.raises(ValueError, match="expected device='cpu'"):
        p.to(torch.device("meta"))
    ones = torch.ones(3)
    with pytest.raises(ValueError, match="privacy is not for sparse inputs"):
        p.losses.clipped_gradient(torch.zeros(3, 123), ones.long(), None, "l2", 1.0, ones)


def test_a_checkpoint_of_other_sparse_samples_is_of_another_problem() -> None:
    clients = sparse_pairs(torch.float32, 3, True)
    model = nn.Linear(40, 3)
    first, again = (describe_problem(problem(model, clients)) for _ in range(2))
    rows, targets = clients[0]
    other = [(rows * 2, targets), *clients[1:]]
    assert first == again != describe_problem(problem(model, other))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_sparse_samples_stay_sparse() -> None:
    """Dense they would take 240 MB in float32."""
    draw = np.random.default_rng(0)
    clients = [
        (
            scipy.sparse.random(400, 50_000, 2e-4, "csr", np.float32, draw),
            torch.from_numpy(draw.integers(0, 2, 400)),
        )
        for _ in range(3)
    ]
    small = [(rows[:, :100], targets) for rows, targets in clients]
    fedfw.simulate(problem(nn.Linear(100, 2), small), fedfw.FedFW("l1:5"), rounds=1)  # imports
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
    before = peak_kilobytes()
    run = fedfw.simulate(problem(nn.Linear(50_000, 2), clients), fedfw.FedFW("l1:5"), rounds=5)
    assert run.history[-1].lower_bound is not None
    assert (peak_kilobytes() - before) * 1024 < 200e6


def peak_kilobytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


# --- functions ---


def half(x: Tensor) -> Tensor:
    return x.square().sum() / 2


@DTYPES
@pytest.mark.parametrize("p", [3, 90])
def test_step_sizes_of_quadratic_functions_are_found(p: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    matrices = torch.randn(2, p, p, generator=draw, dtype=dtype)
    losses = [lambda x, A=A: (A @ x - 1).square().sum() for A in matrices]
    problem = fedfw.Problem.from_losses(losses, torch.ones(p, dtype=dtype), weights=[1, 3])
    each = 2 * torch.linalg.matrix_norm(matrices.double(), 2) ** 2
    assert problem.local_smoothness() == pytest.approx(float(each.max()), rel=2e-3)
    largest = float((each * torch.tensor([0.5, 1.5])).max())
    assert problem.smoothness() == pytest.approx(largest, rel=2e-3)
    run = fedfw.simulate(problem, fedfw.FedAvg("l2:1"), rounds=2)
    assert run.algorithm.lr == pytest.approx(1 / float(each.max()), rel=2e-3)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: x.exp().sum(),
        lambda x: half(x) + x.abs().sum(),
        lambda x: nnf.huber_loss(x, torch.ones(2)),
        lambda x: x.sum(),
    ],
)
def test_other_functions_need_their_smoothness(loss: Any) -> None:
    start = torch.zeros(2)
    problem = fedfw.Problem.from_losses([loss], start)
    assert problem.smoothness() is None
    with pytest.raises(ValueError, match="Cannot derive lr"):
        fedfw.simulate(problem, fedfw.FedAvg("l2:1"), rounds=1)
    given = fedfw.Problem.from_losses([half, loss], start, smoothness=[1, 4])
    assert (given.smoothness(), given.local_smoothness()) == (4, 4)
    assert fedfw.simulate(given, fedfw.FedAvg("l2:1"), rounds=1).algorithm.lr == 0.25
    with pytest.raises(ValueError, match="expected positive numbers"):
        fedfw.Problem.from_losses([loss], start, smoothness=0.0)
