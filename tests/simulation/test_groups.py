"""Stragglers: some clients use a larger, simpler set."""

from __future__ import annotations

import pytest
import torch

import fedfw
from fedfw.simulation import Simulation
from fedfw.simulation.setup import constraint_groups
from fedfw.testing.known_quadratics import Quadratics


def test_the_distance_falls_as_the_theory_says_and_the_model_is_inside() -> None:
    q = Quadratics.on("l1")
    loose = fedfw.enclosing(q.constraint, "l2")
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
    told = [(r.distance, r.consensus) for r in run.history if r.distance is not None and r.consensus is not None]
    assert torch.allclose(torch.tensor(told, dtype=torch.float64), torch.stack([distance, consensus], 1))
    assert distance.max() > 1e-3
    assert distance[-1] < 0.5 * distance.max()
    assert q.constraint.contains(run.feasible)
    assert q.value(run.feasible) >= q.least - 1e-9
    model = torch.cat([p.flatten() for p in run.model.parameters()])
    assert torch.equal(model, run.feasible)
    assert run.lower_bound is not None
    assert run.lower_bound <= q.least + 1e-9


def test_without_a_projection_the_keepers_mean_is_returned() -> None:
    class OnlyAnOracle(fedfw.L1Ball):
        has_projection = property(lambda self: False)  # type: ignore[assignment]

    q = Quadratics.on("l1")
    D = OnlyAnOracle(1.0)
    relax = {0: fedfw.L2Ball(4.0), 3: fedfw.L2Ball(4.0)}
    points = []
    run = fedfw.simulate(
        q.problem,
        fedfw.FedFW(D, penalty=0.05),
        rounds=5,
        relax=relax,
        callbacks=lambda simulation: points.append(simulation.clients["x"].clone()),
    )
    assert not D.contains(run.x)
    assert D.contains(run.feasible)
    assert torch.equal(run.feasible, points[-1][[1, 2, 4, 5, 6, 7]].mean(0))


def test_clients_with_one_set_step_together() -> None:
    q = Quadratics.on("l1")
    loose, looser = fedfw.L2Ball(1.0), fedfw.L2Ball(2.0)
    groups = constraint_groups(q.constraint, {1: loose, 6: looser, 4: loose}, q.problem)
    assert [rows.tolist() for rows, _ in groups] == [[0, 2, 3, 5, 7], [1, 4], [6]]
    assert groups[0][1] is q.constraint
    assert [rows.tolist() for rows, _ in constraint_groups(q.constraint, None, q.problem)] == [[*range(8)]]


def test_relaxed_clients_with_the_constraint_itself_change_nothing() -> None:
    """Two groups that use the same set, in place of one: the same run, up to the order of sums."""
    q = Quadratics.on("l1")
    algorithm = fedfw.FedFWPlus(q.constraint, penalty=0.05)
    for participation in (1.0, 0.5):
        one, other = (
            fedfw.simulate(q.problem, algorithm, rounds=20, eval_every=20, relax=relax, participation=participation)
            for relax in (None, {2: fedfw.L1Ball(1.0), 5: fedfw.L1Ball(1.0)})
        )
        assert torch.allclose(one.x, other.x, atol=1e-12)
        assert [r.bytes_up for r in one.history] == [r.bytes_up for r in other.history]
        assert [r.participants for r in one.history] == [r.participants for r in other.history]


def test_a_set_that_misses_few_points_is_refused_or_said_to_be_unproven(recwarn: pytest.WarningsRecorder) -> None:
    """Atoms of random directions seldom are e_0, the only corner of the l1 ball that lies outside of this box."""
    p = 2000
    problem = fedfw.Problem.from_losses([lambda x: x.square().sum()] * 2, torch.zeros(p), convex=True)
    hi = torch.ones(p)
    hi[0] = 0.5
    constraint_groups(fedfw.L1Ball(1.0), {1: fedfw.L2Ball(1.0)}, problem)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"relax: it is not known whether the set of client 1, .* contains"):
        constraint_groups(fedfw.L1Ball(1.0), {1: fedfw.Box(-torch.ones(p), hi)}, problem)


def test_refusals() -> None:
    q = Quadratics.on("l1")
    loose = fedfw.enclosing(q.constraint, "l2")
    algorithm = fedfw.FedFW(q.constraint)
    with pytest.raises(ValueError, match="somebody must keep the constraint"):
        fedfw.simulate(q.problem, algorithm, relax=dict.fromkeys(range(8), loose))
    with pytest.raises(ValueError, match="relax names clients \\[9\\], expected numbers from 0 to 7"):
        fedfw.simulate(q.problem, algorithm, relax={9: loose})
    with pytest.raises(ValueError, match="does not contain the constraint"):
        fedfw.simulate(q.problem, algorithm, relax={1: fedfw.L2Ball(0.1)})
    for moves_clients in (
        fedfw.FedFWAnchored(q.constraint),
        fedfw.FrankWolfe(q.constraint),
        fedfw.FedAvg(q.constraint),
    ):
        with pytest.raises(ValueError, match="relax does not go with"):
            fedfw.simulate(q.problem, moves_clients, relax={1: loose})
