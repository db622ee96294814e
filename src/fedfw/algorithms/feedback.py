"""Error feedback: clients send compressed changes of a vector that both sides remember (EF21).

    client i:  sends C(v_i - h_i);   h_i <- h_i + C(v_i - h_i)
    server:    h <- h + sum over those present of n w_i C(v_i - h_i), the weighted sum of all h_i, present or not

v_i is what the client would send whole: a gradient, or how far it came. h_i begins at zero and follows v_i: what one
message loses is part of the next. The h_i are kept in float64, so that their sum at the server does not drift from
theirs. A client that lost its h_i is handed the server's.

Down. With `compress_down` clients work at a point w that both sides hold, which follows the server's point z:

    server:    w <- w + C(z - w), and w goes down

The wire sends a vector by the coordinates that differ from what a client holds, so with the K largest changes about K
numbers travel; a client that was away is sent all coordinates that changed meanwhile, or w whole, whichever is shorter.

References: Richtarik, Sokolov and Fatkhullin, "EF21: A new, simpler, theoretically better, and practically faster error
feedback" (2021); Gruntkowska, Tyurin and Richtarik, "EF21-P and friends: Improved theoretical communication complexity
for distributed optimization with bidirectional compression" (2023).
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Aggregate,
    Algorithm,
    Gradient,
    Kept,
    Lmo,
    Message,
    Payload,
    Plan,
    Server,
    Setting,
    State,
)
from fedfw.algorithms.projected import dense
from fedfw.atoms import Atom
from fedfw.checks import holds
from fedfw.compression import Compress, CompressDown, Compressor, Readers, make_compressor


@dataclass(frozen=True)
class Feedback(Algorithm):
    """An algorithm whose clients send one vector, which can be compressed, and whose server sends one point.

    Parameters
    ----------
    compress : str
        What is done to the vectors that clients send; see `fedfw.compression`.
    compress_down : str
        What is done to the point that the server sends.
    """

    _: KW_ONLY
    compress: Compress = "none"
    compress_down: CompressDown = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        contract = self.contract
        if self.compressor is not None:
            contract = replace(contract, remembers={**contract.remembers, "h": Kept.REBUILT})
        if self.sends_another_point:
            contract = replace(contract, down=("z",))
        object.__setattr__(self, "contract", contract)

    @property
    def compressor(self) -> Compressor | None:
        return make_compressor(self.compress)

    @property
    def sends_another_point(self) -> bool:
        """Whether what goes down is not the model but a point near it, z."""
        return self.compress_down != "none"

    def resolved(self, setting: Setting) -> Self:
        refuse_useless(self.compress, setting)
        return super().resolved(setting)

    # --- memories ---

    def start_clients(self, x: Tensor) -> State:
        h = {} if self.compressor is None else {"h": torch.zeros_like(x, dtype=torch.float64)}
        return super().start_clients(x) | h

    def start_server(self, x: Tensor) -> Server:
        server = super().start_server(x)
        h = {} if self.compressor is None else {"h": torch.zeros_like(x, dtype=torch.float64)}
        w = {} if self.compress_down == "none" else {"w": x.clone()}
        return replace(server, vectors=server.vectors | h | w)

    # --- down ---

    def next_point(self, server: Server) -> Tensor:
        """The point (p,) at which clients should work."""
        return server.xbar

    def broadcast(self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int) -> tuple[Server, Message]:
        if not self.sends_another_point:
            return server, Message(t, server.xbar)
        z, down = self.next_point(server), make_compressor(self.compress_down)
        if down is not None:
            w = server.vectors["w"]
            z = w + down.encode((z - w)[None], tuple(w.shape), (len(w),)).dense(w.dtype)[0]
            server = replace(server, vectors=server.vectors | {"w": z})
        return server, Message(t, server.xbar, {"z": z})

    @staticmethod
    def point(message: Message) -> Tensor:
        """The point (p,) that a message brings."""
        return message.vectors.get("z", message.xbar)

    # --- up ---

    def encoded(self, plan: Plan, state: State, v: Tensor, t: int) -> Atom:
        """What travels from clients that send v (m, p) in round t."""
        compressor = bound_to(plan, self.compressor)
        if compressor is None:
            return dense(v)
        return encoded(compressor, plan, (v - state["h"]).to(v.dtype), t)

    def received(self, plan: Plan, server: Server, aggregate: Aggregate) -> tuple[Server, Tensor]:
        """Return the server's new memory, and the mean (p,) with the weights w_i of what all clients would send.

        Without error feedback it is the mean over those present.
        """
        if self.compressor is None:
            return server, aggregate.mean
        h = server.vectors["h"] + aggregate.total
        return replace(server, vectors=server.vectors | {"h": h}), (h / plan.n).to(server.xbar.dtype)

    def readers(self, plan: Plan, message: Message) -> Readers | None:
        compressor, shape = bound_to(plan, self.compressor), tuple(message.xbar.shape)
        if compressor is None:
            return super().readers(plan, message)
        return compressor.readers(shape, plan.constraint.pieces(shape), draw=message.t)

    def apply(self, plan: Plan, shared: State, message: Message, payload: Mapping[str, Atom]) -> State:
        if self.compressor is None:
            return shared
        return shared | {"h": shared["h"] + payload["vector"].dense(torch.float64)}

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        if self.compressor is None:
            return super().regroup(server, clients, weights)
        h = clients["h"] if weights is None else clients["h"] * weights.double()[:, None]
        return replace(server, vectors=server.vectors | {"h": h.sum(0)})


@dataclass(frozen=True)
class SendsGradients(Feedback):
    """Clients send their gradient at the server's point, and the server alone takes a step."""

    def resolved(self, setting: Setting) -> Self:
        if setting.local_steps > 1:
            raise ValueError(f"local_steps={setting.local_steps}: {self.name} takes one step a round, at the server")
        return super().resolved(setting)

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        _, a = gradient(self.point(message).expand(len(state["x"]), -1).clone(), plain=True)
        return {}, {"vector": self.encoded(plan, state, a, message.t)}


def bound_to(plan: Plan, compressor: Compressor | None) -> Compressor | None:
    """The compressor for the vectors of a run."""
    return None if compressor is None else compressor.bind(plan.constraint, plan.shapes)


def encoded(compressor: Compressor, plan: Plan, x: Tensor, t: int) -> Atom:
    """Vectors x (m, p) as they are sent in round t."""
    if not holds(x.sum(1).isfinite()):
        return dense(x)  # which whoever takes it in refuses, and can say whose it is
    return compressor.encode(x, (x.shape[1],), plan.constraint.pieces((x.shape[1],)), draw=t)


def refuse_useless(compress: str, setting: Setting) -> None:
    """Refuse a compressor whose messages would be longer than the vector itself, or that fits no parameter."""
    compressor, (p,) = make_compressor(compress), setting.shape
    if compressor is None:
        return
    pieces = setting.constraint.pieces(setting.shape)
    bound = compressor.bind(setting.constraint, setting.shapes)
    nbytes = bound.encode(torch.ones(1, p), setting.shape, pieces).nbytes
    if nbytes > 1 + 4 * p:
        raise ValueError(
            f"compress={compress!r}, expected something shorter: with {setting.constraint!r} a message has {nbytes} "
            f"bytes, and {p} numbers as they are have {1 + 4 * p}"
        )
