"""Training with clients that answer, or do not: orders, checks of every answer, and rounds.

It knows nothing of Flower, nor of files. A round is `ask_for_sums` (for algorithms that gather a
sum), `open`, `take` for each answer that comes in, and `close`; any transport will do. The round
itself is `fedfw.rounds.coordinator`'s.
"""

import logging
import math
import re
import secrets
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from fedfw.algorithms.channels import vector_readers
from fedfw.algorithms.contract import Algorithm, Evidence, Kept, Plan, Reveals, Upload
from fedfw.algorithms.gathering import Contributed, GathersSums
from fedfw.algorithms.steps import ServerStep, upload_of
from fedfw.atoms import Atom
from fedfw.atoms.base import stack_atoms, structure
from fedfw.deployment.consent import TOLD, Refusal
from fedfw.deployment.messages import Answer, Ask, Hello, Kind, Order, refuse_oversized
from fedfw.deployment.numbers import Reported
from fedfw.deployment.records import DeployedRecord
from fedfw.deployment.roster import Roster
from fedfw.deployment.settings import Deployment
from fedfw.deployment.task import Task, refuse_large
from fedfw.errors import AtomError, ContradictionError, MessageError
from fedfw.problems.known_losses import floor_of
from fedfw.problems.problem import with_parameters
from fedfw.rounds.columns import on_columns
from fedfw.rounds.contradictions import ReportedLosses
from fedfw.rounds.coordinator import Coordinator, Round
from fedfw.rounds.memory import ClientMemory, EveryRow, TouchedColumns
from fedfw.rounds.participation import Participation
from fedfw.rounds.records import History
from fedfw.rounds.robustness import certified, refuse_uncertifiable
from fedfw.rounds.wire import digest, encoded, narrowest, point_digest
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
JOIN, LEAVE, STEP = "join", "leave", "step"
"""What moves the coordinator."""


@dataclass
class Exchange:
    """The orders of the present round and the answers that were accepted."""

    invited: list[int] = field(default_factory=list)
    orders: dict[int, Order] = field(default_factory=dict)
    contributions: dict[int, Contributed] = field(default_factory=dict)
    atoms: dict[int, Atom] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)
    joined: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    ahead: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    moves: list[tuple[str, int]] = field(default_factory=list)
    """What moved the coordinator, in order: clients that joined and left, and the step of round t.
    """
    sum_version: int = 0
    """The version of the message that asked for sums."""


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
        self.task, self.settings = task, settings or Deployment()
        self._refuse_what_was_not_agreed()
        self.run = f"{self.settings.run_name}-{secrets.token_hex(4)}"
        self.roster = Roster(task.clients)
        self.history = History()
        self._numbers: dict[
            str, float
        ] = {}  # a penalty and a step size that were worked out before a restart
        self._reported = Reported(task)
        self._waiting: list[int] = []  # clients that came before the first round
        self._exchange = Exchange()
        self._now: Round | None = None
        self._losses = ReportedLosses(task.start.dtype)
        self.refuted = ""  # what refuted the bound; there is none from then on
        self._may_be_ahead: set[int] = (
            set()
        )  # clients that have not been counted since a checkpoint was restored
        self._judge = None if task.test is None else task.problem(task.test)
        refuse_uncertifiable(self._judge, task.options)

    def _refuse_what_was_not_agreed(self) -> None:
        algorithm, contract = self.task.algorithm, self.task.algorithm.contract
        if contract.reveals is Reveals.GRADIENTS and not self.settings.share_gradients:
            raise ValueError(
                f"{algorithm.name} shares {contract.shares}: deployed, gradients go to the server in the clear. "
                "share-gradients says that this is wanted"
            )
        if algorithm.tells and not (
            self.settings.tell_loss or contract.reveals is Reveals.GRADIENTS
        ):
            raise ValueError(
                f"{algorithm.name} with {TOLD}: tell-loss says that clients may send such numbers; or give another "
                "schedule"
            )

    # --- what is trained ---

    @property
    def t(self) -> int:
        """Rounds that are done."""
        return len(self.history)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm with its defaults filled in."""
        task = self.task
        if self._numbers or not task.is_open:
            return task.resolved(**self._numbers)
        return self._reported.resolved()

    @cached_property
    def coordinator(self) -> Coordinator:
        """The round's own server; made when the first round begins."""
        task, n = self.task, len(self.roster)
        begun = self.algorithm.contract.rebuilt(
            self.algorithm.start_clients(task.start[None].clone())
        )
        if self.algorithm.is_coordinatewise:
            memory: ClientMemory = TouchedColumns(n, begun)
        else:
            memory = EveryRow({name: values.repeat(n, 1) for name, values in begun.items()})
        convex = task.setting().convex is True
        plan, floor = (
            task.plan(self.algorithm, n),
            floor_of(task.loss) if self.settings.tell_loss else None,
        )
        return Coordinator(self.algorithm, plan, task.start, memory, convex=convex, floor=floor)

    @property
    def plan(self) -> Plan:
        """For the clients that there are now."""
        return self.coordinator.plan

    @property
    def xbar(self) -> Tensor:
        """The model's parameters, (p,)."""
        return self.coordinator.server.xbar.to(self.task.start.dtype)

    @property
    def model(self) -> nn.Module:
        """The model at xbar."""
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
        newcomer = self.algorithm.contract.rebuilt(
            self.algorithm.start_clients(self.xbar[None].clone())
        )
        self.roster.add(client)
        coordinator.join(row, newcomer, self._weights(self.roster.members))
        self._losses.begin()
        self._exchange.joined.append(client)
        self._exchange.moves.append((JOIN, client))

    def release(self, client: int) -> None:
        """A client is gone for good: the mean is over the others."""
        if len(self.roster) == 1:
            self.roster.deserted = True
            self._note(
                f"client {client} has left, too, and it was the last one: nobody trains any more"
            )
            return
        row = self.roster.row(client)
        self.roster.remove(client)
        self.coordinator.leave(row, self._weights(self.roster.members))
        self._losses.begin()
        self._exchange.left.append(client)
        self._exchange.moves.append((LEAVE, client))

    def wanted(self) -> list[int]:
        """Who is to take part in the next round, by the seed."""
        options, members = self.task.options, self.roster.members
        wanted = options.participation
        if isinstance(wanted, int) and (wanted >= len(members) or wanted == 1):
            return members  # clients came or went: no more than there are, and "one" was of one
        chosen = Participation(wanted, len(members), options.seed)(self.t + 1)
        return [members[row] for row in chosen.tolist()]

    # --- a round ---

    def ask_for_sums(self, online: Collection[int]) -> dict[int, Order]:
        """Orders for contributions to a sum, in the rounds that begin with one; else none."""
        self._open_round(online)
        now = self._now
        if now is None or not self.coordinator.gathers(now):
            return {}
        self.coordinator.ask_for_sums(now, count=False)
        self._exchange.sum_version = now.version
        return self._send(now, Ask.SUM, {"xbar": self.coordinator.server.xbar})

    def open(self, online: Collection[int]) -> dict[int, Order]:
        """The orders of the next round, for those that are wanted and can be reached."""
        if self._now is None:
            self._open_round(online)
        now, exchange = self._now, self._exchange
        if now is None:
            return {}
        if self.coordinator.gathers(now):
            present = sorted(exchange.contributions)
            if not present:
                exchange.orders = {}
                return {}
            self.coordinator.gather(now, [self.roster.rows(present)], [self._contributed(present)])
            self._add_gathered_loss(now)
        message = self.coordinator.announce(now)
        self.coordinator.number(now)
        return self._send(now, Ask.STEP, self.coordinator.vectors(message))

    def _contributed(self, clients: Collection[int]) -> Contributed:
        """What clients contributed to the sum, as one stack."""
        sent = [self._exchange.contributions[client] for client in clients]
        short = [one.sent for one in sent if one.sent is not None]
        loss, vectors = (
            torch.cat([one.loss for one in sent]),
            torch.cat([one.vector for one in sent]),
        )
        return Contributed(
            loss, vectors, stack_atoms([atom[0] for atom in short]) if short else None
        )

    def _contribution(self, loss: Tensor, payload: bytes, row: Tensor) -> Contributed:
        """What one client contributed, from what it sent and from what the server knows of it."""
        algorithm = self.algorithm
        assert isinstance(algorithm, GathersSums)
        readers = vector_readers(
            algorithm, self.plan, len(self.task.start), self.t + 1, gathered=True
        )
        sent = stack_atoms([self.task.read(payload, readers)])
        vector = algorithm.received(self.coordinator.known(row), sent)
        refuse_large(vector)
        return Contributed(loss, vector, sent)

    def _open_round(self, online: Collection[int]) -> None:
        exchange = self._exchange
        while self._waiting:
            self._join(self._waiting.pop(0))
        exchange.invited = invited = [client for client in self.wanted() if client in online]
        self._now = (
            self.coordinator.open(self.t + 1, [self.roster.rows(invited)]) if invited else None
        )

    def _send(self, now: Round, ask: Ask, vectors: Mapping[str, Tensor]) -> dict[int, Order]:
        """The orders of a message for the clients of a round."""
        members, wire = self.roster.members, self.coordinator.wire
        stands_for = digest(*(vectors[name] for name in sorted(vectors)))
        evaluated = self.task.options.evaluates(now.t)
        written: dict[
            int, dict[str, bytes]
        ] = {}  # most clients hold the same message, so it is written once
        orders = {}
        for row, base in zip(now.who.tolist(), now.bases.tolist(), strict=True):
            client = members[row]
            memory = self._handed(client, row) if now.gathered is None else {}
            since = 0 if memory else base
            if since not in written:
                written[since] = wire.write(since)
            orders[client] = Order(
                run=self.run,
                t=now.t,
                client=client,
                n=len(members),
                weight=self.task.weight(client, members),
                counted=self.roster.counted[client],
                version=now.version,
                base=since,
                digest=stands_for,
                vectors=written[since],
                gathered=now.gathered is not None,
                memory=memory,
                penalty=self.plan.lam_0 if self.task.is_open else None,
                lr=self.plan.lr if self.task.is_open else None,
                eta=now.eta if ask is Ask.STEP and self.algorithm.tells else None,
                ask=ask.value,
                tell=self.settings.tell_loss and ask is Ask.STEP and evaluated,
            )
        now.traffic.bytes_down += sum(order.payload_nbytes for order in orders.values())
        now.traffic.evidence_down += sum(order.evidence_nbytes for order in orders.values())
        self._exchange.orders = orders
        return dict(orders)

    def _handed(self, client: int, row: int) -> dict[str, bytes]:
        """What a client is sent that is to hold what the server knows; nothing where it holds that
        already.
        """
        if client not in self.roster.hand_back:
            return {}
        known = self.coordinator.memory.gather(torch.tensor([row]))
        return {
            name: encoded(values[0], precision=narrowest(values[0])).write()
            for name, values in known.items()
            if self.algorithm.contract.remembers[name] is Kept.REBUILT
        }

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
        self._exchange.refused[escape_controls(reason.partition(":")[0][:40])] += 1
        # The reason holds what the client sent: repr() lets no control character reach a terminal.
        _log.warning(
            "round %d: refused from client %s: %r", self.t + 1, client, reason[:_LONGEST_REASON]
        )

    def _note(self, sentence: str) -> None:
        """Tell people, in the log and in the round's record."""
        self._exchange.notes.append(sentence)
        _log.warning("round %d: %s", self.t + 1, sentence)

    def _take(self, client: int | None, received: Mapping[str, Any]) -> None:
        now, exchange = self._now, self._exchange
        if now is None or client is None or client not in exchange.orders:
            raise MessageError("unknown sender")
        try:
            refuse_oversized(received, self._most_bytes())
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
        asked = exchange.orders[client].ask
        done: Collection[int] = exchange.answers if asked == Ask.STEP else exchange.contributions
        if client in done or client in exchange.leaving:
            raise MessageError("replayed")
        if answer.kind in (Kind.LOST, Kind.OUTDATED):
            self.roster.hand_back.add(client)
            if answer.kind == Kind.OUTDATED and client in self._may_be_ahead:
                exchange.ahead.add(client)
            raise MessageError(f"{answer.kind}: it will be handed its memory")
        if answer.kind == Kind.LEAVING:
            exchange.leaving.add(client)
            return
        if answer.kind == Kind.REFUSED:
            raise MessageError(f"refused: {Refusal.told(answer.payload)}")
        if answer.kind != asked:
            raise MessageError(f"wrong kind: {answer.kind!r}")
        try:
            self._accept(client, answer, now)
        except AtomError as error:
            raise MessageError(f"bad atom: {error}") from None

    def _accept(self, client: int, answer: Answer, now: Round) -> None:
        exchange, row = self._exchange, torch.tensor([self.roster.row(client)])
        point = self.coordinator.points(row)[0]
        if answer.digest != point_digest(point, self.coordinator.memory.columns):
            self.roster.hand_back.add(client)
            raise MessageError("diverged: its x_i is not the one that was counted")
        if answer.kind == Kind.SUM:
            if answer.loss is None:
                raise MessageError("undecodable: no loss")
            loss = torch.tensor([answer.loss], dtype=torch.float64)
            exchange.contributions[client] = self._contribution(loss, answer.payload, row)
            return
        assert now.message is not None
        exchange.atoms[client] = self.task.decode(answer.payload, self.plan, now.message)
        asked = exchange.orders[client].tell  # what was not asked for is not used
        if not asked:
            answer = replace(answer, loss=None, number=None, convex=None)
        exchange.answers[client] = answer

    def _most_bytes(self) -> int:
        """More than any honest answer to the present round has: an atom for each local step, and
        vectors beside.
        """
        p = len(self.task.start)
        beside = sum(self.algorithm.sends(self.t + 1, p).values())
        return 4096 + 8 * (p * self.task.options.local_steps + beside)

    def close(self, seconds: dict[str, float] | None = None) -> DeployedRecord:
        """Make the server's step from what was accepted, and write it all down.

        Where losses refute the lower bound, the training goes on without one: numbers that a client
        sends must not end it. `DeployedServer.finish` raises what refuted it.
        """
        exchange, now = self._exchange, self._now
        plan = self.plan  # the next round may have another step size
        answered, guilty = sorted(exchange.atoms), set[int]()
        if now is not None:
            for upload in self._uploads(answered):
                now.arrive(
                    upload, with_loss=all(exchange.answers[c].loss is not None for c in answered)
                )
            step, guilty = self._sound_step(now, answered)
        counted = answered if now is not None and now.uploads else []
        restored = [
            client
            for client in counted
            if exchange.orders[client].memory and client not in exchange.joined
        ]
        if now is not None:
            self._learn_losses(counted)
            self.coordinator.close(now, step)
            exchange.moves.append((STEP, now.t))
            self._withdraw_refuted_bound(counted)
            # Clients that contributed to a sum and whose step was not counted still hold what was
            # before it.
            self.roster.hand_back |= set(exchange.contributions) - set(counted)
        # Where others spoil a round, whoever answered in it was not away.
        asked = [
            client
            for client in exchange.invited
            if client not in exchange.atoms or client in guilty
        ]
        self.roster.count(counted, self.t + 1, asked)
        self._may_be_ahead -= set(counted)
        if exchange.ahead:
            self._begin_anew(
                f"clients {sorted(exchange.ahead)} are ahead of this server, which was put back from an older copy: "
                "all are handed what it remembers of them, and go on from there under a new name of the run"
            )
        patience = self.settings.leave_after
        gone = {
            client for client, rounds in self.roster.away.items() if patience and rounds >= patience
        }
        for client in sorted(exchange.leaving | gone):
            self.release(client)
        record = self._record(counted, restored, plan, seconds)
        self.history.append(record)
        self._keep(counted)
        self._exchange, self._now = Exchange(), None
        return record

    def _withdraw_refuted_bound(self, counted: list[int]) -> None:
        """Hold and report no bound any more, for no round, if the present round refutes it."""
        if not self.coordinator.convex:
            return
        t, bound = self.t + 1, self.coordinator.best_bound
        clients = [client for client in counted if self._exchange.answers[client].convex is False]
        error = self._losses.compare(t, bound, self.coordinator.floor)
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
        self.coordinator.withdraw()
        self.history.withdraw_bounds()
        self._note(self.refuted)

    def _keep(self, counted: list[int]) -> None:
        """Called at the end of a round in which these clients were counted, before anybody hears of
        it.
        """

    def _sound_step(self, now: Round, answered: list[int]) -> tuple[ServerStep | None, set[int]]:
        """The step from what arrived, or none and who alone is to blame: xbar is not kept or sent
        outside of the set.

        Every answer was checked by itself, so this is for what those checks miss. The round then is
        as if nobody had answered, and the clients undo their steps.
        """
        if not now.uploads:
            return None, set()
        step = self.coordinator.step(now, now.uploads)
        if self._is_sound(step):
            return step, set()
        guilty = set()
        for client in answered:
            others = self._uploads([other for other in answered if other != client])
            if not others or self._is_sound(self.coordinator.step(now, others)):
                guilty.add(client)
        now.uploads, now.known = [], []
        blame = (
            f"without client {min(guilty)} it would not"
            if len(guilty) == 1
            else "no one client alone is to blame"
        )
        self._note(
            f"the round is refused as a whole, because the model would leave the constraint set: {blame}"
        )
        self._exchange.refused["spoilt round"] += len(answered)
        return None, guilty

    def _is_sound(self, step: ServerStep) -> bool:
        """Whether all vectors of the server are finite after a step, and xbar is in the set."""
        finite = all(bool(vector.isfinite().all()) for vector in step.server.vectors.values())
        return finite and self.task.constraint.contains(
            step.server.xbar.to(self.task.start.dtype), INSIDE
        )

    def _uploads(self, counted: list[int]) -> list[Upload]:
        """What was accepted, stacked by the structure of the atoms."""
        exchange, coordinator, uploads = self._exchange, self.coordinator, []
        for _, group in groupby(counted, key=lambda client: structure(exchange.atoms[client])):
            clients = list(group)
            rows, atoms = (
                self.roster.rows(clients),
                stack_atoms([exchange.atoms[client] for client in clients]),
            )
            numbers = [exchange.answers[client].number for client in clients]
            known = [number for number in numbers if number is not None]
            evidence = None
            if len(known) == len(counted):  # where everyone reported its number
                evidence = Evidence(torch.tensor(known, dtype=torch.float64), None)
            weights = self._weights(clients)
            held, columns = coordinator.known(rows), coordinator.memory.columns
            uploads.append(upload_of(self.algorithm, rows, atoms, held, evidence, weights, columns))
        return uploads

    def _weights(self, clients: list[int]) -> Tensor | None:
        """n w_i of some clients, (m,); None where all clients count the same."""
        if self.task.weights is None:
            return None
        shares = [self.task.weight(client, self.roster.members) for client in clients]
        return torch.tensor(shares, dtype=self.task.start.dtype) * len(self.roster)

    def _learn_losses(self, counted: list[int]) -> None:
        """Clients report their losses at xbar, which is the model after the round before."""
        losses = [self._exchange.answers[client].loss for client in counted]
        reported = [loss for loss in losses if loss is not None]
        if len(reported) == len(self.roster):
            self._losses.add_loss(self.t, math.fsum(reported))
            if self.history:
                self.history.amend(loss=sum(reported))

    def _add_gathered_loss(self, now: Round) -> None:
        """Take in F(xbar) where clients told it with a sum."""
        gathered = now.gathered
        if gathered is None or gathered.gradient is None or not self.coordinator.convex:
            return
        # In float32 every client lowers its loss by what rounding can change of its gradient
        # anywhere in the set; how much that is the server cannot know.
        single = self.task.start.dtype is torch.float32
        allowed = _LOWERED if single else self._losses.allowed
        self._losses.add_loss(self.t, gathered.loss, allowed)

    def _record(
        self, counted: list[int], restored: list[int], plan: Plan, seconds: dict[str, float] | None
    ) -> DeployedRecord:
        exchange, now, xbar, t = self._exchange, self._now, self.xbar, self.t + 1
        judge = self._judge if self.task.options.evaluates(t) else None
        test = None if judge is None else judge.test(xbar)
        everyone = torch.arange(len(self.roster))
        keeps = self.algorithm.contract.points
        held = on_columns(self.coordinator.server.xbar, self.coordinator.memory.columns)
        points = self.coordinator.points(everyone) if keeps else held[None]
        apart = (points.double().mean(0) - held).abs()
        return DeployedRecord(
            round=t,
            test_loss=None if test is None else test.loss,
            accuracy=None if test is None else test.accuracy,
            concordance=None if test is None else test.concordance,
            **({} if judge is None else certified(judge, xbar, self.task.options)),
            anchor_gap=None if now is None else now.anchor_gap,
            lower_bound=self.coordinator.best_bound,
            consensus=self.coordinator.memory.spread(self.coordinator.server.xbar) ** 0.5
            if keeps
            else 0.0,
            distance=0.0 if self.task.constraint.contains(xbar) else None,
            participants=len(counted),
            **({} if plan.schedule is None else vars(plan.rates(t))),
            **({} if now is None else vars(now.traffic)),
            bytes_dense=2 * len(exchange.orders) * self.coordinator.wire.dense_nbytes,
            seconds=seconds,
            invited=len(exchange.orders),
            refused=dict(exchange.refused),
            joined=list(exchange.joined),
            left=list(exchange.left),
            restored=restored,
            drift=float(apart.max()) if len(apart) else 0.0,
            digest=digest(xbar).hex(),
            notes=list(exchange.notes),
        )

    def _begin_anew(self, why: str) -> None:
        """Clients may be ahead of this server, and rightly refuse to go back in a run: it gets
        another name.

        The name is new, or a second copy would meet clients of the first one; its digits at the end
        stand for nothing, so clients know that their data are the same, and what they have spent of
        a privacy budget stays spent.
        """
        self._note(why)
        self.run = re.sub(r"([.][0-9]+)+$", "", self.run) + f".{secrets.randbelow(10**9)}"
        self.roster.hand_back, self._may_be_ahead = set(self.roster.members), set()
