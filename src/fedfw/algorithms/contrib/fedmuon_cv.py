"""FedMuon of Takezawa et al.: oracle steps along momenta from which control variates take the clients' differences.

    client i:  x <- xbar,  m_i <- c_i
               K times:  m_i <- beta m_i + (1 - beta) grad f_i(x)        (in its first visit it begins as the gradient)
                         x   <- (1 - eta_t/K) x + (eta_t/K) lmo_D(m_i - c_i + c)
               c_i <- m_i;   it sends its net atom, and how c_i changes
    server:    xbar <- mean of the x over those present,   c <- mean of all c_i

The mean of the oracle's answers is not the answer to the mean, so what goes to the oracle is corrected, after the
averaging over time (FedLMO corrects before it, and shares the momentum as well). beta is 1 - alpha of the paper.

Ours, beside the set: a client goes on with the momentum of its last visit, which is its c_i, and in its first visit
with its first gradient (c_i is zero until then); means have the weights w_i.

Reference: Takezawa, Koloskova, Jiang and Stich, "FedMuon: Federated learning with bias-corrected LMO-based
optimization" (2025), arXiv 2509.26337.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import (
    Aggregate,
    Contract,
    Evidence,
    Gradient,
    Lmo,
    Message,
    Plan,
    Reveals,
    Server,
    State,
)
from fedfw.algorithms.controls import REMEMBERS, KeepsControls, mean_renewed, renewed
from fedfw.algorithms.local_oracle import LocalOracleSteps
from fedfw.algorithms.parcels import parcel
from fedfw.atoms import Atom, TupleAtom


@dataclass(frozen=True)
class FedMuonCV(KeepsControls, LocalOracleSteps):
    """FedMuon of Takezawa et al.: oracle steps along momenta that control variates correct.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; for whole networks `fedfw.layer_balls` makes one.
    momentum : float or "auto"
        beta, the weight of the past; "auto" is 0.9.
    schedule : str, Schedule or callable
        Step sizes eta_t of rounds (not of local steps, which are K times shorter); see `Scheduled`.

    Examples
    --------
    >>> import fedfw
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.contrib.FedMuonCV(fedfw.Box(-1.0, 1.0)), rounds=100)
    >>> float(run.x) > 0.9
    True
    """

    name: ClassVar[str] = "fedmuon-cv"
    title: ClassVar[str] = "FedMuon (Takezawa et al.)"
    contract: ClassVar[Contract] = Contract(
        down=("xbar", "c"),
        remembers=REMEMBERS,
        reveals=Reveals.GRADIENTS,
        shares="how every client's averaged gradients (its momentum) change from one of its rounds to the next",
        weighted=True,
    )

    def sends(self, t: int, p: int) -> dict[str, int]:
        return {"change": p}

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        c, m = state["c"], state["c"]
        begins = (c == 0).all(1, keepdim=True)

        def direction(x: Tensor) -> Tensor:
            nonlocal m, begins
            _, g = gradient(x, plain=True)
            m = torch.where(begins, g, torch.lerp(g, m, self.beta))
            begins = torch.zeros_like(begins)
            return m - c + message.vectors["c"]

        net = self.walk(plan, message, len(c), direction, lmo)
        change = m - c
        return renewed(state, change), parcel(net, {"change": change}), None

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        vectors = mean_renewed(plan, server, aggregate.beside["change"])
        return replace(super().server_step(plan, server, aggregate, t), vectors=vectors)

    def follow(self, plan: Plan, state: State, message: Message, atoms: Atom) -> State:
        assert isinstance(atoms, TupleAtom)
        return renewed(state, atoms.parts[1].dense())
