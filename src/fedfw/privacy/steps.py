"""What stands between a client's data and everybody else in a private run: its gradient and its oracle.

The simulator and a deployment give these two to the algorithm in place of the plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedfw.algorithms.base import Algorithm
from fedfw.atoms import Atom
from fedfw.errors import NonFiniteError
from fedfw.privacy.accounting import Accountant
from fedfw.privacy.guarantee import Privacy
from fedfw.privacy.mechanisms import Corners, GaussianNoise, Mechanism, mechanism_for
from fedfw.privacy.noise import Noise
from fedfw.problems.base import ClientLosses
from fedfw.sets.base import ConstraintSet


@dataclass(frozen=True)
class PrivateSteps:
    """The private counterparts of a client's gradient and oracle, and what they cost.

    Parameters
    ----------
    noise
        The noise multiplier.
    local_steps
        Each is a release of its own, though one atom is sent.
    batch_size
        Expected number of samples of a gradient; each is drawn with the same probability, on its own.
    """

    privacy: Privacy
    mechanism: Mechanism
    accountant: Accountant
    noise: float
    local_steps: int
    batch_size: int | None
    most_rounds: int
    """How many rounds a client may take part in."""

    @classmethod
    def plan(
        cls,
        privacy: Privacy,
        algorithm: Algorithm,
        constraint: ConstraintSet,
        shape: tuple[int, ...],
        fewest_samples: int,
        rounds: int,
        local_steps: int,
        batch_size: int | None,
    ) -> PrivateSteps:
        """Choose a mechanism, and the noise for clients that take part in at most so many rounds."""
        refuse_dense_exchanges(algorithm)
        selects = privacy.mechanism == "auto" and algorithm.sends_answers
        mechanism = mechanism_for(constraint, shape) if selects else GaussianNoise()
        gaussian = isinstance(mechanism, GaussianNoise)
        rate = 1.0 if batch_size is None else min(1.0, batch_size / fewest_samples)
        if not gaussian and not algorithm.exact:
            rate = 1.0  # an average of past gradients looks at more samples than were drawn now
        accountant = Accountant(privacy.delta, mechanism.choices, rate, gaussian)
        noise = privacy.noise
        if noise is None:
            noise = accountant.least_noise(privacy.eps, rounds * local_steps)
            most = rounds
        else:
            most = accountant.most_releases(privacy.eps, noise, rounds * local_steps) // local_steps
            if most < 1:
                spent = accountant.epsilon(noise, local_steps)
                raise ValueError(f"noise={noise:g}: one round would spend eps {spent:.3g}, more than {privacy.eps:g}")
        return cls(privacy, mechanism, accountant, noise, local_steps, batch_size, most)

    def __str__(self) -> str:
        how = {GaussianNoise: "Gaussian noise on gradients", Corners: "noisy signs"}.get(
            type(self.mechanism), "private choice of vertices"
        )
        return f"{self.privacy}; {how}, noise multiplier {self.noise:.3g}"

    def epsilon(self, rounds: int) -> float:
        """What a client that took part in so many rounds has spent."""
        return self.accountant.epsilon(self.noise, rounds * self.local_steps)

    @property
    def signature(self) -> str:
        """What must stay the same for a client's releases to add up as planned."""
        return f"{self.privacy!r}, noise {self.noise!r}, {self.mechanism!r}, rate {self.accountant.rate!r}"

    def gradient(
        self,
        losses: ClientLosses,
        weights: Tensor,
        who: Tensor,
        t: int,
        numbers: Tensor,
        largest_weights: Tensor | None = None,
    ) -> PrivateGradient:
        """w_i times the mean of clipped gradients of the clients ``who`` (m,), with noise where it belongs there.

        Parameters
        ----------
        weights
            w_i (m,).
        numbers
            (m,) what the clients are called elsewhere, for noise from a seed.
        largest_weights
            (m,) the largest they have had, where weights change: averages of past gradients hold those.
        """
        sizes = losses.sizes
        if sizes is None:
            raise ValueError("privacy is for clients with samples; these are plain functions")
        expected = sizes.to(who.device)[who]
        if self.batch_size is not None:
            expected = expected.clamp(max=self.batch_size)
        noise = Noise(self.privacy.not_private_seed, t, numbers.tolist(), numbers.device)
        return PrivateGradient(self, losses, weights, who, t, expected, noise, largest_weights)


@dataclass(frozen=True)
class PrivateGradient:
    """Called by algorithms: x (m, p) -> losses, which are not told, and gradients (m, p)."""

    steps: PrivateSteps
    losses: ClientLosses
    weights: Tensor
    who: Tensor
    t: int
    expected: Tensor
    noise: Noise
    largest_weights: Tensor | None = None

    @property
    def scale(self) -> Tensor:
        """(m, 1): by how much one sample can change a client's gradient, times the noise multiplier."""
        weights = self.weights if self.largest_weights is None else self.largest_weights
        sensitivity = weights.double() * self.steps.privacy.clip / self.expected
        return (sensitivity * self.steps.noise)[:, None]

    def lmo(self, constraint: ConstraintSet, tol: float | None) -> Callable[[Tensor], Atom]:
        """The oracle of the same clients, to be given directions made from this gradient."""

        def oracle(g: Tensor) -> Atom:
            return self.steps.mechanism.answer(constraint, g, self.scale, self.noise, tol)

        return oracle

    def __call__(self, x: Tensor, full: bool = False) -> tuple[Tensor, Tensor]:
        if full:
            raise ValueError("a gradient of all samples was asked for in a private run")
        steps, keep = self.steps, None
        if steps.batch_size is not None:
            sizes = self.losses.sizes
            assert sizes is not None
            own = sizes.to(x.device)[self.who]
            keep = self.noise.uniform(int(own.max())) < (self.expected / own)[:, None]
        a = self.losses.clipped_gradient(x, self.who, keep, steps.mechanism.norm, steps.privacy.clip, self.expected)
        a *= self.weights[:, None]
        bad = ~a.sum(1).isfinite()
        if bool(bad.any()):
            clients = self.who[bad].tolist()
            raise NonFiniteError(f"round {self.t}: NaN or infinity in the gradient of client {clients[:10]}", clients)
        return x.new_zeros(len(x)), steps.mechanism.gradient(a, self.scale, self.noise)


def refuse_dense_exchanges(algorithm: Any) -> None:
    """Exact sums of gradients are no release that noise protects."""
    if algorithm.sends_exact_sums:
        raise ValueError(f"{algorithm.name} shares exact sums of gradients: it does not go with privacy")
