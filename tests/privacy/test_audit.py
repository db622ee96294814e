"""An audit that believes only what it measures: N runs with a sample and N without."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from torch import Tensor

import fedfw
from fedfw.privacy.accounting import Accountant
from fedfw.privacy.mechanisms import Mechanism, mechanism_for
from fedfw.privacy.noise import Noise

pytest.importorskip("dp_accounting")
DELTA = 1e-5


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
            direction = mechanism.gradient((g + push).expand(trials, p), scale, source, torch.float32)
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
