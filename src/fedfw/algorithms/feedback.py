"""Algorithms whose clients send one vector with error feedback (`fedfw.algorithms.channels`), from
one point.

With `compress_down` clients work at a point w that both sides hold, which follows the server's
point z:

    server:    w <- w + C(z - w), and w goes down

The wire sends a vector by the coordinates that differ from what a client holds, so with the K
largest changes about K numbers travel; a client that was away is sent all coordinates that changed
meanwhile, or w whole, whichever is shorter.

Reference: Gruntkowska, Tyurin and Richtarik, "EF21-P and friends: Improved theoretical
communication complexity for distributed optimization with bidirectional compression" (2023).
"""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
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
from fedfw.compression import Compress, CompressDown, make_compressor

REMEMBERS = {"x": Kept.REBUILT, "h": Kept.REBUILT}
"""h is there where vectors are compressed."""


@dataclass(frozen=True)
class Feedback(Algorithm):
    """An algorithm whose clients send one vector, which can be compressed, and whose server sends
    one point.

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

    @property
    def sends_another_point(self) -> bool:
        """Whether what goes down is not the model but a point near it, z."""
        return self.compress_down != "none"

    @property
    def down(self) -> tuple[str, ...]:
        return ("z",) if self.sends_another_point else super().down

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

    def broadcast(
        self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int
    ) -> tuple[Server, Message]:
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
            raise ValueError(
                f"local_steps={setting.local_steps}: {self.name} takes one step a round, at the server"
            )
        return super().resolved(setting)

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        _, a = gradient(self.point(message).expand(len(state["x"]), -1).clone(), plain=True)
        return {}, {"vector": a}
