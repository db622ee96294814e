"""Training with clients that answer, or do not: orders, checks of every answer, and rounds.

It knows nothing of Flower, nor of files. A round is `open`, `take` for each answer that comes in,
`next_exchange` between its exchanges, and `close`; any transport will do. The round itself is
`fedfw.rounds.coordinator`'s.
"""

import logging
import math
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedfw.algorithms.contract import Algorithm, Reveals, State
from fedfw.algorithms.curvature import REPORTED
from fedfw.algorithms.optin import GathersGradients
from fedfw.algorithms.rules import Rates
from fedfw.algorithms.step_sizes import reports_curvature
from fedfw.deployment.consent import CURVATURE_REPORTS, Refusal
from fedfw.deployment.events import JOIN, LEAVE, Events, Mail
from fedfw.deployment.messages import Answer, Hello, Kind, Order, refuse_oversized, serial_of
from fedfw.deployment.numbers import Reported
from fedfw.deployment.records import DeployedRecord, record_round
from fedfw.deployment.roster import Roster
from fedfw.deployment.settings import Deployment
from fedfw.deployment.task import Task
from fedfw.errors import AtomError, ContradictionError, MessageError
from fedfw.problems.known_losses import floor_of
from fedfw.problems.modules import with_parameters
from fedfw.rounds.channels import Sent
from fedfw.rounds.client_steps import Method
from fedfw.rounds.columns import TouchedColumns, treats_coordinates_alone
from fedfw.rounds.contradictions import ReportedLosses
from fedfw.rounds.coordinator import Coordinator
from fedfw.rounds.downlink import make_downlink
from fedfw.rounds.memory import ClientMemory, EveryRow
from fedfw.rounds.participation import Participation
from fedfw.rounds.records import History
from fedfw.rounds.robustness import refuse_uncertifiable
from fedfw.rounds.round import Round
from fedfw.rounds.server_steps import ServerStep
from fedfw.rounds.sums import Upload
from fedfw.rounds.wire import digest, encoded, narrowest, state_digest
from fedfw.terminal import escape_controls

_log = logging.getLogger("fedfw")
INSIDE = 1e-3
"""How far outside of the set, relative to its size, xbar may be: the rounding of thousands of
rounds stays below it.
"""
_LOWERED = 1e-3
"""Taken to be the most, relative to the largest loss, by which clients lower losses for rounding.
"""
_LONGEST_REASON = 300  # characters of what a client gave as its reason, in the log


class TrainingServer:
    """The server of one training, which lasts as long as its process; `DeployedServer` keeps it on
    disk.

    Parameters
    ----------
    task : Task
        What is trained.
    settings : Deployment
        How it is deployed.

    Attributes
    ----------
    run : str
        The training's name, by which clients keep their memory.
    roster : Roster
        The clients that there are.
    history : History
        The records so far.
    """

    def __init__(self, task: Task, settings: Deployment | None = None) -> None:
        self.task = task
        self.settings = settings or Deployment()
        self._validate_agreement()
        self.run = f"{self.settings.run_name}-{secrets.token_hex(4)}"
        self.roster = Roster(task.clients)
        self.history = History()
        # A penalty and a step size that were worked out before a restart.
        self._numbers: dict[str, float] = {}
        self._reported = Reported(task)
        self._waiting: list[int] = []  # clients that came before the first round
        self._mail = Mail()
        self._events = Events()
        self._now: Round | None = None
        self._losses = ReportedLosses(task.start.dtype)
        self.refuted = ""  # what refuted the bound; there is none from then on
        # Clients that have not been counted since a checkpoint was restored.
        self._may_be_ahead: set[int] = set()
        self._judge = None if task.test is None else task.problem(task.test)
        refuse_uncertifiable(self._judge, task.options)

    def _validate_agreement(self) -> None:
        """Refuse a task that reveals more than its settings allow."""
        algorithm = self.task.algorithm
        reveals_gradients = algorithm.reveals is Reveals.GRADIENTS
        if reveals_gradients and not self.settings.share_gradients:
            raise ValueError(
                f"{algorithm.name} shares {algorithm.shares}: deployed, gradients go to the server in the clear. "
                "share-gradients says that this is wanted"
            )
        reports = reports_curvature(algorithm)
        if reports and not (self.settings.tell_loss or reveals_gradients):
            raise ValueError(
                f"{algorithm.name} with {CURVATURE_REPORTS}: tell-loss says that clients may "
                "send such numbers; or give another schedule"
            )

    # --- what is trained ---

    @property
    def t(self) -> int:
        """Return how many rounds are done."""
        return len(self.history)

    @cached_property
    def method(self) -> Method:
        """The configured algorithm with what runs it."""
        task = self.task
        if self._numbers or not task.is_open:
            return task.method(**self._numbers)
        return task.method_of(*self._reported.configured())

    @property
    def algorithm(self) -> Algorithm:
        """Return the algorithm with its defaults filled in."""
        return self.method.algorithm

    @property
    def numbers(self) -> dict[str, float]:
        """Return the penalty and the step size that were worked out from the clients' data."""
        if not self.task.is_open:
            return {}
        found = {}
        for name in ("penalty", "lr"):
            if hasattr(self.algorithm, name):
                found[name] = getattr(self.algorithm, name)
        return found

    @cached_property
    def coordinator(self) -> Coordinator:
        """The round's own server; made when the first round begins."""
        task = self.task
        method = self.method
        n = len(self.roster)
        begun = self._begun(task.start)
        if treats_coordinates_alone(self.algorithm):
            memory: ClientMemory = TouchedColumns(n, begun)
        else:
            memory = EveryRow({name: values.repeat(n, 1) for name, values in begun.items()}, n)
        return Coordinator(
            method,
            task.run(n),
            task.start,
            memory,
            make_downlink(self.algorithm, task.start.dtype),
            convex=task.setting().convex is True,
            floor=floor_of(task.loss) if self.settings.tell_loss else None,
        )

    def _begun(self, x: Tensor) -> State:
        """Return what the server has of a client that begins at x (p,)."""
        run = self.task.run(len(self.roster))
        names = self.method.shared_names(run, x[None])
        state = self.method.init(run, x[None].clone()).flat()
        return {name: value for name, value in state.items() if name in names}

    @property
    def xbar(self) -> Tensor:
        """Return the model's parameters, (p,)."""
        return self.coordinator.server.xbar.to(self.task.start.dtype)

    @property
    def model(self) -> nn.Module:
        """Return the model at xbar."""
        return with_parameters(self.task.model, self.xbar)

    # --- who is there ---

    def meet(self, hello: Hello, node: str | None = None) -> None:
        """A client says who it is; one that was not there before, or has left, enters at xbar,
        which stays the mean.

        Parameters
        ----------
        hello : Hello
            What it says.
        node : str, optional
            What the transport knows of the sender and no sender can choose, such as what stands for
            its key. The client's number then belongs to it for good.

        Raises
        ------
        MessageError
            If the number belongs to another node, or the node has another number.
        """
        client = hello.client
        if self.task.weights is not None and client >= self.task.clients:
            raise MessageError(f"client {client} has no weight: the task names {self.task.clients}")
        if node is not None:
            self.roster.bind(client, node)
        if client in self.roster.counted:
            self._reported.note(hello)
            return
        if "coordinator" in self.__dict__:
            self._join(client)
        elif (
            client not in self._waiting
        ):  # the numbers of "auto" are of the clients that the task names
            self._waiting.append(client)

    def _join(self, client: int) -> None:
        coordinator, row = self.coordinator, self.roster.row(client)
        newcomer = self._begun(self.xbar)
        self.roster.add(client)
        coordinator.join(row, newcomer, self._weights(self.roster.members))
        self._losses.begin()
        self._events.joined.append(client)
        self._events.moves.append((JOIN, client))

    def release(self, client: int) -> None:
        """A client is gone for good: the mean is over the others."""
        if len(self.roster) == 1:
            self.roster.empty = True
            self._note(f"client {client} has left, too, and it was the last one: no client is left")
            return
        row = self.roster.row(client)
        self.roster.remove(client)
        self.coordinator.leave(row, self._weights(self.roster.members))
        self._losses.begin()
        self._events.left.append(client)
        self._events.moves.append((LEAVE, client))

    def wanted(self) -> list[int]:
        """Who is to take part in the next round, by the seed."""
        options, members = self.task.options, self.roster.members
        wanted = options.participation
        if isinstance(wanted, int) and (wanted >= len(members) or wanted == 1):
            return members  # clients came or went: no more than there are, and "one" was of one
        chosen = Participation(wanted, len(members), options.seed)(self.t + 1)
        return [members[row] for row in chosen.tolist()]

    # --- a round ---

    def open(self, online: Collection[int]) -> dict[int, Order]:
        """Return the orders of the next round's first exchange, for those clients that are wanted
        and can be reached.
        """
        events = self._events
        while self._waiting:
            self._join(self._waiting.pop(0))
        events.invited = [client for client in self.wanted() if client in online]
        if not events.invited:
            return {}
        self._now = self.coordinator.open(self.t + 1, [self.roster.rows(events.invited)])
        return self._announce(self._now)

    @property
    def is_last_exchange(self) -> bool:
        """Return whether no exchange follows on the present one."""
        now = self._now
        return now is None or now.is_over or now.index + 1 == len(now.exchanges)

    def next_exchange(self) -> dict[int, Order]:
        """Take the server's step of the present exchange; return the orders of the next one."""
        assert self._now is not None
        self._close_exchange(self._now)
        self._mail = Mail()
        if self._now.is_over:
            return {}
        return self._announce(self._now)

    def _announce(self, now: Round) -> dict[int, Order]:
        """Return the orders of the present exchange."""
        message = self.coordinator.announce(now)
        self.coordinator.number(now)
        members = self.roster.members
        vectors = message.vectors
        stands_for = digest(*(vectors[name] for name in sorted(vectors)))
        gathers = isinstance(now.exchange, GathersGradients)
        evaluated = self.task.options.evaluates(now.t)
        # Most clients hold the same message, so it is written once.
        written: dict[int, dict[str, bytes]] = {}
        orders = {}
        for row, base in zip(now.who.tolist(), now.bases.tolist(), strict=True):
            client = members[row]
            memory = self._memory_to_hand(client, row)
            since = 0 if memory else base
            if since not in written:
                written[since] = self.coordinator.wire.write(since)
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
                base=since,
                digest=stands_for,
                vectors=written[since],
                memory=memory,
                rate=self.coordinator.sent_number(now),
                report=self.settings.tell_loss and evaluated and not gathers,
                **self.numbers,
            )
        now.traffic.bytes_down += sum(order.payload_nbytes for order in orders.values())
        now.traffic.evidence_down += sum(order.evidence_nbytes for order in orders.values())
        self._mail.orders = orders
        return dict(orders)

    def _memory_to_hand(self, client: int, row: int) -> dict[str, bytes]:
        """Return what a client is sent that is to hold what the server has; nothing where it holds
        that already.
        """
        if client not in self.roster.needs_resync:
            return {}
        known = self.coordinator.memory.gather(torch.tensor([row]))
        found = {}
        for name, values in known.items():
            found[name] = encoded(values[0], precision=narrowest(values[0])).write()
        return found

    def take(self, client: int | None, received: Mapping[str, Any]) -> str | None:
        """One answer, and from which client the transport says it is; returns why it was refused,
        if it was.
        """
        try:
            self._take(client, received)
        except (
            ValueError,
            TypeError,
            RuntimeError,
            ArithmeticError,
        ) as error:  # whatever it is, the round goes on
            reason = str(error) if isinstance(error, MessageError) else f"undecodable: {error}"
            self.refuse(client, reason)
            return reason
        return None

    def refuse(self, client: int | None, reason: str) -> None:
        """Note that something that was sent is not used."""
        self._events.refused[escape_controls(reason.partition(":")[0][:40])] += 1
        # The reason holds what the client sent: repr() lets no control character reach a terminal.
        _log.warning(
            "round %d: refused from client %s: %r", self.t + 1, client, reason[:_LONGEST_REASON]
        )

    def _note(self, sentence: str) -> None:
        """Write a sentence to the log and to the round's record."""
        self._events.notes.append(sentence)
        _log.warning("round %d: %s", self.t + 1, sentence)

    def _take(self, client: int | None, received: Mapping[str, Any]) -> None:
        now = self._now
        mail = self._mail
        if now is None or client is None or client not in mail.orders:
            raise MessageError("unknown sender")
        try:
            refuse_oversized(received, self._most_bytes(now))
            answer = Answer.of(received)
        except MessageError as error:
            reason = str(error)
            raise MessageError(
                reason if reason.startswith("oversized") else f"undecodable: {reason}"
            ) from None
        if answer.run != self.run or answer.client != client:
            raise MessageError(f"wrong run or client: {answer.run!r}, {answer.client}")
        if answer.t != now.t:
            raise MessageError(f"wrong round: {answer.t}")
        if client in mail.answers or client in self._events.leaving:
            raise MessageError("replayed")
        if answer.kind in (Kind.LOST, Kind.OUTDATED):
            self.roster.needs_resync.add(client)
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
        coordinator = self.coordinator
        known = coordinator.memory.view(torch.tensor([self.roster.row(client)]))
        rows = {name: values[0] for name, values in known.items()}
        if answer.digest != state_digest(rows, coordinator.memory.columns):
            self.roster.needs_resync.add(client)
            raise MessageError("diverged: its state is not the one that was counted")
        gathers = isinstance(now.exchange, GathersGradients)
        if gathers and answer.number is None:
            raise MessageError("undecodable: no loss")
        if not self._mail.orders[client].report:  # what was not asked for is not used
            number = answer.number if gathers else None
            answer = replace(answer, loss=None, number=number, convex=None)
        self._mail.sent[client] = self._decode(answer.payload, now)
        self._mail.answers[client] = answer

    def _decode(self, payload: bytes, now: Round) -> Sent:
        run = self.coordinator.run
        return self.task.decode(payload, self.method, now.exchange, run, now.message)

    def _most_bytes(self, now: Round) -> int:
        """Return more than any honest answer to the present exchange has: an atom for each local
        step, and vectors beside.
        """
        vectors = self.task.options.local_steps + len(now.exchange.uploads)
        return 4096 + 8 * (len(self.task.start) * vectors + REPORTED)

    def _close_exchange(self, now: Round) -> None:
        """Take the server's step from what was accepted."""
        mail = self._mail
        events = self._events
        answered = sorted(mail.sent)
        for upload in self._uploads(now, answered):
            losses = [mail.answers[client].loss for client in answered]
            now.arrive(upload, with_loss=all(loss is not None for loss in losses))
        step, guilty = self._sound_step(now, answered)
        counted = answered if now.uploads else []
        serial = serial_of(now.t, now.index)
        gathers = isinstance(now.exchange, GathersGradients)
        if not gathers:
            self._learn_losses(counted)
        announced = now.version
        self.coordinator.close(now, step)
        events.guilty |= guilty
        events.count_exchange(counted, announced, mail)
        self.roster.count_exchange(counted, serial)
        if gathers and counted:
            self._add_gathered_loss(now)

    def close(self, seconds: dict[str, float] | None = None) -> DeployedRecord:
        """Take the server's step of the last exchange, and write the round down.

        Where losses refute the lower bound, the training goes on without one: numbers that a client
        sends must not end it. `DeployedServer.finish` raises what refuted it.
        """
        events = self._events
        now = self._now
        rates = self._rates(now)
        if now is not None and not now.is_over:
            self._close_exchange(now)
            rates = now.rates if now.rates is not None else rates
            self._withdraw_refuted_bound(events.counted)
        counted = events.counted
        # Where others spoil a round, a client that answered in it was not away.
        answered = set(self._mail.sent) - events.guilty
        asked = [client for client in events.invited if client not in answered]
        self.roster.count_round(counted, asked)
        self._may_be_ahead -= set(counted)
        if events.ahead:
            self._begin_anew(
                f"clients {sorted(events.ahead)} are ahead of this server, which was put back from an older copy: "
                "all are handed what it remembers of them, and go on from there under a new name of the run"
            )
        longest = self.settings.leave_after
        gone: set[int] = set()
        if longest:
            gone = {client for client, rounds in self.roster.away.items() if rounds >= longest}
        for client in sorted(events.leaving | gone):
            self.release(client)
        judge = self._judge if self.task.options.evaluates(self.t + 1) else None
        record = record_round(
            self.t + 1,
            self.coordinator,
            judge,
            self.task.options,
            now,
            rates,
            events,
            len(self._mail.orders),
            seconds,
        )
        self.history.append(record)
        self._keep(counted)
        self._events = Events()
        self._mail = Mail()
        self._now = None
        return record

    def _rates(self, now: Round | None) -> Rates | None:
        """Return the rates of the present round, where it has Frank-Wolfe steps."""
        rule = self.method.rule
        if not rule.uses_oracles:
            return None
        if now is not None and now.rates is not None:
            return now.rates
        return rule.rates(self.coordinator.server.rule, self.t + 1)[0]

    def _withdraw_refuted_bound(self, counted: list[int]) -> None:
        """Hold and report no bound any more, for no round, if the present round refutes it."""
        if not self.coordinator.proof.convex:
            return
        t, bound = self.t + 1, self.coordinator.best_bound
        clients = [client for client in counted if self._mail.answers[client].convex is False]
        error = self._losses.compare(t, bound, self.coordinator.proof.floor)
        if clients:
            error = ContradictionError(
                f"round {t}: the losses of clients {clients} are not convex: each lies below a tangent "
                f"of it, as the client's own log says with the numbers. So {bound} is no lower bound on "
                "the optimum, and none is reported. Likely cause: convex=True is stated for a loss that "
                "is not convex. State convex=False in the task: it then goes without a certificate"
            )
        if error is None:
            return
        self.refuted = str(error)
        self.coordinator.proof.withdraw()
        self.history.withdraw_bounds()
        self._note(self.refuted)

    def _keep(self, counted: list[int]) -> None:
        """Called at the end of a round in which these clients were counted, before any client hears of
        it.
        """

    def _sound_step(self, now: Round, answered: list[int]) -> tuple[ServerStep | None, set[int]]:
        """Return the step from what arrived, or none and which client alone is to blame: xbar is
        not kept or sent outside of the set.

        Every answer was checked by itself, so this is for what those checks miss. The exchange then
        is as if no client had answered, and clients undo their steps.
        """
        if not now.uploads:
            return None, set()
        step = self.coordinator.step(now, now.uploads)
        if self._is_sound(step):
            return step, set()
        guilty = set()
        for client in answered:
            others = self._uploads(now, [other for other in answered if other != client])
            if not others or self._is_sound(self.coordinator.step(now, others)):
                guilty.add(client)
        now.uploads = []
        blame = "no one client alone is to blame"
        if len(guilty) == 1:
            blame = f"without client {min(guilty)} it would not"
        self._note(
            f"the round is refused as a whole, because the model would leave the constraint set: {blame}"
        )
        self._events.refused["spoilt round"] += len(answered)
        return None, guilty

    def _is_sound(self, step: ServerStep) -> bool:
        """Return whether all vectors of the server are finite after a step, and xbar is in the set."""
        finite = all(bool(vector.isfinite().all()) for vector in step.state.values())
        xbar = step.state["xbar"].to(self.task.start.dtype)
        return finite and self.task.constraint.contains(xbar, INSIDE)

    def _uploads(self, now: Round, counted: list[int]) -> list[Upload]:
        """Return what was accepted, stacked by the structure of the atoms."""
        uploads = []
        for clients, sent, evidence in self._mail.stack(counted):
            rows = self.roster.rows(clients)
            weights = self._weights(clients)
            uploads.append(self.coordinator.decode(now, rows, sent, evidence, weights))
        return uploads

    def _weights(self, clients: list[int]) -> Tensor | None:
        """n w_i of some clients, (m,); None where all clients count the same."""
        if self.task.weights is None:
            return None
        shares = [self.task.weight(client, self.roster.members) for client in clients]
        return torch.tensor(shares, dtype=self.task.start.dtype) * len(self.roster)

    def _learn_losses(self, counted: list[int]) -> None:
        """Clients report their losses at xbar, which is the model after the round before."""
        losses = [self._mail.answers[client].loss for client in counted]
        reported = [loss for loss in losses if loss is not None]
        if len(reported) == len(self.roster):
            self._losses.add_loss(self.t, math.fsum(reported))
            if self.history:
                self.history.amend(loss=sum(reported))

    def _add_gathered_loss(self, now: Round) -> None:
        """Take in F(xbar) where clients reported it with a sum."""
        gathered = now.gathered
        if gathered is None or gathered.gradient is None or not self.coordinator.proof.convex:
            return
        # In float32 every client lowers its loss by what rounding can change of its gradient
        # anywhere in the set; how much that is the server cannot tell.
        single = self.task.start.dtype is torch.float32
        allowed = _LOWERED if single else self._losses.allowed
        self._losses.add_loss(self.t, gathered.loss, allowed)

    def _begin_anew(self, why: str) -> None:
        """Give the run another name: clients may be ahead of this server, and rightly refuse to go
        back in a run.

        The name is new, or a second copy would meet clients of the first one; its digits at the end
        stand for nothing, so clients see that their data are the same, and what they have spent of
        a privacy budget stays spent.
        """
        self._note(why)
        self.run = re.sub(r"([.][0-9]+)+$", "", self.run) + f".{secrets.randbelow(10**9)}"
        self.roster.needs_resync = set(self.roster.members)
        self._may_be_ahead = set()
