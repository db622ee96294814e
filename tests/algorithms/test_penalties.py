"""The default penalty and the one of the theory, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fedfw
from fedfw.algorithms.base import Setting, scaled
from fedfw.algorithms.penalties import AVERAGED, NETWORK, PLAIN, WEAK, atom_density, usual_multiple
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import SETS, P, Quadratics


@pytest.mark.parametrize("name", SETS)
def test_theorys_penalty_is_the_stated_one(name: str) -> None:
    q = Quadratics.on(name)
    g = q.gradients(q.start) * q.n
    zeta = float((g - g.mean(0)).square().sum(1).mean().sqrt())
    for text, multiple in (("theory", 1), ("theory:3", 3), ("theory:0.01", 0.01)):
        plan = Simulation(q.problem, fedfw.FedFW(q.constraint, penalty=text), Options(rounds=1)).plan
        assert plan.lam_0 == pytest.approx(multiple * zeta / (2 * q.n * q.D))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("weights", [None, (0.3, 0.05, 0.1, 0.15, 0.1, 0.1, 0.1, 0.1)])
def test_the_default_is_a_multiple_of_how_steep_the_losses_are(name: str, weights: tuple[float, ...] | None) -> None:
    q = replace(Quadratics.on(name), weights=weights)
    steepness = float((q.gradients(q.start) * q.n).square().sum(1).mean().sqrt())
    for momentum, usual in ((0.0, PLAIN), (0.9, AVERAGED)):
        for text, multiple in (("auto", 1), ("auto:3", 3)):
            algorithm = fedfw.FedFWPlus(q.constraint, penalty=text, momentum=momentum)
            plan = Simulation(q.problem, algorithm, Options(rounds=100)).plan
            assert plan.lam_0 == pytest.approx(multiple * usual * steepness / (2 * q.n * q.D), rel=1e-6)


def setting(constraint: fedfw.ConstraintSet, **known: object) -> Setting:
    return Setting(n=5, constraint=constraint, shape=(100,), convex=True, **known)  # type: ignore[arg-type]


def test_the_multiple_goes_by_what_a_runs_atoms_can_reach() -> None:
    sparse, dense = fedfw.L1Ball(1.0), fedfw.L2Ball(1.0)
    plain, averaged = fedfw.FedFW(sparse, momentum=0.0), fedfw.FedFW(sparse, momentum=0.9)
    assert usual_multiple(plain, setting(dense, rounds=1)) == PLAIN
    assert usual_multiple(averaged, setting(dense, rounds=1)) == AVERAGED
    assert usual_multiple(plain, replace(setting(dense), convex=False)) == NETWORK
    assert usual_multiple(plain, setting(sparse, rounds=49)) == WEAK
    assert usual_multiple(plain, setting(sparse, rounds=50)) == PLAIN
    assert usual_multiple(plain, setting(sparse, rounds=25, local_steps=2)) == PLAIN
    assert usual_multiple(plain, setting(sparse, rounds=50, p=0.9)) == WEAK
    assert usual_multiple(averaged, replace(setting(sparse, rounds=49), convex=False)) == WEAK


@pytest.mark.parametrize(
    ("constraint", "density"),
    [
        (fedfw.L1Ball(2.0), 1 / P),
        (fedfw.KSparse(3, 1.0), 3 / P),
        (fedfw.Box(-1.0, 1.0), 1.0),
        (fedfw.Simplex(1.0), 1 / P),
    ],
)
def test_density_of_atoms(constraint: fedfw.ConstraintSet, density: float) -> None:
    assert atom_density(constraint, (P,)) == pytest.approx(density)


def test_what_is_not_known_is_asked_for() -> None:
    D = fedfw.L1Ball(1.0)
    for word in ("auto", "theory", "theory:2"):
        with pytest.raises(ValueError, match=rf"penalty='{word}': nothing is known here .* give a number"):
            fedfw.FedFW(D, penalty=word, momentum=0.0).plan(setting(D))
    assert fedfw.FedFW(D, penalty=0.25).plan(setting(D)).lam_0 == 0.25
    assert fedfw.FedFWAnchored(D, penalty=0.0).plan(setting(D)).lam_0 == 0.0
    assert fedfw.FrankWolfe(D).plan(setting(D)).lam_0 == 0.0


@pytest.mark.parametrize("text", ["auto:", "auto", "auto:1", "auto:1e0"])
def test_multiples_that_are_one(text: str) -> None:
    assert scaled("penalty", text, {"auto": lambda: 0.5}) == 0.5


@pytest.mark.parametrize("text", ["auto:-1", "auto:nan", "auto:inf", "auto:1:2", "other", "", -0.5, float("nan")])
def test_what_is_no_multiple_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match=f'penalty={text!r}, expected a number of at least 0, "auto"'):
        scaled("penalty", text, {"auto": lambda: 0.5})


def test_a_set_without_extent_and_equal_clients_have_a_penalty_all_the_same() -> None:
    """Equal clients differ by nothing: the theory's penalty is zero then, the default is not."""
    one = Quadratics.on("l2", n=1)
    same = Quadratics(one.constraint, one.A.repeat(3, 1, 1), one.c.repeat(3, 1))
    theory, usual = (
        Simulation(same.problem, fedfw.FedFW(one.constraint, penalty=word), Options(rounds=100)).plan.lam_0
        for word in ("theory", "auto")
    )
    assert theory == pytest.approx(0.0, abs=1e-12)
    assert usual > 0
    point = fedfw.Hull(torch.ones(1, P))
    plan = Simulation(one.problem, fedfw.FedFW(point, penalty="auto:0"), Options(rounds=1)).plan
    assert plan.lam_0 == 0.0
