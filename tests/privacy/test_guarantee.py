"""The promise: accounted right, kept by runs, and an audit that believes only what it measures."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import scipy.optimize
import scipy.stats
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw import Privacy
from fedfw.cli import main
from fedfw.command.config import RunConfig
from fedfw.errors import MessageError
from fedfw.experiments import private_training
from fedfw.flower import Client, Coordinator, Deployment
from fedfw.flower.messages import GRADIENT, encode_vector
from fedfw.flower.store import ClientStore
from fedfw.privacy.accounting import Accountant
from fedfw.privacy.mechanisms import Mechanism, mechanism_for
from fedfw.privacy.noise import Noise
from fedfw.privacy.steps import PrivateSteps
from fedfw.simulation import Options
from fedfw.simulation.engine import Simulation
from fedfw.simulation.storage import RunFolder
from tests.data.files import DATA, needs
from tests.flower.loopback import Loopback, problem_of, small_task

pytest.importorskip("dp_accounting")
DELTA = 1e-5


# --- the accountant ---


def analytic_gaussian(noise: float) -> float:
    """The exact epsilon of one Gaussian mechanism. Reference: Balle and Wang (2018)."""

    def excess(eps: float) -> float:
        a, b = 1 / (2 * noise) - eps * noise, -1 / (2 * noise) - eps * noise
        return float(scipy.stats.norm.cdf(a) - math.exp(eps) * scipy.stats.norm.cdf(b) - DELTA)

    return float(scipy.optimize.brentq(excess, 0, 100))


@pytest.mark.parametrize(("noise", "releases"), [(1.0, 1), (4.0, 1), (5.0, 30)])
def test_gaussian_noise_against_the_closed_form(noise: float, releases: int) -> None:
    exact = analytic_gaussian(noise / math.sqrt(releases))
    assert exact <= Accountant(DELTA, gaussian=True).epsilon(noise, releases) <= exact + 0.01


@pytest.mark.parametrize(("noise", "releases", "choices"), [(2.0, 1, 1), (5.0, 40, 1), (9.0, 10, 7)])
def test_selection_against_closed_forms(noise: float, releases: int, choices: int) -> None:
    spent = Accountant(DELTA, choices).epsilon(noise, releases)
    rho = releases / (2 * noise**2)
    assert spent <= rho + 2 * math.sqrt(rho * math.log(1 / DELTA)) + 1e-9
    assert spent <= releases * 2 * math.sqrt(choices) / noise + 1e-9
    assert spent > Accountant(DELTA, gaussian=True).epsilon(noise, releases) / 2


def test_sampling_helps_and_calibration_is_tight() -> None:
    for accountant in (Accountant(DELTA, gaussian=True), Accountant(DELTA, 1), Accountant(DELTA)):
        noise = accountant.least_noise(2.0, 20)
        assert 1.98 < accountant.epsilon(noise, 20) <= 2.0
        assert accountant.most_releases(2.0, noise, 100) == 20
        assert accountant.epsilon(noise, 0) == 0
    full, sampled = (Accountant(DELTA, gaussian=True, rate=rate).epsilon(3.0, 10) for rate in (1.0, 0.1))
    assert sampled < full / 3
    few = Accountant(DELTA, 1, rate=0.1).epsilon(4.0, 1)
    assert few == pytest.approx(math.log1p(0.1 * math.expm1(2 / 4.0)))


@pytest.mark.parametrize(
    "text", ["eps=4", "eps=0,delta=1e-5", "eps=4,delta=2", "eps=a,delta=1e-5", "eps=1,delta=1e-5,clipp=1", ""]
)
def test_what_is_no_promise_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Privacy.parse(text)
    assert Privacy.parse("eps=4,delta=1e-5,clip=2,not-private-seed=3") == Privacy(4, 1e-5, 2, not_private_seed=3)


# --- an audit ---


def lower_bound(with_sample: Tensor, without: Tensor, delta: float) -> float:
    """What epsilon is at least, with 99.9 % confidence, from how often a yes was seen in runs (N,) of each kind."""
    trials, yes, wrong = len(with_sample), int(with_sample.sum()), int(without.sum())
    seen = scipy.stats.beta.ppf(0.0005, yes, trials - yes + 1)
    unseen = scipy.stats.beta.ppf(0.9995, wrong + 1, trials - wrong) if wrong < trials else 1.0
    return math.log(max(seen - delta, 1e-12) / unseen)


def audited(constraint: fedfw.ConstraintSet, noise: float, releases: int, broken: float = 1.0) -> float:
    """A canary's worst: it pulls one vertex up and all others down, again and again; N runs with it and N without."""
    trials, p = 20_000, 2
    mechanism: Mechanism = mechanism_for(constraint, (p,))
    canary = torch.tensor([-1.0, 1.0]) / (1 if mechanism.norm == "linf" else 2**0.5)
    votes = []
    for run, push in enumerate((canary, torch.zeros(p))):
        g = (torch.tensor([1.0, -1.0]) if mechanism.norm == "linf" else torch.zeros(p)).double()
        source = Noise(run, 1, [0], torch.device("cpu"))
        generator = torch.Generator().manual_seed(run)
        source.uniform = lambda count, made=generator: torch.rand(  # type: ignore[misc, assignment]
            trials, count, generator=made, dtype=torch.float64
        ).clamp(1e-16, 1 - 1e-16)
        total = torch.zeros(trials, p)
        for _ in range(releases):
            scale = torch.full((trials, 1), noise * broken).double()
            direction = mechanism.gradient((g + push).expand(trials, p), scale, source)
            total += mechanism.answer(constraint, direction, scale, source, None).dense()
        votes.append(total[:, 0] - total[:, 1])
    cuts = votes[0].unique()
    cuts = cuts[:: max(1, len(cuts) // 50)]
    return max(lower_bound(votes[0] >= cut, votes[1] >= cut, DELTA) for cut in cuts if bool((votes[0] >= cut).any()))


def test_an_audit_finds_no_more_than_is_claimed_and_catches_half_the_noise() -> None:
    """Two vertices, and a direction that all but settles which: there a pure mechanism spends most."""
    simplex = fedfw.Simplex(1.0)
    noise = 1.0
    claimed = Accountant(DELTA, 1).epsilon(noise, 1)
    assert claimed == pytest.approx(2.0)
    honest = audited(simplex, noise, 1)
    assert 0.5 * claimed < honest <= claimed
    assert audited(simplex, noise, 1, broken=0.5) > claimed


def test_an_audit_of_gaussian_noise_over_rounds() -> None:
    ball, noise, releases = fedfw.L2Ball(1.0), 6.0, 10
    accountant = Accountant(DELTA, gaussian=True)
    claimed = accountant.epsilon(noise, releases)
    assert 0.1 * claimed < audited(ball, noise, releases) <= claimed
    assert audited(ball, noise, releases, broken=0.1) > claimed


# --- runs ---


def problem(samples: int = 40, seed: int = 0) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(seed)
    clients = [
        (torch.rand(samples, 6, generator=generator), torch.randint(0, 3, (samples,), generator=generator))
        for _ in range(3)
    ]
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0])


def test_records_tell_what_was_spent_and_nothing_of_the_data() -> None:
    run = fedfw.simulate(problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), 5, privacy=Privacy(2.0, DELTA))
    spent = [record.epsilon for record in run.history]
    assert all(a is not None and b is not None and a < b for a, b in itertools.pairwise(spent))
    assert 1.9 < spent[-1] <= 2.0  # type: ignore[operator]
    for record in run.history:
        assert (record.loss, record.gap, record.lower_bound, record.surrogate) == (None,) * 4
        assert record.accuracy is not None
    assert run.lower_bound is None
    assert "choice of vertices" in str(run.privacy)
    again = fedfw.simulate(problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), 5, privacy=Privacy(2.0, DELTA))
    assert not torch.equal(run.x, again.x)


def test_the_penalty_is_worked_out_without_data() -> None:
    privacy = Privacy(2.0, DELTA, not_private_seed=0)
    plans = [Simulation(problem(seed=s), fedfw.FedFW(fedfw.L1Ball(3.0)), Options(privacy=privacy)).plan for s in (0, 1)]
    assert plans[0].lam_0 == plans[1].lam_0 > 0


@pytest.mark.parametrize(
    ("algorithm", "mechanism"),
    [
        (fedfw.FedFWPlus, "auto"),
        (fedfw.FedFWPlus, "gaussian"),
        (fedfw.FedFWSto, "auto"),
        (fedfw.NaiveFW, "auto"),
        (fedfw.FrankWolfe, "auto"),
    ],
)
def test_much_data_and_a_large_budget_come_close_to_no_noise(algorithm: Any, mechanism: str) -> None:
    p = problem(4000)
    exact = fedfw.simulate(p, algorithm(fedfw.L2Ball(3.0), **_penalty(algorithm)), 20).x
    for constraint in (fedfw.L2Ball(3.0), fedfw.LinfBall(0.5)):
        promise = Privacy(50.0, DELTA, clip=10.0, mechanism=mechanism, not_private_seed=0)
        run = fedfw.simulate(p, algorithm(constraint, **_penalty(algorithm)), 20, privacy=promise)
        assert constraint.contains(run.x, 1e-4)
        if isinstance(constraint, fedfw.L2Ball):
            assert float((run.x - exact).norm()) < 0.3


def _penalty(algorithm: Any) -> dict[str, Any]:
    return {} if algorithm in (fedfw.NaiveFW, fedfw.FrankWolfe) else {"penalty": 0.01}


def test_a_run_ends_before_its_budget_does() -> None:
    run = fedfw.simulate(
        problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), 50, privacy=Privacy(1.0, DELTA, noise=20.0), participation=0.5
    )
    assert run.stopped == "the privacy budget is spent"
    assert 0 < len(run.history) < 50
    assert run.history[-1].epsilon is not None
    assert run.history[-1].epsilon <= 1.0
    with pytest.raises(ValueError, match="one round would spend"):
        fedfw.simulate(problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), 5, privacy=Privacy(0.1, DELTA, noise=1.0))


def test_a_resumed_run_remembers_what_was_spent(tmp_path: Path) -> None:
    promise = Privacy(2.0, DELTA, not_private_seed=0)
    options = Options(rounds=6, participation=2, privacy=promise)
    algorithm = fedfw.FedFW(fedfw.L1Ball(3.0))

    def stop(simulation: Simulation) -> None:
        if simulation.t == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Simulation(problem(), algorithm, options, RunFolder(tmp_path)).run([stop])
    resumed = Simulation(problem(), algorithm, options, RunFolder(tmp_path, resume=True))
    assert resumed.t == 3
    assert int(resumed.attended.sum()) == 6
    whole = Simulation(problem(), algorithm, options).run()
    assert [r.epsilon for r in resumed.run().history] == [r.epsilon for r in whole.history]
    assert torch.equal(resumed.server.xbar, whole.x)


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ({"tol": 0.1}, fedfw.FedFW(fedfw.L1Ball(1.0))),
        ({"relax": {0: fedfw.L1Ball(2.0)}}, fedfw.FedFW(fedfw.L1Ball(1.0))),
        ({}, fedfw.FedFWAnchored(fedfw.L1Ball(1.0))),
        ({}, fedfw.FedAvg(fedfw.L1Ball(1.0))),  # its step size would come from the data
    ],
)
def test_what_would_tell_of_the_data_is_refused(options: dict[str, Any], algorithm: fedfw.Algorithm) -> None:
    with pytest.raises(ValueError):
        fedfw.simulate(problem(), algorithm, 3, privacy=Privacy(1.0, DELTA), **options)


def test_a_deployment_keeps_the_promise_and_agrees_with_the_simulator(tmp_path: Path) -> None:
    promise = Privacy(4.0, DELTA, not_private_seed=1)
    for number, algorithm in enumerate(
        (fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01), fedfw.FedAvg(fedfw.L2Ball(5.0), lr=0.5))
    ):
        task = small_task(algorithm, rounds=4, privacy=promise)
        loop = Loopback(Coordinator(task, Deployment(tell=True)), tmp_path / str(number))
        loop.run(4)
        run = fedfw.simulate(problem_of(task), algorithm, 4, privacy=promise)
        assert torch.allclose(loop.server.server.xbar, run.x, atol=1e-6)
        assert all(record.loss is None for record in loop.server.history)


def test_a_repeated_order_gets_the_stored_atom_never_a_fresh_draw(tmp_path: Path) -> None:
    task = small_task(fedfw.FedFW(fedfw.L2Ball(5.0), penalty=0.01), rounds=3, privacy=Privacy(1.0, DELTA))
    loop = Loopback(Coordinator(task), tmp_path)
    order = loop.server.open({0, 1, 2})[1]
    answers = [loop.client(1).handle(order) for _ in range(3)]
    assert len({answer.payload for answer in answers}) == 1
    with pytest.raises(MessageError, match="private"):
        loop.client(0).handle(order.__class__(**(vars(order) | {"ask": GRADIENT, "client": 0})))


def test_a_client_leaves_when_its_budget_is_spent(tmp_path: Path) -> None:
    task = small_task(fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01), rounds=30, privacy=Privacy(1.0, DELTA, noise=20.0))
    most = Accountant(DELTA, 1).most_releases(1.0, 20.0, 30)
    loop = Loopback(Coordinator(task), tmp_path)
    loop.run(most)
    assert set(loop.server.roster.members) == {0, 1, 2}
    order = loop.server.open({0, 1, 2})[0]
    assert loop.client(0).handle(order).kind == "leaving"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--privacy", "eps=4,delta=1e-5", "--rounds", "3", "--json"]) == 0
    told = capsys.readouterr()
    record = json.loads(told.out.splitlines()[-1])
    assert 3.9 < record["epsilon"] <= 4
    assert record["loss"] is None
    assert "epsilon spent" in told.out
    assert "epsilon" in told.err


@needs("libsvm")
def test_the_study_of_what_privacy_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_training, "PROBLEMS", {"a9a": ("a9a", "logistic", "l1:10")})
    monkeypatch.setattr(private_training, "budgets", lambda scale: (1.0, math.inf))
    clip = ("clip", (0.5, 1.0))
    grid = (("rounds", (2,)), ("penalty", ("auto:1",)), clip)
    config = RunConfig(dataset="a9a", model="logistic", constraint="l1:10", partition="iid", algorithm="fedfw")
    few = dict.fromkeys((private_training.SELECTION, private_training.NOISE), (config, grid, "auto"))
    steps = (("rounds", (2,)), ("lr", (0.5,)), clip)
    few[private_training.DP_SGD] = (replace(config, algorithm="fedavg"), steps, "auto")
    monkeypatch.setattr(private_training, "methods", lambda name, scale: few)
    assert main(["reproduce", "dp", "--quick", "--out", str(tmp_path), "--data-dir", str(DATA)]) == 0
    page = (tmp_path / "dp-quick.html").read_text()
    assert page.count("<svg") == 1
    assert "Private selection has the least" in page


def _order(loop: Loopback, **changes: Any) -> Any:
    order = loop.server.open({0, 1, 2})[0]
    return order.__class__(**(vars(order) | changes))


def test_two_processes_of_one_client_release_one_draw(tmp_path: Path) -> None:
    task = small_task(fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01), rounds=3, privacy=Privacy(1.0, DELTA))
    loop = Loopback(Coordinator(task), tmp_path)
    order = _order(loop)
    answers: list[bytes] = []
    twins = [Thread(target=lambda: answers.append(loop.client(0).handle(order).payload)) for _ in range(2)]
    store = ClientStore(tmp_path, order.run, 0)
    with store.alone():
        for twin in twins:
            twin.start()
        twins[0].join(0.2)
        assert all(twin.is_alive() for twin in twins)  # both wait: somebody else is at work
    for twin in twins:
        twin.join()
    assert answers[0] == answers[1]
    assert store.budget() is not None
    log = store.path.with_suffix(".log.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["event"] for line in log) == ["repeated", "stepped"]


def test_a_client_does_not_trust_the_server_with_its_promise(tmp_path: Path) -> None:
    promise = Privacy(1.0, DELTA)
    task = small_task(fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01), rounds=3, privacy=promise)
    for weight in (-0.1, 0.0, 2.0, math.nan):
        with pytest.raises(MessageError, match="weight"):
            Loopback(Coordinator(task), tmp_path / "weights").client(0).handle(
                _order(Loopback(Coordinator(task), tmp_path), weight=weight)
            )
    far = {"x": encode_vector(torch.full((15,), 1e30))}
    loop = Loopback(Coordinator(task), tmp_path / "points")
    order = _order(loop, memory=far)
    with pytest.raises(MessageError, match="outside"):
        loop.client(0).handle(order)
    # More rounds would mean less noise: the releases so far were planned otherwise.
    loop = Loopback(Coordinator(task), tmp_path / "rounds")
    first = _order(loop)
    assert loop.client(0).handle(first).kind == "atom"
    longer = small_task(task.algorithm, rounds=500, privacy=promise)
    later = first.__class__(**(vars(first) | {"t": 2, "counted": 1}))
    assert Client(longer, 0, tmp_path / "rounds").handle(later).kind == "leaving"


def test_noise_follows_the_largest_weight_where_gradients_are_averaged() -> None:
    p = problem()
    ball = fedfw.L1Ball(1.0)
    steps = PrivateSteps.plan(Privacy(1.0, DELTA), fedfw.FedFW(ball), ball, (21,), 40, 5, 1, None)
    weights, who = torch.tensor([0.01]), torch.tensor([0])
    scale = steps.gradient(p.losses, weights, who, 1, who).scale
    larger = steps.gradient(p.losses, weights, who, 1, who, torch.tensor([0.5])).scale
    assert float(larger / scale) == pytest.approx(50)


def test_sampling_goes_far_with_little_noise() -> None:
    """Thousands of sampled releases: amplification must not be lost where losses are large."""
    accountant = Accountant(DELTA, gaussian=True, rate=0.01)
    assert accountant.least_noise(4.0, 1000) < 1.0
    assert accountant.epsilon(1.0, 1000) < 2.2
    assert accountant.epsilon(0.25, 10) < 60  # by Renyi accounting


def test_a_sample_that_is_not_finite_is_left_out() -> None:
    p = problem()
    x = torch.full((3, 21), 3e38)
    gradient = p.losses.clipped_gradient(x, torch.arange(3), None, "linf", 1.0, torch.full((3,), 40.0))
    assert bool(gradient.isfinite().all())
