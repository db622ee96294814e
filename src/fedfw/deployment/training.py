"""The rounds of a training: orders to clients, checks of every answer, and the server's steps.

The transport and the disk are elsewhere. A round is `open`, `take` for each answer that comes in,
`next_exchange` between its exchanges, and `close`; any transport will do. The steps of a round are
those of `fedfw.rounds.coordinator`:

    open            Coordinator.open, announce     -> an order for each client
    take            one answer, checked by itself  -> accepted, or refused with a reason
    next_exchange   Coordinator.close, announce    -> the orders of the next exchange
    close           Coordinator.close              -> the round's record
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from fedfw.algorithms.curvature import REPORTED
from fedfw.algorithms.optin import GathersGradients
from fedfw.algorithms.rules import Rates
from fedfw.deployment.events import Events, Mail
from fedfw.deployment.membership import Membership
from fedfw.deployment.messages import Answer, Kind, Order, serial_of
from fedfw.deployment.records import DeployedRecord, record_round
from fedfw.deployment.refusal import Refusal
from fedfw.deployment.settings import Deployment
from fedfw.deployment.task import Task
from fedfw.errors import AtomError, MessageError
from fedfw.rounds.channels import Sent
from fedfw.rounds.robustness import refuse_uncertifiable
from fedfw.rounds.round import Round
from fedfw.rounds.server_steps import ServerStep
from fedfw.rounds.sums import Upload
from fedfw.rounds.vectors import encoded, narrowest
from fedfw.rounds.wire import digest, state_digest

INSIDE = 1e-3
"""How far outside of the set, relative to its size, xbar may be: the rounding of thousands of
rounds stays below it.
"""


class TrainingServer(Membership):
    """The server of one training, which lasts as long as its process; `DeployedServer` keeps it on
    disk. Parameters and attributes are those of `Membership`.
    """

    def __init__(self, task: Task, settings: Deployment | None = None) -> None:
        super().__init__(task, settings)
        self._mail = Mail()
        self._now: Round | None = None
        self._judge = None if task.test is None else task.problem(task.test)
        refuse_uncertifiable(self._judge, task.options)

    # --- orders ---

    def open(self, online: Collection[int]) -> dict[int, Order]:
        """Return the orders of the next round's first exchange, by client: for the clients that
        take part in the round and whose nodes are in ``online``.
        """
        while self._waiting:
            self._join(self._waiting.pop(0))
        invited = [client for client in self.wanted() if client in online]
        self._events.invited = invited
        if not invited:
            return {}
        self._now = self.coordinator.open(self.t + 1, [self.roster.rows(invited)])
        return self._announce(self._now)

    @property
    def is_last_exchange(self) -> bool:
        """Return whether the present exchange is the last one of its round; also where no round is
        open.
        """
        now = self._now
        return now is None or now.is_over or now.index + 1 == len(now.exchanges)

    def next_exchange(self) -> dict[int, Order]:
        """Take the server's step of the present exchange; return the orders of the next one, by
        client, none after the last exchange.
        """
        assert self._now is not None  # `open` has begun a round
        self._close_exchange(self._now)
        self._mail = Mail()
        return {} if self._now.is_over else self._announce(self._now)

    def _announce(self, now: Round) -> dict[int, Order]:
        """Return the orders of the round's next exchange, by client: the message, encoded as its
        difference from the last message that a client holds, or whole.
        """
        vectors = self.coordinator.announce(now).vectors
        self.coordinator.number(now)
        members = self.roster.members
        vectors_digest = digest(*(vectors[name] for name in sorted(vectors)))
        evaluated = self.settings.tell_loss and self.task.options.evaluates(now.t)
        # By the version of the message that the encoding refers to. Most clients hold the same
        # version, so that one encoding serves them all.
        encodings: dict[int, dict[str, bytes]] = {}
        orders = {}
        for row, held_version in zip(now.who.tolist(), now.bases.tolist(), strict=True):
            client = members[row]
            memory = self._memory_to_send(client, row)
            # A client whose memory was lost has no earlier message: version 0 is the whole vector.
            base = 0 if memory else held_version
            if base not in encodings:
                encodings[base] = self.coordinator.wire.write(base)
            orders[client] = Order(
                run=self.run,
                t=now.t,
                index=now.index,
                ask=now.exchange.label,
                client=client,
                n=len(members),
                weight=self.task.weight(client, members),
                counted=self.roster.counted[client],
                version=now.version,
                base=base,
                digest=vectors_digest,
                vectors=encodings[base],
                memory=memory,
                rate=self.coordinator.sent_number(now),
                report=evaluated and not isinstance(now.exchange, GathersGradients),
                **self.numbers,
            )
        now.traffic.bytes_down += sum(order.payload_nbytes for order in orders.values())
        now.traffic.evidence_down += sum(order.evidence_nbytes for order in orders.values())
        self._mail.orders = orders
        return dict(orders)

    def _memory_to_send(self, client: int, row: int) -> dict[str, bytes]:
        """Return the encoded state that a client is to hold before its step, by the names of its
        vectors (p,); an empty mapping for a client that holds its state already.
        """
        if client not in self.roster.needs_resync:
            return {}
        state = self.coordinator.memory.gather(torch.tensor([row]))  # (1, p) each
        return {
            name: encoded(values[0], precision=narrowest(values[0])).write()
            for name, values in state.items()
        }

    # --- answers ---

    def take(self, client: int | None, received: Mapping[str, Any]) -> str | None:
        """Take the answer of a client, which the transport names; return the reason for which it
        was refused, None if it was accepted.
        """
        try:
            self._take(client, received)
        except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
            # One client's answer, whatever is wrong with it, must not end the round of the others.
            reason = str(error) if isinstance(error, MessageError) else f"undecodable: {error}"
            self.refuse(client, reason)
            return reason
        return None

    def _take(self, client: int | None, received: Mapping[str, Any]) -> None:
        """Check a client's answer to its order of the present exchange, and keep what it says;
        raises `MessageError` with the reason for an answer that is not used.
        """
        now = self._now
        if now is None or client is None or client not in self._mail.orders:
            raise MessageError("unknown sender")
        answer = self._mail.read(client, received, self._most_bytes(now))
        if client in self._events.leaving:
            raise MessageError("replayed")
        if answer.kind in (Kind.LOST, Kind.OUTDATED):
            self.roster.needs_resync.add(client)
            # After a restore from an older copy, a client has been in later rounds than the server.
            if answer.kind == Kind.OUTDATED and client in self._may_be_ahead:
                self._events.ahead.add(client)
            raise MessageError(f"{answer.kind}: it will be handed its memory")
        if answer.kind == Kind.LEAVING:
            self._events.leaving.add(client)
            return
        if answer.kind == Kind.REFUSED:
            raise MessageError(f"refused: {Refusal.parse(answer.payload)}")
        if answer.kind != now.exchange.label:
            raise MessageError(f"wrong kind: {answer.kind!r}")
        try:
            self._accept(client, answer, now)
        except AtomError as error:
            raise MessageError(f"bad atom: {error}") from None

    def _accept(self, client: int, answer: Answer, now: Round) -> None:
        """Keep what a client sent, if its state before the step has the digest of the server's copy
        and its payload decodes.
        """
        memory = self.coordinator.memory
        copies = memory.view(torch.tensor([self.roster.row(client)]))  # (1, w) each
        vectors = {name: values[0] for name, values in copies.items()}
        if answer.digest != state_digest(vectors, memory.columns):
            self.roster.needs_resync.add(client)
            raise MessageError("diverged: its state is not the one that was counted")
        gathers = isinstance(now.exchange, GathersGradients)
        if gathers and answer.number is None:
            raise MessageError("undecodable: no loss")
        if not self._mail.orders[client].report:
            # A loss or a certificate that was not asked for is not used; where gradients are
            # gathered, the number is the loss that every client sends with its gradient.
            number = answer.number if gathers else None
            answer = replace(answer, loss=None, number=number, convex=None)
        self._mail.sent[client] = self._decode(answer.payload, now)
        self._mail.answers[client] = answer

    def _decode(self, payload: bytes, now: Round) -> Sent:
        run = self.coordinator.run
        return self.task.decode(payload, self.method, now.exchange, run, now.message)

    def _most_bytes(self, now: Round) -> int:
        """Return an upper limit of the bytes of an honest answer to the present exchange: an atom
        for each local step, a vector for each upload, REPORTED numbers on the curvature, each of
        8 bytes an entry, and 4096 bytes for all else.
        """
        vectors = self.task.options.local_steps + len(now.exchange.uploads)
        return 4096 + 8 * (len(self.task.start) * vectors + REPORTED)

    # --- the server's step ---

    def close(self, seconds: dict[str, float] | None = None) -> DeployedRecord:
        """Take the server's step of the last exchange, and write the round down.

        Where losses refute the lower bound, the training goes on without one: numbers that a client
        sends must not end it. `DeployedServer.finish` raises what refuted it.
        """
        events = self._events
        now = self._now
        rates = self._rates()
        if now is not None and not now.is_over:
            self._close_exchange(now)
            rates = now.rates
            self._withdraw_refuted_bound(events.counted)
        # A client that answered was not away, even if its round was refused because of another
        # client; the one that caused the refusal counts as away.
        answered = self._mail.sent.keys() - events.guilty
        silent = [client for client in events.invited if client not in answered]
        self.roster.count_round(events.counted, silent)
        self._may_be_ahead -= set(events.counted)
        if events.ahead:
            self._begin_anew(
                f"clients {sorted(events.ahead)} are ahead of this server, which was put back from "
                "an older copy: all are handed what it remembers of them, and go on from there "
                "under a new name of the run"
            )
        for client in sorted(events.leaving | self.roster.away_for(self.settings.leave_after)):
            self.release(client)
        judge = self._judge if self.task.options.evaluates(self.t + 1) else None
        invited = len(self._mail.orders)
        record = record_round(
            self.t + 1, self.coordinator, judge, self.task.options, now, rates, events, invited
        )
        record = replace(record, seconds=seconds)
        self.history.append(record)
        self._save_round()
        self._forget_round()
        return record

    def _withdraw_refuted_bound(self, counted: list[int]) -> None:
        """Drop the lower bound, from the records of earlier rounds, too, if the losses of the
        present round or a report of a client in ``counted`` refute it.
        """
        proof = self.coordinator.proof
        answers = {client: self._mail.answers[client] for client in counted}
        if proof.convex and self.bound.withdraw_if_refuted(self.t + 1, proof, answers):
            self.history.withdraw_bounds()
            self._note(self.bound.refuted)

    def _rates(self) -> Rates | None:
        """Return the rates (eta, lam, rho) of round t + 1 for its record; None for algorithms
        without Frank-Wolfe steps.
        """
        if self._now is not None:
            return self._now.rates
        # No client was online, so that no round was opened; the schedule has rates all the same.
        rule = self.method.rule
        if not rule.uses_oracles:
            return None
        rates_of_local_steps = rule.rates(self.coordinator.server.rule_state, self.t + 1)
        return rates_of_local_steps[0]  # a record has those of the first local step

    def _save_round(self) -> None:
        """Write the round down, before any client is sent what follows from it; here nowhere."""

    def _forget_round(self) -> None:
        """Be ready for the next round."""
        self._events = Events()
        self._mail = Mail()
        self._now = None

    def _close_exchange(self, now: Round) -> None:
        """Take the server's step of an exchange from the answers that were accepted, and note what
        was counted for the record, the journal and the lower bound.
        """
        mail = self._mail
        exchange = now.exchange
        serial = serial_of(now.t, now.index)
        answered = sorted(mail.sent)
        with_loss = all(mail.answers[client].loss is not None for client in answered)
        for upload in self._uploads(now, answered):
            now.arrive(upload, with_loss)
        step = self._feasible_step(now, answered)
        counted = answered if now.uploads else []  # `_feasible_step` clears refused uploads
        self.coordinator.close(now, step)
        self._events.count_exchange(counted, mail)
        self.roster.count_exchange(counted, serial)
        if not isinstance(exchange, GathersGradients):
            self._add_reported_loss(counted)
        elif self.coordinator.proof.convex:
            self.bound.add_gathered(self.t, now.gathered)

    def _add_reported_loss(self, counted: list[int]) -> None:
        """Add the loss F(xbar) = sum_i w_i f_i(xbar) of the model after round t to the history and
        to the checks of the lower bound, where all clients reported w_i f_i(xbar).
        """
        reported = [self._mail.answers[client].loss for client in counted]
        losses = [loss for loss in reported if loss is not None]
        # With fewer reports than clients the sum would be no value of F.
        if len(losses) == len(self.roster):
            self.bound.add_reported(self.t, losses)
            if self.history:
                self.history.amend(loss=sum(losses))

    def _uploads(self, now: Round, counted: list[int]) -> list[Upload]:
        """Return what the counted clients sent, decoded: an upload for each group of clients whose
        atoms have the same structure and can be stacked.
        """
        uploads = []
        for clients, sent, evidence in self._mail.stack(counted):
            rows = self.roster.rows(clients)
            weights = self._weights(clients)
            uploads.append(self.coordinator.decode(now, rows, sent, evidence, weights))
        return uploads

    def _feasible_step(self, now: Round, answered: list[int]) -> ServerStep | None:
        """Return the server's step from the uploads of the exchange; None without uploads, and for
        a step after which xbar would be outside of the set.

        Every answer was checked by itself, so that this is for what those checks miss. The uploads
        are then removed as if no client had answered, and clients undo their steps. A client counts
        as away where the step of all others would have been feasible.
        """
        if not now.uploads:
            return None
        step = self.coordinator.step(now, now.uploads)
        if self._is_feasible(step):
            return step
        guilty = set()
        for client in answered:
            uploads = self._uploads(now, [other for other in answered if other != client])
            if not uploads or self._is_feasible(self.coordinator.step(now, uploads)):
                guilty.add(client)
        now.uploads = []
        blame = "no one client alone is to blame"
        if len(guilty) == 1:
            blame = f"without client {min(guilty)} it would not"
        self._note(
            "the round is refused as a whole, because the model would leave the constraint set: "
            f"{blame}"
        )
        self._events.refused["spoilt round"] += len(answered)
        self._events.guilty |= guilty
        return None

    def _is_feasible(self, step: ServerStep) -> bool:
        """Return whether all vectors of the server are finite after a step, and xbar is in the
        set.
        """
        finite = all(bool(vector.isfinite().all()) for vector in step.state.values())
        xbar = step.state["xbar"].to(self.task.start.dtype)
        return finite and self.task.constraint.contains(xbar, INSIDE)
