"""How the steps of an exchange are executed: one kernel after the other, or replayed by a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfw.algorithms.contract import Exchange, Message, Run, State
from fedfw.algorithms.optin import GathersGradients
from fedfw.privacy.steps import PrivateOracles
from fedfw.problems.oracles import ClientOracles, Cohort
from fedfw.problems.problem import Problem
from fedfw.rounds.client_steps import Method, WatchedOracles, split, take_part
from fedfw.rounds.downlink import Downlink
from fedfw.rounds.round import Round, Rows
from fedfw.rounds.server_steps import ServerState, step_server
from fedfw.rounds.stopwatch import Stopwatch
from fedfw.rounds.sums import Upload
from fedfw.sets.base import ConstraintSet
from fedfw.simulation.replay import ExchangeSteps, Following, ReplayedRounds
from fedfw.simulation.setup import Groups

Begun = Callable[[], ExchangeSteps]
"""An exchange that was set going; the function waits for it."""


class Cohorts:
    """The clients of this process that take part in a round, by the set they use.

    Parameters
    ----------
    problem : Problem
        The clients' losses and weights.
    groups : list
        Clients by the set they use; the first keep the constraint itself.
    """

    def __init__(self, problem: Problem, groups: Groups) -> None:
        """Keep the weights, and the cohort of all clients, which is the same object in every
        round.
        """
        start = problem.start
        self.all_here = problem.losses.all_clients(start.device)  # numbers of this rank's clients
        self.ranks = problem.ranks
        self._problem = problem
        self._groups = groups
        self._weights = problem.weights.to(start.dtype)  # (n,), of all ranks' clients
        self._own_weights = self._weights[self.all_here]
        self._own_exact_weights = problem.weights[self.all_here]  # in float64
        self._unequal = bool((self._weights != self._weights[0]).any())
        # The sum of n w_i, known beforehand: replayed rounds must not look at numbers of a GPU.
        self._weight_of_all = float((self._own_weights * problem.n).sum())
        self.whole = self._cohort(self.all_here, groups[0][1])

    def of(self, participants: Tensor) -> tuple[list[Cohort], Rows | None]:
        """Return the participants (m,) as cohorts, by the set they use, and all of them on the
        host, None where this would wait for a GPU.
        """
        if participants.shape[0] == 0:
            return [], None
        # The same tensor for all clients in every round: losses recognise it without looking at
        # its numbers.
        all_present = participants.shape[0] == self._problem.n
        clients_here = self.all_here
        if not all_present:
            clients_here = self._own(participants).to(self.all_here.device)
        if len(self._groups) == 1:
            if all_present:
                return [self.whole], slice(None)
            cohorts = [self._cohort(clients_here, self._groups[0][1])] if len(clients_here) else []
            return cohorts, participants.numpy()
        groups = ((group[torch.isin(group, clients_here)], D) for group, D in self._groups)
        on_host = None if self.ranks.size == 1 else participants.numpy()
        return [self._cohort(rows, D) for rows, D in groups if len(rows)], on_host

    def weigh(self, cohort: Cohort) -> tuple[Tensor | None, float | None]:
        """Return n w_i (m,) of a cohort and their sum; (None, None) where all are 1."""
        if not self._unequal:
            return None, None
        weights = cohort.weights * self._problem.n
        if cohort.weights is self._own_weights:
            return weights, self._weight_of_all
        return weights, float(weights.sum())

    def data(self) -> list[Tensor]:
        """Return what all steps read of the problem."""
        # Clients' samples are parts of a few tensors, which know whether they were changed.
        read = []
        for tensor in self._problem.losses.data():
            read.append(tensor if tensor._base is None else tensor._base)
        read += [self._own_weights, self._own_exact_weights]
        return list({id(tensor): tensor for tensor in read}.values())

    def _own(self, participants: Tensor) -> Tensor:
        """Return those of the participants (m,) whose states this process keeps."""
        first_client = int(self.all_here[0])
        last = int(self.all_here[-1])
        return participants[(participants >= first_client) & (participants <= last)]

    def _cohort(self, rows: Tensor, constraint: ConstraintSet) -> Cohort:
        if rows is self.all_here:
            return Cohort(rows, self._own_weights, rows, constraint, self._own_exact_weights)
        exact = self._problem.weights[rows]
        return Cohort(rows, self._weights[rows], rows, constraint, exact)


@dataclass(frozen=True)
class EagerExecutor:
    """Takes exchanges at once: the steps of all clients, stacked, then the server's.

    Parameters
    ----------
    method, run, downlink
        What is run.
    shared_names : frozenset of str
        The names of what the server can compute of clients.
    oracles : ClientOracles
        The clients' gradients and oracles.
    cohorts : Cohorts
        The clients of this process.
    clock : Stopwatch
        Times their calls.
    """

    method: Method
    run: Run
    downlink: Downlink
    shared_names: frozenset[str]
    oracles: ClientOracles
    cohorts: Cohorts
    clock: Stopwatch

    def begin(
        self,
        this_round: Round,
        cohorts: list[Cohort],
        message: Message,
        certify: bool,
        following: Following | None = None,
    ) -> Begun:
        """Return a function that takes the present exchange of a round: the clients' steps, then
        the server's.
        """

        def take() -> ExchangeSteps:
            """Take the steps of all cohorts, then the server's."""
            self._validate_noise(this_round, cohorts, message)
            uploads = [
                self.upload(this_round.exchange, message, cohort, state, this_round.t, certify)
                for cohort, state in zip(cohorts, this_round.states, strict=True)
            ]
            return self.close(
                this_round.exchange, this_round.after, message, uploads, this_round.count
            )

        return take

    def upload(
        self, step: Exchange, msg: Message, cohort: Cohort, state: State, t: int, certify: bool
    ) -> Upload:
        """Take the steps of a cohort in round t from its state (m, ...), and return its upload;
        ``certify`` asks for evidence about the optimum.
        """
        tol = msg.oracle_tol if self.method.rule.uses_oracles else None
        gradient, lmo = self.oracles.pair(cohort, t, tol)
        gradient = self.clock.timed("gradient", gradient)
        lmo = self.clock.timed("oracle", lmo)
        m = cohort.rows.shape[0]
        before = split(state, self.shared_names)
        oracles = WatchedOracles(gradient, lmo, m, self.run.n)
        after, sending = take_part(self.method, step, self.run, before, msg, oracles, certify)
        weights, weight = self.cohorts.weigh(cohort)
        if not self.method.algorithm.weighted or weights is None:
            # Without weights a client counts 1.
            weights = None
            weight = float(m)
        return Upload(
            cohort.rows,
            before.client.shared,
            sending.sent,
            sending.decoded,
            after.flat(),
            sending.evidence,
            weights,
            weight,
        )

    def close(
        self, step: Exchange, server: ServerState, msg: Message, uploads: list[Upload], count: int
    ) -> ExchangeSteps:
        """Take the server's step from the uploads of ``count`` clients of all processes, and return
        both.
        """
        server_step = step_server(
            self.method,
            self.downlink,
            self.run,
            step,
            server,
            msg,
            uploads,
            count,
            ranks=self.cohorts.ranks,
        )
        return ExchangeSteps(uploads, server_step)

    def _validate_noise(self, this_round: Round, cohorts: list[Cohort], message: Message) -> None:
        """Refuse a private round whose noise would be lost in the rounding of penalties or
        duals.
        """
        oracles = self.oracles
        if not isinstance(oracles, PrivateOracles):
            return
        algorithm = self.method.algorithm
        for cohort, state in zip(cohorts, this_round.states, strict=True):
            shared = split(state, self.shared_names).client.shared
            if not oracles.hides(algorithm, self.run, shared, message, cohort):
                raise ValueError(
                    f"round {this_round.t}: penalties, duals or the l2 term are so large that the "
                    "noise of a private run would be lost in their rounding: expected a smaller "
                    "penalty, l2 or set, or mechanism=gaussian"
                )


class ReplayExecutor:
    """Takes exchanges as a GPU's recordings where that can be, and at once where it cannot."""

    def __init__(self, eager: EagerExecutor, device: torch.device) -> None:
        self._eager = eager
        self._t = 0
        data = eager.cohorts.data()
        self._replay = ReplayedRounds(self._steps_of_all, eager.clock.add, device, data)

    def begin(
        self,
        this_round: Round,
        cohorts: list[Cohort],
        message: Message,
        certify: bool,
        following: Following | None = None,
    ) -> Begun:
        """Begin the present exchange of a round, and perhaps the next round, as recordings, or step
        by step where they cannot be recorded; return a function that waits for the result.
        """
        self._t = this_round.t
        replayed: Begun | None = None
        if not isinstance(this_round.exchange, GathersGradients):
            replayed = self._replay.begin(
                this_round.exchange,
                this_round.after,
                this_round.states[0],
                message,
                certify,
                following,
            )
        if replayed is not None:
            return replayed
        return self._eager.begin(this_round, cohorts, message, certify)

    def _steps_of_all(
        self, step: Exchange, server: ServerState, state: State, message: Message, certify: bool
    ) -> ExchangeSteps:
        """Take the steps of all clients with all of their samples."""
        eager = self._eager
        # A recording has one accuracy for all rounds: the best that the rule asks for.
        message = replace(message, oracle_tol=eager.method.rule.least_tol)
        upload = eager.upload(step, message, eager.cohorts.whole, state, self._t, certify)
        return eager.close(step, server, message, [upload], eager.run.n)
