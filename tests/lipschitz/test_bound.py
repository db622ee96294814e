"""The constant of a network: no pair of inputs is driven further apart, and what is not known is
refused by name.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import fedfw
from fedfw.lipschitz import MaxMin, Residual
from fedfw.lipschitz.certified import certified_radii
from fedfw.lipschitz.norms import convolution_bound, matrix_bound
from fedfw.models.images import Centred


def stretched(model: nn.Module, shape: tuple[int, ...], seed: int = 0) -> float:
    """The largest ratio of distances that gradient ascent finds."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, *shape, generator=generator, dtype=torch.float64).requires_grad_()
    y = (
        x.detach() + 0.1 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    ).requires_grad_()
    best = 0.0
    optimiser = torch.optim.Adam([x, y], lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        ratio = (model(x) - model(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        best = max(best, ratio.max().item())
        (-ratio.sum()).backward()
        optimiser.step()
    return best


PLAIN: dict[str, tuple[nn.Module, tuple[int, ...], float]] = {
    "relu": (nn.ReLU(), (5,), 1.0),
    "leaky": (nn.LeakyReLU(1.5), (5,), 1.5),
    "tanh": (nn.Tanh(), (5,), 1.0),
    "sigmoid": (nn.Sigmoid(), (5,), 0.25),
    "maxmin": (MaxMin(), (6,), 1.0),
    "maxmin-images": (MaxMin(), (4, 3, 3), 1.0),
    "centred": (Centred(), (2, 3, 3), 2.0),
    "max-pool": (nn.MaxPool2d(2), (2, 4, 4), 1.0),
    "max-pool-overlapping": (nn.MaxPool2d(3, stride=2), (1, 7, 7), 2.0),
    "max-pool-padded": (nn.MaxPool2d(3, stride=1, padding=1), (1, 5, 5), 3.0),
    "average-pool": (nn.AvgPool2d(2), (2, 4, 4), 0.5),
    "mean": (nn.AdaptiveAvgPool2d(1), (2, 1, 1), 1.0),
    "flatten": (nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 2))), (4, 1), 1.0),
    "residual": (Residual(nn.ReLU()), (5,), 2.0),
    "dropout": (nn.Dropout(0.5).eval(), (5,), 1.0),
}


@pytest.mark.parametrize("name", PLAIN)
def test_layers_without_weights(name: str) -> None:
    model, shape, constant = PLAIN[name]
    bound = fedfw.lipschitz_bound(model)
    assert bound == pytest.approx(constant, rel=0.02)
    assert stretched(model.double(), shape) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (2, 2), (4, 3)])
def test_average_pools_against_their_norm(kernel: int, stride: int) -> None:
    pool = nn.AvgPool2d(kernel, stride)
    exact = operator_norm(pool, 1, 12)
    assert exact <= fedfw.lipschitz_bound(pool) <= 1.2 * exact


def network() -> nn.Sequential:
    return nn.Sequential(
        Centred(),
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), MaxMin(), nn.MaxPool2d(2)),
        Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())),
        *(nn.Flatten(), nn.Linear(36, 6), MaxMin(), nn.Linear(6, 3)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_is_the_product_of_its_layers(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = network().to(dtype)
    parts = {
        name: fedfw.lipschitz_bound(model.get_submodule(name))
        for name in ("1.0", "2.body.0", "4", "6")
    }
    bound = fedfw.lipschitz_bound(model)
    assert bound == pytest.approx(
        2 * parts["1.0"] * (1 + parts["2.body.0"]) * parts["4"] * parts["6"]
    )
    assert stretched(model.double(), (1, 6, 6)) <= bound


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (nn.LSTM(4, 4), r"layer 1 \(LSTM\).*expected Sequential, Linear"),
        (nn.BatchNorm1d(4), r"layer 1 \(BatchNorm1d\)"),
        (
            nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"),
            r"layer 1 \(Conv2d\).*padding_mode='reflect'",
        ),
        (nn.Conv2d(1, 1, 3, padding=2, padding_mode="circular"), "padding_mode='circular'"),
        (
            nn.AvgPool2d(3, padding=1, count_include_pad=False),
            r"layer 1 \(AvgPool2d\).*count_include_pad=True",
        ),
        (nn.AdaptiveAvgPool2d(2), r"output_size=2, expected 1"),
        (nn.Flatten(0), r"begins at another axis"),
        (nn.Sequential(nn.PReLU()), r"layer 1.0 \(PReLU\)"),
    ],
)
def test_what_is_not_known_is_refused_by_name(layer: nn.Module, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        fedfw.lipschitz_bound(nn.Sequential(nn.ReLU(), layer))


def test_layers_refuse_inputs_that_they_would_repeat() -> None:
    """A number that is copied to several places makes distances longer than the layer's constant
    allows.
    """
    for inputs, outputs in ((5, 1), (1, 5)):
        with pytest.raises(ValueError, match="expected"):
            Residual(nn.Linear(inputs, outputs))(torch.ones(2, inputs))


class _Tenfold(MaxMin):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(inputs)


class _Calls(nn.Linear):
    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return 10 * torch.as_tensor(super().__call__(inputs))


class _Convolves(nn.Conv2d):
    def _conv_forward(self, *args: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 10 * super()._conv_forward(*args)


@pytest.mark.parametrize("layer", [_Tenfold(), _Calls(2, 2), _Convolves(1, 1, 3)], ids=repr)
def test_a_subclass_that_computes_something_else_has_no_inherited_bound(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=f"layer 0 \\({type(layer).__name__}\\)"):
        fedfw.lipschitz_bound(nn.Sequential(layer))


# --- layers that work in place, and models that change from one call to the next ---

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


class Flips(nn.Module):
    """Writes over its input."""

    lipschitz = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.neg_()


class Same(nn.Module):
    """Returns its input, on which the next layer may write."""

    lipschitz = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1).view_as(inputs)


class Fresh(nn.Module):
    lipschitz = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        return -inputs


IN_PLACE = [
    nn.ReLU(inplace=True),
    nn.ReLU6(inplace=True),
    nn.LeakyReLU(3.0, inplace=True),
    nn.Dropout(0.5, inplace=True).eval(),
    nn.Sequential(nn.Identity(), nn.Sequential(nn.Flatten(), nn.LeakyReLU(3.0, inplace=True))),
    nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
    Residual(nn.Sequential(Fresh(), nn.ReLU(inplace=True))),
    nn.Sequential(Residual(nn.ReLU()), nn.ReLU(inplace=True)),
    Flips(),
    nn.Sequential(Same(), nn.ReLU(inplace=True)),
    Same(),
    Fresh(),
]


@DTYPES
@pytest.mark.parametrize("body", IN_PLACE, ids=lambda body: type(body).__name__)
def test_a_residual_block_adds_its_inputs_as_they_are_and_has_its_bound(
    body: nn.Module, dtype: torch.dtype
) -> None:
    body = body.to(dtype)
    block = Residual(body)
    bound = fedfw.lipschitz_bound(nn.Sequential(nn.ReLU(inplace=True), block))
    assert bound == 1 + fedfw.lipschitz_bound(body)
    draw = torch.Generator().manual_seed(0)
    for scale in (1e-3, 1.0, 1e3):
        x, y = (scale * torch.randn(32, 4, generator=draw, dtype=dtype) for _ in range(2))
        before = x.clone()
        assert torch.equal(block(x), before + body(x.clone()))
        assert torch.equal(x, before)
        apart = (block(x) - block(y)).norm(dim=1)
        assert bool((apart <= bound * (x - y).norm(dim=1) * (1 + 1e-5)).all())


def test_dropout_in_training_mode_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Residual(nn.Dropout(0.5)))
    with pytest.raises(
        ValueError, match=r"layer 1\.body \(Dropout\).*p=0\.5 in training: call model\.eval\(\)"
    ):
        fedfw.lipschitz_bound(model)
    assert fedfw.lipschitz_bound(model.eval()) == pytest.approx(2 * fedfw.lipschitz_bound(model[0]))
    assert fedfw.lipschitz_bound(nn.Dropout(0.0)) == 1.0


def test_a_weight_that_changes_with_every_use_is_refused() -> None:
    torch.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Linear(30, 40), n_power_iterations=1)
    with pytest.raises(
        ValueError, match=r"layer 0 .*weight changes with every use.*call model\.eval\(\)"
    ):
        fedfw.lipschitz_bound(nn.Sequential(layer))
    layer.eval()
    exact = float(torch.linalg.matrix_norm(layer.weight.double(), 2))
    assert exact <= fedfw.lipschitz_bound(layer) <= exact * (1 + 1e-6)


def test_a_parametrised_weight_counts_as_it_is_used() -> None:
    layer = nn.Linear(3, 3)
    nn.init.eye_(layer.weight)

    class Tenfold(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 10 * weight

    parametrize.register_parametrization(layer, "weight", Tenfold())
    assert fedfw.lipschitz_bound(nn.Sequential(layer, layer)) == pytest.approx(100.0)


class Backwards(nn.Sequential):
    """Applies its layers twice."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from [*self._modules.values()] * 2


def test_other_ways_to_change_what_a_layer_does_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the model \(Backwards\)"):
        fedfw.lipschitz_bound(Backwards(nn.LeakyReLU(3.0)))
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda module, inputs, outputs: 5 * outputs)
    with pytest.raises(ValueError, match=r"the model \(Linear\).*hooks"):
        fedfw.lipschitz_bound(layer)
    convolution = nn.Conv2d(1, 1, 3)
    convolution._conv_forward = lambda *args: 10 * nn.Conv2d._conv_forward(convolution, *args)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"the model \(Conv2d\).*forward of its own"):
        fedfw.lipschitz_bound(convolution)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, outputs: 10 * outputs
    )
    try:
        with pytest.raises(ValueError, match="hooks"):
            fedfw.lipschitz_bound(nn.ReLU())
    finally:
        handle.remove()
    with pytest.raises(ValueError, match="return_indices=True, expected False"):
        fedfw.lipschitz_bound(nn.MaxPool2d(2, return_indices=True))


# --- Certified accuracy: known answers, and no attack within a radius changes a certified class ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_radius_of_a_linear_classifier(dtype: torch.dtype) -> None:
    """With scores W x and W orthogonal, the distance to the border of two classes is margin /
    sqrt(2).
    """
    model = nn.Linear(3, 3, bias=False, dtype=dtype)
    nn.init.eye_(model.weight)
    x = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.5, 3.0], [1.0, 2.0, 0.0]], dtype=dtype)
    classes = torch.tensor([0, 2, 0])
    expected = torch.tensor([1.0, 2.5, -1.0], dtype=torch.float64) / math.sqrt(2)
    found = certified_radii(model, x, classes, fedfw.lipschitz_bound(model))
    assert torch.allclose(found, expected, atol=1e-6)
    assert bool((found <= expected).all())
    shares = fedfw.certified_accuracy(model, (x, classes), [0.0, 0.7, 0.71, 1.8])
    assert list(shares.values()) == pytest.approx([2 / 3, 2 / 3, 1 / 3, 0.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_first_layer_in_place_changes_neither_samples_nor_radii(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    last = nn.Linear(4, 3)
    samples = torch.randn(20, 4, dtype=dtype), torch.randint(3, (20,))
    before = samples[0].clone()
    models = [nn.Sequential(nn.LeakyReLU(2.0, inplace=inplace), last) for inplace in (False, True)]
    plain, in_place = (
        certified_radii(model, *samples, fedfw.lipschitz_bound(model)) for model in models
    )
    assert torch.equal(plain, in_place)
    assert torch.equal(samples[0], before)


def test_a_model_is_certified_as_it_is_evaluated() -> None:
    torch.manual_seed(0)
    last = nn.Linear(4, 3)
    samples = torch.randn(20, 4), torch.randint(3, (20,))
    model = nn.Sequential(nn.Dropout(0.5), last)
    assert fedfw.certified_accuracy(model, samples, [0.1]) == fedfw.certified_accuracy(
        last, samples, [0.1]
    )
    assert model.training


# --- Bounds on the norms of matrices and convolutions against the norms themselves ---


def operator_norm(layer: nn.Module, channels: int, side: int) -> float:
    """The largest singular value of the matrix of a linear layer, from its values at the unit
    images.

    From the smaller Gram matrix, of which it is known to some 1e-15, in a fraction of the time of a
    decomposition.
    """
    units = torch.eye(channels * side * side, dtype=torch.float64).reshape(-1, channels, side, side)
    with torch.no_grad():
        columns: Tensor = layer(units).flatten(1)
    gram = columns @ columns.T if len(columns) <= columns.shape[1] else columns.T @ columns
    return math.sqrt(float(torch.linalg.eigvalsh(gram)[-1]))


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (3, 7), (4, 6, 5)])
def test_a_matrix(shape: tuple[int, ...]) -> None:
    for seed in range(20):
        matrices = torch.randn(
            shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        exact = float(torch.linalg.svdvals(matrices)[..., 0].max())
        assert exact <= matrix_bound(matrices) <= exact * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("stride", "dilation"), list(itertools.product((1, 2, 3), (1, 2))))
def test_the_bound_of_a_convolution_is_above_its_norm_and_not_far(
    stride: int, dilation: int, dtype: torch.dtype
) -> None:
    side = 10
    torch.manual_seed(stride)
    for kernel, padding, groups in itertools.product(((3, 3), (4, 2), (1, 1)), (0, 2), (1, 2)):
        layer = nn.Conv2d(
            2,
            4,
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=False,
            dtype=dtype,
        )
        exact = operator_norm(layer.double(), 2, side)
        bound = convolution_bound(layer.weight, (stride,) * 2, (dilation,) * 2, groups)
        assert exact <= bound
        if (
            padding == 2 and dilation == 1
        ):  # small images without a border are far from infinite ones
            assert bound <= 1.3 * exact
