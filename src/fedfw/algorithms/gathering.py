"""Algorithms that exchange one dense sum before some rounds, beside what every algorithm does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedfw.algorithms.contract import Gradient, Plan, Server, State
from fedfw.atoms import Atom


@dataclass(frozen=True)
class Contributed:
    """What a stack of clients adds to a gathered sum.

    Parameters
    ----------
    loss : Tensor
        (m,): w_i f_i at xbar, less what the rounding of the vector can hide (see
        `FedFWAnchored.contribute`).
    vector : Tensor
        (m, p): w_i grad f_i at xbar, or what an algorithm gathers in its place.
    sent : Atom or None
        What travelled, if it did: the vector is what both sides make of it.
    """

    loss: Tensor
    vector: Tensor
    sent: Atom | None = None


@dataclass(frozen=True)
class Gathered:
    """What the server learns from a gathered sum.

    Parameters
    ----------
    loss : float
        F(xbar), if everyone contributed.
    gradient : Tensor or None
        (p,): the gradient of F at xbar, if everyone contributed gradients.
    """

    loss: float
    gradient: Tensor | None


class GathersSums(ABC):
    """An algorithm that exchanges one dense sum before some rounds, beside what every algorithm
    does.

    What the server makes of the sum goes down with the round's message (`Algorithm.broadcast`).
    """

    @abstractmethod
    def gathers(self, server: Server, t: int) -> bool:
        """Whether round t begins with a sum. The server decides it, also once more behind the sum
        of that round.
        """

    @abstractmethod
    def contribute(
        self, plan: Plan, state: State, xbar: Tensor, gradient: Gradient, t: int
    ) -> Contributed:
        """What a stack of clients adds to the sum of round t, when the server's model is xbar (p,)."""

    @abstractmethod
    def gather(
        self,
        plan: Plan,
        server: Server,
        states: Sequence[State],
        sent: Sequence[Contributed],
        t: int,
    ) -> tuple[Server, Gathered]:
        """The server's new memory and what it learns in round t, from the contributions of stacks
        of clients.

        It must hold for the memories that `take_up` gives these clients, whether or not their steps
        arrive. ``states`` is what the server knows of these clients: their sums are used and
        nothing else. Where several ranks share a run, these are the clients of this rank, and
        ``plan.ranks`` adds up over all of them.
        """

    def received(self, state: State, sent: Atom) -> Tensor:
        """The vectors (m, p) of contributions, from what travelled and from what the server knows
        of the clients.
        """
        return sent.dense()

    @abstractmethod
    def take_up(self, state: State, xbar: Tensor, sent: Contributed) -> State:
        """The memory of a stack of clients whose contribution arrived, before the round's step."""
