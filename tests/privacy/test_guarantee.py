"""The promise: read from text, and kept by runs, which reveal nothing else."""

import hashlib
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import scipy.optimize
import scipy.stats
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw import Privacy
from fedfw.privacy.accounting import Accountant
from fedfw.privacy.steps import PrivacyPlan
from fedfw.problems.digest import describe_problem, digest_of
from fedfw.rounds.checkpoints import load_checkpoint
from fedfw.rounds.fingerprint import refuse_another_run
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from tests.table import zero_layer

pytest.importorskip("dp_accounting")

DELTA = 1e-5


@pytest.mark.parametrize(
    "text",
    [
        "eps=4",
        "eps=0,delta=1e-5",
        "eps=4,delta=2",
        "eps=a,delta=1e-5",
        "eps=1,delta=1e-5,clipp=1",
        "",
    ],
)
def test_what_is_no_promise_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Privacy.parse(text)
    assert Privacy.parse("eps=4,delta=1e-5,clip=2,not-private-seed=3") == Privacy(
        4, 1e-5, 2, not_private_seed=3
    )


# --- runs ---


def problem(samples: int = 40, seed: int = 0) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(seed)
    clients = [
        (
            torch.rand(samples, 6, generator=generator),
            torch.randint(0, 3, (samples,), generator=generator),
        )
        for _ in range(3)
    ]
    model = zero_layer(6, 3)
    return fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0])


def test_records_tell_what_was_spent_and_nothing_of_the_data() -> None:
    run = fedfw.simulate(
        problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), rounds=5, privacy=Privacy(2.0, DELTA)
    )
    spent = [record.epsilon for record in run.history]
    assert all(a is not None and b is not None and a < b for a, b in itertools.pairwise(spent))
    assert 1.9 < spent[-1] <= 2.0  # type: ignore[operator]
    for record in run.history:
        assert (record.loss, record.gap, record.lower_bound, record.surrogate) == (None,) * 4
        assert record.accuracy is not None
    assert run.lower_bound is None
    assert "choice of vertices" in str(run.privacy)
    again = fedfw.simulate(
        problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), rounds=5, privacy=Privacy(2.0, DELTA)
    )
    assert not torch.equal(run.x, again.x)


# --- files ---


def run_into(
    folder: Path, given: fedfw.Problem, rounds: int, resume: bool = False, **changes: Any
) -> Any:
    promise = Privacy(4.0, DELTA, noise=10.0, not_private_seed=0)
    algorithm = fedfw.FedFW(fedfw.L1Ball(3.0), penalty=0.01, momentum=0.9)

    def stop(simulation: Simulation) -> bool:
        return simulation.t == rounds

    return fedfw.simulate(
        given,
        algorithm,
        rounds=6,
        privacy=promise,
        out=folder,
        resume=resume,
        callbacks=stop,
        **changes,
    )


def test_files_of_a_private_run_hold_no_digest_of_data(tmp_path: Path, no_plots: None) -> None:
    """Who reads a digest can test a guess of the data: a run folder showed whether one entry had
    changed.
    """
    given = problem()
    run_into(tmp_path / "run", given, 4)
    data = [[tensor] for tensor in given.losses.data()]
    digests = {digest_of(tensors) for tensors in (*data, given.test_data, given.losses.data())}
    digests.add(
        hashlib.sha256(" ".join(digest_of(tensors) for tensors in data).encode()).hexdigest()[:16]
    )
    described = describe_problem(given)
    assert {described["data"], described["test data"]} <= digests
    files = [path for path in (tmp_path / "run").iterdir() if path.is_file()]
    assert len(files) > 4
    for path in files:
        for found in digests:
            assert found.encode() not in path.read_bytes(), path
    # The same with another entry: what a checkpoint says of its run does not change.
    other = problem()
    next(iter(other.losses.data()))[7, 2] += 1e-3
    run_into(tmp_path / "other", other, 4)
    said = [
        load_checkpoint(max((tmp_path / name).glob("checkpoint-*")))[1] for name in ("run", "other")
    ]
    assert said[0]["fingerprint"] == said[1]["fingerprint"]
    assert "40" in said[0]["fingerprint"]["samples"]


def test_a_private_run_goes_on_with_as_many_samples_only(tmp_path: Path, no_plots: None) -> None:
    """Its averages remember gradients in which a sample had a share by that number."""
    whole = run_into(tmp_path / "whole", problem(), 6)
    run_into(tmp_path / "run", problem(), 3)
    with pytest.raises(ValueError, match=r"samples was \[40, 40, 40\], is \[400, 400, 400\]"):
        run_into(tmp_path / "run", problem(400), 6, resume=True)
    resumed = run_into(tmp_path / "run", problem(), 6, resume=True)
    assert torch.equal(resumed.x, whole.x)


def test_a_private_folder_of_an_older_version_is_refused(tmp_path: Path) -> None:
    promise = Privacy(4.0, DELTA, not_private_seed=0)
    simulation = Simulation(problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), Options(privacy=promise))
    here = simulation.fingerprint
    kept = {**here, "data": "0123456789abcdef", "test data": "none"}
    with pytest.raises(ValueError, match="holds another run: data was"):
        refuse_another_run(tmp_path, kept, here, 0)
    with pytest.raises(ValueError, match="privacy was none, is eps"):
        refuse_another_run(tmp_path, kept | {"privacy": "none"}, here, 0)


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ({"tol": 0.1}, fedfw.FedFW(fedfw.L1Ball(1.0))),
        ({"relax": {0: fedfw.L1Ball(2.0)}}, fedfw.FedFW(fedfw.L1Ball(1.0))),
        ({}, fedfw.FedFWAnchored(fedfw.L1Ball(1.0))),
        ({}, fedfw.FedAvg(fedfw.L1Ball(1.0))),  # its step size would come from the data
    ],
)
def test_what_would_tell_of_the_data_is_refused(
    options: dict[str, Any], algorithm: fedfw.Algorithm
) -> None:
    with pytest.raises(ValueError):
        fedfw.simulate(problem(), algorithm, rounds=3, privacy=Privacy(1.0, DELTA), **options)


# --- The accountant against closed forms ---


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


@pytest.mark.parametrize(
    ("noise", "releases", "choices"), [(2.0, 1, 1), (5.0, 40, 1), (9.0, 10, 7)]
)
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
    full, sampled = (
        Accountant(DELTA, gaussian=True, rate=rate).epsilon(3.0, 10) for rate in (1.0, 0.1)
    )
    assert sampled < full / 3
    few = Accountant(DELTA, 1, rate=0.1).epsilon(4.0, 1)
    assert few == pytest.approx(math.log1p(0.1 * math.expm1(2 / 4.0)))


# --- A promise's signature is the same text in every process: a deployed client has a new one for
# each message ---

SETS = {
    "l1": fedfw.L1Ball(1.0),
    "ksparse": fedfw.KSparse(2, 1.0),
    "simplex": fedfw.Simplex(1.0),
    "capped": fedfw.CappedSimplex(1.0),
    "hypersimplex": fedfw.Hypersimplex(2),
    "hull": fedfw.Hull(torch.eye(8)),
    "box": fedfw.Box(-1.0, 2.0),
    "linf": fedfw.LinfBall(1.0),
    "l2": fedfw.L2Ball(1.0),
    "product": fedfw.Product({"a": fedfw.L1Ball(1.0), "b": fedfw.Simplex(1.0)}).bind(
        {"a": (5,), "b": (3,)}
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_no_signature_holds_an_address(name: str) -> None:
    plan = PrivacyPlan.of(
        Privacy(1.0, 1e-5, noise=50.0),
        fedfw.FedFW(SETS[name]),
        SETS[name],
        shape=(8,),
        fewest_samples=40,
        rounds=5,
        local_steps=1,
        batch_size=None,
    )
    assert " at 0x" not in plan.signature
