"""The same answers on an NVIDIA device; skipped where there is none."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw.algorithms import GradientMethod
from tests.ranks.launch import run_ranks
from tests.simulation.shared_runs import cases, take
from tests.simulation.test_ranks import assert_same

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


@pytest.mark.parametrize("name", fedfw.SETS)
def test_oracles_and_projections(name: str) -> None:
    shape = (8, 8)
    D = fedfw.SETS[name].example(shape)
    for dtype in (torch.float32, torch.float64):
        G = torch.randn(
            5, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        ).to(dtype)
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
        assert torch.allclose(
            D.project(G, batch=True), D.project(G.cuda(), batch=True).cpu(), atol=1e-4
        )


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
@pytest.mark.parametrize("constraint", ["l1:5", "l2:5", "nuclear:5"])
def test_runs_repeat_to_the_bit_and_agree_with_the_cpu(name: str, constraint: str) -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(size, 20, generator=generator).double(),
            torch.randint(0, 4, (size,), generator=generator),
        )
        for size in (30, 30, 25, 60)
    ]
    model = torch.nn.Linear(20, 4).double()
    problem = fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0])
    algorithm = fedfw.ALGORITHMS[name](fedfw.parse_set(constraint))
    options = {"rounds": 15, "participation": 0.7, "batch_size": 8 if name == "fedfw-sto" else None}
    runs = [
        fedfw.simulate(problem, algorithm, device=device, **options)
        for device in ("cuda", "cuda", "cpu")
    ]
    assert torch.equal(runs[0].x, runs[1].x)
    assert torch.allclose(runs[0].x.cpu(), runs[2].x, atol=1e-5)
    assert runs[0].history.to_dict()["bytes_up"] == runs[2].history.to_dict()["bytes_up"]


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
@pytest.mark.parametrize("constraint", ["l1:5", "l2:5", "linf:0.1", "nuclear:5"])
def test_replayed_rounds_are_the_rounds(
    name: str, constraint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (
        torch.randn(4, 30, 20, generator=generator),
        torch.randint(0, 4, (4, 30), generator=generator),
    )
    problem = fedfw.Problem(
        torch.nn.Linear(20, 4), nnf.cross_entropy, list(zip(inputs, targets, strict=True))
    )
    algorithm = fedfw.ALGORITHMS[name](fedfw.parse_set(constraint))

    def run(rounds: int = 20) -> tuple[fedfw.Run, bool]:
        parts: list[dict[str, float]] = []
        note = [lambda simulation: parts.append(simulation.history[-1].seconds)]
        result = fedfw.simulate(
            problem, algorithm, rounds=rounds, eval_every=3, device="cuda", callbacks=note
        )
        return result, parts[-1].get("steps", 0.0) > 0

    (one, replayed), (again, _) = run(), run()
    # A projection on the nuclear ball decomposes matrices, and the host looks whether that went
    # well.
    decomposes = constraint == "nuclear:5" and issubclass(fedfw.ALGORITHMS[name], GradientMethod)
    # These look at the round's number: for Adam's moments, for shorter steps, for the next
    # multiplier.
    counts = name in ("fedadam", "fedadamw", "fast-fedda", "fedpal")
    assert replayed == (not decomposes and not counts)
    monkeypatch.setattr("fedfw.simulation.simulator.can_be_replayed", lambda *of: False)
    plain, not_replayed = run()
    assert not not_replayed
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.x, plain.x)
    for column in ("bytes_up", "bytes_down", "loss", "gap", "lower_bound"):
        assert one.history.to_dict()[column] == plain.history.to_dict()[column]


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
        assert torch.allclose(values[i].double(), loss, rtol=1e-6)
        for part in (slice(0, 7840), slice(7840, None))[: 1 + bias]:
            exact = point.grad[part]
            assert float((gradients[i, part] - exact).abs().max() / exact.abs().max()) < 2e-6
    assert all(
        torch.equal(one, other) for one, other in zip(evaluated(), (values, gradients), strict=True)
    )


@pytest.mark.parametrize("convolves", [True, False])
def test_networks_in_bfloat16_repeat_to_the_bit_and_are_near_the_others(convolves: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (
        torch.rand(3, 40, 1, 8, 8, generator=generator),
        torch.arange(120).view(3, 40) % 3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = torch.nn.Conv2d(1, 8, 3) if convolves else torch.nn.Flatten()
        width = 288 if convolves else 64
        model = torch.nn.Sequential(
            first, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(width, 3)
        )
    clients = list(zip(inputs, targets, strict=True))
    problems = [
        fedfw.Problem(model, nnf.cross_entropy, clients, clients[0], mixed=mixed)
        for mixed in (False, True)
    ]
    algorithm = fedfw.FedAvg(fedfw.L2Ball(100.0), lr=0.1)
    plain, mixed, again = (
        fedfw.simulate(problem, algorithm, rounds=12, device="cuda")
        for problem in (*problems, problems[1])
    )
    assert torch.equal(mixed.x, again.x)
    assert not torch.equal(mixed.x, plain.x)
    moved = float((plain.x.cpu() - problems[0].start).norm())
    assert float((mixed.x - plain.x).norm()) < 0.05 * moved
    assert float(
        fedfw.simulate(problems[1], algorithm, rounds=1).history[-1].loss
    ) == pytest.approx(
        float(fedfw.simulate(problems[0], algorithm, rounds=1).history[-1].loss), rel=1e-6
    )  # on a CPU nothing changes


# --- Two processes that share one GPU take the runs of one process ---


@pytest.mark.filterwarnings("ignore")
def test_two_ranks_on_one_gpu_take_the_runs_of_one_process(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    for ended in run_ranks(
        2, ["-m", "tests.simulation.shared_runs", str(out), "float64", "cuda"], timeout=400
    ):
        assert ended.status == 0, ended.said
    found = json.loads(out.read_text())["float64"]
    for name, case in cases().items():
        alone = json.loads(json.dumps(take(case, torch.float64, device="cuda")))
        try:
            assert_same(found[name], alone, 1e-6)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
