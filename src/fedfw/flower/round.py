"""A round that is under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedfw.algorithms.base import Message, Server
from fedfw.atoms import Atom
from fedfw.flower.messages import Answer, Order


@dataclass
class Round:
    """What was asked for and what has come in.

    ``before`` is the server's memory when the orders went out, ``after`` the one that they announce.
    """

    t: int
    wanted: list[int] = field(default_factory=list)
    orders: dict[int, Order] = field(default_factory=dict)
    before: Server | None = None
    after: Server | None = None
    message: Message | None = None
    atoms: dict[int, Atom] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)
    gradients: dict[int, tuple[float, Tensor]] = field(default_factory=dict)
    anchor_gap: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
