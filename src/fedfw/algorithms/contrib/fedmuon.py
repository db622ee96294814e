"""FedMuon of Liu et al.: momentum that the server averages, and steps that are aligned with the last round's.

    client i:  x <- xbar,  m_i <- m
               K times:  m_i <- beta m_i + (1 - beta) grad f_i(x)                    (before any m: m_i <- the gradient)
                         x   <- (1 - eta_t/K) x + (eta_t/K) ((1 - alpha) lmo_D(m_i) + alpha s)
               it sends its net atom s_i, the mixture of the oracle's answers, and m_i
    server:    s <- (1 - alpha) (mean of the s_i) + alpha s,   m <- mean of the m_i,   xbar <- (1 - a_t) xbar + a_t s

Here a_t = 1 - (1 - eta_t/K)^K, and alpha is the alignment (1/2 in the paper). The paper's global direction is the mean
change of the last round over K eta. In steps inside of D that is the point s of D to which xbar moved last, so that the
mixture of both directions stays in D.

Ours, beside the set: momentum and atoms for every parameter (theirs has AdamW for vectors), means with the weights w_i,
the first momentum is the first gradient, before any s there is no alignment, and no momentum is compressed.

Reference: Liu, Shang, Zhou, Liu, Liu and Liu, "FedMuon: Accelerating federated learning with matrix orthogonalization"
(2025), arXiv 2510.27403.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

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
from fedfw.algorithms.local_oracle import LocalOracleSteps
from fedfw.algorithms.oracle_steps import move_mean
from fedfw.algorithms.parcels import parcel
from fedfw.atoms import Atom
from fedfw.options import option


@dataclass(frozen=True)
class FedMuon(LocalOracleSteps):
    """FedMuon of Liu et al.: oracle steps along a shared momentum, aligned with the last round's step.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; for whole networks `fedfw.layer_balls` makes one.
    momentum : float or "auto"
        beta, the weight of the past; "auto" is 0.9. With 0 no momentum travels.
    schedule : str, Schedule or callable
        Step sizes eta_t of rounds (not of local steps, which are K times shorter); see `Scheduled`.
    alignment : float
        alpha, the share of the last round's step in every local step.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
    >>> algorithm = fedfw.contrib.FedMuon(fedfw.L2Ball(10.0))
    >>> run = fedfw.simulate(problem, algorithm, rounds=50, local_steps=3, participation=5)
    >>> run.history[-1].accuracy > 0.8
    True
    """

    _: KW_ONLY
    alignment: Annotated[float, option("share of the last round's step in every local step", ge=0, lt=1)] = 0.5

    name: ClassVar[str] = "fedmuon"
    title: ClassVar[str] = "FedMuon (Liu et al.)"
    contract: ClassVar[Contract] = Contract(
        down=("xbar", "m", "s"),
        reveals=Reveals.GRADIENTS,
        shares="every client's averaged gradients (its momentum) in each round",
        weighted=True,
    )

    def sends(self, t: int, p: int) -> dict[str, int]:
        return {"m": p} if self.beta else {}

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        m = message.vectors.get("m")

        def direction(x: Tensor) -> Tensor:
            nonlocal m
            _, g = gradient(x, plain=True)
            m = g if m is None else torch.lerp(g, m.expand_as(g), self.beta)
            return m

        net = self.walk(plan, message, len(state["x"]), direction, lmo)
        assert m is not None
        return state, parcel(net, {"m": m} if self.beta else {}), None

    def move(self, plan: Plan, message: Message, x: Tensor, atom: Atom) -> Tensor:
        s = message.vectors.get("s")
        if s is None or not self.alignment:
            return super().move(plan, message, x, atom)
        # The step to the mixture of two points is one to s and then one to the atom.
        eta = plan.rates(message.t).eta
        own = (1 - self.alignment) * eta
        return atom.step(x + (self.alignment * eta / (1 - own)) * (s - x), own)

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        amount, _ = plan.mixing(t)
        s = aggregate.mean
        if "s" in server.vectors:
            s = torch.lerp(s, server.vectors["s"], self.alignment)
        m = {"m": aggregate.beside["m"] / aggregate.weight} if self.beta else {}
        return Server(move_mean(server.xbar, 1 - amount, amount, s), m | {"s": s})

    def repeatable(self, plan: Plan, aggregate: Aggregate, t: int) -> None:
        """The step goes to s, which is more than the sum of the atoms."""
