"""LocalMuon: every participant takes oracle steps along a momentum of its own, which begins anew
with every visit.

    client i:  x <- xbar
               K times:  m_i <- beta m_i + (1 - beta) grad f_i(x)
                         (in the first step of a visit m_i <- grad f_i(x))
                         x   <- (1 - eta_t/K) x + (eta_t/K) lmo_D(m_i)
               it sends its net atom, and nothing else
    server:    xbar <- mean of the x

Local Muon steps, then averaging: the oracle of each client follows the client's own data, and the
mean of the atoms is not the atom of the mean, so it does not converge to the minimiser of F when
clients differ. Takezawa et al. (arXiv 2509.26337) prove that, under this name; it is what FedMuon
and FedLMO repair.

References: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024);
Therien, Huang, Rish and Belilovsky, "MuLoCo: Muon is a practical inner optimizer for DiLoCo"
(2025).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.algorithms.averaging import MomentumOption
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
)
from fedfw.algorithms.local_steps import LocalOracleMethod, LocalSteps, mean_of_ends
from fedfw.algorithms.optin import Certifies
from fedfw.algorithms.rules import StepRule
from fedfw.algorithms.setting import Setting


@dataclass(frozen=True, kw_only=True)
class LocalMuon(LocalOracleMethod, Certifies):
    """Oracle steps from the shared model along a momentum of the client's own: it fails where
    clients differ.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    momentum : float or "auto"
        beta, the weight of the past within a visit; "auto" is 0.9. With one local step a visit has
        no past, and another value is refused.
    schedule : str, Schedule or callable
        Step sizes eta_t of rounds (not of local steps, which are K times shorter).

    Examples
    --------
    Clients with the losses (x - 3)^2 and (x + 1)^2 on [-1, 1] go to different ends; the best common
    point is 1.

    >>> import fedfw
    >>> run = fedfw.simulate(
    ...     fedfw.testing.two_quadratics(), fedfw.contrib.LocalMuon(fedfw.Box(-1.0, 1.0)), rounds=50
    ... )
    >>> abs(round(float(run.x), 2))
    0.0
    """

    momentum: MomentumOption = "auto"

    name: ClassVar[str] = "local-muon"
    title: ClassVar[str] = "LocalMuon"
    uploads: ClassVar[Mapping[str, Kind]] = {"atom": Kind.ATOM}
    proves_bounds: ClassVar[bool] = False

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        tried = dict(super().grid(setting))
        if setting.local_steps == 1:
            del tried["momentum"]
        return tried

    @property
    def averages(self) -> bool:
        return self.momentum != 0

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        """Replace "auto" by numbers, and refuse a momentum that no step would use."""
        if setting.local_steps == 1 and self.momentum != "auto":
            raise ValueError(
                f"momentum={self.momentum} changes nothing: the momentum of {self.name} begins "
                'anew with every visit, expected local_steps of at least 2, or momentum="auto"'
            )
        return super().configure(setting)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local steps to the oracle's answers along m <- beta m + (1 - beta) gradient, where m
        begins anew in every round, as the first gradient.
        """
        steps = LocalSteps(run, msg, oracles)
        m: Tensor | None = None
        for x in steps.points():
            g = oracles.gradient(x)  # times w_i, on which no oracle's answer depends
            m = g if m is None else torch.lerp(g, m, self.beta)
            steps.step_along(m)
        return client.private, {"atom": steps.net_atom()}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        return {"xbar": mean_of_ends(sums, msg)}

    def public_direction(self, run: Run, shared: State, msg: Message) -> Tensor:
        return torch.zeros_like(msg.xbar)[None]
