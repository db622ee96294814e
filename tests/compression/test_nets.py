"""Compressed nets stay in their sets, come back to the bit, and train as well as what is not compressed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch

import fedfw
from fedfw.atoms import Moved, mix
from fedfw.atoms.base import read_framed
from fedfw.atoms.bits import Reader
from fedfw.compression import Bits
from fedfw.errors import AtomError
from fedfw.problems.quadratics import random_quadratics
from fedfw.sets.base import ConstraintSet
from fedfw.simulation import Options
from fedfw.simulation.simulator import Simulation

DTYPES = [torch.float32, torch.float64]
LAYER = torch.nn.Linear(30, 20)
SETS: dict[str, ConstraintSet] = {
    "l2": fedfw.L2Ball(3.0).bind(LAYER),
    "linf": fedfw.LinfBall(0.3).bind(LAYER),
    "box": fedfw.Box(-0.1, 0.3).bind(LAYER),
    "spectral": fedfw.SpectralBall(0.7).bind(LAYER),
    "simplex": fedfw.Simplex(2.0).bind(LAYER),
    "partial isometry": fedfw.PartialIsometry(15, 0.7).bind(LAYER),
    "product": fedfw.Product({"weight": fedfw.SpectralBall(0.7), "*": fedfw.L2Ball(0.1)}).bind(LAYER),
    "half of a product": fedfw.Product({"weight": fedfw.L1Ball(0.7), "*": fedfw.L2Ball(0.1)}).bind(LAYER),
}
STRICT = ("l2", "linf", "box", "spectral", "product")
"""Sets in which nothing that was shrunk is outside by so much as a rounding error."""
P = 620


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_what_is_shrunk_lies_in_the_set_near_what_it_was(name: str, dtype: torch.dtype) -> None:
    D = SETS[name]
    inside = torch.stack([D.random_point((P,), torch.Generator().manual_seed(i), dtype) for i in range(5)])
    tol = 0.0 if name in STRICT else 1e-6
    for size in (0.0, 1e-3, 0.1, 1e30 if name in STRICT else 10.0):
        x = inside + size * gaussian(5, P, dtype=dtype)
        near = D.shrink(x, batch=True)
        assert near.dtype is dtype
        assert bool(D.contains(near, tol, batch=True).all())
        if size < 1:  # not much farther than the nearest point
            assert bool(((near - x).norm(dim=1) <= 20 * (size + 1e-6) * P**0.5).all())
    assert torch.allclose(D.shrink(0.5 * inside[0]), D.project(0.5 * inside[0]), atol=1e-5)


def test_a_spectral_ball_costs_little_of_the_length() -> None:
    D, x = fedfw.SpectralBall(2.0), gaussian(4, 40, 64)
    near = D.shrink(x, batch=True)
    longest = torch.linalg.matrix_norm(near.double(), ord=2)
    assert bool((longest <= 2.0).all() and (longest >= 1.99).all())


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(fedfw.NonFiniteError, match="row 0 of 1"):
        fedfw.L2Ball(1.0).shrink(torch.tensor([1.0, float("nan")]))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_nets_come_back_as_points_of_the_set(name: str, dtype: torch.dtype, steps: int, bits: int) -> None:
    D, compressor, weights = SETS[name], Bits(bits), [1 / steps] * steps
    base = D.random_point((P,), torch.Generator().manual_seed(7), dtype)
    net = mix([D.lmo(gaussian(3, P, seed=k, dtype=dtype), batch=True, precision=dtype) for k in range(steps)], weights)
    sent = compressor.encode_net(net, base, D, (P,))
    readers = compressor.net_readers(base, D, (P,), weights)
    for one in sent:
        data = one.to_bytes()
        assert len(data) == one.nbytes <= net.nbytes
        reader = Reader(data)
        back = read_framed(reader, readers)
        reader.finish()
        assert torch.equal(back.dense(dtype), one.dense(dtype))
        assert D.accepts_net(back, (P,))
        shrunk = name in STRICT and "bits" in one.kind
        assert D.contains(back.dense(dtype), 0.0 if shrunk else 1e-6)
    if bits == 8:
        assert float((sent.dense() - net.dense()).norm()) <= 0.02 * float((net.dense() - base).norm())


def test_only_what_is_dense_is_compressed() -> None:
    base = torch.zeros(P)
    for D in (fedfw.L1Ball(1.0).bind(LAYER), fedfw.NuclearBall(1.0).bind(LAYER)):
        net = D.lmo(gaussian(2, P), batch=True)
        assert Bits(4).encode_net(net, base, D, (P,)) is net
    ball = SETS["spectral"]
    assert isinstance(Bits(4).encode_net(ball.lmo(gaussian(2, P), batch=True), base, ball, (P,)), Moved)
    half = SETS["half of a product"]
    sent = Bits(4).encode_net(half.lmo(gaussian(2, P), batch=True), base, half, (P,))
    assert sent.kind == "one-hot + 4 bits"


@pytest.mark.parametrize("name", ["l2", "linf", "spectral", "product"])
@pytest.mark.parametrize("precision", DTYPES)
def test_random_bytes_decode_to_points_of_the_set_or_not_at_all(name: str, precision: torch.dtype) -> None:
    D, base, rng = SETS[name], torch.zeros(P), random.Random(0)
    net = mix([D.lmo(gaussian(1, P, seed=k), batch=True) for k in range(2)], [0.5, 0.5])
    readers = Bits(8).net_readers(base, D, (P,), [0.5, 0.5])
    genuine = Bits(8).encode_net(net, base.to(precision), D, (P,))[0].to_bytes()
    read = []
    for _ in range(300):
        data = bytearray(genuine)
        for _ in range(rng.randrange(1, 30)):
            data[rng.randrange(1, len(data))] = rng.randrange(256)
        try:
            point = read_framed(Reader(bytes(data)), readers)
        except AtomError:
            continue
        read.append(point.dense(torch.float32))
    assert bool(D.contains(torch.stack(read), 0.0, batch=True).all())
    assert len(read) > 20


def test_a_vector_that_overflows_is_refused() -> None:
    far = torch.full((1, 4), 3e38)
    data = Bits(4).encode(far, (4,), (4,))[0].to_bytes()
    with pytest.raises(AtomError, match="too large"):
        read_framed(Reader(data), Bits(4).net_readers(far[0], fedfw.L2Ball(1.0), (4,), (1.0,)))


# --- training ---


@cache
def digits() -> fedfw.Problem:
    return fedfw.load_problem("digits", clients=10, partition="labels:3")


def trained(constraint: Any, compress: str, eval_every: int = 40) -> fedfw.Run:
    algorithm = fedfw.FedLMO(constraint, compress=compress)
    return fedfw.simulate(digits(), algorithm, rounds=40, local_steps=3, participation=4, eval_every=eval_every)


@pytest.mark.parametrize("constraint", [fedfw.L2Ball(10.0), fedfw.SpectralBall(5.0)], ids=["l2", "spectral"])
def test_few_bits_train_as_well(constraint: Any) -> None:
    plain = trained(constraint, "none", eval_every=1)  # the first loss is looked at, too
    eight, four = (trained(constraint, how) for how in ("bits:8", "bits:4"))
    first, last = plain.history[0].loss, plain.history[-1].loss
    assert first is not None
    assert last is not None
    for run, close, ratio in ((eight, 0.002, 3.8), (four, 0.03, 7.5)):
        assert run.history[-1].loss == pytest.approx(last, abs=close * (first - last))
        assert run.history[-1].accuracy == pytest.approx(plain.history[-1].accuracy, abs=0.01)
        assert plain.history.total("bytes_up") / run.history.total("bytes_up") > ratio
        assert run.history.total("bytes_down") <= plain.history.total("bytes_down")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("oracle_at", ["clients", "server"])
def test_both_sides_hold_the_same_control_variates(oracle_at: Any, dtype: torch.dtype) -> None:
    """The server rebuilds c_i from decoded changes; what one loses the next one has, so c_i ends at the gradient."""
    algorithm = fedfw.FedLMO(fedfw.L2Ball(0.3), compress="bits:4", oracle_at=oracle_at)
    inside = []

    def watch(simulation: Simulation) -> None:
        now = simulation.now
        assert now.message is not None
        (upload,), (state,) = now.uploads, now.states
        known = simulation.algorithm.follow(simulation.plan, state, now.message, upload.atoms)
        assert torch.equal(known["c"], simulation.clients["c"][upload.who])
        inside.append(simulation.constraint.contains(simulation.xbar, 4 * torch.finfo(dtype).eps))

    problem = fedfw.testing.quadratics(dtype=dtype)
    simulation = Simulation(problem, algorithm, Options(rounds=100, eval_every=100), callbacks=watch)
    simulation.run()
    assert len(inside) == 100
    assert all(inside)
    A, centres = random_quadratics(4, 5, 10.0, 1.0, 0)
    gradients = (A @ (simulation.xbar.double() - centres)[:, :, None])[:, :, 0]
    error = (simulation.clients["c"].double() - gradients).norm()
    assert float(error) < 1e-3 * float(gradients.norm())  # one change alone is off by up to a fourteenth


def test_sets_without_a_projection_are_refused() -> None:
    class OracleOnly(fedfw.L2Ball):
        has_projection = False  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"compress='bits:4', expected none with .*OracleOnly"):
        fedfw.simulate(fedfw.testing.quadratics(), fedfw.FedLMO(OracleOnly(1.0), compress="bits:4"), rounds=1)


@pytest.mark.parametrize("oracle_at", ["clients", "server"])
def test_a_gradient_that_is_not_finite_names_client_and_round(oracle_at: Any) -> None:
    losses = [lambda x: x.square().sum(), lambda x: x.abs().sqrt().sum()]
    problem = fedfw.Problem.from_losses(losses, torch.zeros(3, dtype=torch.float64))
    algorithm = fedfw.FedLMO(fedfw.L2Ball(1.0), compress="bits:4", oracle_at=oracle_at)
    with pytest.raises(fedfw.NonFiniteError, match=r"round 1: NaN or infinity in .* client \[1\]"):
        fedfw.simulate(problem, algorithm, rounds=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_parameter_that_is_one_number_is_compressed_too(dtype: torch.dtype) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix, self.factor = (
                torch.nn.Linear(4, 3, dtype=dtype),
                torch.nn.Parameter(torch.ones((), dtype=dtype)),
            )

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.factor * self.matrix(inputs))

    torch.manual_seed(0)
    samples = [(torch.randn(9, 4, dtype=dtype), torch.arange(9) % 3) for _ in range(3)]
    problem = fedfw.Problem(Scaled(), torch.nn.functional.cross_entropy, samples, convex=False)
    sets = fedfw.Product({"factor": fedfw.L2Ball(0.5), "*": fedfw.L2Ball(2.0)})
    run = fedfw.simulate(problem, fedfw.FedLMO(sets, compress="bits:4"), rounds=5, local_steps=2)
    assert sets.bind(problem.model).contains(run.x)
