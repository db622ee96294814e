"""The same answers on an NVIDIA device; skipped where there is none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw.algorithms.projected import ProjectedAlgorithm
from fedfw.graphs import Replayed
from fedfw.models.transformer import Transformer
from fedfw.problems.modules import ModuleLosses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("name", fedfw.SETS)
def test_oracles_and_projections(name: str) -> None:
    shape = (8, 8)
    D = fedfw.SETS[name].example(shape)
    for dtype in (torch.float32, torch.float64):
        G = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
        here, there = D.lmo(G, batch=True), D.lmo(G.cuda(), batch=True)
        assert there.dense().is_cuda
        assert torch.allclose(here.dense(), there.dense().cpu(), atol=1e-4)
        assert torch.allclose(here.dot(G), there.dot(G.cuda()).cpu(), rtol=1e-4)
        assert there[1].to_bytes()[:1] == here[1].to_bytes()[:1]
        back = fedfw.Atom.from_bytes(there[1].to_bytes(), D, shape)
        assert torch.allclose(back.dense(), there[1].dense().cpu(), atol=1e-6)
        assert D.accepts(there[1], shape)
        x = torch.zeros(5, *shape, dtype=dtype)
        assert torch.allclose(here.step(x.clone(), 0.3), there.step(x.cuda(), 0.3).cpu(), atol=1e-4)
        assert torch.allclose(D.project(G, batch=True), D.project(G.cuda(), batch=True).cpu(), atol=1e-4)


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
@pytest.mark.parametrize("constraint", ["l1:5", "l2:5", "nuclear:5"])
def test_runs_repeat_to_the_bit_and_agree_with_the_cpu(name: str, constraint: str) -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(size, 20, generator=generator).double(), torch.randint(0, 4, (size,), generator=generator))
        for size in (30, 30, 25, 60)
    ]
    model = torch.nn.Linear(20, 4).double()
    problem = fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0])
    algorithm = fedfw.ALGORITHMS[name](fedfw.parse_set(constraint))
    options = {"rounds": 15, "participation": 0.7, "batch_size": 8 if name == "fedfw-sto" else None}
    runs = [fedfw.simulate(problem, algorithm, device=device, **options) for device in ("cuda", "cuda", "cpu")]
    assert torch.equal(runs[0].x, runs[1].x)
    assert torch.allclose(runs[0].x.cpu(), runs[2].x, atol=1e-5)
    assert runs[0].history.to_dict()["bytes_up"] == runs[2].history.to_dict()["bytes_up"]


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
@pytest.mark.parametrize("constraint", ["l1:5", "l2:5", "linf:0.1", "nuclear:5"])
def test_replayed_rounds_are_the_rounds(name: str, constraint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(4, 30, 20, generator=generator), torch.randint(0, 4, (4, 30), generator=generator)
    problem = fedfw.Problem(torch.nn.Linear(20, 4), nnf.cross_entropy, list(zip(inputs, targets, strict=True)))
    algorithm = fedfw.ALGORITHMS[name](fedfw.parse_set(constraint))

    def run(rounds: int = 20) -> tuple[fedfw.Run, bool]:
        parts: list[dict[str, float]] = []
        note = [lambda simulation: parts.append(simulation.history[-1].seconds)]
        result = fedfw.simulate(problem, algorithm, rounds=rounds, eval_every=3, device="cuda", callbacks=note)
        return result, parts[-1].get("steps", 0.0) > 0

    (one, replayed), (again, _) = run(), run()
    # A projection on the nuclear ball decomposes matrices, and the host looks whether that went well.
    decomposes = constraint == "nuclear:5" and issubclass(fedfw.ALGORITHMS[name], ProjectedAlgorithm)
    # These look at the round's number: for Adam's moments, for shorter steps, for the next multiplier.
    counts = name in ("fedadam", "fedadamw", "fast-fedda", "fedpal")
    assert replayed == (not decomposes and not counts)
    monkeypatch.setattr("fedfw.simulation.simulator.can_be_replayed", lambda *of: False)
    plain, not_replayed = run()
    assert not not_replayed
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.x, plain.x)
    for column in ("bytes_up", "bytes_down", "loss", "gap", "lower_bound"):
        assert one.history.to_dict()[column] == plain.history.to_dict()[column]


@pytest.mark.parametrize("kind", ["completion", "cnn", "least squares"])
def test_models_and_the_central_optimum(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    if kind == "completion":
        pairs = torch.randint(0, 12, (3, 40, 2), generator=generator)
        clients = [(p, torch.randn(40, generator=generator)) for p in pairs]
        model: torch.nn.Module = fedfw.problems.MatrixCompletion(12, 12)
        loss, D = nnf.mse_loss, fedfw.NuclearBall(5.0)
    elif kind == "cnn":
        inputs = torch.rand(3, 20, 1, 8, 8, generator=generator)
        clients = [(x, torch.arange(20) % 3) for x in inputs]
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
        )
        loss, D = nnf.cross_entropy, fedfw.L2Ball(5.0)
    else:
        inputs = torch.randn(3, 20, 5, generator=generator)
        clients = [(x, x.sum(1, keepdim=True)) for x in inputs]
        model, loss, D = torch.nn.Linear(5, 1), nnf.mse_loss, fedfw.L2Ball(1.0)
    problem = fedfw.Problem(model, loss, clients, test=clients[0], l2=0.01)
    algorithm = fedfw.FedFWPlus(D, penalty=0.01)
    here, there = (fedfw.simulate(problem, algorithm, rounds=10, device=device) for device in ("cpu", "cuda"))
    assert torch.allclose(here.x, there.x.cpu(), atol=1e-3)
    if kind != "cnn":
        moved = problem.to(torch.device("cuda"))
        assert moved.smoothness() == pytest.approx(problem.smoothness(), rel=1e-4)
        assert fedfw.solve(moved, D).value == pytest.approx(fedfw.solve(problem, D).value, rel=1e-3)
        run = fedfw.simulate(problem, fedfw.FedDR(D), rounds=10, device="cuda")
        assert torch.allclose(run.x.cpu(), fedfw.simulate(problem, fedfw.FedDR(D), rounds=10).x, atol=1e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_kernel_agrees_with_float64_and_repeats(bias: bool) -> None:
    from fedfw.gpu.softmax import can_fuse, fused_softmax_gradient

    pytest.importorskip("triton")
    generator = torch.Generator().manual_seed(0)
    A = torch.rand(3, 1100, 784, generator=generator).cuda()
    y = torch.randint(0, 10, (3, 1100), generator=generator).cuda()
    x = (torch.randn(3, 7850 if bias else 7840, generator=generator) * 0.05).cuda()
    assert can_fuse(A, 10, y)

    def evaluated() -> tuple[torch.Tensor, torch.Tensor]:
        values, gradients = torch.empty(3, device="cuda"), torch.empty_like(x)
        fused_softmax_gradient(A, y, x, 10, values, gradients)
        return values, gradients

    values, gradients = evaluated()
    for i in range(3):
        point = x[i].double().requires_grad_()
        scores = A[i].double() @ point[:7840].view(10, 784).T + (point[7840:] if bias else 0.0)
        loss = nnf.cross_entropy(scores, y[i])
        loss.backward()  # type: ignore[no-untyped-call]
        assert point.grad is not None
        assert torch.allclose(values[i].double(), loss, rtol=1e-6)
        for part in (slice(0, 7840), slice(7840, None))[: 1 + bias]:
            exact = point.grad[part]
            assert float((gradients[i, part] - exact).abs().max() / exact.abs().max()) < 2e-6
    assert all(torch.equal(one, other) for one, other in zip(evaluated(), (values, gradients), strict=True))


def test_steps_of_a_transformer_are_recorded_and_agree_with_the_cpu() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randint(7, (size, 13), generator=generator) for size in (40, 20, 9, 3))
    model = Transformer(7, 12, width=16, depth=2, heads=2)
    problem = fedfw.Problem(model, nnf.cross_entropy, [(each[:, :-1], each[:, 1:]) for each in drawn])
    losses = problem.to(torch.device("cuda")).losses
    assert isinstance(losses, ModuleLosses)
    who, x = torch.tensor([3, 0, 2]), problem.start.repeat(3, 1)
    for _ in range(6):
        picks = torch.randint(3, (3, 4), generator=generator)
        here = problem.losses.value_and_gradient(x, who, picks)
        there = losses.value_and_gradient(x.cuda(), who.cuda(), picks.cuda())
        for one, other in zip(here, there, strict=True):
            assert torch.allclose(one, other.cpu(), atol=1e-5)
    assert isinstance(losses._together, Replayed)
    assert len(losses._together._recordings) == 1


@pytest.mark.parametrize("shape", [(60, 60), (20, 90), (90, 30)])
@pytest.mark.parametrize("constraint", [fedfw.SpectralBall(0.7), fedfw.PartialIsometry(5, 0.7)])
def test_spectral_oracles_at_a_tolerance(constraint: fedfw.ConstraintSet, shape: tuple[int, int]) -> None:
    """One stack has ordinary matrices, one of zeros, and one whose iterations miss the tolerance."""
    G = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, _, vh = torch.linalg.svd(G[1], full_matrices=False)
    G[1] = u[:, :1] @ vh[:1] + 1e-5 * u @ vh
    G[2] = 0
    for dtype in (torch.float32, torch.float64):
        atoms = constraint.lmo(G.to(dtype).cuda(), batch=True, tol=1e-4)
        values = torch.linalg.svdvals(atoms.dense(torch.float64).cpu())
        assert float(values.max()) <= 0.7
        k = min(*shape, getattr(constraint, "k", 10**6))
        best = 0.7 * torch.linalg.svdvals(G.to(dtype).double())[:, :k].sum(1)
        assert bool((atoms.bound.cpu() <= -best).all())
        assert bool((atoms.bound.cpu() >= -best * (1 + 1e-4)).all())
        assert bool((atoms.dot(G.to(dtype).cuda()).cpu() <= -best * (1 - 1.2e-4)).all())
        assert all(constraint.accepts(atom, shape) for atom in atoms)
        spoilt = G.to(dtype).cuda()
        spoilt[3, 2, 1] = torch.nan
        with pytest.raises(fedfw.NonFiniteError, match="row 3 of 5"):
            constraint.lmo(spoilt, batch=True, tol=1e-4)


@pytest.mark.parametrize("convolves", [True, False])
def test_networks_in_bfloat16_repeat_to_the_bit_and_are_near_the_others(convolves: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.rand(3, 40, 1, 8, 8, generator=generator), torch.arange(120).view(3, 40) % 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = torch.nn.Conv2d(1, 8, 3) if convolves else torch.nn.Flatten()
        width = 288 if convolves else 64
        model = torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(width, 3))
    clients = list(zip(inputs, targets, strict=True))
    problems = [fedfw.Problem(model, nnf.cross_entropy, clients, clients[0], mixed=mixed) for mixed in (False, True)]
    algorithm = fedfw.FedAvg(fedfw.L2Ball(100.0), lr=0.1)
    plain, mixed, again = (
        fedfw.simulate(problem, algorithm, rounds=12, device="cuda") for problem in (*problems, problems[1])
    )
    assert torch.equal(mixed.x, again.x)
    assert not torch.equal(mixed.x, plain.x)
    moved = float((plain.x.cpu() - problems[0].start).norm())
    assert float((mixed.x - plain.x).norm()) < 0.05 * moved
    assert float(fedfw.simulate(problems[1], algorithm, rounds=1).history[-1].loss) == pytest.approx(
        float(fedfw.simulate(problems[0], algorithm, rounds=1).history[-1].loss), rel=1e-6
    )  # on a CPU nothing changes
