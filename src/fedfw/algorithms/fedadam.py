"""FedAdam: local gradient steps, and a step of Adam at the server along the mean change.

    x_i <- xbar;   K times:  x_i <- x_i - lr_t grad f_i(x_i);   d = mean of the x_i - xbar
    m <- beta1 m + (1 - beta1) d,   v <- beta2 v + (1 - beta2) d^2
    xbar <- P(xbar + server_lr_t (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + tau))

The mean is over those present, with the weights w_i; m and v begin at zero. Adam's division by 1 -
beta^t, which the paper leaves out, is that of torch.optim.Adam; t counts rounds, those that nobody
joined included. A linear decay is one of both step sizes, since Adam's step hardly depends on the
size of d. P is the Euclidean projection, and Adam's step is scaled coordinate by coordinate: where
the minimiser lies on the border of a set that is no box, it does not rest there.

Reference: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive federated
optimization" (2021).

FedAdamW: local steps of AdamW whose moments the clients share.

    client i:  x <- xbar,  m_i <- m,  v_i <- v
               K times:  g = grad f_i(x),   m_i <- beta1 m_i + (1 - beta1) g,   v_i <- beta2 v_i + (1 - beta2) g^2
                         x <- (1 - lr_t wd) x - lr_t (m_i / (1 - beta1^k)) / (sqrt(v_i / (1 -
                         beta2^k)) + tau)
               it sends x - xbar, m_i and v_i
    server:    xbar <- P(mean of the x),   m <- mean of the m_i,   v <- mean of the v_i

Here k counts the local steps of all rounds so far, those of rounds that nobody joined included; m
and v begin at zero. Means are over those present, with the weights w_i. With one client it is
torch.optim.AdamW. The server cuts off what no gradients give, v < 0 and an |m| above a multiple of
sqrt(v): nobody's moments make the others' steps overflow. As FedAdam it does not rest at minimisers
on the border of sets that are no boxes.

References: Cheng and Glasgow, "Convergence of distributed adaptive optimization with local updates"
(2025), whose local Adam averages model and moments; Liu et al., "FedAdamW" (2025), arXiv
2510.27486, which shares block means of v, begins m anew, and aligns steps as FedMuon does: none of
the three is done here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

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
    Up,
)
from fedfw.algorithms.projected import LocalChanges
from fedfw.options import option

Beta1 = Annotated[float, option("weight of the past in Adam's first moment", ge=0, lt=1)]
Beta2 = Annotated[float, option("weight of the past in Adam's second moment", ge=0, lt=1)]
Tau = Annotated[float, option("what Adam adds to the root of the second moment", gt=0)]


@dataclass(frozen=True)
class FedAdam(LocalChanges):
    """FedAdam: FedAvg with a step of Adam at the server, and a projection.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local gradient steps; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    server_lr : float
        Step size of the server; it decays with ``lr``.
    beta1 : float
        Weight of the past in the mean change.
    beta2 : float
        Weight of the past in the mean square of the change.
    tau : float
        What is added to the root of the second moment.

    Examples
    --------
    >>> import fedfw
    >>> algorithm = fedfw.FedAdam(fedfw.Box(-1.0, 1.0), lr=0.1, server_lr=0.1)
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=40)
    >>> round(float(run.x), 2)
    1.0
    """

    server_lr: Annotated[float, option("server's step size", gt=0)] = 0.01
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    tau: Tau = 1e-3

    name: ClassVar[str] = "fedadam"
    title: ClassVar[str] = "FedAdam"

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"lr": cls.few_steps(setting, (0.03, 0.1, 0.3)), "server_lr": (0.003, 0.01)}

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"m": torch.zeros_like(x), "v": torch.zeros_like(x)})

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        d = aggregate.mean
        m, v = moments(server.vectors["m"], server.vectors["v"], d, self.beta1, self.beta2)
        step = adam_step(m, v, t, self.beta1, self.beta2, self.tau)
        return Server(
            plan.project(server.xbar + self.server_lr * plan.decay(t) * step), {"m": m, "v": v}
        )


def moments(m: Tensor, v: Tensor, g: Tensor, beta1: float, beta2: float) -> tuple[Tensor, Tensor]:
    """Adam's moments after one more gradient g."""
    return beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g.square()


def adam_step(m: Tensor, v: Tensor, t: int, beta1: float, beta2: float, tau: float) -> Tensor:
    """Adam's step for a step size of 1, when t gradients have been averaged."""
    return (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + tau)


ADAM_LR = 0.001
"""The usual step size of Adam, in units of the parameters: it depends on no smoothness constant."""


@dataclass(frozen=True)
class FedAdamW(LocalChanges):
    """FedAdamW: local steps of AdamW with shared moments, and a projection.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local steps; "auto" is 0.001, whatever the problem. See
        `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    beta1 : float
        Weight of the past in the mean gradient.
    beta2 : float
        Weight of the past in the mean square of the gradient.
    tau : float
        What is added to the root of the second moment.
    weight_decay : float
        wd, the decoupled weight decay.

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
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        down=("xbar", "m", "v"),
        reveals=Reveals.GRADIENTS,
        shares="how every client's local model changes, its averaged gradients and their squares in each round",
        weighted=True,
    )

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"lr": (0.0003, 0.001, 0.003), "weight_decay": (0.0, 0.01)}

    def usual_lr(self, setting: Setting) -> float:
        return ADAM_LR

    def sends(self, t: int, p: int) -> dict[str, int]:
        return {"m": p, "v": p}

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"m": torch.zeros_like(x), "v": torch.zeros_like(x)})

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        x, lr = message.xbar.expand(len(state["x"]), -1), plan.lr_at(message.t)
        m, v = message.vectors["m"], message.vectors["v"]
        done = (message.t - 1) * plan.local_steps
        for k in range(done + 1, done + plan.local_steps + 1):
            _, g = gradient(x, plain=True)
            m, v = moments(m, v, g, self.beta1, self.beta2)
            x = (1 - lr * self.weight_decay) * x - lr * adam_step(
                m, v, k, self.beta1, self.beta2, self.tau
            )
        return {}, {"vector": x - message.xbar, "m": m, "v": v}

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        m, v = (aggregate.beside[name] / aggregate.weight for name in ("m", "v"))
        # Gradients give no squares below zero, and no larger m: whoever sends them must not spoil
        # the others' steps.
        v = v.clamp(min=0)
        most = _largest_ratio(self.beta1, self.beta2) * (v.sqrt() + self.tau)
        return Server(
            plan.project(server.xbar + aggregate.mean), {"m": m.clamp(-most, most), "v": v}
        )


def _largest_ratio(beta1: float, beta2: float) -> float:
    """The supremum of |m| / sqrt(v) over all sequences of gradients, which Cauchy and Schwarz give."""
    room = beta2 - beta1**2
    return (1 - beta1) * math.sqrt(beta2 / ((1 - beta2) * room)) if room > 0 else math.inf
