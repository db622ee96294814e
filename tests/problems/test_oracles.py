"""What a stack of clients computes in a round: weighted gradients, on samples drawn by the clients' numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.errors import NonFiniteError
from fedfw.problems.base import WeightedGradient
from fedfw.problems.oracles import Cohort, PlainOracles
from fedfw.randomness import minibatch, minibatches
from fedfw.testing.known_quadratics import P, Quadratics

BALL = fedfw.L1Ball(1.0)


def problem(dtype: torch.dtype = torch.float64) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(size, 5, generator=generator), torch.randint(0, 3, (size,), generator=generator))
        for size in (12, 20, 7, 12)
    ]
    torch.manual_seed(0)
    return fedfw.Problem(nn.Linear(5, 3).to(dtype), nnf.cross_entropy, clients, weights=[1, 2, 3, 4])


def cohort(p: fedfw.Problem, rows: list[int]) -> Cohort:
    who = torch.tensor(rows)
    return Cohort(who, p.weights.to(p.start.dtype)[who], who, BALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_weighted_and_weights_are_those_of_the_stack(dtype: torch.dtype) -> None:
    p = problem(dtype)
    x = torch.randn(4, 18, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    values, gradients = p.losses.value_and_gradient(x, torch.arange(4), None)
    for rows in ([0, 1, 2, 3], [2, 0], [3]):
        weights = p.weights.to(dtype)[rows]
        loss, a = WeightedGradient(p.losses, weights, torch.tensor(rows), lambda: None, 1)(x[rows])
        assert torch.allclose(loss, weights * values[rows])
        assert torch.allclose(a, weights[:, None] * gradients[rows])
        assert a.dtype == dtype


def test_the_sum_over_all_clients_is_the_gradient_of_f() -> None:
    p = problem()
    x = torch.randn(18, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient, _ = PlainOracles(p.losses, 1, None, 0, p.losses.sizes).pair(cohort(p, [0, 1, 2, 3]), 1, None)
    losses, a = gradient(x.repeat(4, 1))
    value, whole = p.value_and_gradient(x)
    assert float(losses.sum()) == pytest.approx(value)
    assert torch.allclose(a.sum(0), whole)


def test_a_client_alone_draws_the_samples_that_it_draws_in_a_stack() -> None:
    """A deployed client has row 0 among its own losses, and draws by its number."""
    p = problem()
    sizes = p.losses.sizes
    oracles = PlainOracles(p.losses, 2, 3, 5, sizes)
    x = torch.randn(4, 18, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together, _ = oracles.pair(cohort(p, [0, 1, 2, 3]), 6, None)
    steps = [together(x)[1] for _ in range(2)]
    assert not torch.equal(steps[0], steps[1])  # a draw for every local step
    for i in range(4):
        one = Cohort(torch.tensor([i]), p.weights[i : i + 1], torch.tensor([i]), BALL)
        alone, _ = oracles.pair(one, 6, None)
        for step in steps:
            assert torch.allclose(alone(x[i : i + 1])[1][0], step[i], atol=1e-12)
    full = together(x, full=True)[1]
    exact, _ = PlainOracles(p.losses, 1, None, 0, sizes).pair(cohort(p, [0, 1, 2, 3]), 1, None)
    assert torch.allclose(full, exact(x)[1])


def test_draws_are_fixed_by_seed_and_tick_and_lie_among_the_samples() -> None:
    sizes = torch.tensor([1, 5, 1000])
    first = minibatch(3, 7, sizes, 64)
    assert torch.equal(first, minibatch(3, 7, sizes, 64))
    assert not torch.equal(first, minibatch(3, 8, sizes, 64))
    assert not torch.equal(first, minibatch(4, 7, sizes, 64))
    assert bool((first >= 0).all())
    assert bool((first < sizes[:, None]).all())
    assert first[1].unique().tolist() == [0, 1, 2, 3, 4]
    # Round 4 with two local steps begins at the sixth tick.
    pick = minibatches(3, 4, 2, sizes, 8, torch.tensor([2, 0]))
    drawn = [pick(), pick()]
    for k, one in enumerate(drawn):
        assert one is not None
        assert torch.equal(one, minibatch(3, 6 + k, sizes, 8)[[2, 0]])
    assert minibatches(3, 4, 2, None, 8, torch.tensor([0]))() is None
    assert minibatches(3, 4, 2, sizes, None, torch.tensor([0]))() is None


def test_the_oracle_is_that_of_the_cohorts_set() -> None:
    q = Quadratics.on("l1")
    g = torch.randn(2, P, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = PlainOracles(q.problem.losses, 1, None, 0, None)
    for constraint in (fedfw.L1Ball(1.0), fedfw.L2Ball(2.0)):
        _, lmo = plain.pair(replace(cohort(q.problem, [0, 3]), constraint=constraint), 1, None)
        assert torch.equal(lmo(g).dense(), constraint.lmo(g, batch=True).dense())


def test_what_is_no_number_names_clients_by_their_numbers() -> None:
    """Not by the places that they have in a stack or among the losses."""
    p = problem()
    named = Cohort(torch.tensor([1, 2]), p.weights[1:3], torch.tensor([71, 82]), BALL)
    gradient, lmo = PlainOracles(p.losses, 1, None, 0, None).pair(named, 9, None)
    spoilt = torch.zeros(2, 18, dtype=torch.float64)
    spoilt[1, 4] = torch.nan
    with pytest.raises(NonFiniteError, match="round 9: NaN or infinity in the loss or gradient of client 82"):
        gradient(spoilt)
    with pytest.raises(NonFiniteError, match=r"round 9: NaN or infinity in the direction of client \[82\]") as caught:
        lmo(spoilt)
    assert caught.value.rows == (82,)


def test_a_gradient_may_be_changed_by_whoever_asked_for_it() -> None:
    """Steps add to it in place: what is asked for next is not touched by that."""
    p = problem()
    x: Tensor = p.start.repeat(2, 1)
    gradient, _ = PlainOracles(p.losses, 1, None, 0, None).pair(cohort(p, [0, 1]), 1, None)
    first = gradient(x)[1]
    kept = first.clone()
    first.zero_()
    assert torch.equal(gradient(x)[1], kept)
