"""Every algorithm keeps its contract: what it says of itself is what its steps do."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import fedfw
from fedfw.algorithms import (
    Certifies,
    GradientMethod,
    Setting,
    Tunable,
    curvature,
    sends_atoms_only,
)
from fedfw.algorithms.penalty import AVERAGED, PLAIN
from fedfw.algorithms.setting import scaled
from fedfw.rounds.client_steps import public_direction, split
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw_reproduction.known_quadratics import SETS, P, Quadratics


def algorithm(name: str, **options: Any) -> fedfw.Algorithm:
    """By its name, with short intervals between anchors."""
    return fedfw.ALGORITHMS[name](
        fedfw.L1Ball(1.0), **({"anchor_every": 3} if "anchored" in name else {}), **options
    )


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, cls in fedfw.ALGORITHMS.items()
        if issubclass(cls, Certifies) and cls.proves_bounds
    ],
)
def test_the_servers_share_of_a_direction_is_the_clients(name: str, participation: float) -> None:
    """The certificate needs the direction less the gradient, which does not travel: the server
    works it out.
    """
    seen = []

    def watch(simulation: Simulation) -> None:
        now = simulation.now
        for upload, before in zip(now.uploads, now.states, strict=True):
            if upload.evidence is None:
                continue
            shared = split(before, simulation.coordinator.shared_names).client.shared
            q = public_direction(now.exchange, simulation.run_info, shared, now.message)
            assert q is not None
            assert upload.evidence.q is not None
            assert torch.allclose(q, upload.evidence.q, atol=1e-12)
            seen.append(simulation.t)

    options = {} if name == "fedfw-sto" else {"momentum": 0.0}
    chosen = algorithm(name, penalty=0.05, **options)
    fedfw.simulate(
        Quadratics.on("l1").problem, chosen, rounds=6, participation=participation, callbacks=watch
    )
    assert bool(seen) == (name != "fedfw-sto")  # averages of past gradients prove nothing


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_every_algorithm_carries_its_names_and_a_small_grid(name: str) -> None:
    cls = fedfw.ALGORITHMS[name]
    assert cls.name == name
    assert issubclass(cls, Tunable)
    made = algorithm(name)
    assert bool(made.shares) == (not sends_atoms_only(made))
    for smooth in (None, 3.0):
        setting = Setting(
            n=4,
            constraint=fedfw.L1Ball(1.0),
            shape=(P,),
            convex=True,
            classes=3,
            smoothness=lambda smooth=smooth: smooth,
        )
        for there in (setting, replace(setting, convex=False)):
            grid = cls.grid(there)
            assert 1 < math.prod(len(values) for values in grid.values()) <= 12
            for option, values in grid.items():
                for value in values:
                    assert getattr(replace(algorithm(name), **{option: value}), option) == value


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
@pytest.mark.parametrize("D", [fedfw.L1Ball(1.0), fedfw.L2Ball(1.0)], ids=["l1", "l2"])
def test_every_algorithm_passes_the_check_for_algorithms(name: str, D: fedfw.ConstraintSet) -> None:
    fedfw.testing.check_algorithm(fedfw.ALGORITHMS[name](D))


GRADIENT_METHODS = [
    name for name, cls in fedfw.ALGORITHMS.items() if issubclass(cls, GradientMethod)
]


@pytest.mark.parametrize("name", [name for name in GRADIENT_METHODS if name != "fedadamw"])
def test_step_sizes_of_gradient_methods(name: str) -> None:
    D = fedfw.L2Ball(1.0)
    known = Setting(n=4, constraint=D, shape=(P,), convex=True, smoothness=lambda: 8.0)
    cls = fedfw.ALGORITHMS[name]

    def lr(value: float | str, setting: Setting) -> float:
        return cls(D, lr=value).configure(setting)[0].lr

    assert lr("theory", known) == lr("auto", known) == 1 / 8
    assert lr("theory:2", known) == 2 / 8
    softmax = replace(known, classes=10)
    assert lr("auto", softmax) == pytest.approx(cls.tuned * 10 / 8)  # type: ignore[attr-defined]
    assert lr("theory", softmax) == 1 / 8
    network = replace(known, convex=False, smoothness=lambda: None)
    assert lr("auto:3", network) == pytest.approx(0.3)
    assert lr(0.7, network) == 0.7
    with pytest.raises(ValueError, match="Cannot derive lr='theory' for this problem"):
        lr("theory", network)


# --- The default penalty and the one of the theory, worked out by hand ---


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("weights", [None, (0.3, 0.05, 0.1, 0.15, 0.1, 0.1, 0.1, 0.1)])
def test_penalties_are_the_stated_multiples(name: str, weights: tuple[float, ...] | None) -> None:
    q = replace(Quadratics.on(name), weights=weights)
    g = q.gradients(q.start) * q.n
    steepness, zeta = (float(rows.square().sum(1).mean().sqrt()) for rows in (g, g - g.mean(0)))
    expected = {("auto", 0.0): PLAIN * steepness, ("auto", 0.9): AVERAGED * steepness}
    if weights is None:
        expected["theory", 0.9] = zeta
    for (text, momentum), unit in expected.items():
        for suffix, multiple in (("", 1), (":3", 3), (":0.01", 0.01)):
            made = fedfw.FedFWPlus(q.constraint, penalty=text + suffix, momentum=momentum)
            configured = Simulation(q.problem, made, Options(rounds=100)).algorithm
            wanted = multiple * unit / (2 * q.n * q.D)
            assert configured.penalty == pytest.approx(wanted, rel=1e-6)


def test_what_is_not_known_is_asked_for() -> None:
    D = fedfw.L1Ball(1.0)
    unknown = Setting(n=5, constraint=D, shape=(100,), convex=True)
    for word in ("auto", "theory", "theory:2"):
        with pytest.raises(
            ValueError, match=rf"Cannot derive penalty='{word}' for this problem: pass a number"
        ):
            fedfw.FedFW(D, penalty=word, momentum=0.0).configure(unknown)
    for method, lam_0 in (
        (fedfw.FedFW(D, penalty=0.25), 0.25),
        (fedfw.FedFWAnchored(D, penalty=0.0), 0.0),
        (fedfw.FrankWolfe(D), 0.0),
    ):
        rule = method.configure(unknown)[1]
        assert rule.rates(rule.init(), 1)[0].lam == pytest.approx(lam_0 * 2**0.5)


@pytest.mark.parametrize(
    "text", ["auto:-1", "auto:nan", "auto:inf", "auto:1:2", "other", "", -0.5, float("nan")]
)
def test_what_is_no_multiple_is_refused(text: str | float) -> None:
    for one in ("auto:", "auto", "auto:1", "auto:1e0"):
        assert scaled("penalty", one, {"auto": lambda: 0.5}) == 0.5
    with pytest.raises(
        ValueError, match=f'penalty={text!r}, expected a number of at least 0, "auto"'
    ):
        scaled("penalty", text, {"auto": lambda: 0.5})


# --- Steps from curvature: what clients report, what the server makes of it, and where it is not used
# ---

BALL = fedfw.L2Ball(5.0)
BAD = [math.nan, math.inf, -math.inf, -1.0, -1e30, 0.0, 1e-30, 1e30]
PACED = {
    "FedFW": fedfw.FedFW(fedfw.L1Ball(5.0), schedule="curvature"),
    "FedFW+": fedfw.FedFWPlus(BALL, momentum=0.9, schedule="curvature"),
    "anchored": fedfw.FedFWAnchored(
        fedfw.L1Ball(5.0), anchor_every=4, gradient_at="own", penalty=0.0, schedule="curvature"
    ),
    "Frank-Wolfe": fedfw.FrankWolfe(BALL, momentum=0.9, schedule="curvature"),
}


@cache
def digits() -> fedfw.Problem:
    return fedfw.load_problem("digits", clients=5)


@cache
def optimum_on(constraint: fedfw.ConstraintSet) -> fedfw.solving.Optimum:
    return fedfw.solve(digits(), constraint, tol=1e-4)


@pytest.mark.parametrize("gap", BAD)
@pytest.mark.parametrize("bend", BAD)
def test_no_number_takes_the_step_out_of_its_range(gap: float, bend: float) -> None:
    reported, cap = torch.tensor([gap, bend], dtype=torch.float64), 0.2
    for before in (0.0, 1e-20, 1.0, 1e20):
        q = curvature.average_curvature(torch.tensor(before, dtype=torch.float64), reported, 0.9)
        assert math.isfinite(float(q))
        assert float(q) >= 0
        assert float(q) <= max(before * curvature.LARGEST_JUMP, 1e30 if before == 0 else 0.0)
        eta = float(curvature.step_size(q, reported, cap, 8.0, 0.01))
        assert curvature.LEAST * cap <= eta <= cap


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_curvature_of_a_quadratic(dtype: torch.dtype) -> None:
    """From two gradients of f_i = (x - c)' A (x - c) / 2 comes <A d, d> itself, whatever the step
    size was.
    """
    A = torch.diag(torch.tensor([1.0, 4.0, 9.0], dtype=dtype))
    x, s = (
        torch.tensor([[1.0, 2.0, 3.0]], dtype=dtype),
        torch.tensor([[0.0, -1.0, 1.0]], dtype=dtype),
    )
    eta, lam, a = 0.125, 0.5, x @ A
    after = (1 - eta) * x + eta * s
    memory = curvature.remember(x, after, a, eta)
    g = after @ A
    atom = fedfw.L2Ball(2.0).lmo(g, batch=True)
    gap, bend = curvature.measure(memory, after, g, g, atom, lam)[0].tolist()
    d = (s - x)[0]
    assert bend == pytest.approx(float(d @ A @ d + lam * d @ d), rel=1e-5)
    assert gap == pytest.approx(float((g * (after - atom.dense())).sum()), rel=1e-5)
    fresh = curvature.init_memory(x)
    assert curvature.measure(fresh, after, g, g, atom, lam).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("name", PACED)
@pytest.mark.parametrize(
    "options", [{}, {"participation": 0.5}, {"local_steps": 3}], ids=["plain", "absent", "local"]
)
def test_steps_are_short_enough_and_the_bound_holds(name: str, options: dict[str, Any]) -> None:
    algorithm, problem = PACED[name], digits()
    if name == "Frank-Wolfe" and options:
        return
    # A bound that is wrong in any round shows in all later ones: it is evaluated in each, where
    # no client is absent.
    run = fedfw.simulate(problem, algorithm, rounds=40, eval_every=5 if options else 1, **options)
    p, K = options.get("participation", 1.0), options.get("local_steps", 1)
    for record in run.history:
        longest = 2 / (p * (record.round - 1) * K + 2)
        assert record.eta is None or curvature.LEAST * longest <= record.eta <= longest
    optimum = optimum_on(algorithm.constraint)
    assert run.lower_bound <= optimum.value * (1 + 1e-6)
    assert run.history[-1].loss - optimum.value < 0.6 * (optimum.start_value - optimum.value)


SETTING = Setting(n=5, constraint=BALL, shape=(4,), convex=True)


@pytest.mark.parametrize(
    ("changed", "steps"),
    [
        ({}, "curvature"),
        ({"p": 0.5}, "curvature"),
        ({"reports_allowed": False}, "linear-decay:0.02"),
        ({"reports_allowed": False, "p": 0.5, "rounds": 50, "local_steps": 2}, "linear-decay:0.04"),
        (
            {"reports_allowed": False, "constraint": fedfw.L1Ball(1.0)},
            None,
        ),  # sparse atoms: 2/(t+1) is as good
        ({"whole": False}, None),
        ({"convex": None}, None),
    ],
)
def test_what_auto_is(changed: dict[str, Any], steps: str | None) -> None:
    known = replace(SETTING, rms_gradient_norm=lambda: 1.0, **changed)
    for momentum in (0.0, 0.9, "auto"):
        algorithm = fedfw.FedFWPlus(BALL, schedule="auto", momentum=momentum)
        configured, rule = algorithm.configure(known)
        measured = steps == "curvature"
        assert configured.schedule == (steps if measured or momentum == 0 else None)
        assert rule.reports_curvature == measured


@pytest.mark.parametrize(
    ("changed", "beta", "anchored"),
    [
        ({}, 0.9, 0.9),
        ({"convex": False}, 0.9, 0.9),
        ({"p": 0.5}, 0.9, 0.0),  # anchors of different ages
        ({"p": 0.5, "convex": False}, 0.9, 0.9),
        ({"whole": False}, 0.9, 0.9),
        ({"whole": False, "private": True}, 0.9, 0.9),
        ({"whole": False, "constraint": fedfw.L1Ball(1.0)}, 0.9, 0.9),
        ({"whole": False, "private": True, "constraint": fedfw.L1Ball(1.0)}, 0.0, 0.0),
    ],
)
def test_momentum_is_the_measured_default(changed: Any, beta: float, anchored: float) -> None:
    known = replace(SETTING, rms_gradient_norm=lambda: 1.0, **changed)
    for method in (fedfw.FedFW, fedfw.FedFWPlus, fedfw.FrankWolfe):
        assert method(BALL).configure(known)[0].momentum == beta
        assert method(BALL, momentum=0.5).configure(known)[0].momentum == 0.5
    assert fedfw.FedFWAnchored(BALL).configure(known)[0].momentum == anchored


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (PACED["FedFW"], {"batch_size": 8}, "expected no minibatches, anchors"),
        (
            PACED["Frank-Wolfe"],
            {"participation": 0.5},
            "all clients present where the server takes",
        ),
        (replace(PACED["anchored"], anchor_every=1), {}, "anchors more than a round apart"),
        (PACED["FedFW"], {"privacy": "eps=8,delta=1e-3,clip=1"}, "private run must not reveal"),
    ],
)
def test_refusals(algorithm: fedfw.Algorithm, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="naive takes no steps from curvature"):
        fedfw.NaiveFW(BALL, schedule="curvature")
    with pytest.raises(ValueError, match=message):
        fedfw.simulate(digits(), algorithm, rounds=2, **options)
