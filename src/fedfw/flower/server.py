"""The server: hands out orders, checks every answer, keeps xbar the mean of all x_i, and survives its own death.

It knows nothing of Flower. A round is `open`, `take` for each answer that comes in, `close`; any transport will do.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from fedfw.algorithms.base import Message, Plan, Server, Upload
from fedfw.algorithms.oracle_steps import OracleAlgorithm
from fedfw.atoms.base import stack_atoms, structure
from fedfw.certificates import LowerBound, frank_wolfe_gap
from fedfw.errors import AtomError, MessageError
from fedfw.flower.client import digest
from fedfw.flower.downlink import Downlink, repeatable_step
from fedfw.flower.messages import (
    ATOM,
    GRADIENT,
    LEAVING,
    LOST,
    OUTDATED,
    SCHEMA,
    STEP,
    Answer,
    Order,
    encode_vector,
)
from fedfw.flower.records import DeployedRecord, Deployment
from fedfw.flower.roster import Roster
from fedfw.flower.round import Round
from fedfw.flower.task import Task
from fedfw.problems.problem import with_parameters
from fedfw.simulation.history import History
from fedfw.simulation.participation import Participation
from fedfw.simulation.setup import fingerprint
from fedfw.simulation.storage import RunFolder

_log = logging.getLogger("fedfw")


class Coordinator:
    """The server of one training."""

    def __init__(self, task: Task, settings: Deployment = Deployment()) -> None:  # noqa: B008
        algorithm = task.algorithm
        if isinstance(algorithm, OracleAlgorithm) and algorithm.shares and not settings.share_gradients:
            raise ValueError(
                f"{algorithm.name} shares {algorithm.shares}: deployed, gradients go to the server in the clear. "
                "share-gradients says that this is wanted"
            )
        self.task, self.settings = task, settings
        self.run = f"{settings.run}-{secrets.token_hex(4)}"
        self.server = algorithm.start_server(task.start)
        self.roster = Roster(algorithm, task.start, task.clients)
        self.history = History()
        self.best_bound: float | None = None
        self.downlink = Downlink(task.start)
        self.fingerprint = fingerprint(task.plan, algorithm, task.options, task.start)
        self._bound = LowerBound(task.constraint, task.clients)
        self._refused: Counter[str] = Counter()
        self._joined: list[int] = []
        self._left: list[int] = []
        self._now = Round(1)
        self._judge = None if task.test is None else task.problem(task.test)
        self._folder = None if settings.out is None else RunFolder(settings.out, settings.resume, checkpoint_every=1)
        if self._folder is not None and settings.resume:
            self._restore(self._folder)

    @property
    def t(self) -> int:
        """Rounds that are done."""
        return len(self.history)

    @property
    def plan(self) -> Plan:
        """For the clients that there are now."""
        return self.task.plan_for(len(self.roster))

    # --- who is there ---

    def admit(self, client: int) -> None:
        """A client that was not there before enters at xbar, which stays the mean."""
        if client in self.roster.counted:
            return
        if self.task.weights is not None:
            raise MessageError(f"client {client} has no weight: the task names {self.task.clients}")
        self.roster.add(client, self.server.xbar)
        self._joined.append(client)
        self._regrouped()

    def release(self, client: int) -> None:
        """A client is gone for good: the mean is over the others."""
        if len(self.roster) == 1:
            _log.warning("client %d is the last one and stays", client)
            return
        self.roster.remove(client)
        self._left.append(client)
        self._regrouped()

    def _regrouped(self) -> None:
        before = self.server.xbar
        self.server = self.task.algorithm.regroup(self.server, self.roster.memory)
        self.downlink.moved(self._now.t, before, self.server.xbar)
        self._bound, self.best_bound = LowerBound(self.task.constraint, len(self.roster)), None  # of another F

    def wanted(self) -> list[int]:
        """Who is to take part in the next round, by the seed."""
        options, members = self.task.options, self.roster.members
        wanted = options.participation
        if isinstance(wanted, int) and (wanted >= len(members) or wanted == 1):
            return members  # clients came or went: no more than there are, and "one" was of one
        chosen = Participation(wanted, len(members), options.seed)(self.t + 1)
        return [members[row] for row in chosen.tolist()]

    # --- a round ---

    def open_anchor(self, online: Collection[int]) -> dict[int, Order]:
        """Orders for gradients at xbar, in the rounds of anchored FedFW that begin with them; else none."""
        self._now = Round(self.t + 1)
        if not self.task.algorithm.is_anchor(self._now.t):
            return {}
        self._now.orders = {client: self._order(client, GRADIENT) for client in self.wanted() if client in online}
        self._now.bytes_down = sum(order.nbytes for order in self._now.orders.values())
        return dict(self._now.orders)

    def open(self, online: Collection[int]) -> dict[int, Order]:
        """The orders of the next round, for those that are wanted and can be reached."""
        algorithm, plan, now = self.task.algorithm, self.plan, self._now
        now.wanted = self.wanted()
        invited = [client for client in now.wanted if client in online]
        if algorithm.is_anchor(now.t):
            invited = sorted(now.gradients)
            if invited:
                self._anchor(invited)
        rows = self.roster.rows(invited)
        now.before = self.server
        now.after, now.message = algorithm.broadcast(plan, self.server, rows, self.roster.memory["x"][rows], now.t)
        now.orders = {client: self._order(client, STEP, now.message) for client in invited}
        now.bytes_down += sum(order.nbytes for order in now.orders.values())
        return dict(now.orders)

    def _anchor(self, present: list[int]) -> None:
        """What the simulator does with gradients in memory, with those that were sent."""
        rows = self.roster.rows(present)
        losses, gradients = zip(*(self._now.gradients[client] for client in present), strict=True)
        sent = torch.tensor(losses, dtype=torch.float64), torch.stack(gradients)
        anchored = self.task.algorithm.anchor(
            self.plan, self.server, [self.roster.states(rows)], [lambda x, full=False: sent], self._now.t
        )
        assert anchored is not None
        before = self.server.xbar
        self.server, (fresh,), learnt = anchored
        if len(present) == len(self.roster):
            self._now.anchor_gap = frank_wolfe_gap(self.task.constraint, before, learnt.gradient)
        self.roster.update(rows, fresh)
        self.roster.hand_back |= set(present)
        self.downlink.moved(self.t, before, self.server.xbar)

    def _order(self, client: int, ask: str, message: Message | None = None) -> Order:
        counted, memory = self.roster.counted[client], self.roster.handed(client)
        return Order(
            self.run,
            self._now.t,
            client,
            len(self.roster),
            self.task.weight(client, self.roster.members),
            counted,
            self.downlink.encode(self.server.xbar, 0 if memory else counted),
            digest(self.server.xbar),
            {} if message is None else {name: encode_vector(vector) for name, vector in message.vectors.items()},
            memory,
            ask,
            self.settings.tell and ask == STEP,
        )

    def take(self, client: int | None, received: Mapping[str, Any]) -> str | None:
        """One answer, and from which client the transport says it is; returns why it was refused, if it was."""
        try:
            self._take(client, received)
        except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:  # whatever it is, the round goes on
            reason = str(error) if isinstance(error, MessageError) else f"undecodable: {error}"
            self.refuse(client, reason)
            return reason
        return None

    def refuse(self, client: int | None, reason: str) -> None:
        """Note that something that was sent is not used."""
        self._refused[reason.partition(":")[0][:40]] += 1
        _log.warning("round %d: refused from client %s: %s", self._now.t, client, reason)

    def _take(self, client: int | None, received: Mapping[str, Any]) -> None:
        now = self._now
        if client is None or client not in now.orders:
            raise MessageError("unknown sender")
        size = sum(len(value) for value in received.values() if isinstance(value, bytes | str))
        if size > self._most_bytes():
            raise MessageError(f"oversized: {size} bytes")
        try:
            answer = Answer.of(received)
        except MessageError as error:
            raise MessageError(f"undecodable: {error}") from None
        if answer.run != self.run or answer.client != client:
            raise MessageError(f"wrong run or client: {answer.run}, {answer.client}")
        if answer.t != now.t:
            raise MessageError(f"wrong round: {answer.t}")
        done = now.answers if now.orders[client].ask == STEP else now.gradients
        if client in done or client in now.leaving:
            raise MessageError("replayed")
        if answer.kind in (LOST, OUTDATED):
            self.roster.hand_back.add(client)
            raise MessageError(f"{answer.kind}: it will be handed its memory")
        if answer.kind == LEAVING:
            now.leaving.add(client)
            return
        self._accept(client, answer)

    def _accept(self, client: int, answer: Answer) -> None:
        now, asked = self._now, self._now.orders[client].ask
        if answer.kind != (ATOM if asked == STEP else GRADIENT):
            raise MessageError(f"wrong kind: {answer.kind!r}")
        if answer.digest != digest(self.roster.point(client)) and asked == STEP:
            self.roster.hand_back.add(client)
            raise MessageError("diverged: its x_i is not the one that was counted")
        try:
            if asked == GRADIENT:
                if answer.loss is None:
                    raise MessageError("undecodable: no loss")
                now.gradients[client] = answer.loss, self.task.decode_vector(answer.payload)
            else:
                now.atoms[client] = self.task.decode(answer.payload, now.t)
                now.answers[client] = answer
        except AtomError as error:
            raise MessageError(f"bad atom: {error}") from None
        now.bytes_up += len(answer.payload)

    def _most_bytes(self) -> int:
        """More than any honest answer has."""
        return 4096 + 8 * len(self.task.start) * self.task.options.local_steps

    def close(self, seconds: dict[str, float] | None = None) -> DeployedRecord:
        """Make the server's step from what was accepted, and write it all down."""
        now, plan, before = self._now, self.plan, self.server.xbar
        counted = sorted(now.atoms)
        restored = [client for client in counted if now.orders[client].memory and client not in self._joined]
        if counted:
            self._learn(counted)
            self._step(counted)
        self.roster.count(counted, now.t, now.wanted)
        patience = self.settings.leave_after
        gone = {client for client, rounds in self.roster.away.items() if patience and rounds >= patience}
        for client in sorted(now.leaving | gone):
            self.release(client)
        record = self._record(counted, restored, plan, before, seconds)
        self.history.append(record)
        self._refused.clear()
        self._joined, self._left = [], []
        self._save()
        self._now = Round(self.t + 1)
        return record

    def _step(self, counted: list[int]) -> None:
        algorithm, plan, now = self.task.algorithm, self.plan, self._now
        assert now.before is not None
        assert now.after is not None
        assert now.message is not None
        rows = self.roster.rows(counted)
        server = now.after
        if len(counted) < len(now.orders):  # those whose atom is not counted undo the round, so it never was for them
            server, _ = algorithm.broadcast(plan, now.before, rows, self.roster.memory["x"][rows], now.t)
        uploads = []
        for _, group in groupby(counted, key=lambda client: structure(now.atoms[client])):
            clients = list(group)
            own, atoms = self.roster.rows(clients), stack_atoms([now.atoms[client] for client in clients])
            uploads.append(Upload(own, atoms, self.roster.memory["x"][own]))
        before = server.xbar
        self.server = algorithm.server_step(plan, server, uploads, now.t)
        everyone = len(counted) == plan.n and algorithm.keeps_points
        step = repeatable_step(plan, now.t, uploads, before) if everyone else None
        self.downlink.moved(now.t, before, self.server.xbar, step)
        for upload in uploads:
            known = algorithm.follow(plan, self.roster.states(upload.who), now.message, upload.atoms)
            self.roster.update(upload.who, known)

    def _learn(self, counted: list[int]) -> None:
        """What the clients told of xbar, which is the model after the round before."""
        answers = [self._now.answers[client] for client in counted]
        if len(counted) == len(self.roster) and self.history:
            losses = [answer.loss for answer in answers if answer.loss is not None]
            if len(losses) == len(answers):
                self.history.amend(loss=sum(losses))
        algorithm, message = self.task.algorithm, self._now.message
        numbers = [answer.number for answer in answers if answer.number is not None]
        if len(numbers) < len(answers) or not isinstance(algorithm, OracleAlgorithm) or message is None:
            return
        rows = self.roster.rows(counted)
        state = algorithm.begin_round(self.plan, self.roster.states(rows), message)
        # The direction without a gradient is the rest of it, which the server can work out.
        _, q = algorithm.direction(self.plan, state, message, torch.zeros_like(state["x"]), self.plan.rates(message.t))
        self._bound.report(rows, torch.tensor(numbers, dtype=torch.float64), q)
        value = self._bound.value()
        if value is not None and (self.best_bound is None or value > self.best_bound):
            self.best_bound = value

    def _record(
        self, counted: list[int], restored: list[int], plan: Plan, before: Tensor, seconds: dict[str, float] | None
    ) -> DeployedRecord:
        now, options, xbar = self._now, self.task.options, self.server.xbar
        evaluated = self._judge is not None and (now.t % options.eval_every == 0 or now.t == options.rounds)
        test = self._judge.test(xbar) if evaluated and self._judge is not None else None
        points = self.roster.memory["x"] if self.task.algorithm.keeps_points else xbar[None]
        dense = 1 + xbar.numel() * xbar.element_size()
        return DeployedRecord(
            round=now.t,
            test_loss=None if test is None else test.loss,
            accuracy=None if test is None else test.accuracy,
            anchor_gap=now.anchor_gap,
            lower_bound=self.best_bound,
            consensus=float((points - xbar).double().square().sum() ** 0.5),
            distance=0.0 if self.task.constraint.contains(xbar) else None,
            participants=len(counted),
            **({} if plan.schedule is None else vars(plan.rates(now.t))),
            bytes_up=now.bytes_up,
            bytes_down=now.bytes_down,
            bytes_dense=2 * len(now.orders) * dense,
            seconds=seconds,
            invited=len(now.orders),
            refused=dict(self._refused),
            joined=list(self._joined),
            left=list(self._left),
            restored=restored,
            drift=float((points.double().mean(0) - xbar).abs().max()),
            digest=digest(xbar).hex(),
        )

    # --- checkpoints ---

    def _save(self) -> None:
        if self._folder is None:
            return
        tensors = {f"client.{name}": value for name, value in self.roster.memory.items()}
        tensors |= {"server.xbar": self.server.xbar, "downlink.changed": self.downlink.changed}
        tensors |= {f"server.{name}": value for name, value in self.server.vectors.items()}
        meta = {
            "schema": SCHEMA,
            "round": self.t,
            "run": self.run,
            "fingerprint": self.fingerprint,
            "best_bound": self.best_bound,
        }
        self._folder.save(self.t, tensors, meta | self.roster.meta(), self.history)

    def _restore(self, folder: RunFolder) -> None:
        found = folder.latest()
        if found is None:
            return
        tensors, meta = found
        if meta["schema"] != SCHEMA:
            raise ValueError(f"{folder.path} has schema {meta['schema']}, this version reads {SCHEMA}")
        if meta["fingerprint"] != self.fingerprint:
            raise ValueError(f"{folder.path} holds another run: {meta['fingerprint']}, not {self.fingerprint}")
        memory, server = (
            {name[7:]: value for name, value in tensors.items() if name.startswith(side)}
            for side in ("client.", "server.")
        )
        self.roster.load(memory, meta)
        self.server = Server(server.pop("xbar"), server)
        self.downlink.changed = tensors["downlink.changed"]
        self.best_bound = meta["best_bound"]
        self._bound = LowerBound(self.task.constraint, len(self.roster))
        self.history = History.from_jsonl(meta["history"], DeployedRecord)
        self.run = meta["run"]
        self._now = Round(self.t + 1)
        if folder.newest_round() != self.t:
            # A damaged checkpoint was skipped, and clients may be ahead of this one: they begin anew from here.
            self.run, self.roster.hand_back = f"{self.run}.{self.t}", set(self.roster.members)

    def finish(self) -> None:
        """Write the model and the plots."""
        if self._folder is not None:
            self._folder.finish(self.model, self.task.algorithm.name, self.history)

    @property
    def model(self) -> nn.Module:
        """The model at xbar."""
        return with_parameters(self.task.model, self.server.xbar)
