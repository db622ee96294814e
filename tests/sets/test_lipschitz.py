"""Every network in `LipschitzNet(L)` has a constant of at most L, by the bound that is proven of each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fedfw
from fedfw.lipschitz import MaxMin, Normalise, Residual, Scaled
from fedfw.problems.problem import with_parameters
from fedfw.sets.base import shapes_of


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 16), MaxMin(), nn.Linear(16, 16), MaxMin(), nn.Linear(16, 4))


def convolutions() -> nn.Module:
    return nn.Sequential(
        Normalise(0.5, 0.25),
        *(nn.Conv2d(1, 4, 4, stride=2, padding=1), MaxMin(), nn.Conv2d(4, 8, 3, padding=1, groups=2), MaxMin()),
        *(nn.MaxPool2d(3, stride=2), nn.Flatten(), nn.Linear(8, 4), Scaled(3.0)),
    )


def residual() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 6), Residual(nn.Sequential(nn.Linear(6, 6), nn.ReLU())), nn.Linear(6, 3))


def shared() -> nn.Module:
    layer = nn.Linear(9, 9)
    return nn.Sequential(layer, nn.ReLU(), layer)


NETWORKS = {"chain": chain, "convolutions": convolutions, "residual": residual, "shared": shared}


def points(D: fedfw.ConstraintSet, dtype: torch.dtype, generator: torch.Generator) -> list[Tensor]:
    """Extreme points, in every precision in which atoms are sent, and mixtures that were rounded again and again."""
    p = D.fixed_size
    assert p is not None
    found = []
    x = torch.zeros(p, dtype=dtype)
    for t in range(12):
        g = torch.randn(p, generator=generator, dtype=dtype)
        precision = (torch.float16, torch.float32, torch.float64)[t % 3]  # the third atom is exact
        s = D.lmo(g, precision=precision).dense(dtype)
        x = s if t == 0 else (0.9 * x + 0.1 * s).to(dtype)
        found += [s, x, D.random_point((p,), generator, dtype), D.project(5 * g)]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("L", [0.7, 1.0, 20.0])
def test_every_point_of_the_set_has_the_constant(name: str, L: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = NETWORKS[name]().to(dtype)
    D = fedfw.LipschitzNet(L).bind(model)
    constants = []
    for x in points(D, dtype, torch.Generator().manual_seed(1)):
        nn.utils.vector_to_parameters(x, model.parameters())
        constants.append(fedfw.lipschitz_bound(model))
    assert max(constants) <= L
    if name == "chain":
        assert constants[8] >= 0.999 * L  # extreme points use it up


def test_what_a_server_accepts_has_the_constant() -> None:
    """Atoms count as inside up to 1e-6."""
    model = chain().double()
    D = fedfw.LipschitzNet(1.0).bind(model)
    x = D.lmo(torch.randn(D.fixed_size or 0, generator=torch.Generator().manual_seed(0)).double()).dense(torch.float64)
    outside = x * (1 + 1.1e-6)
    assert D.contains(outside, 2e-6)
    assert fedfw.lipschitz_bound(with_parameters(model, outside)) <= 1.0


def test_layers_share_the_constant_equally_after_what_others_take() -> None:
    radii = {name: D.r for name, D in fedfw.LipschitzNet(24.0).balls(convolutions()).items()}  # type: ignore[attr-defined]
    # Normalisation takes 4, the overlapping pool 2, the scale 3: what is left of 24 is 1.
    expected = {"1": 1 / 2, "3": 1 / 3, "7": 1.0}  # pixels lie in 4 windows, and in 9
    for layer, radius in expected.items():
        assert radii[f"{layer}.weight"] == pytest.approx(radius, rel=1e-4)
        assert radii[f"{layer}.bias"] == 0.5


def test_layers_that_are_not_trained_keep_their_constant() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    nn.init.eye_(model[0].weight).mul_(2)
    sets = fedfw.LipschitzNet(6.0).balls(model)
    assert list(sets) == ["1.weight", "1.bias"]
    assert sets["1.weight"].r == pytest.approx(3.0, rel=1e-4)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("L", "model", "told"),
    [
        (1.0, nn.Sequential(Residual(nn.Linear(3, 3))), "constant is at least 1 with any weights"),
        (1.0, nn.LSTM(3, 3), r"the model \(LSTM\)"),
        (1.0, nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), r"layer 1 \(LayerNorm\)"),
    ],
)
def test_models_that_have_no_such_set_are_refused(L: float, model: nn.Module, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        fedfw.LipschitzNet(L).bind(model)


def test_a_parameter_of_an_unknown_kind_is_refused() -> None:
    class Shifted(nn.Module):
        lipschitz = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs + self.shift

    with pytest.raises(ValueError, match=r"parameter '1.shift' is no weight of a linear or convolutional layer"):
        fedfw.LipschitzNet(1.0).bind(nn.Sequential(nn.Linear(3, 3), Shifted()))


def test_it_asks_for_the_model_itself() -> None:
    with pytest.raises(ValueError, match="expected the model itself"):
        fedfw.LipschitzNet(1.0).bind(shapes_of(chain()))
    assert fedfw.parse_set("lipschitz:2,bias=0.25") == fedfw.LipschitzNet(2, 0.25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_model_of_a_run_has_the_constant_whoever_takes_part(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = chain().to(dtype)
    nn.init.normal_(model.get_parameter("0.weight"))  # the start is far outside of the set
    clients = [(torch.randn(20, 9).to(dtype) + i, torch.randint(4, (20,))) for i in range(6)]
    problem = fedfw.Problem(model, nn.functional.cross_entropy, clients)
    constants = []

    def watch(simulation: fedfw.simulation.Simulation) -> None:
        constants.append(fedfw.lipschitz_bound(problem.trained(simulation.xbar)))

    algorithm = fedfw.FedFWPlus(fedfw.LipschitzNet(1.0), momentum=0.9)
    options = {"rounds": 15, "participation": 0.5, "local_steps": 2, "batch_size": 8, "eval_every": 15}
    fedfw.simulate(problem, algorithm, **options, callbacks=watch)  # type: ignore[arg-type]
    assert len(constants) == 15
    assert max(constants) <= 1.0
