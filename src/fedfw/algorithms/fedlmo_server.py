"""FedLMO with one oracle step at the server: clients send the mean of K gradients at xbar.

    client i:  d_i <- the mean of K gradients at xbar;   it sends how c_i changes, c_i <- d_i
    server:    m <- beta m + (1 - beta) mean of (d_i - c_i + c)
               xbar <- (1 - eta_t) xbar + eta_t lmo_D(m),    c <- mean of the c_i ever sent

Its clients call no oracle. `fedfw.algorithms.fedlmo` has the form with oracle steps at the clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms import control_variates as controls
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


@dataclass(frozen=True, kw_only=True)
class ServerLMO(controls.CorrectedMethod):
    """FedLMO whose server takes one oracle step a round, along the mean of the clients' gradients.

    Parameters
    ----------
    constraint, momentum, schedule, correction, compress
        See `CorrectedMethod`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
    >>> algorithm = fedfw.ServerLMO(fedfw.L2Ball(10.0))
    >>> run = fedfw.simulate(problem, algorithm, rounds=50, participation=3)
    >>> run.history[-1].accuracy > 0.8
    True
    """

    name: ClassVar[str] = "fedlmo-server"
    title: ClassVar[str] = "FedLMO, oracle at the server"
    shares: ClassVar[str] = "the mean of every client's gradients in each round"
    uploads: ClassVar[Mapping[str, Kind]] = {"change": Kind.CHANGE}

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Send the mean gradient at xbar, as a change of c_i."""
        x = msg.xbar.to(run.dtype).expand(oracles.m, -1)
        gradients = torch.stack([oracles.gradient(x, times=Weight.ONE) for _ in msg.rates])
        change = gradients.mean(0) - client.shared["c"]
        return client.private, {"change": change.to(run.dtype)}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Take one step to the oracle's answer at m <- beta m + (1 - beta) d, where d is the mean
        gradient: the mean change of the participants' c_i plus, with corrections, the mean c of the
        c_i before.
        """
        d = sums.mean("change")
        after = dict(server)
        if self.correction:
            after |= controls.mean_after_changes(run, server, sums)
            # Clients in their first visit sent their gradient itself, because their c_i was zero.
            d = d + controls.mean_control(server) * (sums.shared("seen") / sums.weight)
        m = torch.lerp(d, server["m"], self.beta) if "m" in server else d
        atom = run.constraint.lmo(m.to(run.dtype), tol=msg.oracle_tol)
        eta = msg.rates[0].eta * len(msg.rates)  # a local step has 1/K of the round's size
        return after | {"m": m, "xbar": atom.stepped(server["xbar"], eta)}
