"""FedLMO: oracle steps from the shared model along a shared momentum, with control variates.

    client i:  x <- xbar,  m_i <- m                                  (before any m: the gradient)
               K times:  m_i <- beta m_i + (1 - beta) (grad f_i(x) - c_i + c)
                         x   <- (1 - eta_t/K) x + (eta_t/K) lmo_D(m_i)
               c_i <- the mean of its K gradients, without corrections
               it sends s_i with x = (1 - a_t) xbar + a_t s_i, m_i, and how c_i changes
    server:    xbar <- (1 - a_t) xbar + a_t (mean of the s_i),   m <- mean of the m_i
               c <- mean of the c_i of the clients that ever took part

Every x and every xbar lies in D. For convex losses docs/studies/theory.md proves a rate in which
neither the clients' differences nor K appear. Between two renewals of the c_i (``renew_every``)
atoms alone travel; a c_i renewed so seldom is the gradient at xbar alone.

References: the momentum is that of Muon and Scion (Jordan et al. 2024; Pethick et al., arXiv
2502.07529), shared as in FedCM and Mime (Xu et al. 2021; Karimireddy et al. 2021).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms import control_variates as controls
from fedfw.algorithms.contract import (
    Affine,
    Client,
    Exchange,
    Kind,
    Message,
    Oracles,
    Payload,
    Present,
    Run,
    State,
    Sums,
    Weight,
)
from fedfw.algorithms.local_steps import AtomsAlone, LocalSteps, mean_of_ends
from fedfw.algorithms.optin import Predicts
from fedfw.options import option

RenewOption = Annotated[int, option("rounds between two renewals of the control variates", ge=1)]


@dataclass(frozen=True, kw_only=True)
class FedLMO(controls.CorrectedMethod, Predicts):
    """Oracle steps from the shared model along a shared momentum, with control variates.

    Parameters
    ----------
    constraint, momentum, schedule, correction
        See `CorrectedMethod`.
    renew_every : int
        Rounds between renewals of control variates. Above 1 the momentum stays with the client in
        its round.
    compress : str
        See `CorrectedMethod`. "bits:8", "bits:4" and "bits:2" are for dense net atoms, too.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
    >>> algorithm = fedfw.FedLMO(fedfw.L2Ball(10.0))
    >>> run = fedfw.simulate(problem, algorithm, rounds=50, local_steps=3, participation=3)
    >>> run.history[-1].accuracy > 0.8
    True
    """

    renew_every: RenewOption = 1

    name: ClassVar[str] = "fedlmo"
    title: ClassVar[str] = "FedLMO"
    shares: ClassVar[str] = "every client's averaged gradients, and how they change, in each round"
    downloads: ClassVar[tuple[str, ...]] = ("m", "c")

    @property
    def uploads(self) -> Mapping[str, Kind]:
        """Return the entries of a payload: the net atom, the change of the control variate c_i, and
        the momentum m, the last two where the method has them.
        """
        entries = {"atom": Kind.POINT}
        if self.correction:
            entries["change"] = Kind.CHANGE
        if self.beta and self.renew_every == 1:
            entries["m"] = Kind.VALUE
        return entries

    @property
    def all_exchanges(self) -> Sequence[Exchange]:
        return (self, AtomsAlone(self))

    def exchanges(self, run: Run, server: State, t: int) -> Sequence[Exchange]:
        return (self,) if (t - 1) % self.renew_every == 0 else (AtomsAlone(self),)

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return server, controls.vectors_to_send(server)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local steps along the momentum m <- beta m + (1 - beta) (gradient - c_i + c); send
        the net atom, the change of c_i, and m.
        """
        m = controls.shared_momentum(run, msg)
        total = torch.zeros(1, dtype=run.dtype, device=msg.xbar.device)
        # The new c_i is the mean gradient of the round. Where it has to serve for several rounds,
        # it is the gradient at xbar alone.
        averaged_steps = len(msg.rates) if self.renew_every == 1 else 1
        steps = LocalSteps(run, msg, oracles)
        for k, x in enumerate(steps.points()):
            g = oracles.gradient(x, times=Weight.ONE)
            if k < averaged_steps:
                total = total + g
            g = controls.correct(g, client.shared, msg)
            m = g if m is None else torch.lerp(g, m.expand_as(g), self.beta)
            steps.step_along(m)
        change = total / averaged_steps - client.shared["c"]
        payload = {"atom": steps.net_atom(), "change": change.to(run.dtype), "m": m}
        return client.private, {name: payload[name] for name in self.uploads}

    def predict(
        self, run: Run, shared: State, msg: Message, name: str, decoded: Payload
    ) -> Tensor | None:
        """Predict the upload m_i: what it is if all K gradients equal their mean g, which the
        decoded change gives as c_i + change.
        """
        m = controls.shared_momentum(run, msg)
        if "change" not in decoded:
            return torch.zeros_like(shared["c"]) if m is None else m.expand_as(shared["c"])
        g: Tensor = decoded["change"]  # the mean gradient less c_i
        if "c" in msg.vectors:  # corrected gradients have c added, for clients with a c_i
            g = g + (shared["seen"] * msg.vectors["c"]).to(g.dtype)
        # K times m <- beta m + (1 - beta) g is once with beta^K.
        return g if m is None else torch.lerp(g, m.expand_as(g), self.beta ** len(msg.rates))

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        after = {**server, **controls.mean_after_changes(run, server, sums)}
        if "m" in sums:
            after["m"] = sums.mean("m")
        return after | {"xbar": mean_of_ends(sums, msg)}
