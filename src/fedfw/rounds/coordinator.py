"""One round, seen from the server: opened, its exchanges filled with what clients send, closed.

The simulator, the deployed server and the leakage study all drive this object; nothing else moves
the server's state. A round is

    `Coordinator.open`       who takes part; then, for each of its exchanges,
    `Coordinator.announce`   what goes down
    `Round.arrive`           what one client, or a stack of clients, sends
    `Coordinator.close`      the server's step

until `Round.is_over`. Several rounds may be open at the same time, with clients of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedfw.algorithms.contract import Message, Run, State
from fedfw.algorithms.optin import ChoosesSteps
from fedfw.algorithms.rules import Rates
from fedfw.checks import other_bits
from fedfw.ranks import ALONE, Ranks
from fedfw.rounds.channels import REPORT, Sent
from fedfw.rounds.checkpoints import joined, part
from fedfw.rounds.client_steps import Method, follow, split
from fedfw.rounds.columns import spread_out
from fedfw.rounds.downlink import Downlink
from fedfw.rounds.memory import ClientMemory, EveryRow, SplitMemory, load_memory
from fedfw.rounds.proof import Proof
from fedfw.rounds.round import Round, Rows
from fedfw.rounds.server_steps import ServerState, ServerStep, init_server, step_server
from fedfw.rounds.sums import Evidence, Participants, Upload
from fedfw.rounds.vectors import Repeat
from fedfw.rounds.wire import DIGEST_NBYTES, NUMBER_NBYTES, Versions, Wire


class Coordinator:
    """The server of one training: its state, its copies of clients, the wire and the certificate.

    Parameters
    ----------
    method : Method
        The configured algorithm, its rule and its channels.
    run : Run
        What is fixed before the first round.
    start : Tensor
        x^1, (p,), in the set.
    memory : ClientMemory
        Of all clients.
    downlink : Downlink
        How server vectors reach clients.
    convex : bool
        Whether bounds on the optimum may be drawn from gaps.
    floor : float, optional
        What the loss is never below: the bound that there is before anything was proven.
    ranks : Ranks
        The processes that share the run.
    """

    def __init__(
        self,
        method: Method,
        run: Run,
        start: Tensor,
        memory: ClientMemory,
        downlink: Downlink,
        *,
        convex: bool = False,
        floor: float | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.method = method
        self.algorithm = method.algorithm
        self.run = run
        self.memory = memory
        self.downlink = downlink
        self.ranks = ranks
        self._start = start
        self.shared_names = method.shared_names(run, start[None])
        self.server = init_server(method, downlink, run, start)
        self.wire = Wire(self.server.held, start.dtype)
        self.holds: Versions = np.zeros(run.n, np.int64)
        """The version of the message that each client holds; 0 for none."""
        own = memory.own if isinstance(memory, SplitMemory) else None
        self.proof = Proof(method, run, len(start), convex, floor, ranks, own)

    @property
    def best_bound(self) -> float | None:
        """Return the largest proven lower bound on the optimum."""
        return self.proof.best

    # --- a round, phase by phase ---

    def open(
        self, t: int, groups: Sequence[Tensor], at: Rows | None = None, *, together: bool = False
    ) -> Round:
        """Begin round t with the clients of these groups, rows (m,) of the memory each.

        ``at`` has the same rows on the host, where the caller has them: a GPU would have to be
        waited for. Where several ranks share a run the groups are of this rank's clients, and
        ``at`` of all; ``together`` says whether all clients take part, as one group.
        """
        exchanges = tuple(self.algorithm.exchanges(self.run, self.server.state, t))
        at = _on_host(groups) if at is None else at
        now = Round(t, list(groups), at, exchanges, together)
        self._begin_exchange(now)
        return now

    def _begin_exchange(self, now: Round) -> None:
        now.uploads = []
        now.bases = self.holds[now.at].copy()

    def announce(self, now: Round, rates: tuple[Rates, ...] | None = None) -> Message:
        """Make the message of the present exchange; `number` gives it its version."""
        server = self.server
        rates = self.method.rule.rates(server.rule, now.t) if rates is None else rates
        step, shares = self.method.rule.net_step(rates)
        now.states = [self.memory.view(rows) for rows in now.groups]
        now.before = server
        now.after, vectors = self._broadcast(now, server, self._participants(now))
        delivered = {
            name: self.downlink.deliver(vector, server.held) for name, vector in vectors.items()
        }
        now.message = Message(
            now.t,
            {"xbar": server.held} | delivered,
            rates,
            step,
            shares,
            self.method.rule.oracle_tol(rates),
        )
        now.rates = rates[0] if self.method.rule.uses_oracles else None
        return now.message

    def _broadcast(
        self, now: Round, server: ServerState, present: Participants
    ) -> tuple[ServerState, State]:
        state, vectors = now.exchange.broadcast(self.run, server.state, server.held, present)
        strange = sorted(vectors.keys() - set(now.exchange.downloads))
        if strange:
            raise ValueError(
                f"{type(now.exchange).__name__}.broadcast sends {strange}, expected the names of "
                f"downloads, {now.exchange.downloads}"
            )
        if state is server.state:
            return server, vectors
        return replace(server, state=state), vectors

    def _participants(self, now: Round) -> Participants:
        """Return the clients of a round before they have sent anything."""
        groups = []
        for rows, state in zip(now.groups, now.states, strict=True):
            before = split(state, self.shared_names).client.shared
            groups.append(Upload(rows, before, {}, {}))
        if not groups:
            groups.append(self.method.no_upload(self.run, self.server.xbar))
        columns = self.memory.columns
        like = self.server.xbar
        return Participants(self.run.n, now.count, like, groups, None, columns, self.ranks)

    def number(self, now: Round) -> None:
        """Give the present message its version; apart from `announce` because a GPU can be at work
        meanwhile.
        """
        now.version = self.wire.announce(now.message.vectors)

    def count_down(self, now: Round) -> None:
        """Count the present message for the clients of the round, without writing it."""
        now.traffic.bytes_down += self.wire.nbytes(now.bases)
        now.traffic.evidence_down += now.count * DIGEST_NBYTES
        if self.sent_number(now) is not None:
            now.traffic.bytes_down += now.count * NUMBER_NBYTES

    def sent_number(self, now: Round) -> float | None:
        """Return the number from which clients work out the rates, where they need one."""
        return self.method.rule.to_send(now.before.rule)

    def decode(
        self,
        now: Round,
        who: Tensor,
        sent: Sent,
        evidence: Evidence | None = None,
        weights: Tensor | None = None,
    ) -> Upload:
        """Return the upload of clients whose state follows from what they sent before."""
        columns = self.memory.columns
        state = split(self.memory.view(who), self.shared_names)
        if columns is None:
            _, decoded = follow(self.method, now.exchange, self.run, state, now.message, sent)
        else:
            decoded = {name: atoms for name, atoms in sent.items() if name != REPORT}
        weights = weights if self.algorithm.weighted else None
        return Upload(who, state.client.shared, sent, decoded, None, evidence, weights)

    def step(self, now: Round, uploads: Sequence[Upload]) -> ServerStep:
        """Return the step that the server would take from these uploads; nothing is changed."""
        count = now.count
        server = now.after
        arrived = sum(len(upload.who) for upload in uploads)
        if self.ranks.size == 1 and arrived < now.count:
            # The clients that dropped out do not count as present.
            count = arrived
            columns = self.memory.columns
            like = self.server.xbar
            present = Participants(self.run.n, count, like, uploads, None, columns)
            server, _ = self._broadcast(now, now.before, present)
        if self.server is not now.before:
            # Another round has been closed meanwhile.
            state = _rebased(self.server.state, now.before.state, server.state)
            server = replace(self.server, state=state)
        return step_server(
            self.method,
            self.downlink,
            self.run,
            now.exchange,
            server,
            now.message,
            uploads,
            count,
            self.memory.columns,
            self.ranks,
        )

    def close(self, now: Round, step: ServerStep | None = None) -> None:
        """Take the server's step from what arrived, and go on to the next exchange, if any.

        Parameters
        ----------
        now : Round
            Clients that did not arrive undo the exchange, so that for them it never was.
        step : ServerStep, optional
            The step, where it was taken together with the clients' steps.
        """
        if not now.uploads and step is None:
            now.is_over = True
            return
        step = self.step(now, now.uploads) if step is None else step
        self.proof.learn(now, step, self.memory.columns)
        for upload in now.uploads:
            self._keep(now, upload)
        if sum(len(upload.who) for upload in now.uploads) < now.count and self.ranks.size == 1:
            now.groups = [upload.who for upload in now.uploads]
            now.at = _on_host(now.groups)
        self.holds[now.at] = now.version
        self._note_for_wire(step)
        rule = self.server.rule
        if self.method.channels.has_report(now.exchange):
            rule = self.method.rule.update(rule, self._reported(now), now.t)
        self.server = ServerState(step.state, step.down, rule, step.estimates)
        if isinstance(now.exchange, ChoosesSteps) and now.rates is not None:
            eta = now.exchange.step_taken(step.state)
            now.rates = now.rates if eta is None else now.rates._replace(eta=eta)
        now.is_over = now.index + 1 == len(now.exchanges)
        if not now.is_over:
            now.index += 1
            self._begin_exchange(now)

    def _reported(self, now: Round) -> Tensor:
        """Return the sum of the measured curvature of all participants."""
        total = torch.zeros(2, dtype=torch.float64, device=self.server.xbar.device)
        for upload in now.uploads:
            upload.sent[REPORT].add_sum_to(total)
        return self.ranks.sums(total)[0]

    def _note_for_wire(self, step: ServerStep) -> None:
        repeat = None
        if step.update is not None:
            # A copy, because a replay overwrites what it added up.
            keep, scale, total = step.update
            repeat = Repeat(float(keep), float(scale), total.clone())
        self.wire.stepped(step.changed, step.support, repeat, wide=step.wide)

    def _keep(self, now: Round, upload: Upload) -> None:
        """Keep what clients hold after what they sent."""
        if upload.after is not None:
            self.memory.scatter(upload.who, upload.after)
            return
        message, sent = self.memory.narrow(now.message, upload.sent)
        state = split(self.memory.view(upload.who), self.shared_names)
        after, _ = follow(self.method, now.exchange, self.run, state, message, sent)
        self.memory.put(upload.who, after.flat())

    # --- clients that come and go ---

    def join(self, row: int, newcomer: State, weights: Tensor | None = None) -> None:
        """Take in one more client, whose state is a stack of one; it becomes row ``row``.

        ``weights`` (n,) are the n w_i of all clients that there are then; None where these are all
        1.
        """
        self._every_row().insert(row, newcomer)
        self.holds = np.insert(self.holds, row, 0)
        self._on_membership_change(weights)

    def leave(self, row: int, weights: Tensor | None = None) -> None:
        """Let go of a client for good: means are over the others; ``weights`` as for `join`."""
        self._every_row().remove(row)
        self.holds = np.delete(self.holds, row)
        self._on_membership_change(weights)

    def _every_row(self) -> EveryRow:
        assert isinstance(self.memory, EveryRow)
        return self.memory

    def _on_membership_change(self, weights: Tensor | None) -> None:
        """Compute anew what the server keeps of all clients."""
        self.run = replace(self.run, n=self.memory.n)
        algorithm = self.algorithm
        rows = split(self._every_row().rows, self.shared_names)
        state = dict(self.server.state)
        for name, of in algorithm.means.items():
            mean = self._total(rows.client.shared[of], weights) / self.run.n
            state[name] = mean.to(state[name].dtype)
        estimates = {name: self._total(h, weights) for name, h in rows.estimates.items()}
        down = self.downlink.follow(self.server.down, algorithm.model_to_send(state), None)
        self.wire.stepped(other_bits(self.server.held, down["held"]))
        self.server = replace(self.server, state=state, down=down, estimates=estimates)
        # Another sum of losses has another optimum: what was proven of the last one says nothing.
        self.proof.restart(self.run)

    def _total(self, rows: Tensor, weights: Tensor | None) -> Tensor:
        """Return the weighted sum (p,) over all clients of their rows (n, w)."""
        if weights is not None and self.algorithm.weighted:
            rows = rows * weights.to(rows.dtype)[:, None]
        columns = self.memory.columns
        return spread_out(rows.sum(0), columns, len(self._start))

    # --- checkpoints ---

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""
        bound = float("nan") if self.best_bound is None else self.best_bound
        numbers = torch.tensor([bound, self.proof.dense_sums], dtype=torch.float64)
        return joined(
            {
                "memory": self.memory.state(),
                "server": self.server.state,
                "down": self.server.down,
                "rule": self.server.rule,
                "estimates": self.server.estimates,
                "wire": self.wire.state(),
                "bound": self.proof.bound.state(),
                "": {"holds": torch.from_numpy(self.holds), "numbers": numbers},
            }
        )

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        device = self.server.xbar.device

        def on_device(name: str) -> State:
            return {key: value.to(device) for key, value in part(held, name).items()}

        self.holds = held["holds"].numpy().copy()
        memory = on_device("memory")
        if isinstance(self.memory, SplitMemory):
            self.memory.load(memory)
        else:
            start = self.method.init(self.run, self._start[None].clone()).flat()
            names = self.shared_names
            known = {
                name: value for name, value in start.items() if name in memory or name in names
            }
            self.memory = load_memory(self.memory, known, memory, len(self.holds))
        self.run = replace(self.run, n=self.memory.n)
        rule = {key: value.cpu() for key, value in part(held, "rule").items()}
        self.server = ServerState(
            on_device("server"), on_device("down"), rule, on_device("estimates")
        )
        self.wire.load(part(held, "wire"))
        self.proof.restart(self.run)
        self.proof.bound.load(on_device("bound"))
        bound, sums = held["numbers"].tolist()
        self.proof.best = None if bound != bound else bound
        self.proof.dense_sums = int(sums)


def _rebased(state: State, before: State, after: State) -> State:
    """Return a state changed as much as ``after`` differs from ``before``."""
    changed = dict(state)
    for name, value in after.items():
        if value is not before[name]:
            changed[name] = state[name] + (value - before[name])
    return changed


def _on_host(groups: Sequence[Tensor]) -> Rows:
    if not groups:
        return np.zeros(0, np.int64)
    return np.concatenate([rows.cpu().numpy() for rows in groups])
