"""FedMuon of Takezawa et al.: oracle steps along momenta from which control variates take the
clients' differences.

    client i:  x <- xbar,  m_i <- c_i
               K times:  m_i <- beta m_i + (1 - beta) grad f_i(x)
                         (in its first visit it begins as the gradient)
                         x   <- (1 - eta_t/K) x + (eta_t/K) lmo_D(m_i - c_i + c)
               c_i <- m_i;   it sends its net atom, and how c_i changes
    server:    xbar <- mean of the x over those present,   c <- mean of all c_i

The mean of the oracle's answers is not the answer to the mean, so what goes to the oracle is
corrected, after the averaging over time (FedLMO corrects before it, and shares the momentum as
well). beta is 1 - alpha of the paper.

Ours, beside the set: a client goes on with the momentum of its last visit, which is its c_i, and in
its first visit with its first gradient (c_i is zero until then); means have the weights w_i.

Reference: Takezawa, Koloskova, Jiang and Stich, "FedMuon: Federated learning with bias-corrected
LMO-based optimization" (2025), arXiv 2509.26337.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Affine,
    Client,
    Kind,
    Message,
    Oracles,
    Payload,
    Run,
    State,
    Sums,
    Weight,
)
from fedfw.algorithms.control_variates import KeepsControls
from fedfw.algorithms.local_steps import LocalOracleMethod, LocalSteps, mean_of_ends


@dataclass(frozen=True, kw_only=True)
class FedMuonCV(KeepsControls, LocalOracleMethod):
    """FedMuon of Takezawa et al.: oracle steps along momenta that control variates correct.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; for whole networks `fedfw.layer_balls` makes one.
    momentum, schedule
        See `LocalOracleMethod`.

    Examples
    --------
    >>> import fedfw
    >>> algorithm = fedfw.contrib.FedMuonCV(fedfw.Box(-1.0, 1.0))
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=100)
    >>> float(run.x) > 0.9
    True
    """

    name: ClassVar[str] = "fedmuon-cv"
    title: ClassVar[str] = "FedMuon (Takezawa et al.)"
    shares: ClassVar[str] = (
        "how every client's averaged gradients (its momentum) change from one of its rounds to the "
        "next"
    )
    uploads: ClassVar[Mapping[str, Kind]] = {"atom": Kind.ATOM, "change": Kind.CHANGE}

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local steps along m_i - c_i + c, where the client's momentum m_i goes on from c_i;
        send the net atom, and m_i - c_i as the change of c_i.
        """
        c_i = client.shared["c"].to(run.dtype)
        c = msg.vectors["c"].to(run.dtype)
        # c_i is zero until a client's first round has ended: its momentum begins as its gradient.
        is_first_gradient = (c_i == 0).all(1, keepdim=True)
        steps = LocalSteps(run, msg, oracles)
        m = c_i
        for x in steps.points():
            g = oracles.gradient(x, times=Weight.ONE)
            m = torch.where(is_first_gradient, g, torch.lerp(g, m, self.beta))
            is_first_gradient = torch.zeros_like(is_first_gradient)
            steps.step_along(m - c_i + c)
        change = m - client.shared["c"]
        return client.private, {"atom": steps.net_atom(), "change": change.to(run.dtype)}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        c = server["c"] + sums.total("change").double() / run.n
        return {"xbar": mean_of_ends(sums, msg), "c": c}
