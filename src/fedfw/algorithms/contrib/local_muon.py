"""LocalMuon: every participant takes oracle steps along a momentum of its own, which begins anew with every visit.

    client i:  x <- xbar
               K times:  m_i <- beta m_i + (1 - beta) grad f_i(x)      (in the first step of a visit m_i <- grad f_i(x))
                         x   <- (1 - eta_t/K) x + (eta_t/K) lmo_D(m_i)
               it sends its net atom, and nothing else
    server:    xbar <- mean of the x

Local Muon steps, then averaging: the oracle of each client follows the client's own data, and the mean of the atoms is
not the atom of the mean, so it does not converge to the minimiser of F when clients differ. Takezawa et al. (arXiv
2509.26337) prove that, under this name; it is what FedMuon and FedLMO repair.

References: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); Therien, Huang, Rish and
Belilovsky, "MuLoCo: Muon is a practical inner optimizer for DiLoCo" (2025).
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.algorithms.base import Contract, Evidence, Gradient, Lmo, Message, Plan, Setting, State
from fedfw.algorithms.local_oracle import LocalOracleSteps
from fedfw.algorithms.scheduled import Beta
from fedfw.atoms import Atom


@dataclass(frozen=True)
class LocalMuon(LocalOracleSteps):
    """Oracle steps from the shared model along a momentum of the client's own: it fails where clients differ.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    momentum : float or "auto"
        beta, the weight of the past within a visit; "auto" is 0.9. With one local step a visit has no past, and
        another value is refused.
    schedule : str, Schedule or callable
        Step sizes eta_t of rounds (not of local steps, which are K times shorter); see `Scheduled`.

    Examples
    --------
    Clients with the losses (x - 3)^2 and (x + 1)^2 on [-1, 1] go to different ends; the best common point is 1.

    >>> import fedfw
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.contrib.LocalMuon(fedfw.Box(-1.0, 1.0)), rounds=50)
    >>> abs(round(float(run.x), 2))
    0.0
    """

    _: KW_ONLY
    momentum: Beta = "auto"

    name: ClassVar[str] = "local-muon"
    title: ClassVar[str] = "LocalMuon"
    contract: ClassVar[Contract] = Contract(weighted=True)

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        tried = super().grid(setting)
        if setting.local_steps == 1:
            del tried["momentum"]
        return tried

    def resolved(self, setting: Setting) -> Self:
        """The algorithm with momentum and schedule filled in; a momentum without a past is refused."""
        if setting.local_steps == 1 and self.momentum != "auto":
            raise ValueError(
                f"momentum={self.momentum} changes nothing: the momentum of {self.name} begins anew with every visit, "
                'expected local_steps of at least 2, or momentum="auto"'
            )
        return super().resolved(setting)

    @property
    def states_public_terms(self) -> bool:
        return type(self).client_step is LocalMuon.client_step

    def public_terms(self, plan: Plan, state: State, message: Message) -> list[Tensor]:
        return [vector[None] for vector in message.vectors.values()]  # it adds none of them

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        m: Tensor | None = None

        def direction(x: Tensor) -> Tensor:
            nonlocal m
            _, g = gradient(x)  # times w_i, which no oracle's answer depends on
            m = g if m is None else torch.lerp(g, m, self.beta)
            return m

        return state, self.walk(plan, message, len(state["x"]), direction, lmo), None
