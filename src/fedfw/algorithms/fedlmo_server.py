"""FedLMO with one oracle step at the server: clients send the mean of K gradients at xbar.

    client i:  d_i <- the mean of K gradients at xbar;   it sends how c_i changes, c_i <- d_i
    server:    m <- beta m + (1 - beta) mean of (d_i - c_i + c)
               xbar <- (1 - eta_t) xbar + eta_t lmo_D(m),    c <- mean of the c_i ever sent

Its clients call no oracle. `fedfw.algorithms.fedlmo` has the form with oracle steps at the clients.
"""

from __future__ import annotations

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
    Reveals,
    Run,
    State,
    Sums,
)
from fedfw.algorithms.control_variates import CorrectionOption
from fedfw.algorithms.local_steps import LocalOracleMethod
from fedfw.compression import CompressOption


@dataclass(frozen=True, kw_only=True)
class ServerLMO(LocalOracleMethod):
    """FedLMO whose server takes one oracle step a round, along the mean of the clients' gradients.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; for whole networks `fedfw.layer_balls` makes one.
    momentum, schedule
        See `LocalOracleMethod`.
    correction : bool
        Whether control variates take out the differences between clients.
    compress : str
        What is done to what clients send: "topk:64", for example; see `fedfw.compression`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
    >>> algorithm = fedfw.ServerLMO(fedfw.L2Ball(10.0))
    >>> run = fedfw.simulate(problem, algorithm, rounds=50, participation=3)
    >>> run.history[-1].accuracy > 0.8
    True
    """

    correction: CorrectionOption = True
    compress: CompressOption = "none"

    name: ClassVar[str] = "fedlmo-server"
    title: ClassVar[str] = "FedLMO, oracle at the server"
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = "the mean of every client's gradients in each round"
    means: ClassVar[Mapping[str, str]] = controls.MEANS
    uploads: ClassVar[Mapping[str, Kind]] = {"change": Kind.CHANGE}

    def init_client(self, run: Run, x: Tensor) -> Client:
        return Client(shared=controls.init_controls(x), private={})

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.to(torch.float64, copy=True)} | controls.init_mean(x)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Send the mean gradient at xbar, as a change of c_i."""
        x = msg.xbar.to(run.dtype).expand(oracles.m, -1)
        gradients = torch.stack([oracles.gradient(x, times="1") for _ in msg.rates])
        change = gradients.mean(0) - client.shared["c"]
        return client.private, {"change": change.to(run.dtype)}

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        if not self.correction:
            return shared
        return controls.apply_change(shared, payload)

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Step to the atom of the momentum of mean gradients."""
        d = sums.mean("change")
        after = dict(server)
        if self.correction:
            after |= controls.mean_after_changes(run, server, sums)
            d = d + controls.mean_control(server) * (sums.shared("seen") / sums.weight)
        m = torch.lerp(d, server["m"], self.beta) if "m" in server else d
        atom = run.constraint.lmo(m.to(run.dtype), tol=msg.oracle_tol)
        eta = msg.rates[0].eta * len(msg.rates)
        return after | {"m": m, "xbar": atom.stepped(server["xbar"], eta)}
