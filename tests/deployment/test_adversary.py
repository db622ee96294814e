"""The adversary of `tests.deployment.adversary` finds nothing; with less noise than was promised it
finds that.
"""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor

pytest.importorskip("dp_accounting")
pytest.importorskip("hypothesis")

from fedfw.privacy.mechanisms import mechanism_for
from fedfw.privacy.noise import Noise
from fedfw.privacy.steps import PrivateOracles
from fedfw.sets import KSparse, L1Ball, LinfBall, Simplex
from tests.deployment.adversary import (
    FOUND,
    Call,
    Chosen,
    Found,
    World,
    attack,
    laws,
    make_order,
)


@pytest.mark.deployment
def test_no_order_option_point_restart_or_change_of_data_breaks_the_promise() -> None:
    """About a minute of random sequences."""
    attack(examples=120)
    assert FOUND.sequences >= 120
    assert FOUND.observed["step"] > 100
    assert 0.5 < FOUND.worst[0] / FOUND.worst[1] <= 1  # it comes near to what it must not reach


def audited(folder: Path, *weights: float, **options: Any) -> Found:
    """What a server finds that asks round after round with these weights."""
    chosen, found = Chosen(rounds=len(weights), **options), Found()
    world = World(folder, found)
    world.check(chosen)
    for t, weight in enumerate(weights, 1):
        assert world.ask(chosen, make_order(chosen, "run", t, t - 1, weight=weight)).kind == "step"
    world.audit()
    return found


def test_half_of_the_noise_removed_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audited(tmp_path / "whole", 1.0, 1.0).worst[0] > 0.4
    whole = PrivateOracles.sensitivity

    def half(oracles: PrivateOracles, cohort: Any) -> Tensor:
        return whole(oracles, cohort) / 2

    monkeypatch.setattr(PrivateOracles, "sensitivity", half)
    with pytest.raises(AssertionError, match="and the ledger says"):
        audited(tmp_path / "half", 1.0, 1.0)
    with pytest.raises((AssertionError, ExceptionGroup)):
        attack(examples=60, shrink=False)


def test_noise_for_the_present_weight_alone_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Momentum remembers the gradient of the first order, which had a large weight."""
    weights = (1.0, *(1e-3,) * 3)
    audited(tmp_path / "largest", *weights)

    def present(oracles: PrivateOracles, cohort: Any) -> Tensor:
        return cohort.weights.double() * oracles.plan.privacy.clip / oracles._expected(cohort)

    monkeypatch.setattr(PrivateOracles, "shares", present)
    with pytest.raises(AssertionError, match="and the ledger says"):
        audited(tmp_path / "present", *weights)


@pytest.mark.parametrize(
    ("constraint", "answers"),
    [
        (L1Ball(1.0), [one for sign in (1.0, -1.0) for one in sign * torch.eye(3)]),
        (Simplex(1.0), list(torch.eye(3))),
        (
            KSparse(2, 1.0),
            [
                first * torch.eye(3)[i] + second * torch.eye(3)[j]
                for i, j in permutations(range(3), 2)
                for first, second in product((1.0, -1.0), repeat=2)
            ],
        ),
        (LinfBall(1.0), [-torch.tensor(signs) for signs in product((1.0, -1.0), repeat=3)]),
    ],
    ids=["l1", "simplex", "ksparse", "linf"],
)
def test_the_mechanisms_draw_by_the_laws_that_the_audit_has(
    constraint: Any, answers: list[Tensor]
) -> None:
    draws, g = 4000, torch.tensor([0.3, -0.8, 1.1]).double()
    mechanism = mechanism_for(constraint, (3,))
    scale = torch.full((draws, 1), 0.9).double()
    noise = Noise(0, 1, range(draws), torch.device("cpu"))
    drawn = mechanism.answer(constraint, g.expand(draws, 3), scale, noise, None).dense().sign()
    parts = laws(Call(mechanism, constraint, g, 0.9, None, 1.0))
    law = torch.stack([sum(choice) for choice in product(*parts)])  # parts are drawn alone
    expected: Counter[tuple[float, ...]] = Counter()
    for answer, probability in zip(answers, law.exp().tolist(), strict=True):
        expected[tuple(answer.tolist())] += draws * probability
    counts = Counter(map(tuple, drawn.tolist()))
    assert counts.keys() <= expected.keys()
    assert (
        scipy.stats.chisquare([counts[one] for one in expected], list(expected.values())).pvalue
        > 1e-4
    )
