"""Who takes part: as often as was asked for, the same clients every time, and nothing that makes no sense."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedfw
from fedfw.rounds.participation import Attendance, Participation


def test_rates() -> None:
    chances = [0.1, 0.5, 0.9]
    attends = Participation(chances, 3, seed=1)
    counts = torch.zeros(3)
    for t in range(1, 2001):
        counts[attends(t)] += 1
    assert torch.allclose(counts / 2000, torch.tensor(chances), atol=0.04)
    assert attends.p == 0.1
    assert attends.expected == pytest.approx(1.5)
    assert not attends.everyone


def test_fixed_numbers() -> None:
    attends = Participation(3, 10, seed=1)
    assert attends.p == pytest.approx(0.3)
    assert attends.expected == 3
    seen = [tuple(attends(t).tolist()) for t in range(1, 50)]
    assert {len(set(s)) for s in seen} == {3}
    assert len(set(seen)) > 20


@pytest.mark.parametrize("wanted", [1.0, [1.0] * 10, torch.ones(10), 10])
def test_everyone(wanted: object) -> None:
    attends = Participation(wanted, 10, seed=1)  # type: ignore[arg-type]
    assert attends.everyone
    assert attends.p == 1.0
    assert attends.expected == 10
    assert attends(4).tolist() == [*range(10)]
    assert Participation(1, 1, seed=0).everyone  # one of one


@given(
    n=st.integers(2, 30),
    seed=st.integers(0, 2**62),
    t=st.integers(1, 10**9),
    wanted=st.one_of(st.floats(0.01, 1.0), st.integers(2, 30), st.just("each its own")),
)
def test_draws_repeat_and_name_clients_in_order(n: int, seed: int, t: int, wanted: float | int | str) -> None:
    if isinstance(wanted, int):
        wanted = min(wanted, n)
    asked = [(i + 1) / n for i in range(n)] if isinstance(wanted, str) else wanted
    who = Participation(asked, n, seed)(t)
    assert torch.equal(who, Participation(asked, n, seed)(t))
    assert who.dtype == torch.int64
    assert who.tolist() == sorted(set(who.tolist()))
    assert all(0 <= i < n for i in who.tolist())
    if isinstance(wanted, int):
        assert len(who) == wanted
    if isinstance(wanted, str):
        assert n - 1 in who  # its probability is one


def test_rounds_and_seeds_differ() -> None:
    draws = {tuple(Participation(10, 100, seed)(t).tolist()) for seed in range(5) for t in range(1, 6)}
    assert len(draws) == 25


@pytest.mark.parametrize("wanted", [0.0, 1.5, -0.1, float("nan"), 11, 0, 1, -3, [0.5, 0.5], [0.5] * 9 + [0.0], []])
def test_refusals(wanted: object) -> None:
    with pytest.raises(ValueError, match="participation="):
        Participation(wanted, 10, seed=0)  # type: ignore[arg-type]


def test_a_client_named_twice_takes_part_once() -> None:
    attends = Participation(lambda t: torch.tensor([1, 1, 2]), 4, seed=0)  # type: ignore[arg-type, return-value]
    assert attends(1).tolist() == [1, 2]
    assert attends.expected is None
    assert not attends.everyone


def test_a_function_is_asked_once_a_round_and_held_to_the_clients_that_there_are() -> None:
    asked: list[int] = []

    def function(t: int) -> list[int]:
        asked.append(t)
        return [0, 4] if t < 3 else []

    attends = Participation(function, 4, seed=0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"round 1: participation names clients \[0, 4\], expected 0 to 3"):
            attends(1)
    asked.clear()
    assert [attends(3).tolist() for _ in range(3)] == [[], [], []]
    assert asked == [3]


@pytest.mark.parametrize(
    ("function", "p"),
    [
        (lambda t: [0] if t % 5 else [0, 1], 0.2),
        (lambda t: [t % 4], 0.25),
        (lambda t: [0, 1, 2, 3], 1.0),
        (lambda t: [2], 1.0),  # three clients never come
        (lambda t: [], 1.0),
    ],
)
def test_the_p_of_a_function_is_the_least_share_of_rounds(function: Attendance, p: float) -> None:
    attends = Participation(function, 4, seed=0, rounds=20)
    assert attends.p == pytest.approx(p)
    counts = torch.zeros(4, dtype=torch.int64)
    for t in range(1, 21):
        counts[attends(t)] += 1
    assert torch.equal(attends.attended(20), counts)


def test_schedules_go_by_the_p_of_a_function() -> None:
    """Two of four clients in turns are as good as half of the rounds by chance: the same step sizes."""
    problem = fedfw.Problem.from_losses([lambda x: (x - 1).square().sum()] * 4, torch.zeros(3), convex=True)
    algorithm = fedfw.FedFW(fedfw.L2Ball(1.0), penalty=0.1)
    turns, chance = (
        fedfw.simulate(problem, algorithm, rounds=8, participation=participation)
        for participation in (lambda t: [0, 1] if t % 2 else [2, 3], 0.5)
    )
    assert [r.eta for r in turns.history] == [r.eta for r in chance.history]
    assert turns.history[7].eta == pytest.approx(2 / (0.5 * 7 + 2))


def test_a_function_is_asked_for_all_planned_rounds_at_once() -> None:
    chance, asked = random.Random(0), []

    def function(t: int) -> list[int]:
        asked.append(t)
        return chance.sample(range(4), 2)

    attends = Participation(function, 4, seed=0, rounds=10)
    drawn = [attends(t).tolist() for t in (*range(10, 0, -1), *range(10, 0, -1))]
    assert asked == [*range(1, 11)]
    assert drawn[:10] == drawn[10:]
    assert str(attends) == str(Participation(lambda t: drawn[10 - t], 4, seed=0, rounds=10))
    assert str(attends) != str(Participation(function, 4, seed=0, rounds=10))


def test_draws_from_many_are_fair_and_repeat() -> None:
    n = 200_000
    for wanted in (1000, 0.005):
        draw = Participation(wanted, n, seed=3)
        rounds = [draw(t) for t in range(1, 21)]
        assert all(torch.equal(who, who.unique()) for who in rounds)
        assert torch.equal(draw(7), rounds[6])
        everyone = torch.cat(rounds).double()
        assert abs(float(everyone.mean()) / n - 0.5) < 0.01
        assert 18_000 < len(everyone) < 22_000
