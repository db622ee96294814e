"""The computations of a stack of clients in a round: gradients of their losses, and their oracles'
answers.

The two come in a pair from one place, because a private client replaces both together
(`fedfw.privacy.steps.PrivateOracles`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedfw.atoms import Atom
from fedfw.errors import NonFiniteError
from fedfw.problems.base import ClientLosses, WeightedGradient
from fedfw.randomness import minibatches
from fedfw.sets.base import ConstraintSet


class Gradient(Protocol):
    """Return w_i f_i (m,) and w_i grad f_i (m, p) at x (m, p), in the precision of the data;
    without the w_i where ``plain``.

    ``times`` is one more factor: with n it gives n w_i grad f_i. They are computed on a minibatch,
    or on all samples (``full``), or on all samples and in float64 (``exact``), which is what
    certificates are made from.
    """

    def __call__(
        self,
        x: Tensor,
        full: bool = False,
        exact: bool = False,
        plain: bool = False,
        times: float = 1.0,
    ) -> tuple[Tensor, Tensor]: ...


Lmo = Callable[[Tensor], Atom]
"""(m, p) -> a stack of m atoms."""


@dataclass(frozen=True)
class Cohort:
    """Clients that take a step together, as a stack.

    Parameters
    ----------
    rows : Tensor
        (m,): their places among the losses.
    weights : Tensor
        (m,): their w_i.
    numbers : Tensor
        (m,): what they are called, by which minibatches and seeded noise are drawn.
    constraint : ConstraintSet
        The set that they use.
    exact_weights : Tensor, optional
        (m,): the w_i in float64, for certificates. By default ``weights``, which then has to be
        exact.
    """

    rows: Tensor
    weights: Tensor
    numbers: Tensor
    constraint: ConstraintSet
    exact_weights: Tensor | None = None


class ClientOracles(Protocol):
    """Where a client's gradient and its linear minimization oracle come from."""

    def pair(self, cohort: Cohort, t: int, tol: float | None) -> tuple[Gradient, Lmo]:
        """Return both for a stack of clients in round t; ``tol`` is the accuracy asked of oracles
        that iterate.
        """


@dataclass(frozen=True)
class PlainOracles:
    """Gradients and oracles as they are.

    Parameters
    ----------
    losses : ClientLosses
        Of the clients.
    local_steps, batch_size, seed : int
        How minibatches are drawn; ``batch_size`` None for all samples.
    sizes : Tensor or None
        (n,): samples of each client that minibatches are drawn for.
    """

    losses: ClientLosses
    local_steps: int
    batch_size: int | None
    seed: int
    sizes: Tensor | None

    def pair(self, cohort: Cohort, t: int, tol: float | None) -> tuple[Gradient, Lmo]:
        """Return the gradient and the linear minimization oracle of a cohort in round t."""
        pick = minibatches(
            self.seed, t, self.local_steps, self.sizes, self.batch_size, cohort.numbers
        )

        def oracle(g: Tensor) -> Atom:
            """Call the LMO; an error of NaN or infinity names the clients instead of the rows."""
            try:
                return cohort.constraint.lmo(g, batch=True, tol=tol)
            except NonFiniteError as error:
                clients = cohort.numbers[list(error.rows)].tolist()
                raise NonFiniteError(
                    f"round {t}: NaN or infinity in the direction of client {clients}", clients
                ) from None

        return WeightedGradient(
            self.losses,
            cohort.weights,
            cohort.rows,
            pick,
            t,
            cohort.numbers,
            cohort.exact_weights,
        ), oracle
