"""One round, seen from the server: opened, filled with what clients send, closed.

The simulator, the deployed server and the leakage study all drive this object; nothing else moves
the server's memory.

1. `Coordinator.open`: who takes part.
2. `Coordinator.ask_for_sums` and `Coordinator.gather`: the dense sum before the step, for
   algorithms that have one.
3. `Coordinator.announce`: what goes down.
4. `Round.arrive`: what one client, or a stack of clients, sends. Arrivals may come one at a time.
5. `Coordinator.close`: the server's step.

Several rounds may be open at the same time, each with clients of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.algorithms.channels import unpack
from fedfw.algorithms.contract import Algorithm, Message, Plan, Server, State, Upload
from fedfw.algorithms.gathering import Contributed, Gathered, GathersSums
from fedfw.algorithms.steps import ServerStep, step_server
from fedfw.algorithms.taking_part import follow, public_direction
from fedfw.certificates import LowerBound, frank_wolfe_gap, validate_gap
from fedfw.checks import other_bits
from fedfw.ranks import Ranks
from fedfw.rounds.checkpoints import joined, part
from fedfw.rounds.columns import (
    narrow_atoms,
    narrow_message,
    narrow_server,
    spread_out,
    touched_by,
    widen_server,
)
from fedfw.rounds.memory import ClientMemory, EveryRow, SplitMemory, TouchedColumns, load_memory
from fedfw.rounds.wire import DIGEST_NBYTES, NUMBER_NBYTES, Repeat, Versions, Wire

Rows = slice | npt.NDArray[np.int64]
"""Rows of the memory on the host; slice(None) for everyone."""


@dataclass
class Traffic:
    """What a round sent, in bytes: the payload and the evidence, both ways."""

    bytes_up: int = 0
    bytes_down: int = 0
    evidence_up: int = 0
    evidence_down: int = 0


@dataclass
class Round:
    """A round under way.

    Parameters
    ----------
    t : int
        Its number.
    groups : list of Tensor
        The clients that take part, as rows (m,) of the memory; those of one group use the same set.
    states : list of dict
        Their memories before the step, (m, ...) each; none where the coordinator keeps few columns
        of them.
    """

    t: int
    groups: list[Tensor]
    states: list[State]
    before: Server
    """The server's memory before the message was worked out."""
    after: Server
    """The server's memory that the message announces."""
    at: Rows
    """The same clients on the host, in the order of the groups."""
    bases: Versions
    """The version of the message that each client holds, in that order."""
    version: int = 0
    """The version of the last message of this round."""
    together: bool = False
    """Whether all clients of all ranks take part, as one group."""
    eta: float | None = None
    """The step size, where the server worked it out."""
    message: Message | None = None
    gathered: Gathered | None = None
    anchor_gap: float | None = None
    """The Frank-Wolfe gap at xbar before the step, where a gathered sum gave the gradient of F."""
    uploads: list[Upload] = field(default_factory=list)
    known: list[State | None] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def who(self) -> Tensor:
        """All clients that take part, (m,), group by group."""
        if not self.groups:
            return torch.zeros(0, dtype=torch.int64)
        return self.groups[0] if len(self.groups) == 1 else torch.cat(self.groups)

    def arrive(self, upload: Upload, state: State | None = None, with_loss: bool = False) -> None:
        """Take in what clients send.

        Parameters
        ----------
        upload : Upload
            Of one client or of a stack of them.
        state : dict, optional
            Their memory after the step, where it is known; else the coordinator follows from what
            was sent.
        with_loss : bool
            Whether each of them also reports its loss.
        """
        self.uploads.append(upload)
        self.known.append(state)
        count = upload.who.shape[0]
        numbers = int(with_loss) + int(upload.evidence is not None)
        self.traffic.bytes_up += upload.atoms.nbytes
        self.traffic.evidence_up += count * (DIGEST_NBYTES + numbers * NUMBER_NBYTES)

    def sum_over(self, ranks: Ranks, before: Traffic) -> None:
        """Let what was sent up since ``before`` be what the clients of all ranks sent."""
        mine = (
            self.traffic.bytes_up - before.bytes_up,
            self.traffic.evidence_up - before.evidence_up,
        )
        payload, evidence = (int(sum(each)) for each in zip(*ranks.numbers(*mine), strict=True))
        self.traffic.bytes_up = before.bytes_up + payload
        self.traffic.evidence_up = before.evidence_up + evidence


def _rebased(current: Server, before: Server, after: Server) -> Server:
    """The change from ``before`` to ``after``, made to the server's memory of now: another round
    was closed since.
    """
    changed = {
        name: current.vectors[name] + (vector - before.vectors[name])
        for name, vector in after.vectors.items()
    }
    return Server(current.xbar + (after.xbar - before.xbar), current.vectors | changed)


def _on_host(groups: Sequence[Tensor]) -> Rows:
    return (
        np.concatenate([rows.cpu().numpy() for rows in groups]) if groups else np.zeros(0, np.int64)
    )


class Coordinator:
    """The server of one training: its memory, what it knows of its clients, the wire and the
    certificate.

    Parameters
    ----------
    algorithm : Algorithm
        With its defaults filled in (`Algorithm.resolved`).
    plan : Plan
        The algorithm's plan for this run.
    start : Tensor
        x^1, (p,), in the set.
    memory : ClientMemory
        Of all clients.
    convex : bool
        Whether bounds on the optimum may be drawn from gaps.
    floor : float, optional
        What the loss is never below: the bound that there is before anything was proven.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        plan: Plan,
        start: Tensor,
        memory: ClientMemory,
        *,
        convex: bool = False,
        floor: float | None = None,
    ) -> None:
        self.floor = floor if convex else None
        self.algorithm, self.plan, self.memory, self.convex = algorithm, plan, memory, convex
        self.server = algorithm.start_server(start)
        self._start = start
        self.wire = Wire(self.server.xbar, start.dtype)
        self.holds: Versions = np.zeros(plan.n, np.int64)
        """The version of the message that each client holds; 0 for none."""
        self.bound = self._new_bound()
        self.best_bound = self.floor
        """The largest proven lower bound on the optimum."""
        self.dense_sums = 0
        """How many dense sums the server was given."""
        self.curvature = 0.0
        """The average of what clients told, where step sizes come from it
        (`fedfw.algorithms.pacing`).
        """

    def _new_bound(self) -> LowerBound:
        own = self.memory.own if isinstance(self.memory, SplitMemory) else None
        return LowerBound(self.plan.constraint, self.plan.n, len(self._start), self.plan.ranks, own)

    # --- a round, step by step ---

    def open(
        self, t: int, groups: Sequence[Tensor], at: Rows | None = None, *, together: bool = False
    ) -> Round:
        """Step 1: round t with the clients of these groups, rows (m,) of the memory each.

        ``at`` has the same rows on the host, where the caller knows them: a GPU would have to be
        asked. Where several ranks share a run the groups are of this rank's clients, and ``at`` of
        all; ``together`` says whether everyone takes part, as one group.
        """
        few = self.memory.columns is not None
        states = [] if few else [self.memory.gather(rows) for rows in groups]
        at = _on_host(groups) if at is None else at
        bases = self.holds[at].copy()
        return Round(
            t,
            list(groups),
            states,
            self.server,
            self.server,
            at,
            bases,
            eta=self.plan.eta,
            together=together,
        )

    def plan_of(self, now: Round) -> Plan:
        """The plan with the step size of a round, which another round that was closed meanwhile
        does not change.
        """
        return self.plan if self.plan.eta == now.eta else replace(self.plan, eta=now.eta)

    def gathers(self, now: Round) -> bool:
        """Whether the round begins with a dense sum."""
        return isinstance(self.algorithm, GathersSums) and self.algorithm.gathers(
            self.server, now.t
        )

    def ask_for_sums(self, now: Round, *, count: bool = True) -> None:
        """Step 2a: the message that asks for contributions to the sum; it carries the model.

        ``count`` is False for a caller that writes the message and counts what it wrote.
        """
        now.version = self.wire.announce({"xbar": self.server.xbar})
        if count:
            self.count_down(now)

    def gather(self, now: Round, groups: Sequence[Tensor], sent: Sequence[Contributed]) -> Gathered:
        """Step 2b: the sum of what the clients of these groups contributed; the round goes on with
        them.
        """
        assert isinstance(self.algorithm, GathersSums)
        now.groups, now.states = list(groups), [self.memory.gather(rows) for rows in groups]
        xbar = self.server.xbar
        self.server, learnt = self.algorithm.gather(self.plan, self.server, now.states, sent, now.t)
        contributions = zip(now.states, sent, strict=True)
        now.states = [self.algorithm.take_up(state, xbar, one) for state, one in contributions]
        for rows, state in zip(groups, now.states, strict=True):
            self.memory.scatter(rows, self._rebuilt(state))
        if self.server.xbar is not xbar:
            self.wire.stepped(other_bits(self.server.xbar, xbar))
        now.at = self._at(now, groups)
        self.holds[now.at] = now.version
        now.bases = self.holds[now.at].copy()
        before = replace(now.traffic)
        for one in sent:
            now.traffic.bytes_up += 0 if one.sent is None else one.sent.nbytes
            now.traffic.evidence_up += len(one.loss) * (DIGEST_NBYTES + NUMBER_NBYTES)
        now.sum_over(self.plan.ranks, before)
        now.gathered, now.before, now.after = learnt, self.server, self.server
        self.dense_sums += 1
        if learnt.gradient is not None:
            now.anchor_gap = frank_wolfe_gap(self.plan.constraint, xbar, learnt.gradient)
            where = f"round {now.t}"
            validate_gap(self.plan.constraint, xbar, learnt.gradient, now.anchor_gap, where)
            if self.convex:
                self.improve(learnt.loss - now.anchor_gap)
        return learnt

    def announce(self, now: Round, *, wants_evidence: bool = False) -> Message:
        """Step 3: what goes down to the clients of the round."""
        columns = None
        who = (
            now.who
            if self.plan.ranks.size == 1
            else torch.from_numpy(np.arange(self.plan.n)[now.at])
        )
        if now.states:
            x = (
                now.states[0]["x"]
                if len(now.states) == 1
                else torch.cat([state["x"] for state in now.states])
            )
        else:
            columns, x = self.memory.columns, self.points(now.who)
        now.before = self.server
        now.after, message = self._broadcast(self.server, who, x, columns, now.t)
        now.message = replace(message, wants_evidence=True) if wants_evidence else message
        return now.message

    def points(self, who: Tensor) -> Tensor:
        """What the clients ``who`` hold at the memory's columns: (m, w), or (m, p) where it keeps
        all of them.
        """
        return self.known(who)["x"]

    def known(self, who: Tensor) -> State:
        """What the clients ``who`` hold, by name, at the memory's columns."""
        return (
            self.memory.view(who)
            if isinstance(self.memory, TouchedColumns)
            else self.memory.gather(who)
        )

    def _broadcast(
        self, server: Server, who: Tensor, x: Tensor, columns: Tensor | None, t: int
    ) -> tuple[Server, Message]:
        """What goes down, from the clients' points x (m, w) at the columns."""
        narrow = narrow_server(server, columns)
        after, message = self.algorithm.broadcast(self.plan, narrow, who, x, t)
        if columns is None:
            return after, message
        after, p = widen_server(after, server, narrow, columns), len(server.xbar)
        vectors = {name: spread_out(vector, columns, p) for name, vector in message.vectors.items()}
        return after, replace(message, xbar=after.xbar, vectors=vectors)

    def number(self, now: Round) -> None:
        """Give the message of step 3 its version; apart from it because a GPU can be at work
        meanwhile.
        """
        assert now.message is not None
        now.version = self.wire.announce(self.vectors(now.message))

    def vectors(self, message: Message) -> dict[str, Tensor]:
        """What a message holds of vectors (p,), by name."""
        model = {"xbar": message.xbar} if "xbar" in self.algorithm.down else {}
        return model | message.vectors

    def count_down(self, now: Round) -> None:
        """Count the last message for the clients of the round, without writing it."""
        count = len(now.bases)
        now.traffic.bytes_down += self.wire.nbytes(now.bases)
        now.traffic.evidence_down += count * DIGEST_NBYTES
        if now.message is not None and self.algorithm.tells:
            now.traffic.bytes_down += count * NUMBER_NBYTES  # the step size

    def step(self, now: Round, uploads: Sequence[Upload]) -> ServerStep:
        """The step that the server would take from these uploads; nothing is changed by it."""
        after = now.after
        if sum(len(upload.who) for upload in uploads) < len(now.bases):
            present = torch.cat([upload.who for upload in uploads])
            x = torch.cat([upload.x for upload in uploads])
            after, _ = self._broadcast(now.before, present, x, uploads[0].columns, now.t)
        server = after if self.server is now.before else _rebased(self.server, now.before, after)
        return step_server(self.algorithm, self.plan_of(now), server, uploads, now.t)

    def close(self, now: Round, step: ServerStep | None = None) -> None:
        """Step 5: the server's step from what arrived.

        Parameters
        ----------
        now : Round
            Clients of the round that did not arrive undo it, so that for them it never was.
        step : ServerStep, optional
            The step, where it was taken together with the clients' steps.
        """
        if not now.uploads and step is None:
            return
        assert now.message is not None
        step = self.step(now, now.uploads) if step is None else step
        self._learn(now)
        plan = self.plan_of(now)
        for upload, state in zip(now.uploads, now.known, strict=True):
            if state is None:
                self._follow(plan, upload, now.message)
            else:
                self.memory.scatter(upload.who, state)
        self.holds[self._at(now, [upload.who for upload in now.uploads])] = now.version
        rates = (
            self.algorithm.repeatable(plan, step.aggregate, now.t)
            if step.support is not None
            else None
        )
        # A copy, because a replay overwrites what it added up.
        repeat = None if rates is None else Repeat(*rates, step.aggregate.total.clone())
        self.wire.stepped(
            step.changed, None if rates is None else step.support, repeat, wide=step.wide
        )
        self.server = step.server
        now.eta = now.eta if (taken := self.algorithm.eta_taken(step.server)) is None else taken
        if self.algorithm.tells:
            eta, self.curvature = self.algorithm.next_eta(
                plan, self.curvature, step.aggregate, now.t
            )
            self.plan = replace(self.plan, eta=eta)

    def _at(self, now: Round, groups: Sequence[Tensor]) -> Rows:
        """The clients of a round that arrived, on the host; those of other ranks are never lost on
        the way.
        """
        whole = self.plan.ranks.size > 1 or sum(rows.shape[0] for rows in groups) == len(now.bases)
        return now.at if whole else _on_host(groups)

    def _follow(self, plan: Plan, upload: Upload, message: Message) -> None:
        """Work out what clients hold that sent this."""
        memory = self.memory
        payload = unpack(self.algorithm, message.t, upload.atoms)
        if not isinstance(memory, TouchedColumns):
            before = memory.gather(upload.who)
            known = self.algorithm.contract.rebuilt(before)
            memory.scatter(
                upload.who,
                self._rebuilt(before | follow(self.algorithm, plan, known, message, payload)),
            )
            return
        atoms = payload["atom"]
        memory.touch(touched_by(atoms))
        if memory.columns is not None:
            atoms = narrow_atoms(atoms, memory.place, len(memory.columns), memory.rows["x"].dtype)
            message = narrow_message(message, memory.columns)
        after = follow(self.algorithm, plan, memory.view(upload.who), message, {"atom": atoms})
        memory.put(upload.who, self._rebuilt(after))

    def _rebuilt(self, state: State) -> State:
        """Those parts of a memory that are kept here: all in a simulation, the rebuilt ones in a
        deployment.
        """
        if not isinstance(self.memory, EveryRow):
            return state
        return {name: value for name, value in state.items() if name in self.memory.rows}

    # --- the certificate ---

    def improve(self, bound: float | None) -> None:
        """Take in a proven lower bound on the optimum."""
        if bound is not None and (self.best_bound is None or bound > self.best_bound):
            self.best_bound = bound

    def withdraw(self) -> None:
        """Hold no bound from now on: the run refuted what bounds rest on."""
        self.convex, self.floor, self.best_bound = False, None, None
        self.bound = self._new_bound()

    def _learn(self, now: Round) -> None:
        """Update the certificate from the evidence that came with the uploads."""
        assert now.message is not None
        if not self.convex:
            return
        together = now.together if self.plan.ranks.size > 1 and now.message.wants_evidence else None
        for upload in now.uploads:
            if upload.evidence is None:
                continue
            q, columns = upload.evidence.q, None
            if q is None:
                columns = self.memory.columns
                state, message = self.known(upload.who), narrow_message(now.message, columns)
                q = public_direction(self.algorithm, self.plan, state, message)
            if q is not None:
                self.bound.report(upload.who, upload.evidence.number, q, columns, together)
                if together is None:
                    self.improve(self.bound.value())
        if together is None:
            return
        if not now.uploads:  # all ranks store reports in the same form
            nobody = self.server.xbar.new_zeros(0, dtype=torch.float64)
            self.bound.report(
                nobody.long(), nobody, nobody.reshape(0, len(self.server.xbar)), None, together
            )
        self.improve(self.bound.value())

    # --- clients that come and go ---

    def join(self, row: int, newcomer: State, weights: Tensor | None = None) -> None:
        """One more client, whose memory is a stack of one; it becomes row ``row``.

        ``weights`` (n,) are the n w_i of all clients that there are then; None where these are all
        1.
        """
        self._every_row().insert(row, newcomer)
        self.holds = np.insert(self.holds, row, 0)
        self._regroup(weights)

    def leave(self, row: int, weights: Tensor | None = None) -> None:
        """A client is gone for good: the mean is over the others; ``weights`` as for `join`."""
        self._every_row().remove(row)
        self.holds = np.delete(self.holds, row)
        self._regroup(weights)

    def _every_row(self) -> EveryRow:
        assert isinstance(self.memory, EveryRow)
        return self.memory

    def _regroup(self, weights: Tensor | None) -> None:
        before = self.server.xbar
        self.plan = replace(self.plan, n=self.memory.n)
        columns = self.memory.columns
        narrow = narrow_server(self.server, columns)
        regrouped = self.algorithm.regroup(narrow, self._every_row().rows, weights)
        self.server = widen_server(regrouped, self.server, narrow, columns)
        self.wire.stepped(other_bits(before, self.server.xbar))
        # Another sum of losses has another optimum: what was proven of the last one says nothing.
        self.bound, self.best_bound = self._new_bound(), self.floor

    # --- checkpoints ---

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        bound = float("nan") if self.best_bound is None else self.best_bound
        numbers = torch.tensor([bound, self.dense_sums], dtype=torch.float64)
        eta = self.plan.eta
        pace = (
            {}
            if eta is None
            else {"pace": torch.tensor([eta, self.curvature], dtype=torch.float64)}
        )
        return joined(
            {
                "memory": self.memory.state(),
                "server": {"xbar": self.server.xbar, **self.server.vectors},
                "wire": self.wire.state(),
                "bound": self.bound.state(),
                "": {"holds": torch.from_numpy(self.holds), "numbers": numbers, **pace},
            }
        )

    def load(self, held: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        device = self.server.xbar.device
        memory = {name: value.to(device) for name, value in part(held, "memory").items()}
        start = self.algorithm.start_clients(self._start[None].clone())
        if isinstance(self.memory, SplitMemory):
            self.memory.load(memory)
        else:
            self.memory = load_memory(self.memory, start, memory)
        server = {name: value.to(device) for name, value in part(held, "server").items()}
        self.server = Server(server.pop("xbar"), server)
        self.wire.load(part(held, "wire"))
        self.plan = replace(self.plan, n=self.memory.n)
        self.bound = self._new_bound()
        self.bound.load({name: value.to(device) for name, value in part(held, "bound").items()})
        self.holds = held["holds"].numpy().copy()
        bound, sums = held["numbers"].tolist()
        self.best_bound, self.dense_sums = None if bound != bound else bound, int(sums)
        if "pace" in held:
            eta, self.curvature = held["pace"].tolist()
            self.plan = replace(self.plan, eta=eta)
