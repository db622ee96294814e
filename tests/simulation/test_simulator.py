"""The simulator: what it takes, what it gives back, and rounds in which little happens."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

import fedfw
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.feasibility import ROUNDING, final_model, validate_final
from fedfw.sets.base import ConstraintSet, Shape
from fedfw.simulation import Simulation, simulate
from fedfw_reproduction.known_quadratics import Quadratics


def test_everything_after_problem_and_algorithm_is_given_by_name() -> None:
    with pytest.raises(TypeError, match="takes 2 positional arguments"):
        simulate(Quadratics.on("l1").problem, fedfw.FedFW("l1:1"), 5)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("round", r"no option 'round' \(did you mean 'rounds'\?\), expected callbacks"),
        ("penalty", "no option 'penalty'"),  # it is the algorithm's
    ],
)
def test_unknown_keywords_name_the_nearest(option: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        simulate(Quadratics.on("l1").problem, fedfw.FedFW("l1:1"), **{option: 5})


def test_a_round_nobody_joins_changes_nothing() -> None:
    q = Quadratics.on("l1")
    points = []
    run = simulate(
        q.problem,
        fedfw.FedFWPlus(q.constraint, penalty=0.1),
        rounds=6,
        participation=lambda t: [] if t in (3, 4) else range(8),
        callbacks=lambda s: points.append(s.xbar.clone()),
    )
    assert torch.equal(points[1], points[3])
    assert [r.participants for r in run.history] == [8, 8, 0, 0, 8, 8]
    idle = vars(run.history[2])
    counters = ("bytes_up", "bytes_down", "evidence_up", "evidence_down", "bytes_dense")
    assert [idle[name] for name in counters] == [0] * 5
    assert idle["loss"] == run.history[1].loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_the_given_problem_and_its_start_are_left_alone(name: str, dtype: torch.dtype) -> None:
    q = Quadratics.on("l1")
    problem = quadratic_problem(q.A.to(dtype), q.c.to(dtype), q.start.to(dtype))
    start = problem.start.clone()
    runs = [simulate(problem, fedfw.ALGORITHMS[name](q.constraint), rounds=4) for _ in range(2)]
    assert torch.equal(problem.start, start)
    assert torch.equal(runs[0].x, runs[1].x)
    assert runs[0].x.dtype == dtype


def test_what_a_run_gives_back() -> None:
    problem = samples()
    run = simulate(problem, fedfw.FedFW(fedfw.L2Ball(2.0)), rounds=5)
    trained = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    assert torch.equal(trained, run.x)
    assert torch.equal(run.feasible, run.x)
    assert run.history[-1].accuracy == problem.test(run.x).accuracy
    assert run.history[-1].loss == pytest.approx(problem.value(run.x), rel=1e-5)
    assert (run.out, run.privacy, run.dense_sums) == (None, None, 0)


# --- What a simulation refuses before it begins, and which rows it keeps ---


def samples() -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(9, 4, generator=generator), torch.arange(9) % 3) for _ in range(3)]
    return fedfw.Problem(torch.nn.Linear(4, 3), nnf.cross_entropy, data, test=data[0])


def quadratics() -> fedfw.Problem:
    return Quadratics.on("l1").problem


def network() -> fedfw.Problem:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    return fedfw.Problem(module, nnf.cross_entropy, [(torch.randn(5, 4), torch.arange(5) % 3)])


def generated() -> fedfw.Problem:
    def make(who: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones(len(who), 2, 4), torch.zeros(len(who), 2, dtype=torch.int64)

    return fedfw.Problem.generated(torch.nn.Linear(4, 3), nnf.cross_entropy, 50, make)


PRIVATE = {"privacy": "eps=1,delta=1e-5"}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (quadratics, {"rounds": 0}, "rounds=0, expected a whole number of at least 1"),
        (quadratics, {"local_steps": 0}, "local_steps=0"),
        (quadratics, {"batch_size": 0}, "batch_size=0"),
        (quadratics, {"tol": 0.0}, "tol=0.0, expected a number above 0"),
        (quadratics, {"eval_every": -1}, "eval_every=-1"),
        (quadratics, {"batch_size": 3}, "plain functions"),
        (quadratics, {"device": "tpu"}, "device='tpu'"),
        (quadratics, {"participation": 9}, "participation=9 clients a round, expected 1 to 8"),
        (quadratics, PRIVATE, "privacy is for clients with samples"),
        (samples, PRIVATE | {"tol": 0.1}, "tol needs a certificate, which reveals the data"),
        (samples, PRIVATE | {"relax": {0: fedfw.L2Ball(5.0)}}, "relax does not go with privacy"),
        (network, {"tol": 0.1}, "the losses are not known to be convex"),
        # F of generated clients is never evaluated: such a run would not find that it is done.
        (generated, {"tol": 0.1, "participation": 2}, r"tol=0.1 needs the loss over all clients"),
    ],
)
def test_bad_options_are_refused(
    make: Callable[[], fedfw.Problem], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fedfw.simulate(make(), fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1), **options)


# --- What a run gives back: in words, in a notebook, as a picture and as a pickle ---


def run_of(model: str, dtype: torch.dtype = torch.float32) -> fedfw.Run:
    x, y = torch.randn(12, 4, dtype=dtype), torch.arange(12) % 3
    module: torch.nn.Module = torch.nn.Linear(4, 3)
    if model == "module":
        module = torch.nn.Sequential(torch.nn.Flatten(), module)
    clients = [(x[:5], y[:5]), (x[5:], y[5:])]
    problem = fedfw.Problem(
        module.to(dtype), torch.nn.functional.cross_entropy, clients, test=(x, y), convex=True
    )
    return fedfw.simulate(problem, fedfw.FedFW(fedfw.L2Ball(2.0)), rounds=3)


def test_a_run_and_its_problem_say_what_they_are() -> None:
    run = run_of("linear")
    assert "algorithm: FedFW on L2Ball(r=2.0)\n  rounds: 3 (" in repr(run)
    assert "seconds" not in repr(run)
    problem = "Problem(Linear model, 2 clients, 12 training samples, 12 test samples, 15 parameters, convex losses)"
    assert repr(run.problem) == problem
    page = run._repr_html_()
    assert problem in page
    assert "all that were asked for" in page
    assert "<th>clients</th><td>2</td>" in run.problem._repr_html_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", ["linear", "module"])
def test_a_run_can_be_pickled(model: str, dtype: torch.dtype) -> None:
    run = run_of(model, dtype)
    copy = pickle.loads(pickle.dumps(run))
    assert torch.equal(copy.x, run.x)
    assert list(copy.history) == list(run.history)
    assert copy.problem.value(copy.x) == run.problem.value(run.x)
    assert copy.problem.test(copy.x) == run.problem.test(run.x)
    assert (copy.stopped, copy.lower_bound, copy.certificate) == (
        run.stopped,
        run.lower_bound,
        run.certificate,
    )
    assert copy.algorithm == run.algorithm
    inputs = run.problem.test_data[0]  # type: ignore[index]
    assert torch.equal(copy.model(inputs), run.model(inputs))


# --- Stragglers: some clients use a larger, simpler set ---


def test_the_distance_falls_as_the_theory_says_and_the_model_is_inside() -> None:
    q = Quadratics.on("l1")
    loose = fedfw.enclosing(q.constraint, "l2", tuple(q.start.shape))
    relax = dict.fromkeys(range(5), loose)
    n, m = 8, 3
    points, models = [], []

    def watch(simulation: Simulation) -> None:
        points.append(simulation.clients["x"].clone())
        models.append(simulation.xbar.clone())

    algorithm = fedfw.FedFW(q.constraint, penalty=3 * q.best_penalty)
    run = fedfw.simulate(q.problem, algorithm, rounds=1000, relax=relax, callbacks=watch)
    # What records say of each round is worked out here for all of them, at once.
    x, xbar = torch.stack(points), torch.stack(models)
    consensus = (x - xbar[:, None]).flatten(1).norm(dim=1)
    distance = (xbar - q.constraint.project(xbar, batch=True)).norm(dim=1)
    assert len(distance) == 1000
    assert bool((distance <= ((n - m) / (n * m)) ** 0.5 * consensus + 1e-9).all())
    told = [
        (r.distance, r.consensus)
        for r in run.history
        if r.distance is not None and r.consensus is not None
    ]
    assert torch.allclose(
        torch.tensor(told, dtype=torch.float64), torch.stack([distance, consensus], 1)
    )
    assert distance.max() > 1e-3
    assert distance[-1] < 0.5 * distance.max()
    assert q.constraint.contains(run.feasible)
    assert q.value(run.feasible) >= q.least - 1e-9
    model = torch.cat([p.flatten() for p in run.model.parameters()])
    assert torch.equal(model, run.feasible)
    assert run.lower_bound <= q.least + 1e-9


@pytest.mark.parametrize(
    ("algorithm", "relaxed", "larger", "message"),
    [
        (fedfw.FedFW, range(8), "l2:9", "some client must keep the constraint"),
        (fedfw.FedFW, [9], "l2:9", r"relax names clients \[9\], expected numbers from 0 to 7"),
        (fedfw.FedFW, [1], "l2:0.1", "does not contain the constraint"),
        (fedfw.FedFWAnchored, [1], "l2:9", "relax does not go with"),
        (fedfw.FrankWolfe, [1], "l2:9", "relax does not go with"),
        (fedfw.FedAvg, [1], "l2:9", "relax does not go with"),
    ],
)
def test_refusals(
    algorithm: type[fedfw.Algorithm], relaxed: Sequence[int], larger: str, message: str
) -> None:
    relax = dict.fromkeys(relaxed, fedfw.parse_set(larger))
    with pytest.raises(ValueError, match=message):
        fedfw.simulate(quadratics(), algorithm(fedfw.L1Ball(1.0)), relax=relax)


# --- No model outside of its set leaves a run: simulations and the central solver; deployments in
# test_faults.py ---

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def problem(dtype: torch.dtype, p: int = 16, **known: Any) -> fedfw.Problem:
    """Four quadratics whose minimisers are different points."""
    random = torch.Generator().manual_seed(0)
    targets = torch.randn(4, p, generator=random, dtype=torch.float64).to(dtype)
    losses: list[Callable[[Tensor], Tensor]] = [
        lambda x, t=t: ((x - t) ** 2).sum() for t in targets
    ]  # type: ignore[misc]
    return fedfw.Problem.from_losses(losses, torch.zeros(p, dtype=dtype), convex=True, **known)


class Outside(fedfw.L2Ball):
    """A ball whose projection forgets the radius."""

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return 1.5 * super()._project(x, shape)


class Missing(fedfw.L2Ball):
    """A ball whose oracle answers with points outside, and which has no projection."""

    _project = ConstraintSet._project

    def _lmo(self, g: Tensor, shape: Shape, request: Any) -> fedfw.Atom:
        return fedfw.L2Ball(2 * self.r)._lmo(g, shape, request)


@BOTH
@pytest.mark.parametrize(
    ("constraint", "lr"),
    [
        (fedfw.KSparse(2, 1e-6), 1e11),
        (fedfw.KSparse(2, 1.0), 1e17),
        (fedfw.Hypersimplex(3), 1e17),
        (fedfw.Simplex(1.0), 1e30),
        (fedfw.L2Ball(1.0), 1e30),
        (fedfw.GroupBall(1.0, torch.arange(16) // 4), 1e30),
        (fedfw.PartialIsometry(2, 1.0), 1e20),
        (fedfw.Birkhoff(), 1e20),
        (fedfw.Product({"x": fedfw.PartialIsometry(2, 1e-6)}), 1e20),
    ],
    ids=repr,
)
@pytest.mark.parametrize("method", [fedfw.FedPGD, fedfw.FedAvg])
def test_huge_steps_end_inside(
    method: type[fedfw.Algorithm], constraint: Any, lr: float, dtype: torch.dtype
) -> None:
    flat = problem(dtype)
    if getattr(constraint, "needs_matrix", True):
        losses = [lambda x, f=f: f(x.reshape(-1)) for f in flat.losses.functions]  # type: ignore[attr-defined]
        flat = fedfw.Problem.from_losses(losses, torch.zeros(4, 4, dtype=dtype), convex=True)
    bound = flat.bind(constraint)
    run = fedfw.simulate(flat, method(constraint, lr=lr), rounds=3)
    assert bound.contains(run.x.flatten())
    assert bound.contains(run.feasible.flatten())
    assert [record.distance for record in run.history] == [0.0] * 3


@BOTH
@pytest.mark.parametrize(
    "algorithm",
    [fedfw.FedPGD(Outside(1.0), lr=0.1), fedfw.FedFW(Missing(1.0)), fedfw.FrankWolfe(Missing(1.0))],
    ids=lambda algorithm: f"{algorithm.name} on {algorithm.constraint!r}",
)
def test_a_run_that_ends_outside_returns_nothing_and_writes_no_model(
    algorithm: fedfw.Algorithm, dtype: torch.dtype, tmp_path: Path
) -> None:
    with pytest.raises(
        fedfw.InfeasibleError, match=r"final model lies outside of .*\(r=1.0\): by 0\.[1-9]"
    ):
        fedfw.simulate(problem(dtype), algorithm, rounds=30, out=tmp_path / "run")
    assert not list((tmp_path / "run").glob("model*"))


@BOTH
def test_the_solver_raises_where_its_point_is_outside(dtype: torch.dtype) -> None:
    for constraint in (Outside(1.0), Missing(1.0)):
        with pytest.raises(fedfw.InfeasibleError, match="final model lies outside"):
            fedfw.solve(problem(dtype), constraint, max_steps=30)
    assert fedfw.L2Ball(1.0).contains(fedfw.solve(problem(dtype), fedfw.L2Ball(1.0)).x)


def test_a_grid_search_goes_on_where_a_point_of_the_grid_ends_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where losses are not finite: that point is no result."""
    project = fedfw.L2Ball._project

    def only_near(self: fedfw.L2Ball, x: Tensor, shape: Shape) -> Tensor:
        factor = 1.5 if float(x.abs().max()) > 100 else 1.0
        return factor * project(self, x, shape)

    random = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(20, 3, generator=random), torch.randn(20, 1, generator=random))
        for _ in range(2)
    ]
    regression = fedfw.Problem(
        torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, clients, test=clients[0]
    )
    monkeypatch.setattr(fedfw.L2Ball, "_project", only_near)
    found = fedfw.tune(
        regression, fedfw.FedPGD(fedfw.L2Ball(1.0)), rounds=4, grid={"lr": [0.01, 1e5]}
    )
    assert found.best.algorithm.lr == 0.01  # type: ignore[attr-defined]


@BOTH
def test_relaxed_runs_return_a_model_inside_although_xbar_is_outside(dtype: torch.dtype) -> None:
    small, large = fedfw.L2Ball(1.0), fedfw.L2Ball(30.0)
    algorithm = fedfw.FedFW(small, penalty=0.01)
    run = fedfw.simulate(problem(dtype), algorithm, rounds=30, relax={0: large, 1: large, 2: large})
    assert not small.contains(run.x)
    assert small.contains(run.feasible)


@BOTH
@pytest.mark.parametrize(
    "constraint",
    [
        fedfw.L1Ball(1.0),
        fedfw.Simplex(2.0),
        fedfw.NuclearBall(1.0).bind({"w": (2, 3)}),
        fedfw.L2Ball(0.5),
    ],
    ids=repr,
)
def test_what_rounding_moves_out_is_moved_back_and_more_is_refused(
    constraint: ConstraintSet, dtype: torch.dtype
) -> None:
    inside = constraint.project(torch.full((6,), 5.0, dtype=dtype))
    assert final_model(constraint, inside) is inside
    drifted = inside * (1 + ROUNDING[torch.float32] / 2)
    assert not constraint.contains(drifted)
    if dtype is torch.float32:
        moved = final_model(constraint, drifted)
        assert constraint.contains(moved)
        assert float((moved - inside).abs().max()) <= 1e-3
    else:
        with pytest.raises(fedfw.InfeasibleError, match=r"by 0\.0005 of the set's size"):
            final_model(constraint, drifted)
    with pytest.raises(
        fedfw.InfeasibleError, match=r"by 0\.01 of the set's size, with entries up to"
    ):
        validate_final(constraint, inside * 1.01)


@BOTH
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_final_point_that_is_not_finite_is_refused(bad: float, dtype: torch.dtype) -> None:
    with pytest.raises(fedfw.InfeasibleError, match="NaN or an infinity"):
        validate_final(fedfw.L2Ball(1.0), torch.tensor([0.1, bad], dtype=dtype))


@pytest.mark.parametrize(
    ("size", "chosen", "expected"), [(5, False, 1), (5, True, 2), (10_000_001, False, 2)]
)
def test_small_problems_use_one_thread_unless_the_user_chose_a_number(
    size: int, chosen: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedfw.simulation import threads

    monkeypatch.setattr(threads.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(threads, "SMALL", 10_000_000 if size == 5 else 1)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen = []
    try:
        fedfw.simulate(
            fedfw.testing.quadratics(),
            fedfw.FedFW("l2:1"),
            rounds=1,
            callbacks=lambda simulation: seen.append(torch.get_num_threads()),
        )
        assert (seen, torch.get_num_threads()) == ([expected], 2)
    finally:
        torch.set_num_threads(before)
