"""What happens around an algorithm's `local_update`: both ends' part of a step, certificates, and
measured curvature.

    client   receive  ->  local_update  ->  apply
    server   receive                    ->  apply

The server's copy of a client goes through the same two functions as the client, so both hold the
same bits.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedfw.algorithms import channels, pacing
from fedfw.algorithms.contract import Algorithm, Evidence, Gradient, Lmo, Message, Plan, State
from fedfw.atoms import Atom


def take_part(
    algorithm: Algorithm, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
) -> tuple[State, Atom, Evidence | None]:
    """One round of a stack of clients: their new memory, what they send, and their evidence if it
    is asked for.
    """
    begun = state | algorithm.receive(plan, algorithm.contract.rebuilt(state), message)
    certifies = message.wants_evidence and is_certifying(algorithm)
    witness = None
    if certifies or algorithm.tells:
        witness = Witness(algorithm, plan, begun, message, gradient, lmo, certifies)
        gradient, lmo = witness.gradient, witness.lmo
    private, payload = algorithm.local_update(plan, begun, message, gradient, lmo)
    if witness is not None and algorithm.tells:
        payload = payload | {"told": witness.measure_curvature()}
    sent = channels.encode(algorithm, plan, begun, message, payload)
    decoded = channels.unpack(algorithm, message.t, sent)
    shared = channels.apply(algorithm, plan, algorithm.contract.rebuilt(begun), message, decoded)
    after = begun | private | shared
    if witness is not None and algorithm.tells:
        after = after | witness.remember_step(after)
    return after, sent, None if witness is None else witness.evidence


def follow(
    algorithm: Algorithm, plan: Plan, shared: State, message: Message, payload: Mapping[str, Atom]
) -> State:
    """The rebuilt part of the memory of clients that sent this, for somebody who sees no data."""
    return channels.apply(
        algorithm, plan, algorithm.receive(plan, shared, message), message, payload
    )


def public_direction(
    algorithm: Algorithm, plan: Plan, shared: State, message: Message
) -> Tensor | None:
    """The part (m, p) of the clients' first direction that does not come from their data, where it
    certifies.
    """
    if not is_certifying(algorithm):
        return None
    return algorithm.public_direction(plan, algorithm.receive(plan, shared, message), message)


def is_certifying(algorithm: Algorithm) -> bool:
    """Whether rounds prove bounds: averages of past gradients prove nothing."""
    return algorithm.exact and algorithm.contract.proves


class Witness:
    """Watches a client's first gradient and the oracle's first answer, which certificates and
    curvature are made of.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        plan: Plan,
        begun: State,
        message: Message,
        gradient: Gradient,
        lmo: Lmo,
        certifies: bool,
    ) -> None:
        self.evidence: Evidence | None = None
        self._algorithm, self._plan, self._begun, self._message = algorithm, plan, begun, message
        self._gradient, self._lmo, self._certifies = gradient, lmo, certifies
        self._first: tuple[Tensor, Tensor, Tensor] | None = None  # x, loss and gradient
        self._answer: tuple[Tensor, Atom] | None = (
            None  # the direction, and the oracle's answer to it
        )

    def gradient(
        self,
        x: Tensor,
        full: bool = False,
        exact: bool = False,
        plain: bool = False,
        times: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """The gradients, of which the first are kept."""
        loss, a = self._gradient(x, full=full, exact=exact, plain=plain, times=times)
        if self._first is None:
            self._first = (x, loss, a)
        return loss, a

    def lmo(self, g: Tensor) -> Atom:
        """The oracle's answers, of which the first one is kept."""
        atom = self._lmo(g)
        if self._answer is None:
            self._answer = (g, atom)
            if self._certifies:
                self.evidence = self._prove(g, atom)
        return atom

    def _prove(self, g: Tensor, atom: Atom) -> Evidence:
        """What the first answer proves; rounding errors of the step itself have no part in it.

        The bound holds for any q_i. In float32 the one is used that the server can work out as
        well.
        """
        assert self._first is not None
        x, loss, a = self._first
        if g.dtype is not torch.float64:
            loss, a = self._gradient(x, exact=True)
            shared = self._algorithm.contract.rebuilt(self._begun)
            g = a + self._algorithm.public_direction(self._plan, shared, self._message)
            atom = self._lmo(g)
        least = atom.dot(g) if atom.bound is None else atom.bound
        return Evidence(loss - (a * x).sum(1) + least, g - a)

    def measure_curvature(self) -> Tensor:
        """What the clients tell of their steps; see `pacing.tell`."""
        assert self._first is not None
        assert self._answer is not None
        return pacing.tell(
            self._begun, self._first[2], *self._answer, self._plan.rates(self._message.t).lam
        )

    def remember_step(self, after: State) -> State:
        """What the clients remember of this step for the next round's curvature."""
        assert self._first is not None
        eta, _ = self._plan.mixing(self._message.t)
        return pacing.remember(self._begun["x"], after["x"], self._first[2], eta)
