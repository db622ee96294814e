"""A client: takes an order that its data's owner allows, makes one step an exchange, and never
loses or repeats one.

Its memory advances in two phases. A step is *pending* until the server's next order says that it
was counted; then it is committed, else it is undone. An order that comes again gets the same answer
again. The steps of the present round stay, with what they began from, until the next round: a
server that was restarted within the round asks for all of them again.

A private client's answers do not depend on its data but for what it releases: docs/privacy.md has
the theorem. An order is judged by itself first; what is wrong with it is a `MessageError`. Then the
data are read, which their owner has checked, then the ledger has its line, and then follows a
computation that is defined for all data. Whatever fails in between closes the promise
(`answer_order`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fedfw.deployment.consent import Consent
from fedfw.deployment.ledger import Release
from fedfw.deployment.limits import LimitError
from fedfw.deployment.local_step import LocalStep
from fedfw.deployment.messages import Answer, Hello, Kind, Order, require, round_of
from fedfw.deployment.orders import OrderedExchange, blame_order
from fedfw.deployment.private_run import PrivateRun
from fedfw.deployment.promise import PromiseClosedError
from fedfw.deployment.refusal import Refusal, RefusedError
from fedfw.deployment.store import ClientStore, Step, Stored, note_failure
from fedfw.deployment.task import Task
from fedfw.errors import MessageError, NonFiniteError
from fedfw.privacy.steps import PrivateOracles
from fedfw.problems.problem import Problem
from fedfw.rounds.setup import gradient_norm_of


def answer_refusal(
    order: Order, number: int, folder: Path, refused: RefusedError, began: float
) -> Answer:
    """Note in a client's log why it does not do what an order asks for, and return its answer, a
    constant text.

    Parameters
    ----------
    order : Order
        What was asked for.
    number, folder
        Of the client.
    refused : RefusedError
        What the owner does not allow.
    began : float
        When work on the order began, by `time.perf_counter`.
    """
    _note(
        ClientStore(folder, order.run, number),
        order,
        began,
        f"refused, because {refused.reason}: {refused}",
    )
    return Answer(order.run, order.t, number, Kind.REFUSED, payload=refused.reason.encode())


def _note(store: ClientStore, order: Order, began: float, event: str, **more: float) -> None:
    """Write to a client's log what it did about an order, and how long that took."""
    seconds = time.perf_counter() - began
    store.note(
        round=order.t,
        exchange=order.ask,
        event=event,
        counted=order.counted,
        seconds=seconds,
        at=time.time(),
        **more,
    )


class _Done(NamedTuple):
    """The outcome of an order: a word for the log, the answer, and the private release in the
    ledger, if any.
    """

    event: str
    answer: Answer
    release: Release | None = None


def answer_order(
    order: Order,
    make_client: Callable[[], Client],
    *,
    number: int,
    folder: Path,
    consent: Consent,
    began: float | None = None,
) -> Answer:
    """Return the answer to an order; under a privacy budget, and in private runs, a failure gives
    the answer of a spent budget, which reveals nothing of the data.

    Parameters
    ----------
    order : Order
        What the server asks for.
    make_client : callable
        () -> the client. It may read data, and is called where its errors stay on this machine.
    number : int
        The client's number.
    folder : Path
        Where it keeps its memory.
    consent : Consent
        What the owner of its data allows.
    began : float, optional
        When work on the order began, by `time.perf_counter`, for the client's log.

    Raises
    ------
    MessageError
        If the order makes no sense, whatever the data are.
    """
    began = time.perf_counter() if began is None else began
    client: Client | None = None
    required = consent.privacy is not None and consent.privacy.required
    try:
        if consent.privacy is None:
            with consent.limits.enforced():
                client = make_client()
                if client.task.options.promise is None:
                    return client.answer(order, began)
        # Limits are enforced inside of the promise: a job that exceeds one closes the promise, and
        # the answer is that of a spent budget.
        with (
            consent.promise(number, folder).at_work(f"run {order.run}, round {order.t}"),
            consent.limits.enforced(),
        ):
            client = make_client() if client is None else client
            if required or client.task.options.promise is not None:
                return client.answer(order, began)
        # A run without privacy, which this owner allows beside private ones.
        with consent.limits.enforced():
            return client.answer(order, began)
    except LimitError as error:
        return answer_refusal(
            order, number, folder, RefusedError(Refusal.LIMITS, str(error)), began
        )
    except PromiseClosedError as closed:
        with suppress(OSError, ValueError):  # the answer is the same where nothing can be written
            # With a cause, this order has closed the promise; without one, it was closed before.
            if closed.__cause__ is not None:
                note_failure(folder)
            _note(ClientStore(folder, order.run, number), order, began, str(closed))
    return Answer(order.run, order.t, number, Kind.LEAVING)  # as when the budget is spent


@dataclass(frozen=True)
class Client:
    """One client of a task.

    Parameters
    ----------
    task : Task
        What is trained.
    number : int
        Which of the clients it is.
    folder : Path
        Where it keeps its memory.
    leaving : bool
        Answers the next order with a farewell and forgets everything.
    consent : Consent
        What the owner of its data allows; by default that atoms are sent, and nothing else.
    """

    task: Task
    number: int
    folder: Path
    leaving: bool = False
    consent: Consent = field(default_factory=Consent)

    @cached_property
    def _problem(self) -> Problem:
        return self.task.problem(self.task.data(self.number))

    @cached_property
    def _private(self) -> PrivateRun | None:
        """Return its own promise about its own data; None in other runs."""
        privacy = self.task.options.promise
        if privacy is None:
            return None
        return PrivateRun(self.task, privacy, self._problem, self.number, self.folder, self.consent)

    @property
    def _promise(self) -> str:
        """Return all that must stay the same for a private run to go on; empty for other runs."""
        return "" if self._private is None else self._private.signature

    def hello(self) -> Hello:
        """Return the client's introduction: its number, and ||grad f_i|| at the start with L_i
        where the task needs these and the owner allows them.
        """
        if self.leaving or not (self.task.is_open and self.consent.allows_numbers(self.task)):
            return Hello(self.number, self.leaving)  # the data are not looked at
        try:
            self._admit()
        except RefusedError:
            return Hello(self.number)
        _, gradient = self._problem.value_and_gradient(self.task.start)
        smoothness = self._problem.losses.smoothness()  # (1,): L_i of this client; None if unknown
        return Hello(
            self.number,
            gradient_norm=gradient_norm_of(gradient),
            smoothness=None if smoothness is None else float(smoothness.max()),
        )

    def handle(self, order: Order, began: float | None = None) -> Answer:
        """Return the answer to an order; ``began`` is when work on it began, by
        `time.perf_counter`, for the log.

        Raises
        ------
        MessageError
            If the order makes no sense.
        """
        return answer_order(
            order,
            lambda: self,
            number=self.number,
            folder=self.folder,
            consent=self.consent,
            began=began,
        )

    def answer(self, order: Order, began: float) -> Answer:
        """Return the answer to an order, and raise errors as they are, with what they say of the
        data: callers outside of this file use `handle` or `answer_order`.
        """
        require(
            order.client == self.number,
            f"an order for client {order.client} came to client {self.number}",
        )
        ordered = OrderedExchange(self.task, order)
        with blame_order():
            ordered.validate()
            store = self._store(order)
        try:
            with blame_order():
                if not self.leaving:
                    self.consent.check(self.task)
                ordered.validate_contents()
            with store.alone():
                done = self._answer(ordered, store)
        except RefusedError as refused:
            return answer_refusal(order, self.number, self.folder, refused, began)
        except NonFiniteError:
            raise NonFiniteError(
                f"round {order.t}: NaN or infinity at client {self.number}", [self.number]
            ) from None
        epsilon = {} if done.release is None else {"epsilon": done.release.epsilon}
        _note(store, order, began, done.event, **epsilon)
        return done.answer

    def _store(self, order: Order) -> ClientStore:
        """Return where the client keeps its memory in the order's run."""
        return ClientStore(self.folder, order.run, self.number)

    def _answer(self, ordered: OrderedExchange, store: ClientStore) -> _Done:
        """Return the outcome of a valid order: a stored answer, a word on why there is none, or the
        answer of a new step, which is stored before it is returned.
        """
        order = ordered.order
        stored = store.load()
        if self.leaving:
            store.forget()
            return _Done(Kind.LEAVING, self._plain(order, Kind.LEAVING))
        if stored is not None:
            past = stored.at(order.serial)
            if past is not None and past.answer is not None and past.handed == ordered.origin:
                return _Done("repeated", past.answer)
            if order.serial <= stored.counted.serial or order.t < round_of(stored.last.serial):
                return _Done(Kind.OUTDATED, self._plain(order, Kind.OUTDATED))
        private = self._private
        if private is not None:
            private.validate_data()
            if private.has_ended(order):
                store.forget()
                return _Done("the run's promise has ended", self._plain(order, Kind.LEAVING))
        if stored is not None and stored.promise != self._promise:
            store.forget()  # what it remembers of its data was made under another promise
            stored = None
        initial = ordered.init_state(None if private is None else private.plan)
        counted = ordered.counted_step(stored, initial)
        received = ordered.received(stored)
        if counted is None or received is None:
            return _Done(Kind.LOST, self._plain(order, Kind.LOST))
        self._admit()
        release = None
        oracles = None
        if private is not None:
            release = private.release(ordered, counted.state, received)
            if release is None:
                return _Done("budget spent", self._plain(order, Kind.LEAVING))
            oracles = PrivateOracles(private.plan, self._problem.losses, release.share)
        may_report = order.report and private is None and "losses" in self.consent.share
        step = LocalStep(ordered, self._problem, oracles, may_report)
        try:
            state, answer, refuted = step.take(counted.state, received)
        except MessageError as error:
            # The order was checked before, so that this error may come from data. `MessageError`
            # would leave the promise open; any other error closes it.
            raise RuntimeError(f"{error} (after data were looked at)") from error
        after = Step(order.serial, state, received, answer, ordered.origin)
        if stored is None or order.memory or order.t > round_of(stored.last.serial):
            store.save(Stored(counted, (after,), self._promise))
        else:  # the round goes on, or is repeated by a server that was restarted
            earlier = [pending for pending in stored.pending if pending.serial < order.serial]
            store.save(Stored(stored.counted, (*earlier, after), self._promise))
        event = "stepped"
        if order.memory:
            event = "restored"
        elif stored is not None and counted is not stored.last:
            event = "undone, then stepped"  # the server has not counted the steps after `counted`
        if refuted is not None:
            event += f", without a certificate, because {refuted}"
        return _Done(event, answer, release)

    def _admit(self) -> None:
        """Count an answer that is to be computed from the data, or refuse it."""
        sizes = self._problem.losses.sizes
        samples = None if sizes is None else int(sizes.min())
        self.consent.admit(samples, self.task.options.batch_size, self.number, self.folder)

    def _plain(self, order: Order, kind: Kind) -> Answer:
        return Answer(order.run, order.t, self.number, kind)
