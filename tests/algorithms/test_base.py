"""Every algorithm keeps its contract: what it says of itself is what its steps do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import fedfw
from fedfw.algorithms.base import Aggregate, GathersSums, Kept, Plan, Setting, Up, Upload
from fedfw.algorithms.projected import ProjectedAlgorithm
from fedfw.atoms import Dense, TupleAtom
from fedfw.problems.quadratics import quadratic_problem
from fedfw.schedules import constant, convex
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import P, Quadratics

DTYPES = [torch.float32, torch.float64]


def problem(dtype: torch.dtype) -> fedfw.Problem:
    q = Quadratics.on("l1")
    return quadratic_problem(q.A.to(dtype), q.c.to(dtype), q.start.to(dtype))


def algorithm(name: str, **options: Any) -> fedfw.Algorithm:
    """By its name, with short intervals between anchors."""
    return fedfw.ALGORITHMS[name](fedfw.L1Ball(1.0), **({"anchor_every": 3} if "anchored" in name else {}), **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_messages_memories_and_means_are_as_the_contract_says(
    name: str, participation: float, dtype: torch.dtype
) -> None:
    rough = 1e-12 if dtype == torch.float64 else 1e-5

    def watch(simulation: Simulation) -> None:
        now, contract, xbar = simulation.now, simulation.algorithm.contract, simulation.xbar
        if now.message is None:
            return
        assert set(simulation.coordinator.vectors(now.message)) <= set(contract.down)
        for upload, before, after in zip(now.uploads, now.states, now.known, strict=True):
            assert after is not None
            assert set(before) == set(after) <= set(contract.remembers)
            beside = simulation.algorithm.sends(now.t, P)
            first = upload.atoms.parts[0] if beside and isinstance(upload.atoms, TupleAtom) else upload.atoms
            assert isinstance(first, Dense) == (contract.up is Up.VECTOR)
            # Somebody who sees messages and atoms, and no data, rebuilds these parts to the bit.
            known = contract.rebuilt(before)
            followed = simulation.algorithm.follow(simulation.plan, known, now.message, upload.atoms)
            for key, value in contract.rebuilt(after).items():
                assert torch.equal(followed[key], value), key
        if contract.points:
            assert torch.allclose(simulation.clients["x"].mean(0).to(dtype), xbar, atol=rough)

    # Rounds that are evaluated, whose uploads carry evidence, and rounds that are not.
    options: dict[str, Any] = {"rounds": 8, "eval_every": 4, "participation": participation}
    run = fedfw.simulate(problem(dtype), algorithm(name), callbacks=watch, **options)
    assert run.x.dtype == dtype
    assert (run.dense_sums > 0) == run.algorithm.contract.sums
    assert run.algorithm.contract.sums == isinstance(run.algorithm, GathersSums)
    assert run.history[-1].distance == 0.0


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", [name for name, cls in fedfw.ALGORITHMS.items() if cls.contract.proves])
def test_the_servers_share_of_a_direction_is_the_clients(name: str, participation: float) -> None:
    """The certificate needs the direction less the gradient, which does not travel: the server works it out."""
    seen = []

    def watch(simulation: Simulation) -> None:
        now = simulation.now
        for upload, before in zip(now.uploads, now.states, strict=True):
            if upload.evidence is None:
                continue
            q = simulation.algorithm.known_direction(simulation.plan, before, now.message)
            assert q is not None
            assert upload.evidence.q is not None
            assert torch.allclose(q, upload.evidence.q, atol=1e-12)
            seen.append(simulation.t)

    options = {} if name == "fedfw-sto" else {"momentum": 0.0}
    chosen = algorithm(name, penalty=0.05, **options)
    fedfw.simulate(problem(torch.float64), chosen, rounds=6, participation=participation, callbacks=watch)
    assert bool(seen) == (name != "fedfw-sto")  # averages of past gradients prove nothing


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_every_algorithm_carries_its_names_and_a_small_grid(name: str) -> None:
    cls = fedfw.ALGORITHMS[name]
    assert cls.name == name
    assert cls.title
    assert cls.__doc__ is not None
    assert "Examples" in cls.__doc__
    contract = cls.contract
    assert bool(contract.shares) == (not contract.answers_only)
    assert contract.restorable == (Kept.VITAL not in contract.remembers.values())
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("points", [True, False])
def test_an_aggregate_is_the_sum_of_what_was_sent(points: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    D = fedfw.L2Ball(2.0)

    def upload(who: list[int]) -> Upload:
        g, x = (torch.randn(len(who), P, generator=generator, dtype=dtype) for _ in range(2))
        return Upload(torch.tensor(who), D.lmo(g, batch=True), x)

    uploads = [upload([0, 3]), upload([1]), upload([4, 2])]
    like = torch.zeros(P, dtype=dtype)
    sent = sum((one.atoms.dense(dtype).sum(0) for one in uploads), torch.zeros(P, dtype=dtype))
    where = sum((one.x.sum(0) for one in uploads), torch.zeros(P, dtype=dtype))
    rough = 1e-12 if dtype == torch.float64 else 1e-5
    whole = Aggregate.of(uploads, 5, like, points)
    assert (whole.count, whole.everyone, whole.total.dtype) == (5, True, dtype)
    assert torch.allclose(whole.total, sent, atol=rough)
    part = Aggregate.of(uploads, 6, like, points)
    assert (part.count, part.everyone) == (5, False)
    assert torch.allclose(part.total, sent - where if points else sent, atol=rough)
    assert torch.equal(like, torch.zeros(P, dtype=dtype))
    nobody = Aggregate.of([], 6, like, points)
    assert (nobody.count, nobody.everyone, nobody.total.tolist()) == (0, False, [0.0] * P)


@pytest.mark.parametrize("local_steps", [1, 2, 5])
def test_the_steps_of_a_round_mix_to_one_step(local_steps: int) -> None:
    """K steps one after the other are one step to the mixture of their atoms."""
    plan = Plan(3, fedfw.L2Ball(1.0), local_steps, lam_0=0.5, schedule=convex())
    generator = torch.Generator().manual_seed(0)
    for t in (1, 2, 7):
        atoms = torch.randn(local_steps, P, generator=generator, dtype=torch.float64)
        x = start = torch.randn(P, generator=generator, dtype=torch.float64)
        for k, s in enumerate(atoms):
            eta = plan.rates(t, k).eta
            x = (1 - eta) * x + eta * s
        eta, shares = plan.mixing(t)
        assert sum(shares) == pytest.approx(1.0)
        net = sum((share * s for share, s in zip(shares, atoms, strict=True)), torch.zeros(P, dtype=torch.float64))
        assert torch.allclose((1 - eta) * start + eta * net, x, atol=1e-12)


def test_the_accuracy_asked_of_oracles_follows_the_step() -> None:
    plan = Plan(3, fedfw.L2Ball(1.0), schedule=convex())
    asked = [plan.oracle_tol(t) for t in (1, 10, 1000, 10**9)]
    assert asked == sorted(asked, reverse=True)
    assert asked[0] == 1e-2
    assert asked[-1] == 1e-6
    assert Plan(3, fedfw.L2Ball(1.0), schedule=constant(0.02)).oracle_tol(5) == pytest.approx(0.002)


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
@pytest.mark.parametrize("D", [fedfw.L1Ball(1.0), fedfw.L2Ball(1.0)], ids=["l1", "l2"])
def test_every_algorithm_passes_the_check_for_algorithms(name: str, D: fedfw.ConstraintSet) -> None:
    fedfw.testing.check_algorithm(fedfw.ALGORITHMS[name](D))


PROJECTED = [name for name, cls in fedfw.ALGORITHMS.items() if issubclass(cls, ProjectedAlgorithm)]


@pytest.mark.parametrize("name", [name for name in PROJECTED if name != "fedadamw"])
def test_step_sizes_of_the_projected_methods(name: str) -> None:
    D = fedfw.L2Ball(1.0)
    known = Setting(n=4, constraint=D, shape=(P,), convex=True, smoothness=lambda: 8.0)
    cls = fedfw.ALGORITHMS[name]

    def lr(value: float | str, setting: Setting) -> float:
        return cls(D, lr=value).plan(setting).lr

    assert lr("theory", known) == lr("auto", known) == 1 / 8
    assert lr("theory:2", known) == 2 / 8
    softmax = replace(known, classes=10)
    assert lr("auto", softmax) == pytest.approx(cls.tuned_step * 10 / 8)  # type: ignore[attr-defined]
    assert lr("theory", softmax) == 1 / 8
    network = replace(known, convex=False, smoothness=lambda: None)
    assert lr("auto:3", network) == pytest.approx(0.3)
    assert lr(0.7, network) == 0.7
    with pytest.raises(ValueError, match="lr='theory': nothing is known here"):
        lr("theory", network)


def test_the_step_size_of_adamw_depends_on_no_smoothness() -> None:
    D = fedfw.L2Ball(1.0)
    known = Setting(n=4, constraint=D, shape=(P,), convex=True, smoothness=lambda: 8.0)
    for setting in (known, replace(known, convex=False, smoothness=lambda: None)):
        assert fedfw.FedAdamW(D).plan(setting).lr == 0.001
        assert fedfw.FedAdamW(D, lr="auto:3").plan(setting).lr == pytest.approx(0.003)


@pytest.mark.parametrize("name", PROJECTED)
def test_a_linear_decay_takes_the_step_size_to_zero(name: str) -> None:
    setting = Setting(n=4, constraint=fedfw.L2Ball(1.0), shape=(P,), convex=True, rounds=10)
    still, falling = (
        fedfw.ALGORITHMS[name](fedfw.L2Ball(1.0), lr=0.4, decay=decay).plan(setting)  # type: ignore[call-arg]
        for decay in ("none", "linear")
    )
    assert [still.lr_at(t) for t in (1, 6, 10)] == [0.4] * 3
    assert [falling.lr_at(t) for t in (1, 6, 10)] == pytest.approx([0.4, 0.2, 0.04])
    q = Quadratics.on("l2")
    after = {
        decay: fedfw.simulate(q.problem, fedfw.ALGORITHMS[name](q.constraint, lr=0.05, decay=decay), rounds=2).x  # type: ignore[call-arg]
        for decay in ("none", "linear")
    }
    assert not torch.equal(after["none"], after["linear"])  # the second of two steps is half as long
