"""What stands between a client's data and everybody else in a private run: its gradient and its oracle.

`PrivateOracles` takes the place of `fedfw.problems.oracles.PlainOracles`; that is the one point at which a run becomes
private.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedfw.algorithms.base import Algorithm, Gradient, Lmo
from fedfw.atoms import Atom
from fedfw.errors import NonFiniteError
from fedfw.privacy.accounting import Accountant
from fedfw.privacy.guarantee import Privacy
from fedfw.privacy.mechanisms import Corners, GaussianNoise, Mechanism, mechanism_for
from fedfw.privacy.noise import Noise
from fedfw.problems.base import ClientLosses
from fedfw.problems.digest import text_of
from fedfw.problems.oracles import Cohort
from fedfw.sets.base import ConstraintSet


@dataclass(frozen=True)
class PrivacyPlan:
    """How a promise is kept, and what each round costs.

    Parameters
    ----------
    privacy : Privacy
        The promise.
    mechanism : Mechanism
        Where the noise goes.
    accountant : Accountant
        Adds up what is spent.
    noise : float
        The noise multiplier.
    local_steps : int
        Each is a release of its own, though one atom is sent.
    batch_size : int or None
        Expected number of samples of a gradient; each is drawn with the same probability, on its own.
    most_rounds : int
        How many rounds a client may take part in.
    """

    privacy: Privacy
    mechanism: Mechanism
    accountant: Accountant
    noise: float
    local_steps: int
    batch_size: int | None
    most_rounds: int

    @classmethod
    def of(
        cls,
        privacy: Privacy,
        algorithm: Algorithm,
        constraint: ConstraintSet,
        *,
        shape: tuple[int, ...],
        fewest_samples: int,
        rounds: int,
        local_steps: int,
        batch_size: int | None,
    ) -> PrivacyPlan:
        """Choose a mechanism, and the noise for clients that take part in at most so many rounds.

        Raises
        ------
        ValueError
            For algorithms that share exact sums of gradients, and for noise that one round would already exhaust.
        """
        contract = algorithm.contract
        if contract.sums:
            raise ValueError(f"{algorithm.name} shares exact sums of gradients: it does not go with privacy")
        selects = privacy.mechanism == "auto" and contract.answers_only
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

    @property
    def how(self) -> str:
        """Where the noise goes, in words."""
        return {GaussianNoise: "Gaussian noise on gradients", Corners: "noisy signs"}.get(
            type(self.mechanism), "private choice of vertices"
        )

    def __str__(self) -> str:
        return f"{self.privacy}; {self.how}, noise multiplier {self.noise:.3g}"

    def epsilon(self, rounds: int) -> float:
        """What a client that took part in so many rounds has spent."""
        return self.accountant.epsilon(self.noise, rounds * self.local_steps)

    @property
    def signature(self) -> str:
        """What must stay the same for a client's releases to add up as planned; the same text in every process."""
        how = f"{text_of(self.mechanism)}, {self.local_steps} local steps, rate {self.accountant.rate!r}"
        return f"{text_of(self.privacy)}, noise {self.noise!r}, {how}"


@dataclass(frozen=True)
class PrivateOracles:
    """The private counterparts of clients' gradients and oracles.

    Parameters
    ----------
    plan : PrivacyPlan
        How the promise is kept.
    losses : ClientLosses
        Of the clients; they must have samples.
    largest_weight : float or None
        The largest w_i that a client has had, where weights change: averages of past gradients hold those.
    """

    plan: PrivacyPlan
    losses: ClientLosses
    largest_weight: float | None = None

    def pair(self, cohort: Cohort, t: int, tol: float | None) -> tuple[Gradient, Lmo]:
        sizes = self.losses.sizes
        if sizes is None:
            raise ValueError("privacy is for clients with samples; these are plain functions")
        plan, rows, numbers = self.plan, cohort.rows, cohort.numbers
        own, expected = self._samples(cohort, sizes)
        scale = self._scale(cohort, expected)
        noise = Noise(plan.privacy.not_private_seed, t, numbers.tolist(), numbers.device)

        def gradient(
            x: Tensor, full: bool = False, exact: bool = False, plain: bool = False, times: float = 1.0
        ) -> tuple[Tensor, Tensor]:
            """Losses, which are kept secret and given as zero, and gradients (m, p).

            Gradients to which an oracle has yet to add noise are in float64, and so is everything up to the oracle:
            rounding to float32 could be larger than the noise.
            """
            if full or exact:
                raise ValueError("a gradient of all samples was asked for in a private run")
            x = x.to(cohort.weights.dtype)
            keep = None
            if plan.batch_size is not None:
                # Stacks are as wide as their largest client, present or not.
                keep = noise.uniform(int(sizes.max())) < (expected / own)[:, None]
            a = self.losses.clipped_gradient(x, rows, keep, plan.mechanism.norm, plan.privacy.clip, expected)
            a *= cohort.weights.double()[:, None]
            # No sample can do this, since one that is not finite adds zero: only x can, through the l2 term.
            bad = ~a.sum(1).isfinite()
            if bool(bad.any()):
                clients = numbers[bad].tolist()
                raise NonFiniteError(f"round {t}: NaN or infinity in the gradient of client {clients[:10]}", clients)
            released = plan.mechanism.gradient(a, scale, noise, x.dtype)
            return x.new_zeros(len(x)), released / cohort.weights[:, None] if plain else released * times

        def oracle(g: Tensor) -> Atom:
            return plan.mechanism.answer(cohort.constraint, g, scale, noise, tol)

        return gradient, oracle

    def hides(self, cohort: Cohort, offset: Tensor) -> bool:
        """Whether the noise stays far above rounding errors when ``offset`` (m, p) is added to gradients without noise.

        A server that may choose the offset could otherwise make it so large that float64 rounds the noise away.
        """
        sizes = self.losses.sizes
        if isinstance(self.plan.mechanism, GaussianNoise) or sizes is None:
            return True  # it is added to the gradients themselves
        scale = self._scale(cohort, self._samples(cohort, sizes)[1])
        return bool((offset.abs().amax(1, keepdim=True) * 2.0**-36 <= scale).all())

    def _samples(self, cohort: Cohort, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """How many samples the clients have, and how many are expected in a gradient: (m,) each."""
        own = sizes.to(cohort.rows.device)[cohort.rows]
        return own, own if self.plan.batch_size is None else own.clamp(max=self.plan.batch_size)

    def _scale(self, cohort: Cohort, expected: Tensor) -> Tensor:
        """By how much one sample can change a client's gradient, times the noise multiplier: (m, 1)."""
        weights = cohort.weights.double()
        if self.largest_weight is not None:
            weights = weights.clamp(min=self.largest_weight)
        return (weights * self.plan.privacy.clip / expected * self.plan.noise)[:, None]
