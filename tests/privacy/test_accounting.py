"""The accountant against closed forms."""

from __future__ import annotations

import math

import pytest
import scipy.optimize
import scipy.stats

from fedfw.privacy.accounting import Accountant

pytest.importorskip("dp_accounting")
DELTA = 1e-5


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


def test_sampling_goes_far_with_little_noise() -> None:
    """Thousands of sampled releases: amplification must not be lost where losses are large."""
    accountant = Accountant(DELTA, gaussian=True, rate=0.01)
    assert accountant.least_noise(4.0, 1000) < 1.0
    assert accountant.epsilon(1.0, 1000) < 2.2
    assert accountant.epsilon(0.25, 10) < 60  # by Renyi accounting
