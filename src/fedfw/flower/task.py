"""What is trained: stated once, in a file that the server and every client have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.algorithms import FedAvg, OracleAlgorithm
from fedfw.algorithms.base import Algorithm, Plan, Setting
from fedfw.algorithms.projected import dense
from fedfw.atoms import Atom
from fedfw.atoms.base import read_framed
from fedfw.atoms.bits import Reader
from fedfw.errors import AtomError
from fedfw.flower.messages import decode_vector, encode_vector
from fedfw.problems.linear import LossFunction
from fedfw.problems.modules import flatten
from fedfw.problems.problem import Problem, declared_convex
from fedfw.sets.base import ConstraintSet, shapes_of
from fedfw.simulation.options import Options
from fedfw.simulation.participation import Participation
from fedfw.simulation.setup import feasible_start

_TOO_LARGE = 1e18
_CONVEX_ON_A_LAYER = (nnf.cross_entropy, nnf.mse_loss, nnf.binary_cross_entropy_with_logits)


@dataclass(frozen=True)
class Task:
    """What is trained.

    Parameters
    ----------
    model
        Its parameters are the start: build it from a fixed seed, so that everybody has the same.
    loss
        ``loss(outputs, targets)``, a mean over samples.
    algorithm
        With its set, and with numbers for ``penalty`` or ``lr``: "auto" would need everybody's gradients.
    data
        A client's own samples, by its number; called on that client only.
    clients
        How many there are at the start; more may join.
    options
        Rounds, participation, local steps, batch size and seed.
    test
        Public test data, for the server's records.
    weights
        Of the clients 0, 1, ...; equal by default.
    convex
        Whether the losses are, for the choice of the schedule; by default from the model.
    l2
        Adds l2/2 ||x||^2 to every client's loss.
    """

    model: nn.Module
    loss: LossFunction
    algorithm: Algorithm
    data: Callable[[int], Any]
    clients: int
    options: Options = field(default_factory=Options)
    test: Any = None
    weights: Sequence[float] | None = None
    convex: bool | None = None
    l2: float = 0.0

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ValueError(f"clients={self.clients}, expected at least 1")
        if self.weights is not None and len(self.weights) != self.clients:
            raise ValueError(f"{len(self.weights)} weights for {self.clients} clients")
        algorithm = self.algorithm
        if not isinstance(algorithm, OracleAlgorithm | FedAvg) or algorithm.name == "frank-wolfe":
            raise ValueError(f"{algorithm.name} runs in simulations only: its clients' memory could not be restored")
        if not isinstance(self.options.participation, int | float):
            raise ValueError("participation: a deployment takes a probability or a number of clients")
        if self.options.privacy is not None and algorithm.sends_exact_sums:
            raise ValueError(f"{algorithm.name} shares exact sums of gradients: it does not go with privacy")
        for name in ("relax", "tol"):
            if getattr(self.options, name) is not None:
                raise ValueError(f"{name} is for simulations: a deployment does not have it")

    @cached_property
    def constraint(self) -> ConstraintSet:
        """The set on the flat vector of parameters."""
        bound: ConstraintSet = self.algorithm.constraint.bind(shapes_of(self.model))
        return bound

    @cached_property
    def start(self) -> Tensor:
        """x^1, (p,)."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        return feasible_start(self.constraint, flatten(parameters))

    @cached_property
    def plan(self) -> Plan:
        """The algorithm's plan for the clients of the start, worked out without anybody's data."""
        layer = isinstance(self.model, nn.Linear) and self.loss in _CONVEX_ON_A_LAYER
        convex = declared_convex(self.model, layer) if self.convex is None else self.convex
        options = self.options
        p = Participation(options.participation, self.clients, options.seed).p
        return self.algorithm.plan(
            Setting(self.clients, self.constraint, convex, p, options.rounds, options.local_steps, _refused, _refused)
        )

    def plan_for(self, n: int) -> Plan:
        """The same with n clients."""
        return replace(self.plan, n=n)

    def weight(self, client: int, members: Sequence[int]) -> float:
        """w_i of one of the clients that there are."""
        if self.weights is None:
            return 1 / len(members)
        return self.weights[client] / sum(self.weights[member] for member in members)

    def decode_vector(self, data: bytes) -> Tensor:
        """A vector (p,) that a client sent; raises `AtomError`, also for numbers that would overflow a sum."""
        vector = decode_vector(data, self.start)
        if not bool((vector.abs() < _TOO_LARGE).all()):
            raise AtomError("a number is too large")
        return vector

    def encode(self, sent: Atom) -> bytes:
        """What one client sends, a stack of one. Vectors that are to be projected are no atoms of the set."""
        if self.algorithm.needs_projection:
            return encode_vector(sent.dense(self.start.dtype)[0])
        return sent[0].to_bytes()

    def decode(self, data: bytes, t: int) -> Atom:
        """The inverse in round t, a single atom; raises `AtomError` for what is no encoding or lies outside the set."""
        if self.algorithm.needs_projection:
            return dense(self.decode_vector(data)[None])[0]
        shape, reader = tuple(self.start.shape), Reader(data)
        _, weights = self.plan.mixing(t)
        atom = read_framed(reader, self.constraint.net_readers(shape, weights))
        reader.finish()
        # The net of several local steps is no extreme point: it has to lie in the set all the same.
        single = len(weights) == 1
        if not (self.constraint.accepts(atom, shape) if single else self.constraint.contains(atom.dense())):
            raise AtomError("the atom is not in the set")
        return atom

    def problem(self, samples: Any) -> Problem:
        """The model on one client's samples, or on the test data."""
        return Problem(self.model, self.loss, [samples], samples, convex=self.convex, l2=self.l2)


def _refused() -> float:
    raise ValueError(
        'penalty="auto" and lr="auto" are worked out from everybody\'s data, which a deployment does not have: give a '
        "number (fedfw tune on similar data finds one)"
    )
