"""A client: takes an order, makes at most one step a round, and never loses or repeats one.

Its memory advances in two phases. A step is *pending* until the server's next order says that it was counted; then it
is committed, else it is undone. An order that comes again gets the same answer again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from fedfw.algorithms.base import Evidence, Message, State
from fedfw.atoms import Atom
from fedfw.errors import MessageError, NonFiniteError
from fedfw.flower.messages import (
    ATOM,
    GRADIENT,
    LEAVING,
    LOST,
    OUTDATED,
    STEP,
    Answer,
    Order,
    decode_vector,
    encode_vector,
)
from fedfw.flower.store import Budget, ClientStore, Memory, Step
from fedfw.flower.task import Task
from fedfw.privacy.steps import PrivateGradient, PrivateSteps
from fedfw.problems.base import Oracle
from fedfw.problems.problem import Problem
from fedfw.simulation.ledger import decode_down
from fedfw.simulation.random import minibatches


def digest(x: Tensor) -> bytes:
    """Eight bytes by which two sides see that they hold the same x (p,)."""
    return hashlib.sha256(x.contiguous().cpu().numpy().tobytes()).digest()[:8]


def _handed(order: Order) -> str:
    """Stands for the memory that an order hands over: a step from another one is another step."""
    parts = (part for name in sorted(order.memory) for part in (name.encode(), order.memory[name]))
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


@dataclass(frozen=True)
class Client:
    """One client of a task.

    Parameters
    ----------
    folder
        Where it keeps its memory.
    leaving
        Answers the next order with a farewell and forgets everything.
    """

    task: Task
    number: int
    folder: Path
    leaving: bool = False

    @cached_property
    def _problem(self) -> Problem:
        return self.task.problem(self.task.data(self.number))

    @cached_property
    def _private(self) -> PrivateSteps | None:
        """Its own promise about its own data, whatever the server asks for."""
        task, options, sizes = self.task, self.task.options, self._problem.losses.sizes
        if options.privacy is None or sizes is None:
            return None
        shape, fewest = tuple(task.start.shape), int(sizes.min())
        planned = options.rounds, options.local_steps, options.batch_size
        return PrivateSteps.plan(options.privacy, task.algorithm, task.constraint, shape, fewest, *planned)

    def handle(self, order: Order, began: float | None = None) -> Answer:
        """The answer to an order; ``began`` is when work on it began, by `time.perf_counter`, for the log.

        Raises
        ------
        MessageError
            If the order makes no sense.
        """
        began = time.perf_counter() if began is None else began
        if order.client != self.number:
            raise MessageError(f"an order for client {order.client} came to client {self.number}")
        if order.ask not in (STEP, GRADIENT):
            raise MessageError(f"asked for {order.ask!r}, expected {STEP} or {GRADIENT}")
        store = ClientStore(self.folder, order.run, self.number)
        try:
            with store.alone():
                event, answer = self._answer(order, store)
                spent = None if self._private is None else store.budget()
        except NonFiniteError:
            raise NonFiniteError(f"round {order.t}: NaN or infinity at client {self.number}", [self.number]) from None
        epsilon = {} if spent is None or self._private is None else {"epsilon": self._private.epsilon(spent.released)}
        seconds = time.perf_counter() - began
        store.note(round=order.t, event=event, counted=order.counted, seconds=seconds, at=time.time(), **epsilon)
        return answer

    def _answer(self, order: Order, store: ClientStore) -> tuple[str, Answer]:
        memory = store.load()
        if self.leaving:
            store.forget()
            return LEAVING, self._plain(order, LEAVING)
        if memory is not None:
            if memory.pending is not None and memory.answer is not None and order.t == memory.pending.t:
                if order.ask == STEP and memory.handed == _handed(order):
                    return "repeated", memory.answer
            elif order.t <= max(memory.counted.t, 0 if memory.pending is None else memory.pending.t):
                return OUTDATED, self._plain(order, OUTDATED)
        counted = self._counted(order, memory)
        if counted is None:
            return LOST, self._plain(order, LOST)
        xbar = decode_down(order.model, counted.xbar)
        if digest(xbar) != order.model_digest:
            return LOST, self._plain(order, LOST)
        if order.ask == GRADIENT:
            if self.task.options.privacy is not None:
                raise MessageError("asked for a gradient in a private run")
            loss, a = self._gradient(order)(xbar[None], full=True)
            return GRADIENT, Answer(
                order.run,
                order.t,
                self.number,
                GRADIENT,
                encode_vector(a[0]),
                digest(counted.state["x"][0]),
                float(loss),
            )
        if self._private is not None and not self._may_release(order, store, counted.state, xbar):
            return "budget spent", self._plain(order, LEAVING)
        state, answer = self._step(order, counted.state, xbar, store)
        store.save(Memory(counted, Step(order.t, state, xbar), answer, _handed(order)))
        undone = memory is not None and memory.pending is not None and counted is memory.counted
        return "restored" if order.memory else "undone, then stepped" if undone else "stepped", answer

    def _counted(self, order: Order, memory: Memory | None) -> Step | None:
        """What this client holds by the server's account; None where it does not have that."""
        if order.memory:
            held = None if memory is None else memory.at(order.counted)
            kept = held.state if held is not None else {} if memory is None else memory.counted.state
            handed = {name: decode_vector(data, self.task.start)[None] for name, data in order.memory.items()}
            begun = self.task.algorithm.start_clients(handed["x"])
            return Step(order.counted, begun | kept | handed, self.task.start if held is None else held.xbar)
        if memory is None:
            start = self.task.start
            return Step(0, self.task.algorithm.start_clients(start[None].clone()), start) if not order.counted else None
        return memory.at(order.counted)

    def _may_release(self, order: Order, store: ClientStore, state: State, xbar: Tensor) -> bool:
        """Whether a step fits into the budget; if so it is spent, before anything is drawn.

        What a server asks for must not make noise small or sums overflow: points lie in the set, weights in (0, 1].
        """
        assert self._private is not None
        constraint = self.task.constraint
        lost = order.t if order.counted or order.memory else order.t - 1
        inside = constraint.contains(xbar, 1e-3) and constraint.contains(state["x"][0], 1e-3)
        finite = all(bool(value.isfinite().all()) for value in state.values())
        if not (inside and finite and 0 < order.weight <= 1):
            raise MessageError("a private client is sent points outside of the set, or a weight outside of (0, 1]")
        spent = store.budget()
        if spent is None:  # a disk that was lost may have held a release in each round so far
            spent = Budget(lost, self._private.signature, 0.0)
        if spent.promise != self._private.signature or spent.released >= self._private.most_rounds:
            return False
        store.spend(Budget(spent.released + 1, spent.promise, max(spent.weight, order.weight)))
        return True

    def _step(self, order: Order, state: State, xbar: Tensor, store: ClientStore) -> tuple[State, Answer]:
        task, plan = self.task, self.task.plan_for(order.n)
        vectors = {name: decode_vector(data, xbar) for name, data in order.vectors.items()}
        message = Message(order.t, xbar, vectors, wants_evidence=self._may_tell(order))
        before = digest(state["x"][0])
        tol = None if plan.schedule is None else plan.oracle_tol(order.t)
        spent = store.budget() if self._private is not None else None
        gradient = self._gradient(order, None if spent is None else spent.weight)
        lmo: Callable[[Tensor], Atom] = partial(task.constraint.lmo, batch=True, tol=tol)
        if isinstance(gradient, PrivateGradient):
            lmo = gradient.lmo(task.constraint, tol)
        after, atoms, evidence = task.algorithm.client_step(plan, state, message, gradient, lmo)
        told = self._told(order, xbar, evidence)
        return after, Answer(order.run, order.t, self.number, ATOM, task.encode(atoms), before, *told)

    def _may_tell(self, order: Order) -> bool:
        return order.tell and self.task.options.batch_size is None and self._private is None

    def _told(self, order: Order, xbar: Tensor, evidence: Evidence | None) -> tuple[float | None, float | None]:
        """w_i f_i(xbar) and the certificate's number, where the server asks and may know."""
        if not order.tell or self._private is not None:
            return None, None
        loss, _ = self._gradient(order)(xbar[None], full=True)
        return float(loss), None if evidence is None else float(evidence.number)

    def _gradient(self, order: Order, largest_weight: float | None = None) -> Oracle | PrivateGradient:
        losses, options = self._problem.losses, self.task.options
        weight = torch.tensor([order.weight], dtype=self.task.start.dtype)
        alone, own = torch.zeros(1, dtype=torch.int64), torch.tensor([self.number])
        if self._private is not None:
            largest = None if largest_weight is None else torch.full_like(weight, largest_weight)
            return self._private.gradient(losses, weight, alone, order.t, own, largest)
        everyone = max(order.n, self.number + 1)  # the draw is for all clients at once, as in a simulation
        sizes = None if losses.sizes is None else losses.sizes.expand(everyone)
        pick = minibatches(options.seed, order.t, options.local_steps, sizes, options.batch_size, own)
        return Oracle(losses, weight, alone, pick, order.t)

    def _plain(self, order: Order, kind: str) -> Answer:
        return Answer(order.run, order.t, self.number, kind)
