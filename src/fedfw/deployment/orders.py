"""An order as a task reads it: what is wrong with it, what its step begins from, and its
message.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedfw.algorithms.contract import Exchange, Message, Run, State
from fedfw.deployment.messages import Order, require
from fedfw.deployment.refusal import RefusedError
from fedfw.deployment.store import Received, Step, Stored
from fedfw.deployment.task import Task
from fedfw.errors import MessageError
from fedfw.privacy.steps import PrivacyPlan
from fedfw.problems.oracles import Cohort
from fedfw.rounds.client_steps import ClientState, Method, split
from fedfw.rounds.vectors import decoded, decoded_alone
from fedfw.rounds.wire import digest


@contextmanager
def blame_order() -> Iterator[None]:
    """Raise any error of the context as a `MessageError` of the order; the context must not read
    data, or the error could reveal them.
    """
    try:
        yield
    except (MessageError, RefusedError):
        raise
    except (ValueError, TypeError, LookupError, RuntimeError, ArithmeticError) as error:
        raise MessageError(f"an order that cannot be read: {error}") from None


@dataclass(frozen=True)
class OrderedExchange:
    """The exchange of a task that an order asks for.

    The method is the task's own; the server's numbers count only where the task leaves them open.
    """

    task: Task
    order: Order

    @cached_property
    def method(self) -> Method:
        """Return the configured algorithm with what runs it."""
        return self.task.method(self.order.penalty, self.order.lr)

    @cached_property
    def step(self) -> Exchange:
        """Return the exchange, whose label `validate` has compared."""
        return next(
            exchange
            for exchange in self.method.algorithm.all_exchanges
            if exchange.label == self.order.ask
        )

    @cached_property
    def run(self) -> Run:
        """Return what is fixed before the first round."""
        return self.task.run(self.order.n)

    @cached_property
    def shared_names(self) -> frozenset[str]:
        """Return the names of the client's state that the server has, too."""
        return self.method.shared_names(self.run, self.task.start[None])

    @cached_property
    def cohort(self) -> Cohort:
        """Return the client as a cohort of one: row 0 of its problem, its weight w_i in the run's
        precision and in float64, and its number, which selects its random draws.
        """
        row = torch.zeros(1, dtype=torch.int64)
        number = torch.tensor([self.order.client])
        exact_weight = torch.tensor([self.order.weight], dtype=torch.float64)
        weight = exact_weight.to(self.task.start.dtype)
        return Cohort(row, weight, number, self.task.constraint, exact_weight)

    @property
    def origin(self) -> str:
        """Return a digest of what determines the step: exchange, counted step, message, memory that
        is handed over, and rate. A stored answer is repeated only for an order with the same
        digest.
        """
        order = self.order
        parts = [order.ask.encode(), str(order.counted).encode(), order.digest]
        for name in sorted(order.memory):
            parts += [name.encode(), order.memory[name]]
        if order.rate is not None:
            parts.append(repr(order.rate).encode())
        return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]

    def validate(self) -> None:
        """Refuse an order that no honest server sends, whatever the method's numbers are."""
        order = self.order
        labels = [exchange.label for exchange in self.task.algorithm.all_exchanges]
        require(order.ask in labels, f"asked for {order.ask!r}, expected {' or '.join(labels)}")
        require(
            order.index <= labels.index(order.ask),
            f"exchange {order.index} of the round, which {order.ask!r} is not",
        )
        require(
            min(order.t, order.n, order.version) >= 1 and min(order.base, order.counted) >= 0,
            f"round {order.t}, {order.n} clients, message {order.version}: expected at least 1 "
            "of each",
        )
        require(
            order.t <= self.task.options.rounds,
            f"round {order.t}, expected at most {self.task.options.rounds}",
        )
        require(
            order.counted < order.serial,
            f"an order of a step that was counted already: {order.counted}",
        )
        require(0 < order.weight <= 1, f"a weight of {order.weight}, expected one in (0, 1]")

    def validate_contents(self) -> None:
        """Refuse an order whose numbers and vectors are not those of the method."""
        order = self.order
        require(
            (order.rate is not None) == self.method.rule.reports_curvature,
            f"a step size of {order.rate}, expected one where and only where the server derives it",
        )
        require("xbar" in order.vectors, "an order without the model")
        unknown = sorted(order.vectors.keys() - {"xbar", *self.step.downloads})
        require(
            not unknown,
            f"an order with {unknown[:3]}, expected {', '.join(('xbar', *self.step.downloads))}",
        )
        private = sorted(order.memory.keys() - self.shared_names)
        require(not private, f"an order that hands {private[:3]}, which no server can compute")

    def init_state(self, plan: PrivacyPlan | None) -> State:
        """Return the state of the client before its first step by name, (1, p) each; under a
        privacy plan its private vectors are in float64.
        """
        with blame_order():
            state = self.method.init(self.run, self.task.start[None].clone())
        if plan is not None:
            private = plan.in_float64(state.client.private)
            state = state._replace(client=state.client._replace(private=private))
        return state.flat()

    def counted_step(self, stored: Stored | None, initial: State) -> Step | None:
        """Return the memory from which the ordered step begins: that after the last exchange in
        which the server counted an answer of this client (``order.counted``, 0 for none); None
        where the client has lost it and the order does not hand it over.

        Parameters
        ----------
        stored : Stored, optional
            The client's memory on disk.
        initial : dict of tensors
            The state before the first step, from `init_state`, (1, p) each.
        """
        order = self.order
        no_message = Received(0, {})  # version 0 stands for no message
        counted = None if stored is None else stored.at(order.counted)
        if not order.memory:
            if stored is None and not order.counted:
                return Step(0, initial, no_message)
            return counted
        remembered: State = {}
        if stored is not None:
            # The server hands over the shared vectors, which replace those remembered here. Private
            # ones, such as an average of gradients, only the client has. Where those of the counted
            # step are lost, those of the beginning of the round stand in: they are older, but of
            # the same data under the same promise.
            remembered = (counted or stored.counted).state
        handed = {}
        with blame_order():
            for name, data in order.memory.items():
                handed[name] = decoded_alone(data, initial[name][0])[None]
        received = no_message if counted is None else counted.received
        return Step(order.counted, initial | remembered | handed, received)

    def received(self, stored: Stored | None) -> Received | None:
        """Return the order's message, decoded; None where it is encoded relative to a message that
        the client does not have, or where its digest is not the one in the order.
        """
        order = self.order
        # Version 0 stands for no message: vectors are then encoded relative to zero.
        base = Received(0, {}) if stored is None else stored.message(order.base)
        if base is None or base.version != order.base:
            return None
        vectors = {}
        with blame_order():
            server = self.method.algorithm.init_server(self.run, self.task.start)
            zero = torch.zeros_like(server["xbar"])
            for name, data in order.vectors.items():
                vectors[name] = decoded(data, base.vectors.get(name, zero))
        if digest(*(vectors[name] for name in sorted(vectors))) != order.digest:
            return None
        return Received(order.version, vectors)

    def message(self, received: Received) -> Message:
        """Return the received vectors with the step sizes of the order's round, from the task's own
        rule and, where the rule needs it, from the number in the order.
        """
        rule = self.method.rule
        rates = rule.rates(rule.from_sent(self.order.rate), self.order.t)
        step, shares = rule.net_step(rates)
        return Message(self.order.t, received.vectors, rates, step, shares, rule.oracle_tol(rates))

    def split(self, flat: State) -> ClientState:
        """Return the parts of a client's state."""
        return split(flat, self.shared_names)

    def shared(self, flat: State) -> dict[str, Tensor]:
        """Return the part of a client's state that the server has, too, (p,) each."""
        return {name: value[0] for name, value in flat.items() if name in self.shared_names}
