"""Control variates: client i keeps c_i, an estimate of its own gradient, and c is their mean.

grad f_i(x) - c_i + c approximates the gradient of F at every client. A client sends how its
c_i changes, both ends add the change up, and the server keeps the mean over all clients, present
or not. A c_i is zero before the client's first visit, and "seen" says which clients have one.

Reference: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic controlled
averaging for federated learning" (2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Algorithm,
    Client,
    Message,
    Payload,
    Present,
    Reveals,
    Run,
    State,
    Sums,
)
from fedfw.algorithms.local_steps import LocalOracleMethod
from fedfw.compression import CompressOption
from fedfw.options import option

CorrectionOption = Annotated[
    bool, option("control variates, which take out the differences between clients")
]


@dataclass(frozen=True, kw_only=True)
class KeepsControls(Algorithm):
    """A method whose clients keep c_i, zero at first, and whose server sends the mean c of all."""

    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    downloads: ClassVar[tuple[str, ...]] = ("c",)
    means: ClassVar[Mapping[str, str]] = {"c": "c"}

    def init_client(self, run: Run, x: Tensor) -> Client:
        return Client(shared={"c": torch.zeros_like(x, dtype=torch.float64)}, private={})

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.clone(), "c": torch.zeros_like(x, dtype=torch.float64)}

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return server, {"c": server["c"]}

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        return {"c": shared["c"] + payload["change"]}


@dataclass(frozen=True, kw_only=True)
class CorrectedMethod(LocalOracleMethod):
    """A form of FedLMO: gradients are corrected by the control variates of clients that have one.

    Parameters
    ----------
    constraint, momentum, schedule
        See `LocalOracleMethod`.
    correction : bool
        Whether control variates take out the differences between clients.
    compress : str
        What is done to the vectors that clients send, such as "topk:64"; see `fedfw.compression`.
    """

    correction: CorrectionOption = True
    compress: CompressOption = "none"

    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    means: ClassVar[Mapping[str, str]] = {"c": "c", "seen": "seen"}

    def init_client(self, run: Run, x: Tensor) -> Client:
        c = torch.zeros_like(x, dtype=torch.float64)
        return Client(shared={"c": c, "seen": c.new_zeros(len(x), 1)}, private={})

    def init_server(self, run: Run, x: Tensor) -> State:
        c = torch.zeros_like(x, dtype=torch.float64)
        return {"xbar": x.to(torch.float64, copy=True), "c": c, "seen": c.new_zeros(1)}

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        if not self.correction:
            return shared
        c = shared["c"] + payload["change"]
        return shared | {"c": c, "seen": torch.ones_like(shared["seen"])}


def mean_control(server: State) -> Tensor:
    """Return the mean of the c_i of the clients that have one, (p,); zeros before there is one."""
    return server["c"] / server["seen"].clamp(min=1e-30)  # 0 / 0 before there is one


def vectors_to_send(server: State) -> State:
    """Return the vectors of the next message: "m", the shared momentum, and "c", the mean control
    variate, each from the round on in which a client has sent one.
    """
    vectors = {}
    if "m" in server:
        vectors["m"] = server["m"]
    if bool(server["seen"] > 0):
        vectors["c"] = mean_control(server)
    return vectors


def correct(g: Tensor, shared: State, msg: Message) -> Tensor:
    """Return g - c_i + c (m, p) of the clients that have a c_i, and g of the others."""
    if "c" not in msg.vectors:
        return g
    return g + (shared["seen"] * (msg.vectors["c"] - shared["c"])).to(g.dtype)


def mean_after_changes(run: Run, server: State, sums: Sums) -> State:
    """Return "c", the sum of all c_i over n, and "seen", the share of clients with a c_i, after the
    changes of the participants.
    """
    if "change" not in sums:
        return {"c": server["c"], "seen": server["seen"]}
    first_visits = sums.weight - sums.shared("seen")
    c = server["c"] + sums.total("change").double() / run.n
    return {"c": c, "seen": server["seen"] + first_visits / run.n}


def shared_momentum(run: Run, msg: Message) -> Tensor | None:
    """Return the momentum (p,) that the server sent, or None before there is one."""
    m = msg.vectors.get("m")
    return None if m is None else m.to(run.dtype)
