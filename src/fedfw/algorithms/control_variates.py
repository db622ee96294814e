"""Control variates: client i keeps c_i, an estimate of its own gradient, and c is their mean.

grad f_i(x) - c_i + c approximates the gradient of F at every client. A client sends how its
c_i changes, both ends add the change up, and the server keeps the mean over all clients, present
or not. A c_i is zero before the client's first visit, and "seen" says which clients have one.

Reference: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic controlled
averaging for federated learning" (2020).
"""

from typing import Annotated

import torch
from torch import Tensor

from fedfw.algorithms.contract import Message, Payload, Run, State, Sums
from fedfw.options import option

CorrectionOption = Annotated[
    bool, option("control variates, which take out the differences between clients")
]
MEANS = {"c": "c", "seen": "seen"}
"""Entries of which the server keeps the mean over clients, by name."""


def init_controls(x: Tensor) -> State:
    """Return the shared state of m clients at x (m, p)."""
    c = torch.zeros_like(x, dtype=torch.float64)
    return {"c": c, "seen": c.new_zeros(len(x), 1)}


def init_mean(x: Tensor) -> State:
    """Return the server's state for x (p,)."""
    c = torch.zeros_like(x, dtype=torch.float64)
    return {"c": c, "seen": c.new_zeros(1)}


def mean_control(server: State) -> Tensor:
    """Return the mean of the c_i of the clients that have one, (p,); zeros before there is one."""
    return server["c"] / server["seen"].clamp(min=1e-30)


def vectors_to_send(server: State) -> State:
    """Return the mean control variate and the shared momentum, once there are some."""
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


def apply_change(shared: State, payload: Payload) -> State:
    """Return the shared state after the change of the c_i."""
    if "change" not in payload:
        return shared
    c = shared["c"] + payload["change"]
    return shared | {"c": c, "seen": torch.ones_like(shared["seen"])}


def mean_after_changes(run: Run, server: State, sums: Sums) -> State:
    """Return the server's means after the changes of the participants."""
    if "change" not in sums:
        return {"c": server["c"], "seen": server["seen"]}
    new = sums.weight - sums.shared("seen")
    c = server["c"] + sums.total("change").double() / run.n
    return {"c": c, "seen": server["seen"] + new / run.n}


def shared_momentum(run: Run, msg: Message) -> Tensor | None:
    """Return the momentum (p,) that the server sent, or None before there is one."""
    m = msg.vectors.get("m")
    return None if m is None else m.to(run.dtype)
