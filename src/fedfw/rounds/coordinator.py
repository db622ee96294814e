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

import math
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
        """Make the server's state before the first round, from the method, the clients' memory and
        the start.
        """
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
        own_clients = memory.own if isinstance(memory, SplitMemory) else None
        self.proof = Proof(method, run, len(start), convex, floor, ranks, own_clients)

    @property
    def best_bound(self) -> float | None:
        """Return the largest proven lower bound on the optimum."""
        return self.proof.best

    # --- a round, phase by phase ---

    def open(
        self,
        t: int,
        groups: Sequence[Tensor],
        rows_on_host: Rows | None = None,
        *,
        together: bool = False,
    ) -> Round:
        """Begin round t with the clients of these groups, rows (m,) of the memory each.

        ``rows_on_host`` has the same rows on the host, where the caller has them: a GPU would have
        to be waited for. Where several ranks share a run the groups are of this rank's clients, and
        ``rows_on_host`` of all; ``together`` says whether all clients take part, as one group.
        """
        exchanges = tuple(self.algorithm.exchanges(self.run, self.server.state, t))
        rows_on_host = _on_host(groups) if rows_on_host is None else rows_on_host
        this_round = Round(t, list(groups), rows_on_host, exchanges, together)
        self._begin_exchange(this_round)
        return this_round

    def _begin_exchange(self, this_round: Round) -> None:
        this_round.uploads = []
        this_round.bases = self.holds[this_round.rows_on_host].copy()

    def announce(self, this_round: Round, rates: tuple[Rates, ...] | None = None) -> Message:
        """Make and return the message of the present exchange, without its version, which `number`
        gives; note in the round what it was made from.
        """
        server = self.server
        rule = self.method.rule
        rates = rule.rates(server.rule_state, this_round.t) if rates is None else rates
        step, shares = rule.net_step(rates)
        this_round.states = [self.memory.view(rows) for rows in this_round.groups]
        this_round.before = server
        this_round.after, vectors = self._broadcast(
            this_round, server, self._participants(this_round)
        )
        delivered = {
            name: self.downlink.deliver(vector, server.held) for name, vector in vectors.items()
        }
        this_round.message = Message(
            this_round.t,
            {"xbar": server.held} | delivered,
            rates,
            step,
            shares,
            rule.oracle_tol(rates),
        )
        this_round.rates = rates[0] if rule.uses_oracles else None
        return this_round.message

    def _broadcast(
        self, this_round: Round, server: ServerState, present: Participants
    ) -> tuple[ServerState, State]:
        """Return the server's state after `Exchange.broadcast`, and the vectors that go down beside
        the model; refuse vectors that the exchange does not declare.
        """
        state, vectors = this_round.exchange.broadcast(self.run, server.state, server.held, present)
        undeclared = sorted(vectors.keys() - set(this_round.exchange.downloads))
        if undeclared:
            raise ValueError(
                f"{type(this_round.exchange).__name__}.broadcast sends {undeclared}, expected the "
                f"names of downloads, {this_round.exchange.downloads}"
            )
        if state is server.state:
            return server, vectors
        return replace(server, state=state), vectors

    def _participants(self, this_round: Round) -> Participants:
        """Return the clients of a round, with their shared states, before they send anything."""
        groups = []
        for rows, state in zip(this_round.groups, this_round.states, strict=True):
            shared = split(state, self.shared_names).client.shared
            groups.append(Upload(rows, shared, sent={}, decoded={}))
        if not groups:
            # A rank without participants still takes part in the sums.
            groups.append(self.method.no_upload(self.run, self.server.xbar))
        columns = self.memory.columns
        like = self.server.xbar
        return Participants(self.run.n, this_round.count, like, groups, None, columns, self.ranks)

    def number(self, this_round: Round) -> None:
        """Give the present message its version; apart from `announce` because a GPU can be at work
        meanwhile.
        """
        this_round.version = self.wire.announce(this_round.message.vectors)

    def count_down(self, this_round: Round) -> None:
        """Count the present message for the clients of the round, without writing it."""
        this_round.traffic.bytes_down += self.wire.nbytes(this_round.bases)
        this_round.traffic.evidence_down += this_round.count * DIGEST_NBYTES
        if self.sent_number(this_round) is not None:
            this_round.traffic.bytes_down += this_round.count * NUMBER_NBYTES

    def sent_number(self, this_round: Round) -> float | None:
        """Return the number from which clients work out the rates, where they need one."""
        return self.method.rule.to_send(this_round.before.rule_state)

    def decode(
        self,
        this_round: Round,
        who: Tensor,
        sent: Sent,
        evidence: Evidence | None = None,
        weights: Tensor | None = None,
    ) -> Upload:
        """Return the upload of clients that hold no state of their own here: what they sent, as
        decoded from their copies in the server's memory.
        """
        columns = self.memory.columns
        state = split(self.memory.view(who), self.shared_names)
        if columns is None:
            _, decoded = follow(
                self.method, this_round.exchange, self.run, state, this_round.message, sent
            )
        else:
            # Where only some columns are kept all entries are atoms, which are sent as they are.
            decoded = {name: atoms for name, atoms in sent.items() if name != REPORT}
        weights = weights if self.algorithm.weighted else None
        return Upload(who, state.client.shared, sent, decoded, None, evidence, weights)

    def step(self, this_round: Round, uploads: Sequence[Upload]) -> ServerStep:
        """Return the server's step from these uploads, for those of the round's clients that
        arrived; nothing is changed.
        """
        count = this_round.count
        server = this_round.after
        arrived = sum(len(upload.who) for upload in uploads)
        if self.ranks.size == 1 and arrived < this_round.count:
            # Only clients that arrived count as present, in the broadcast, too.
            count = arrived
            columns = self.memory.columns
            like = self.server.xbar
            present = Participants(self.run.n, count, like, uploads, None, columns)
            server, _ = self._broadcast(this_round, this_round.before, present)
        if self.server is not this_round.before:
            # Another round has been closed meanwhile: the change that this round's broadcast made
            # is applied to the server's newer state.
            state = _rebased(self.server.state, this_round.before.state, server.state)
            server = replace(self.server, state=state)
        return step_server(
            self.method,
            self.downlink,
            self.run,
            this_round.exchange,
            server,
            this_round.message,
            uploads,
            count,
            self.memory.columns,
            self.ranks,
        )

    def close(self, this_round: Round, step: ServerStep | None = None) -> None:
        """Take the server's step from the uploads that arrived, and begin the next exchange, if
        any.

        Parameters
        ----------
        now : Round
            Clients that did not arrive undo the exchange, so that for them it never was.
        step : ServerStep, optional
            The step, where it was taken together with the clients' steps.
        """
        if not this_round.uploads and step is None:
            this_round.is_over = True
            return
        step = self.step(this_round, this_round.uploads) if step is None else step
        self.proof.learn(this_round, step, self.memory.columns)
        for upload in this_round.uploads:
            self._keep(this_round, upload)
        # Clients that did not arrive hold the message of before.
        arrived = sum(len(upload.who) for upload in this_round.uploads)
        if arrived < this_round.count and self.ranks.size == 1:
            this_round.groups = [upload.who for upload in this_round.uploads]
            this_round.rows_on_host = _on_host(this_round.groups)
        self.holds[this_round.rows_on_host] = this_round.version
        self._note_for_wire(step)
        rule_state = self.server.rule_state
        if self.method.channels.has_report(this_round.exchange):
            reported = self._reported(this_round)
            rule_state = self.method.rule.update(rule_state, reported, this_round.t)
        self.server = ServerState(step.state, step.down, rule_state, step.estimates)
        if isinstance(this_round.exchange, ChoosesSteps) and this_round.rates is not None:
            eta = this_round.exchange.step_taken(step.state)
            this_round.rates = (
                this_round.rates if eta is None else this_round.rates._replace(eta=eta)
            )
        this_round.is_over = this_round.index + 1 == len(this_round.exchanges)
        if not this_round.is_over:
            this_round.index += 1
            self._begin_exchange(this_round)

    def _reported(self, this_round: Round) -> Tensor:
        """Return the sum of the measured curvature of all participants."""
        total = torch.zeros(2, dtype=torch.float64, device=self.server.xbar.device)
        for upload in this_round.uploads:
            upload.sent[REPORT].add_sum_to(total)
        return self.ranks.sums(total)[0]

    def _note_for_wire(self, step: ServerStep) -> None:
        """Tell the wire which coordinates of the model a step changed, and how clients can repeat
        it.
        """
        repeat = None
        if step.update is not None:
            # A copy, because a replay overwrites what it added up.
            keep, scale, total = step.update
            repeat = Repeat(float(keep), float(scale), total.clone())
        self.wire.stepped(step.changed, step.support, repeat, wide=step.wide)

    def _keep(self, this_round: Round, upload: Upload) -> None:
        """Keep the clients' states after an upload: those that came with it, or those that follow
        from what was sent.
        """
        if upload.after is not None:
            self.memory.scatter(upload.who, upload.after)
            return
        message, sent = self.memory.narrow(this_round.message, upload.sent)
        state = split(self.memory.view(upload.who), self.shared_names)
        after, _ = follow(self.method, this_round.exchange, self.run, state, message, sent)
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
        """Compute anew the means and sums over all clients, the model that goes down, and forget
        what was proven.
        """
        self.run = replace(self.run, n=self.memory.n)
        algorithm = self.algorithm
        states = split(self._every_row().rows, self.shared_names)
        state = dict(self.server.state)
        for name, shared_name in algorithm.means.items():
            mean = self._total(states.client.shared[shared_name], weights) / self.run.n
            state[name] = mean.to(state[name].dtype)
        estimates = {name: self._total(rows, weights) for name, rows in states.estimates.items()}
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
        """Return the tensors of a checkpoint, by names with the part in front."""
        # NaN stands for no bound in a tensor.
        bound = float("nan") if self.best_bound is None else self.best_bound
        numbers = torch.tensor([bound, self.proof.dense_sums], dtype=torch.float64)
        return joined(
            {
                "memory": self.memory.state(),
                "server": self.server.state,
                "down": self.server.down,
                "rule": self.server.rule_state,
                "estimates": self.server.estimates,
                "wire": self.wire.state(),
                "bound": self.proof.bound.state(),
                "": {"holds": torch.from_numpy(self.holds), "numbers": numbers},
            }
        )

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Take over the state of a checkpoint that `state` made."""
        device = self.server.xbar.device

        def on_device(name: str) -> State:
            """Return a part of the checkpoint, on the device of the run."""
            return {key: value.to(device) for key, value in part(saved, name).items()}

        self.holds = saved["holds"].numpy().copy()
        memory = on_device("memory")
        if isinstance(self.memory, SplitMemory):
            self.memory.load(memory)
        else:
            start = self.method.init(self.run, self._start[None].clone()).flat()
            names = self.shared_names
            # Private entries that the checkpoint has not kept are none of the server's.
            start_of_kept = {
                name: value for name, value in start.items() if name in memory or name in names
            }
            self.memory = load_memory(self.memory, start_of_kept, memory, len(self.holds))
        self.run = replace(self.run, n=self.memory.n)
        rule_state = {key: value.cpu() for key, value in part(saved, "rule").items()}
        self.server = ServerState(
            on_device("server"), on_device("down"), rule_state, on_device("estimates")
        )
        self.wire.load(part(saved, "wire"))
        self.proof.restart(self.run)
        self.proof.bound.load(on_device("bound"))
        bound, sums = saved["numbers"].tolist()
        self.proof.best = None if math.isnan(bound) else bound
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
