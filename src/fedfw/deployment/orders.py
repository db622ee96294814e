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
    """Raise what goes wrong within as an error of the order: nothing within looks at data."""
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
        """Return the client as a stack of one."""
        alone = torch.zeros(1, dtype=torch.int64)
        own = torch.tensor([self.order.client])
        exact = torch.tensor([self.order.weight], dtype=torch.float64)
        weight = exact.to(self.task.start.dtype)
        return Cohort(alone, weight, own, self.task.constraint, exact)

    @property
    def origin(self) -> str:
        """Return what stands for all that the step begins from, memory and message: a step from
        something else is another step.
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
        strange = sorted(order.vectors.keys() - {"xbar", *self.step.downloads})
        require(
            not strange,
            f"an order with {strange[:3]}, expected {', '.join(('xbar', *self.step.downloads))}",
        )
        strange = sorted(order.memory.keys() - self.shared_names)
        require(not strange, f"an order that hands {strange[:3]}, which no server can compute")

    def init_state(self, plan: PrivacyPlan | None) -> State:
        """Return the state of the client before its first step, a stack of one."""
        with blame_order():
            state = self.method.init(self.run, self.task.start[None].clone())
        if plan is not None:
            private = plan.in_float64(state.client.private)
            state = state._replace(client=state.client._replace(private=private))
        return state.flat()

    def counted_step(self, stored: Stored | None, begun: State) -> Step | None:
        """Return what the client holds by the server's account; None where it does not have that.

        Parameters
        ----------
        stored : Stored, optional
            What the client remembers.
        begun : dict of tensors
            From `init_state`.
        """
        order = self.order
        nothing = Received(0, {})
        held = None if stored is None else stored.at(order.counted)
        if order.memory:
            kept: State = {}
            if stored is not None:
                kept = (held or stored.counted).state
            handed = {}
            with blame_order():
                for name, data in order.memory.items():
                    handed[name] = decoded_alone(data, begun[name][0])[None]
            received = nothing if held is None else held.received
            return Step(order.counted, begun | kept | handed, received)
        if stored is None and not order.counted:
            return Step(0, begun, nothing)
        return held

    def received(self, stored: Stored | None) -> Received | None:
        """Return the order's message; None where it refers to one that the client does not have, or
        is not what was meant.
        """
        order = self.order
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
        """Return the message with the rates of its round."""
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
