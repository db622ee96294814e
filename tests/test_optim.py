"""fedfw.optim.LMO beside Scion's published update, an SVD, and what it promises of
its points.
"""

import copy
import io
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR

import fedfw
from fedfw.optim import LMO

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
SHAPES = [(6, 4), (4, 9), (6, 4), (5, 5)]  # tall, wide, square, and two that are one stack
ACCURATE = 1e-12


def matrices(
    shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, seed: int = 0
) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter(torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) / 3)
        for shape in shapes
    ]


def loss_of(params: Sequence[Tensor], step: int) -> Tensor:
    """A smooth loss that depends on the step, whose gradients have no zeros."""
    random = torch.Generator().manual_seed(100 + step)
    targets = [
        torch.randn(p.shape, generator=random, dtype=torch.float64).to(p.dtype) for p in params
    ]
    return sum(
        ((p - t).square() + (p * t).sin()).sum() for p, t in zip(params, targets, strict=True)
    )  # type: ignore[return-value]


def train(
    optimizer: torch.optim.Optimizer, params: Sequence[Tensor], steps: int, first: int = 0
) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(params, step).backward()
        optimizer.step()


def inside(constraint: fedfw.ConstraintSet, x: Tensor, tol: float = 1e-5) -> bool:
    return constraint.contains(x.detach(), tol)


# --- beside other optimizers ---


def scion(
    params: list[Tensor],
    norms: list[str],
    *,
    alpha: float,
    gamma: float,
    rho: float,
    constrained: bool,
) -> None:
    """Twenty steps of Pethick et al. 2025, algorithms 1 (uSCG) and 2 (SCG), written down from the
    paper.
    """
    averages = [torch.zeros_like(p) for p in params]
    for step in range(20):
        for p in params:
            p.grad = None
        loss_of(params, step).backward()
        for i, (p, norm) in enumerate(zip(params, norms, strict=True)):
            averages[i] = (1 - alpha) * averages[i] + alpha * p.grad
            if norm == "sign":
                lmo = -averages[i].sign()
            else:
                u, _, vh = torch.linalg.svd(averages[i].flatten(1), full_matrices=False)
                lmo = -(u @ vh).reshape(p.shape)
            with torch.no_grad():
                p.copy_(
                    (1 - gamma) * p + gamma * rho * lmo if constrained else p + gamma * rho * lmo
                )


@BOTH
@pytest.mark.parametrize("constrained", [True, False], ids=["SCG", "uSCG"])
def test_signs_and_spectral_balls_are_scions_published_update(
    constrained: bool, dtype: torch.dtype
) -> None:
    shapes = [(6, 4), (3, 2, 2, 2), (7,), (5, 3), (6, 4)]
    norms = ["spectral", "spectral", "sign", "sign", "spectral"]
    ours, theirs = matrices(shapes, dtype), matrices(shapes, dtype)
    rho = 6.0  # so large that the start lies inside
    kinds = {"spectral": fedfw.SpectralBall, "sign": fedfw.LinfBall}
    sets = [kinds[norm](rho) for norm in norms]
    optimizer = LMO(ours, sets, lr=0.05, momentum=0.9, unconstrained=not constrained, tol=ACCURATE)
    train(optimizer, ours, 20)
    scion(list(theirs), norms, alpha=0.1, gamma=0.05, rho=rho, constrained=constrained)
    close = 1e-4 if dtype == torch.float32 else 1e-6
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, atol=close, rtol=0)


# --- points stay in the set ---


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("lr", [0.3, 1e-3])
def test_parameters_never_leave_their_sets(dtype: torch.dtype, tol: float, lr: float) -> None:
    sets = [
        fedfw.SpectralBall(0.7),
        fedfw.NuclearBall(0.7),
        fedfw.L1Ball(0.3),
        fedfw.LinfBall(0.1),
        fedfw.L2Ball(0.3),
        fedfw.GroupBall(0.5, "rows"),
        fedfw.Simplex(1.0),
    ]
    params = matrices([(4, 3)] * len(sets), dtype)
    optimizer = LMO(params, sets, lr=lr)
    for _ in range(50):
        train(
            optimizer, params, 1
        )  # always the same loss, so that points go to the boundary and stay there
        for constraint, p in zip(sets, params, strict=True):
            assert inside(constraint, p, tol), constraint
            assert p.dtype == dtype


def test_a_start_outside_is_moved_to_the_nearest_point_and_one_inside_keeps_its_bits() -> None:
    out, within = nn.Parameter(torch.tensor([3.0, -4.0])), nn.Parameter(torch.tensor([0.1, 0.2]))
    LMO([out, within], fedfw.Product({"*": fedfw.L2Ball(1.0)}))
    torch.testing.assert_close(out.detach(), torch.tensor([0.6, -0.8]))
    assert within.tolist() == torch.tensor([0.1, 0.2]).tolist()
    free = nn.Parameter(torch.tensor([3.0, -4.0]))
    LMO([free], fedfw.L2Ball(1.0), unconstrained=True)
    assert free.tolist() == [3.0, -4.0]


def test_a_start_outside_of_a_set_without_projection_is_refused() -> None:
    class OracleOnly(fedfw.L2Ball):
        _project = fedfw.ConstraintSet._project

    with pytest.raises(ValueError, match="the start lies outside the constraint"):
        LMO([nn.Parameter(torch.ones(3))], OracleOnly(1.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_refused_in_constrained_steps_and_else_moved_by_an_oracle_in_float32(
    dtype: torch.dtype,
) -> None:
    p, other = matrices([(4, 3)] * 2, dtype)
    with pytest.raises(
        TypeError, match=rf"parameter '0' has dtype {dtype}, expected .* of 32 or 64 bits, because"
    ):
        LMO([p], fedfw.SpectralBall(1.0))
    start, p.grad = p.detach().float(), other.detach()
    LMO([p], fedfw.SpectralBall(1.0), lr=0.25, momentum=0.0, unconstrained=True).step()
    atom = fedfw.SpectralBall(1.0).lmo(p.grad.float()).dense()
    assert torch.equal(p.detach(), (start + 0.25 * atom).to(dtype))


# --- which set belongs to which parameters ---


def test_a_product_takes_names_from_a_model_and_leaves_out_frozen_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    sets = fedfw.Product({"*.weight": fedfw.SpectralBall(0.1), "1.bias": fedfw.LinfBall(0.01)})
    optimizer = LMO(model, sets)
    assert [len(group["params"]) for group in optimizer.param_groups] == [3]
    assert all(inside(fedfw.SpectralBall(0.1), layer.weight) for layer in (model[0], model[1]))
    assert inside(fedfw.LinfBall(0.01), model[1].bias)


def test_a_single_vector_set_is_bound_to_all_parameters_together() -> None:
    a, b = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3))
    optimizer = LMO([a, b], fedfw.L1Ball(2.0), lr=0.5)
    a.grad, b.grad = torch.ones(2, 2), torch.tensor([0.0, 5.0, 0.0])
    optimizer.step()
    assert a.tolist() == [
        [0.0, 0.0],
        [0.0, 0.0],
    ]  # one atom of the whole vector, which is at the largest entry
    assert b.tolist() == [0.0, -1.0, 0.0]


def test_a_single_matrix_set_is_bound_to_weights_and_bias_of_a_linear_layer() -> None:
    layer = nn.Linear(3, 4)
    optimizer = LMO(layer, fedfw.SpectralBall(0.5), lr=1.0, momentum=0.0)
    layer(torch.eye(3)).square().sum().backward()
    optimizer.step()
    whole = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
    torch.testing.assert_close(
        torch.linalg.svdvals(whole), torch.full((4,), 0.5), atol=1e-5, rtol=0
    )


# --- torch's machinery ---


@BOTH
def test_a_saved_run_goes_on_to_the_same_bits(dtype: torch.dtype) -> None:
    sets = fedfw.Product({"0": fedfw.SpectralBall(0.8), "*": fedfw.LinfBall(0.3)})

    def fresh(params: list[nn.Parameter]) -> tuple[LMO, LinearLR]:
        optimizer = LMO(params, sets, lr=0.2, nesterov=True)
        return optimizer, LinearLR(optimizer, 1.0, 0.0, total_iters=30)

    def go(
        params: list[nn.Parameter], optimizer: LMO, decay: LinearLR, first: int, steps: int
    ) -> None:
        for step in range(first, first + steps):
            train(optimizer, params, 1, step)
            decay.step()

    straight = matrices(SHAPES, dtype)
    go(straight, *fresh(straight), 0, 20)
    params = matrices(SHAPES, dtype)
    optimizer, decay = fresh(params)
    go(params, optimizer, decay, 0, 10)
    file = io.BytesIO()
    torch.save(
        {
            "x": [p.detach() for p in params],
            "optimizer": optimizer.state_dict(),
            "lr": decay.state_dict(),
        },
        file,
    )
    file.seek(0)
    saved = torch.load(file, weights_only=True)  # numbers, texts and tensors alone
    resumed = [nn.Parameter(x) for x in saved["x"]]
    optimizer, decay = fresh(resumed)
    optimizer.load_state_dict(saved["optimizer"])
    decay.load_state_dict(saved["lr"])
    go(resumed, optimizer, decay, 10, 10)
    assert all(torch.equal(x, y) for x, y in zip(straight, resumed, strict=True))


def test_a_state_of_other_sets_is_refused() -> None:
    one, other = (LMO([nn.Parameter(torch.zeros(2))], fedfw.LinfBall(r)) for r in (1.0, 2.0))
    with pytest.raises(
        ValueError, match=r"constraint=LinfBall\(r=1.0\), expected LinfBall\(r=2.0\)"
    ):
        other.load_state_dict(one.state_dict())


# --- refusals ---


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused_by_name_and_nothing_moves(bad: float) -> None:
    model = nn.Linear(2, 2)
    optimizer = LMO(model, fedfw.Product({"*": fedfw.LinfBall(1.0)}))
    before = copy.deepcopy(model.state_dict())
    model.weight.grad, model.bias.grad = torch.ones(2, 2), torch.tensor([1.0, bad])
    with pytest.raises(
        fedfw.NonFiniteError, match="gradient of parameter 'bias' has a NaN or an infinity"
    ):
        optimizer.step()
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert not optimizer.state


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -0.1}, "lr=-0.1, expected a number of at least 0 and at most 1"),
        ({"lr": 1.5}, "lr=1.5, expected a number of at least 0 and at most 1"),
        ({"lr": math.nan, "unconstrained": True}, "lr=nan, expected a number of at least 0"),
        ({"momentum": 1.0}, "momentum=1.0, expected a number of at least 0 and below 1"),
        (
            {"weight_decay": 0.1},
            "weight_decay=0.1, expected 0, because constrained steps shrink by lr",
        ),
        (
            {"weight_decay": -1.0, "unconstrained": True},
            "weight_decay=-1.0, expected a number of at least 0",
        ),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LMO([nn.Parameter(torch.zeros(2, 2))], fedfw.L2Ball(1.0), **options)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([fedfw.L2Ball(1.0)], "constraint has 1 sets, expected one for each of 2 parameters"),
        (7, "constraint=7, expected a constraint set, a Product"),
        (fedfw.SpectralBall(1.0), "give a set for each parameter"),
        ([fedfw.Spectrahedron(1.0)] * 2, "parameter '1': Spectrahedron needs a square matrix"),
    ],
)
def test_sets_that_do_not_fit_are_refused(sets: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        LMO([nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2, 3))], sets)
