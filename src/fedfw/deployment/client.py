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

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedfw.algorithms.contract import Exchange, Message, State
from fedfw.algorithms.optin import GathersGradients, exchange_named, has_points, is_certifying
from fedfw.deployment.consent import Consent, Refusal, RefusedError
from fedfw.deployment.data_checks import describe_fit, keyed_digest
from fedfw.deployment.ledger import LedgerError, Release, first_name
from fedfw.deployment.limits import LimitError
from fedfw.deployment.messages import Answer, Hello, Kind, Order, round_of
from fedfw.deployment.promise import PromiseClosedError
from fedfw.deployment.store import ClientStore, Received, Step, Stored, note_failure
from fedfw.deployment.task import Task
from fedfw.errors import ContradictionError, MessageError, NonFiniteError
from fedfw.privacy.steps import PrivacyPlan, PrivateOracles
from fedfw.problems.oracles import Cohort, Gradient, Lmo, PlainOracles
from fedfw.problems.problem import Problem
from fedfw.rounds.channels import pack
from fedfw.rounds.client_steps import (
    ClientState,
    Method,
    WatchedOracles,
    sends_model,
    split,
    take_part,
)
from fedfw.rounds.contradictions import Tangents, compare_with_tangent, not_convex
from fedfw.rounds.downlink import make_downlink
from fedfw.rounds.setup import gradient_norm_of
from fedfw.rounds.wire import decoded, decoded_alone, digest, state_digest

_LEAST_WEIGHT = 2.0**-30
"""Of a private client: no federation has so many clients, and tiny numbers are where floating-point
numbers end.
"""


def _handed(order: Order) -> str:
    """Stands for what an order's step begins from, memory and message: a step from something else
    is another step.
    """
    parts = [order.ask.encode(), str(order.counted).encode(), order.digest]
    for name in sorted(order.memory):
        parts += [name.encode(), order.memory[name]]
    if order.rate is not None:
        parts.append(repr(order.rate).encode())
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


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


def _of_run(order: Order, releases: list[Release]) -> list[Release]:
    """Return the releases of an order's run, under whatever name it went on."""
    run = first_name(order.run)
    return [one for one in releases if first_name(one.run) == run]


@contextmanager
def _about_the_order() -> Iterator[None]:
    """What goes wrong in here is said of the order: nothing within looks at data."""
    try:
        yield
    except (MessageError, RefusedError):
        raise
    except (ValueError, TypeError, LookupError, RuntimeError, ArithmeticError) as error:
        raise MessageError(f"an order that cannot be read: {error}") from None


class _Done(NamedTuple):
    """What was done about an order, in a word for the log, the answer, and the private release that
    it cost.
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
    """Answer an order; under a privacy budget, and in private runs, no failure says anything of the
    data.

    Parameters
    ----------
    order : Order
        What the server asks for.
    make_client : callable
        () -> the client. It may read data, so that it is called where a failure is not told.
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
        # The limits are within the promise: one that strikes closes it, and the server learns no
        # more of it.
        with (
            consent.promise(number, folder).at_work(f"run {order.run}, round {order.t}"),
            consent.limits.enforced(),
        ):
            client = make_client() if client is None else client
            if required or client.task.options.promise is not None:
                return client.answer(order, began)
        with consent.limits.enforced():
            return client.answer(
                order, began
            )  # a run without privacy, which the owner allows as well
    except LimitError as error:
        return answer_refusal(
            order, number, folder, RefusedError(Refusal.LIMITS, str(error)), began
        )
    except PromiseClosedError as closed:
        with suppress(OSError, ValueError):  # the answer is the same where nothing can be written
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
    def _privacy(self) -> PrivacyPlan | None:
        """Its own promise about its own data, whatever the server asks for; of the data it needs
        their number alone.
        """
        task, options = self.task, self.task.options
        if options.promise is None:
            return None
        sizes = self._problem.losses.sizes
        if sizes is None:
            raise MessageError("privacy is for clients with samples; these are plain functions")
        try:
            plan = PrivacyPlan.of(
                options.promise,
                task.method().algorithm,
                task.constraint,
                shape=tuple(task.start.shape),
                fewest_samples=int(sizes.min()),
                rounds=options.rounds,
                local_steps=options.local_steps,
                batch_size=options.batch_size,
            )
            plan.epsilon(plan.most_rounds)  # what cannot be accounted for is refused here, too
        except (ValueError, ImportError, ArithmeticError, RuntimeError) as error:
            raise MessageError(f"the options of the run make no promise: {error}") from None
        return plan

    @cached_property
    def _promise(self) -> str:
        """All that must stay the same for a private run to go on, the data among them; empty for
        other runs.
        """
        plan = self._privacy
        if plan is None:
            return ""
        task = self.task
        cut = f"one of {task.clients} clients, {task.division or 'no division named'}"
        return f"{plan.signature}; {cut}; data {self._data}"

    @cached_property
    def _data(self) -> str:
        """The keyed digest of its data, which stays on its disk."""
        try:
            secret = self.consent.secret(self.number, self.folder)
        except (OSError, ValueError) as error:
            raise RefusedError(Refusal.LEDGER, f"no secret of the owner: {error}") from None
        return keyed_digest(secret, self._problem.losses.data())

    def hello(self) -> Hello:
        """What it says of itself: its number, and two numbers of its data where they are needed and
        allowed.
        """
        if self.leaving or not (self.task.is_open and self.consent.allows_numbers(self.task)):
            return Hello(self.number, self.leaving)  # the data are not looked at
        try:
            self._admit()
        except RefusedError:
            return Hello(self.number)
        _, gradient = self._problem.value_and_gradient(self.task.start)
        each = self._problem.losses.smoothness()
        return Hello(
            self.number,
            gradient_norm=gradient_norm_of(gradient),
            smoothness=None if each is None else float(each.max()),
        )

    def handle(self, order: Order, began: float | None = None) -> Answer:
        """The answer to an order; ``began`` is when work on it began, by `time.perf_counter`, for
        the log.

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
        """The answer to an order, where failures are told as they are: call `handle` or
        `answer_order`.
        """
        if order.client != self.number:
            raise MessageError(f"an order for client {order.client} came to client {self.number}")
        with _about_the_order():
            self._validate_order(order)
            store = self._store(order)
        try:
            with _about_the_order():
                if not self.leaving:
                    self.consent.check(self.task)
                self._validate_contents(order)
            with store.alone():
                done = self._answer(order, store)
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

    def _validate_order(self, order: Order) -> None:
        """Refuse an order that no honest server sends, whatever the method's numbers are."""
        labels = [exchange.label for exchange in self.task.algorithm.all_exchanges]
        if order.ask not in labels:
            raise MessageError(f"asked for {order.ask!r}, expected {' or '.join(labels)}")
        if order.index > labels.index(order.ask):
            raise MessageError(f"exchange {order.index} of the round, which {order.ask!r} is not")
        if min(order.t, order.n, order.version) < 1 or order.base < 0 or order.counted < 0:
            raise MessageError(
                f"round {order.t}, {order.n} clients, message {order.version}: expected at least 1 of each"
            )
        if order.t > self.task.options.rounds:
            raise MessageError(f"round {order.t}, expected at most {self.task.options.rounds}")
        if order.counted >= order.serial:
            raise MessageError(f"an order of a step that was counted already: {order.counted}")
        if not 0 < order.weight <= 1:
            raise MessageError(f"a weight of {order.weight}, expected one in (0, 1]")

    def _validate_contents(self, order: Order) -> None:
        """Refuse an order whose numbers and vectors are not those of the method."""
        step = self._exchange(order)
        method = self._method(order)
        if (order.rate is not None) != method.rule.reports_curvature:
            raise MessageError(
                f"a step size of {order.rate}, expected one where and only where the server derives it"
            )
        if "xbar" not in order.vectors:
            raise MessageError("an order without the model")
        strange = sorted(order.vectors.keys() - {"xbar", *step.downloads})
        if strange:
            raise MessageError(
                f"an order with {strange[:3]}, expected {', '.join(('xbar', *step.downloads))}"
            )
        strange = sorted(order.memory.keys() - self._shared_names(order))
        if strange:
            raise MessageError(f"an order that hands {strange[:3]}, which no server can compute")

    def _answer(self, order: Order, store: ClientStore) -> _Done:
        stored = store.load()
        if self.leaving:
            store.forget()
            return _Done(Kind.LEAVING, self._plain(order, Kind.LEAVING))
        if stored is not None:
            taken = stored.at(order.serial)
            if taken is not None and taken.answer is not None and taken.handed == _handed(order):
                return _Done("repeated", taken.answer)
            if order.serial <= stored.counted.serial or order.t < round_of(stored.last.serial):
                return _Done(Kind.OUTDATED, self._plain(order, Kind.OUTDATED))
        private = self.task.options.promise is not None
        if private:
            self._validate_data()
            if self._ends(order):
                store.forget()
                return _Done("the run's promise has ended", self._plain(order, Kind.LEAVING))
        if stored is not None and stored.promise != self._promise:
            store.forget()  # what it remembers of its data was made under another promise
            stored = None
        counted = self._counted(order, stored)
        received = self._received(order, stored)
        if counted is None or received is None:
            return _Done(Kind.LOST, self._plain(order, Kind.LOST))
        self._admit()
        release = None
        if private:
            release = self._release(order, counted.state, received)
            if release is None:
                return _Done("budget spent", self._plain(order, Kind.LEAVING))
        try:
            state, answer, refuted = self._step(order, counted.state, received, release)
        except MessageError as error:
            # It would leave the promise open. The order was judged before; this may come from data.
            raise RuntimeError(f"{error} (after data were looked at)") from error
        step = Step(order.serial, state, received, answer, _handed(order))
        if stored is None or order.memory or order.t > round_of(stored.last.serial):
            store.save(Stored(counted, (step,), self._promise))
        else:  # the round goes on, or is repeated by a server that was restarted
            earlier = [one for one in stored.pending if one.serial < order.serial]
            store.save(Stored(stored.counted, (*earlier, step), self._promise))
        undone = stored is not None and counted is not stored.last
        event = "restored" if order.memory else "undone, then stepped" if undone else "stepped"
        if refuted is not None:
            event += f", without a certificate, because {refuted}"
        return _Done(event, answer, release)

    def _admit(self) -> None:
        """Count an answer that is to be computed from the data, or refuse it."""
        sizes = self._problem.losses.sizes
        samples = None if sizes is None else int(sizes.min())
        self.consent.admit(samples, self.task.options.batch_size, self.number, self.folder)

    def _validate_data(self) -> None:
        """Refuse to take part with data that their owner, who has given them a budget, has not
        checked.
        """
        if self.consent.privacy is None or self.consent.folder is None:
            return
        fit = describe_fit(self.task)
        if not self.consent.checks(self.number, self.folder).hold(self._data, fit):
            raise RefusedError(
                Refusal.UNCHECKED,
                f"the data were changed, or never checked for {fit}: run 'fedfw deploy check-data'",
            )

    def _ends(self, order: Order) -> bool:
        """Whether the run's promise has ended, because something of it is not as it was; that is
        for good.

        The ledger has a line of it, which spends nothing.
        """
        ended: list[bool] = []

        def end(so_far: list[Release]) -> Release | None:
            own = _of_run(order, so_far)
            changed = bool(own) and own[-1].promise != self._promise
            ended.append(changed or any(one.ended for one in own))
            return (
                replace(own[-1], run=order.run, ended=True)
                if changed and not own[-1].ended
                else None
            )

        self._record(end)
        return ended[0]

    def _counted(self, order: Order, stored: Stored | None) -> Step | None:
        """What this client holds by the server's account; None where it does not have that."""
        nothing = Received(0, {})
        begun = self._begun(order)
        if order.memory:
            held = None if stored is None else stored.at(order.counted)
            kept: State = {}
            if held is not None:
                kept = held.state
            elif stored is not None:
                kept = stored.counted.state
            handed = {}
            with _about_the_order():
                for name, data in order.memory.items():
                    handed[name] = decoded_alone(data, begun[name][0])[None]
            received = nothing if held is None else held.received
            return Step(order.counted, begun | kept | handed, received)
        if stored is None:
            return Step(0, begun, nothing) if not order.counted else None
        return stored.at(order.counted)

    def _begun(self, order: Order) -> State:
        """Return the state of this client before its first step."""
        with _about_the_order():
            start = self.task.start[None].clone()
            state = self._method(order).init(self.task.run(order.n), start)
        if self._privacy is not None:
            private = self._privacy.in_float64(state.client.private)
            state = state._replace(client=state.client._replace(private=private))
        return state.flat()

    def _received(self, order: Order, stored: Stored | None) -> Received | None:
        """The order's message; None where it refers to one that this client does not have, or is
        not what was meant.
        """
        known = (
            Received(0, {})
            if not order.base
            else None
            if stored is None
            else stored.message(order.base)
        )
        if known is None:
            return None
        run = self.task.run(order.n)
        with _about_the_order():
            algorithm = self._method(order).algorithm
            zero = torch.zeros_like(algorithm.init_server(run, self.task.start)["xbar"])
            vectors = {
                name: decoded(data, known.vectors.get(name, zero))
                for name, data in order.vectors.items()
            }
        if digest(*(vectors[name] for name in sorted(vectors))) != order.digest:
            return None
        return Received(order.version, vectors)

    def _release(self, order: Order, state: State, received: Received) -> Release | None:
        """The release that a step costs, in the ledger before anything is drawn; None where no
        budget is left for it.

        What a server asks for must not make noise small or sums overflow: points lie in the set,
        weights are neither tiny nor above 1, and what is added to gradients is not so large that
        noise is lost in its rounding.
        """
        assert self._privacy is not None
        private = PrivateOracles(self._privacy, self._problem.losses)
        with _about_the_order():
            constraint = self.task.constraint
            own = [state["x"][0]] if has_points(self.task.algorithm) else []
            points = [*own, received.vectors["xbar"]]
            inside = all(constraint.contains(point, 1e-3) for point in points)
            finite = all(bool(value.isfinite().all()) for value in state.values())
            if not (inside and finite and _LEAST_WEIGHT <= order.weight <= 1):
                raise MessageError(
                    "a private client is sent points outside of the set, or a weight outside of (0, 1]"
                )
            shared = self._split(order, state).client.shared
            message = self._message(order, received)
            algorithm = self._method(order).algorithm
            run = self.task.run(order.n)
            if not private.hides(algorithm, run, shared, message, self._cohort(order)):
                raise MessageError(
                    "a private client is sent vectors beside which its noise would be lost in rounding"
                )
        share = float(private.shares(self._cohort(order)))
        return self._record(lambda so_far: self._next_release(order, share, so_far))

    def _record(self, make: Callable[[list[Release]], Release | None]) -> Release | None:
        """Append to the ledger of the data what ``make`` makes of its lines, if anything."""
        ledger = self.consent.ledger(self.number, self.folder)
        try:
            if self.consent.folder is None:
                ledger.create()
            return ledger.record(make)
        except LedgerError as error:
            raise RefusedError(Refusal.LEDGER, str(error)) from None

    def _next_release(self, order: Order, share: float, so_far: list[Release]) -> Release | None:
        """The next line of the ledger, within the run's promise and within the budget of the data."""
        plan, own = self._privacy, _of_run(order, so_far)
        assert plan is not None
        earlier = own[-1].release if own else 0
        if not own and self.consent.folder is None:
            # Nothing vouches for the ledger: a disk that was lost may have held a release in each
            # round so far.
            earlier = order.t if order.counted or order.memory else order.t - 1
        if earlier >= plan.most_rounds or any(
            one.ended or one.promise != self._promise for one in own
        ):
            return None
        release = Release(
            run=order.run,
            release=earlier + 1,
            promise=self._promise,
            noise=plan.noise,
            epsilon=plan.epsilon(earlier + 1),
            delta=plan.privacy.delta,
            reserved=plan.epsilon(plan.most_rounds),
            share=max([share, *(one.share for one in own)]),
        )
        return release if self.consent.affords([*so_far, release]) else None

    def _step(
        self, order: Order, flat: State, received: Received, release: Release | None
    ) -> tuple[State, Answer, ContradictionError | None]:
        """Return the state after an exchange, the answer, and what refutes that the loss is convex."""
        task = self.task
        method = self._method(order)
        step = self._exchange(order)
        run = task.run(order.n)
        message = self._message(order, received)
        before = self._split(order, flat)
        tol = message.oracle_tol if method.rule.uses_oracles else None
        gradient, lmo = self._oracles(order, tol, release)
        gathers = isinstance(step, GathersGradients)
        proves = self._proves(order)
        tangents = Tangents(gradient) if proves and is_certifying(step) else None
        watched = WatchedOracles(gradient if tangents is None else tangents, lmo, 1, order.n)
        certify = proves
        if gathers and task.setting().convex is True:
            certify = True
            if not self._problem.works_in_float64():
                raise ValueError(
                    "the losses cannot be worked out in float64, as proofs must be: state convex=False in the task"
                )
        after, sending = take_part(method, step, run, before, message, watched, certify)
        evidence = sending.evidence
        # In float32 a loss in float64 costs more: only where there is a bound to compare it with.
        exact = evidence is not None or task.start.dtype is torch.float64
        loss = self._loss(order, message.xbar, tangents if exact else None)
        refuted = None if tangents is None else self._refuted(tangents, order.t)
        number = None if evidence is None or refuted is not None else float(evidence.number)
        answer = Answer(
            run=order.run,
            t=order.t,
            client=self.number,
            kind=order.ask,
            payload=pack(sending.sent)[0].to_bytes(),
            digest=state_digest(self._known(order, flat)),
            loss=loss,
            number=number,
            convex=None if refuted is None else False,
        )
        return after.flat(), answer, refuted

    def _proves(self, order: Order) -> bool:
        """Return whether the client's part of the certificate is wanted and can be given."""
        whole = self.task.options.batch_size is None
        convex = self.task.setting().convex is True
        return self._may_report(order) and whole and convex and self._problem.works_in_float64()

    def _refuted(self, seen: Tangents, t: int) -> ContradictionError | None:
        """What refutes that the loss is convex, if the points say so at which it was worked out."""
        pair = seen.suspicious_pair()
        if pair is None:
            return None
        alone = torch.zeros(1, dtype=torch.int64)

        def evaluate(x: Tensor) -> tuple[float, Tensor]:
            value, gradient = self._problem.losses.exactly(x[None], alone)
            return float(value[0]), gradient[0]

        found = compare_with_tangent(evaluate, *pair)
        if not found.refuted:
            return None
        return not_convex(f"the loss of client {self.number}", f"round {t}", found)

    def _message(self, order: Order, received: Received) -> Message:
        rule = self._method(order).rule
        rates = rule.rates(rule.from_sent(order.rate), order.t)
        step, shares = rule.net_step(rates)
        return Message(order.t, received.vectors, rates, step, shares, rule.oracle_tol(rates))

    def _may_report(self, order: Order) -> bool:
        return order.report and self._privacy is None and "losses" in self.consent.share

    def _loss(self, order: Order, xbar: Tensor, tangents: Tangents | None) -> float | None:
        """w_i f_i(xbar), where the server asks and may know; in float64 where it is compared."""
        method = self._method(order)
        shortens = make_downlink(method.algorithm, self.task.start.dtype).compressor is not None
        run = self.task.run(order.n)
        if not self._may_report(order) or not sends_model(method, run, self.task.start, shortens):
            return None
        if tangents is not None:
            return float(tangents(xbar[None], exact=True)[0])
        gradient, _ = self._oracles(order, None)
        return float(gradient(xbar[None], full=True)[0])

    def _cohort(self, order: Order) -> Cohort:
        exact = torch.tensor([order.weight], dtype=torch.float64)
        alone, own = torch.zeros(1, dtype=torch.int64), torch.tensor([self.number])
        return Cohort(alone, exact.to(self.task.start.dtype), own, self.task.constraint, exact)

    def _oracles(
        self, order: Order, tol: float | None, release: Release | None = None
    ) -> tuple[Gradient, Lmo]:
        losses, options, cohort = self._problem.losses, self.task.options, self._cohort(order)
        if self._privacy is not None:
            share = 0.0 if release is None else release.share
            return PrivateOracles(self._privacy, losses, share).pair(cohort, order.t, tol)
        everyone = max(
            order.n, self.number + 1
        )  # the draw is for all clients at once, as in a simulation
        sizes = None if losses.sizes is None else losses.sizes.expand(everyone)
        plain = PlainOracles(losses, options.local_steps, options.batch_size, options.seed, sizes)
        return plain.pair(cohort, order.t, tol)

    def _method(self, order: Order) -> Method:
        """Return the method of its own task; the server's numbers count only where the task leaves
        them open.
        """
        return self.task.method(order.penalty, order.lr)

    def _exchange(self, order: Order) -> Exchange:
        exchange = exchange_named(self._method(order).algorithm, order.ask)
        assert exchange is not None  # `_validate_order` has compared the label
        return exchange

    def _shared_names(self, order: Order) -> frozenset[str]:
        start = self.task.start[None]
        return self._method(order).shared_names(self.task.run(order.n), start)

    def _split(self, order: Order, flat: State) -> ClientState:
        return split(flat, self._shared_names(order))

    def _known(self, order: Order, flat: State) -> dict[str, Tensor]:
        """Return the part of its state that the server has, too."""
        names = self._shared_names(order)
        return {name: value[0] for name, value in flat.items() if name in names}

    def _plain(self, order: Order, kind: Kind) -> Answer:
        return Answer(order.run, order.t, self.number, kind)
