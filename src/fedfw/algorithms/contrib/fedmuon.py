"""FedMuon of Liu et al.: momentum that the server averages, and steps that are aligned with the
last round's.

    client i:  x <- xbar,  m_i <- m
               K times:  m_i <- beta m_i + (1 - beta) grad f_i(x)
                         (before any m: m_i <- the gradient)
                         x   <- (1 - eta_t/K) x + (eta_t/K) ((1 - alpha) lmo_D(m_i) + alpha s)
               it sends its net atom s_i, the mixture of the oracle's answers, and m_i
    server:    s <- (1 - alpha) (mean of the s_i) + alpha s,   m <- mean of the m_i,
               xbar <- (1 - a_t) xbar + a_t s

Here a_t = 1 - (1 - eta_t/K)^K, and alpha is the alignment (1/2 in the paper). The paper's global
direction is the mean change of the last round over K eta. In steps inside of D that is the point s
of D to which xbar moved last, so that the mixture of both directions stays in D.

Ours, beside the set: momentum and atoms for every parameter (theirs has AdamW for vectors), means
with the weights w_i, the first momentum is the first gradient, before any s there is no alignment,
and no momentum is compressed.

Reference: Liu, Shang, Zhou, Liu, Liu and Liu, "FedMuon: Accelerating federated learning with matrix
orthogonalization" (2025), arXiv 2510.27403.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Affine,
    Client,
    Kind,
    Message,
    Oracles,
    Payload,
    Present,
    Reveals,
    Run,
    State,
    Sums,
    Weight,
)
from fedfw.algorithms.local_steps import LocalOracleMethod, LocalSteps, step_to
from fedfw.algorithms.rules import Rates
from fedfw.atoms import Atom
from fedfw.options import option


@dataclass(frozen=True, kw_only=True)
class FedMuon(LocalOracleMethod):
    """FedMuon of Liu et al.: oracle steps along a shared momentum, aligned with the last round's
    step.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; for whole networks `fedfw.layer_balls` makes one.
    momentum, schedule
        See `LocalOracleMethod`.
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

    alignment: Annotated[
        float, option("share of the last round's step in every local step", ge=0, lt=1)
    ] = 0.5

    name: ClassVar[str] = "fedmuon"
    title: ClassVar[str] = "FedMuon (Liu et al.)"
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = "every client's averaged gradients (its momentum) in each round"
    downloads: ClassVar[tuple[str, ...]] = ("m", "s")

    @property
    def uploads(self) -> Mapping[str, Kind]:
        entries = {"atom": Kind.ATOM}
        if self.beta:
            entries["m"] = Kind.VALUE
        return entries

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return server, {name: server[name] for name in self.downloads if name in server}

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local steps to atoms along the momentum, each aligned with the last global direction
        s.
        """
        # The shared momentum and direction; before the first round with an upload there is none.
        m = msg.vectors.get("m")
        s = msg.vectors.get("s")

        def move(x: Tensor, atom: Atom, rates: Rates) -> Tensor:
            """Return the points (m, p) after a step of size eta to alpha s + (1 - alpha) atom."""
            if s is None or not self.alignment:
                return step_to(x, atom, rates)
            # In two steps: one to s, and then one of size (1 - alpha) eta to the atom.
            atom_eta = (1 - self.alignment) * rates.eta
            s_eta = self.alignment * rates.eta / (1 - atom_eta)
            return atom.stepped(x + s_eta * (s - x), atom_eta)

        steps = LocalSteps(run, msg, oracles, move)
        for x in steps.points():
            g = oracles.gradient(x, times=Weight.ONE)
            m = g if m is None else torch.lerp(g, m.expand_as(g), self.beta)
            steps.step_along(m)
        payload = {"atom": steps.net_atom(), "m": m}
        return client.private, {name: payload[name] for name in self.uploads}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Step to s <- (1 - alpha) mean + alpha s, the mean of the atoms mixed with the last s."""
        s = sums.total("atom") / sums.weight
        if "s" in server:
            s = torch.lerp(s, server["s"], self.alignment)
        after = {"s": s, "xbar": torch.add((1 - msg.step) * server["xbar"], s, alpha=msg.step)}
        if "m" in sums:
            after["m"] = sums.mean("m")
        return after
