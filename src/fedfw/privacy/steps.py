"""The private steps between a client's data and all others in a private run: its gradient and its
oracle.

`PrivateOracles` takes the place of `fedfw.problems.oracles.PlainOracles`; that is the one point at
which a run becomes private.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from torch import Tensor

from fedfw.algorithms.contract import Algorithm, Message, Run, State
from fedfw.algorithms.optin import (
    Certifies,
    gathers_gradients,
    sends_atoms_only,
    states_public_direction,
)
from fedfw.atoms import Atom
from fedfw.privacy.accounting import Accountant
from fedfw.privacy.guarantee import Privacy
from fedfw.privacy.mechanisms import Corners, GaussianNoise, Mechanism, mechanism_for
from fedfw.privacy.noise import Noise
from fedfw.privacy.rounding import LARGEST_TERM, slack
from fedfw.problems.base import ClientLosses
from fedfw.problems.digest import text_of
from fedfw.problems.oracles import Cohort, Gradient, Lmo
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
        Expected number of samples of a gradient; each is drawn with the same probability, on its
        own.
    most_rounds : int
        How many rounds a client may take part in.
    parameters : int
        Of the model.
    method : str
        The algorithm with its set and all its options, momentum among them, as a text.
    """

    privacy: Privacy
    mechanism: Mechanism
    accountant: Accountant
    noise: float
    local_steps: int
    batch_size: int | None
    most_rounds: int
    parameters: int
    method: str

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
        """Return a plan with the mechanism for a set and an algorithm, and the noise for clients
        that take part in at most ``rounds`` rounds.

        Raises
        ------
        ValueError
            For algorithms that share exact sums of gradients, for those of which it is not known
            what they add to gradients before noise is added, and for noise that one round would
            already exhaust.
        """
        if gathers_gradients(algorithm):
            raise ValueError(
                f"{algorithm.name} shares exact sums of gradients: it does not go with privacy"
            )
        selects_vertices = privacy.mechanism == "auto" and sends_atoms_only(algorithm)
        mechanism = mechanism_for(constraint, shape) if selects_vertices else GaussianNoise()
        gaussian = isinstance(mechanism, GaussianNoise)
        if not gaussian and not states_public_direction(algorithm):
            raise ValueError(
                f"{algorithm.name} does not state what it adds to gradients, so that noise could "
                "be lost in the rounding of a sum: expected an algorithm with a public direction, "
                "or mechanism=gaussian, whose noise is added to the gradients themselves"
            )
        rate = 1.0
        if batch_size is not None:
            # The probability that a sample is in a minibatch, of the smallest client, where it is
            # largest.
            rate = min(1.0, batch_size / min(fewest_samples, privacy.samples or fewest_samples))
        if not gaussian and isinstance(algorithm, Certifies) and algorithm.averages:
            rate = 1.0  # an average of past gradients looks at more samples than were drawn now
        accountant = Accountant(privacy.delta, mechanism.choices, rate, gaussian)
        noise = privacy.noise
        if noise is None:
            # Each round has local_steps releases.
            noise = accountant.least_noise(privacy.eps, rounds * local_steps)
            most_rounds = rounds
        else:
            # Each round has local_steps releases.
            most_rounds = (
                accountant.most_releases(privacy.eps, noise, rounds * local_steps) // local_steps
            )
            if most_rounds < 1:
                spent = accountant.epsilon(noise, local_steps)
                raise ValueError(
                    f"noise={noise:g}: one round would spend eps {spent:.3g}, more than "
                    f"{privacy.eps:g}"
                )
        return cls(
            privacy,
            mechanism,
            accountant,
            noise,
            local_steps,
            batch_size,
            most_rounds,
            parameters=prod(shape),
            method=text_of(algorithm),
        )

    @property
    def how(self) -> str:
        """Where the noise goes, in words."""
        return {GaussianNoise: "Gaussian noise on gradients", Corners: "noisy signs"}.get(
            type(self.mechanism), "private choice of vertices"
        )

    @property
    def selects(self) -> bool:
        """Return whether noise is added to directions, and clients' averages of gradients have
        none.
        """
        return not isinstance(self.mechanism, GaussianNoise)

    def __str__(self) -> str:
        return f"{self.privacy}; {self.how}, noise multiplier {self.noise:.3g}"

    def epsilon(self, rounds: int) -> float:
        """Return the eps that a client has spent after taking part in so many rounds."""
        return self.accountant.epsilon(self.noise, rounds * self.local_steps)

    def in_float64(self, private: State) -> State:
        """Return clients' private state in float64, where it has no noise yet.

        A sample's share in an average is bounded; its share in the rounding of that average to
        float32 is not.
        """
        if not self.selects:
            return private
        return {
            name: value.double() if value.is_floating_point() else value
            for name, value in private.items()
        }

    @property
    def signature(self) -> str:
        """Return a text of all settings that must stay the same for a client's releases to add up
        as planned; it is equal in every process.
        """
        batch = "all samples" if self.batch_size is None else f"about {self.batch_size} samples"
        noise_source = (
            f"{text_of(self.mechanism)}, {self.local_steps} local steps, {batch}, rate "
            f"{self.accountant.rate!r}"
        )
        return f"{text_of(self.privacy)}, noise {self.noise!r}, {noise_source}, {self.method}"


@dataclass(frozen=True)
class PrivateOracles:
    """The private counterparts of clients' gradients and oracles.

    Parameters
    ----------
    plan : PrivacyPlan
        How the promise is kept.
    losses : ClientLosses
        Of the clients; they must have samples.
    largest_share : float
        The largest w clip / count that a gradient had which a client may remember: a sample's share
        in an average of past gradients is as large as that, whatever its share in the present
        gradient is.
    """

    plan: PrivacyPlan
    losses: ClientLosses
    largest_share: float = 0.0

    def pair(self, cohort: Cohort, t: int, tol: float | None) -> tuple[Gradient, Lmo]:
        """Return the private gradients and oracles of a stack of clients in round t.

        Neither raises an error that depends on data, and both are defined for every data set: a
        sample whose loss or gradient is not finite counts as one without a gradient.
        """
        plan = self.plan
        sample_counts = self._samples(cohort)
        expected = self._expected(cohort)
        weights = cohort.weights.double()[:, None]
        scale = self.sensitivity(cohort) * plan.noise
        noise = Noise(
            plan.privacy.not_private_seed, t, cohort.numbers.tolist(), cohort.numbers.device
        )

        def gradient(
            x: Tensor,
            full: bool = False,
            exact: bool = False,
            plain: bool = False,
            times: float = 1.0,
        ) -> tuple[Tensor, Tensor]:
            """Return zeros (m,) in place of the losses, which are secret, and private gradients (m,
            p).

            Gradients to which an oracle has yet to add noise are in float64, and so is everything
            up to the oracle: rounding to float32 could be larger than the noise.
            """
            if full or exact:
                raise ValueError("a gradient of all samples was asked for in a private run")
            if plan.selects and (plain or times != 1.0):
                raise ValueError(
                    "a private oracle's noise is for gradients times w_i: expected no other factor"
                )
            x = x.to(cohort.weights.dtype)
            keep = None
            if plan.batch_size is not None:
                # Stacks are as wide as their largest client, present or not.
                keep = noise.coins(sample_counts, expected, width=int(self._sizes.max()))
            clipped = self.losses.clipped_gradient(
                x, cohort.rows, keep, plan.mechanism.norm, plan.privacy.clip, expected
            )
            clipped *= weights
            released = plan.mechanism.gradient(clipped, scale, noise, x.dtype)
            public = self.losses.public_gradient(x)
            if public is not None:  # it is no sample's, so that it needs no noise
                released = released + (public.double() * weights).to(released.dtype)
            if plain:
                return x.new_zeros(len(x)), released / cohort.weights[:, None]
            return x.new_zeros(len(x)), released * times

        def oracle(g: Tensor) -> Atom:
            """Return the mechanism's answers to directions g (m, p)."""
            return plan.mechanism.answer(cohort.constraint, g, scale, noise, tol)

        return gradient, oracle

    def sensitivity(self, cohort: Cohort) -> Tensor:
        """Return by how much one sample can change a client's direction, (m, 1) in float64, with
        the increase by rounding.
        """
        plan = self.plan
        increase = slack(
            self._samples(cohort),
            parameters=plan.parameters,
            releases=plan.most_rounds * plan.local_steps,
            selects=plan.selects,
            summands=plan.mechanism.summands,
        )
        return (self.shares(cohort) * (1 + increase))[:, None]

    def shares(self, cohort: Cohort) -> Tensor:
        """Return w clip / count of the clients, or the largest one that they may remember: (m,) in
        float64.
        """
        shares = cohort.weights.double() * self.plan.privacy.clip / self._expected(cohort)
        return shares.clamp(min=self.largest_share)

    def hides(
        self, algorithm: Algorithm, run: Run, shared: State, message: Message, cohort: Cohort
    ) -> bool:
        """Return whether the noise of a round survives the rounding of sums with what the server
        sent.

        Noise that is added to directions must not be lost beside penalties, duals or other vectors
        that are added to gradients before it. A server may choose those; this looks at each of
        them, whatever the algorithm calls it, and at nothing that comes from data but the number of
        samples.

        ``shared`` is the clients' shared state before the round, and the algorithm one that states
        its public direction.
        """
        if not self.plan.selects or self.plan.noise == 0:
            return True  # noise is added to the gradients themselves, or there is none
        limit = LARGEST_TERM / self.plan.mechanism.summands * self.shares(cohort)[:, None]
        terms = public_terms(algorithm, run, shared, message)
        width = 2 * run.constraint.diameter(tuple(message.xbar.shape))
        # No coordinate of a point of the set is larger; twice the diameter is on the safe side.
        farthest = message.xbar.double().abs() + width
        public = self.losses.public_gradient(farthest[None])
        if public is not None:
            terms.append(public * cohort.weights.double()[:, None])
        # Comparisons with NaN are false, so that terms with a NaN are refused, too.
        return all(bool((term.abs() <= limit).all()) for term in terms)

    @property
    def _sizes(self) -> Tensor:
        """Return the samples of all clients, (n,)."""
        sizes = self.losses.sizes
        if sizes is None:
            raise ValueError("privacy is for clients with samples; these are plain functions")
        return sizes

    def _samples(self, cohort: Cohort) -> Tensor:
        """Return how many samples the clients have, (m,)."""
        return self._sizes.to(cohort.rows.device)[cohort.rows]

    def _expected(self, cohort: Cohort) -> Tensor:
        """Return how many samples are expected in a gradient of the clients, (m,)."""
        own = self._samples(cohort)
        return own if self.plan.batch_size is None else own.clamp(max=self.plan.batch_size)


def public_terms(algorithm: Algorithm, run: Run, shared: State, message: Message) -> list[Tensor]:
    """Return all vectors, (m, p) or (1, p), that clients add to gradients before their oracle.

    Each vector is an entry of its own, because large vectors that cancel take along what was added
    in between.
    """
    assert isinstance(algorithm, Certifies)
    received = algorithm.receive(run, shared, message)
    terms = [algorithm.public_direction(run, received, message)]
    if len(message.rates) > 1 and "x" in received:
        # Later steps begin at points that are chosen on the way. No coordinate of theirs is farther
        # from xbar than the set is wide, and what a direction adds grows with that distance and
        # with the penalty.
        reach = 2 * run.constraint.diameter(tuple(message.xbar.shape))
        strongest = max(message.rates, key=lambda rates: rates.lam)
        later_message = replace(message, rates=(strongest,))
        for offset in (-reach, reach):
            points = (message.xbar.double() + offset).expand(received["x"].shape)
            terms.append(algorithm.public_direction(run, received | {"x": points}, later_message))
    terms += [value for name, value in received.items() if name != "x"]
    terms += [vector[None] for name, vector in message.vectors.items() if name != "xbar"]
    return terms
