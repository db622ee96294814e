"""Methods of Muon's kind, whose clients take oracle steps along a momentum: LocalMuon and two that
are called FedMuon.

LocalMuon: every participant takes oracle steps along a momentum of its own, which begins anew with
every visit.

    client i:  x <- xbar
               K times:  m_i <- beta m_i + (1 - beta) grad f_i(x)      (in the first step of a visit m_i <- grad f_i(x))
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

FedMuon of Liu et al.: momentum that the server averages, and steps that are aligned with the last
round's.

    client i:  x <- xbar,  m_i <- m
               K times:  m_i <- beta m_i + (1 - beta) grad f_i(x)                    (before any m: m_i <- the gradient)
                         x   <- (1 - eta_t/K) x + (eta_t/K) ((1 - alpha) lmo_D(m_i) + alpha s)
               it sends its net atom s_i, the mixture of the oracle's answers, and m_i
    server:    s <- (1 - alpha) (mean of the s_i) + alpha s,   m <- mean of the m_i,   xbar <- (1 - a_t) xbar + a_t s

Here a_t = 1 - (1 - eta_t/K)^K, and alpha is the alignment (1/2 in the paper). The paper's global
direction is the mean change of the last round over K eta. In steps inside of D that is the point s
of D to which xbar moved last, so that the mixture of both directions stays in D.

Ours, beside the set: momentum and atoms for every parameter (theirs has AdamW for vectors), means
with the weights w_i, the first momentum is the first gradient, before any s there is no alignment,
and no momentum is compressed.

Reference: Liu, Shang, Zhou, Liu, Liu and Liu, "FedMuon: Accelerating federated learning with matrix
orthogonalization" (2025), arXiv 2510.27403.

FedMuon of Takezawa et al.: oracle steps along momenta from which control variates take the clients'
differences.

    client i:  x <- xbar,  m_i <- c_i
               K times:  m_i <- beta m_i + (1 - beta) grad f_i(x)        (in its first visit it begins as the gradient)
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

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Aggregate,
    Contract,
    Gradient,
    Lmo,
    Message,
    Payload,
    Plan,
    Reveals,
    Server,
    Setting,
    State,
)
from fedfw.algorithms.local_oracle import LocalOracleSteps
from fedfw.algorithms.oracle_steps import move_mean
from fedfw.algorithms.scaffold import REMEMBERS, KeepsControls, mean_renewed
from fedfw.algorithms.scheduled import Beta
from fedfw.atoms import Atom
from fedfw.options import option


@dataclass(frozen=True)
class LocalMuon(LocalOracleSteps):
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
        Step sizes eta_t of rounds (not of local steps, which are K times shorter); see `Scheduled`.

    Examples
    --------
    Clients with the losses (x - 3)^2 and (x + 1)^2 on [-1, 1] go to different ends; the best common
    point is 1.

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
        return type(self).local_update is LocalMuon.local_update

    def public_terms(self, plan: Plan, state: State, message: Message) -> list[Tensor]:
        return [vector[None] for vector in message.vectors.values()]  # it adds none of them

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        m: Tensor | None = None

        def direction(x: Tensor) -> Tensor:
            nonlocal m
            _, g = gradient(x)  # times w_i, which no oracle's answer depends on
            m = g if m is None else torch.lerp(g, m, self.beta)
            return m

        return {}, {"atom": self.walk(plan, message, len(state["x"]), direction, lmo)}


@dataclass(frozen=True)
class FedMuon(LocalOracleSteps):
    """FedMuon of Liu et al.: oracle steps along a shared momentum, aligned with the last round's
    step.

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
    alignment: Annotated[
        float, option("share of the last round's step in every local step", ge=0, lt=1)
    ] = 0.5

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

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        m = message.vectors.get("m")

        def direction(x: Tensor) -> Tensor:
            nonlocal m
            _, g = gradient(x, plain=True)
            m = g if m is None else torch.lerp(g, m.expand_as(g), self.beta)
            return m

        net = self.walk(plan, message, len(state["x"]), direction, lmo)
        assert m is not None
        return {}, {"atom": net} | ({"m": m} if self.beta else {})

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

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
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
        return {}, {"atom": net, "change": change}

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        vectors = mean_renewed(plan, server, aggregate.beside["change"])
        return replace(super().server_step(plan, server, aggregate, t), vectors=vectors)
