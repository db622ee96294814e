"""FedAdamW: local steps of AdamW whose moments the clients share.

    client i:  x <- xbar,  m_i <- m,  v_i <- v
               K times:  g = grad f_i(x)
                         m_i <- beta1 m_i + (1 - beta1) g,   v_i <- beta2 v_i + (1 - beta2) g^2
                         x <- (1 - lr_t wd) x
                              - lr_t (m_i / (1 - beta1^k)) / (sqrt(v_i / (1 - beta2^k)) + tau)
               it sends x - xbar, m_i and v_i
    server:    xbar <- P(mean of the x),   m <- mean of the m_i,   v <- mean of the v_i

Here k counts the local steps of all rounds so far, those of rounds that no client joined included;
m and v begin at zero. Means are over those present, with the weights w_i. With one client it is
torch.optim.AdamW. The server cuts off what no gradients give, v < 0 and an |m| above a multiple of
sqrt(v): no client's moments make the others' steps overflow. As FedAdam it does not rest at
minimisers on the border of sets that are no boxes.

References: Cheng and Glasgow, "Convergence of distributed adaptive optimization with local updates"
(2025), whose local Adam averages model and moments; Liu et al., "FedAdamW" (2025), arXiv
2510.27486, which shares block means of v, begins m anew, and aligns steps as FedMuon does: none of
the three is done here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

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
from fedfw.algorithms.fedadam import Beta1, Beta2, Tau, adam_step, moments
from fedfw.algorithms.local_changes import LocalChanges
from fedfw.algorithms.setting import Setting
from fedfw.options import option

ADAM_LR = 0.001
"""The usual step size of Adam, in units of the parameters: it depends on no smoothness constant."""


@dataclass(frozen=True, kw_only=True)
class FedAdamW(LocalChanges):
    """FedAdamW: local steps of AdamW with shared moments, and a projection.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    beta1 : float
        Weight of the past in the mean gradient.
    beta2 : float
        Weight of the past in the mean square of the gradient.
    tau : float
        What is added to the root of the second moment.
    weight_decay : float
        wd, the decoupled weight decay.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> algorithm = fedfw.FedAdamW(fedfw.Box(-1.0, 1.0), lr=0.1)
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=60)
    >>> round(float(run.x), 2)
    1.0
    """

    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    tau: Tau = 1e-8
    weight_decay: Annotated[float, option("AdamW's decoupled weight decay", ge=0)] = 0.01

    name: ClassVar[str] = "fedadamw"
    title: ClassVar[str] = "FedAdamW"
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = (
        "how every client's local model changes, its averaged gradients and their squares in each "
        "round"
    )
    uploads: ClassVar[Mapping[str, Kind]] = {
        "update": Kind.VALUE,
        "m": Kind.VALUE,
        "v": Kind.VALUE,
    }
    downloads: ClassVar[tuple[str, ...]] = ("m", "v")

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"lr": (0.0003, 0.001, 0.003), "weight_decay": (0.0, 0.01)}

    def default_lr(self, setting: Setting) -> float | None:
        return ADAM_LR

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.clone(), "m": torch.zeros_like(x), "v": torch.zeros_like(x)}

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return server, {"m": server["m"], "v": server["v"]}

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local steps of AdamW from xbar and the shared moments m and v, each (p,); send the
        change of x and the client's moments.
        """
        x = msg.xbar.expand(oracles.m, -1)
        m = msg.vectors["m"]
        v = msg.vectors["v"]
        earlier_steps = (msg.t - 1) * len(msg.rates)  # the bias correction counts all of them
        for k, rates in enumerate(msg.rates, start=earlier_steps + 1):
            m, v = moments(m, v, oracles.gradient(x, times=Weight.ONE), self.beta1, self.beta2)
            step = adam_step(m, v, k, self.beta1, self.beta2, self.tau)
            x = (1 - rates.eta * self.weight_decay) * x - rates.eta * step
        return client.private, {"update": x - msg.xbar, "m": m, "v": v}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Average the changes and the moments, within what gradients can give."""
        # Gradients give no squares below zero, and no larger m: a client that sends such moments
        # must not spoil the others' steps.
        v = sums.mean("v").clamp(min=0)
        most = _largest_ratio(self.beta1, self.beta2) * (v.sqrt() + self.tau)
        m = sums.mean("m").clamp(-most, most)
        x = server["xbar"] + sums.mean("update")
        return {"xbar": run.constraint.project(x), "m": m, "v": v}


def _largest_ratio(beta1: float, beta2: float) -> float:
    """Return the supremum of |m| / sqrt(v) over all sequences of gradients (Cauchy and Schwarz)."""
    room = beta2 - beta1**2
    return (1 - beta1) * math.sqrt(beta2 / ((1 - beta2) * room)) if room > 0 else math.inf
