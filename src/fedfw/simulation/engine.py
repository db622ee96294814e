"""The simulator: many clients on one machine, the algorithm's own steps, a record a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfw.algorithms.base import Algorithm, Gradient, Message, Plan, Server, State, Upload
from fedfw.atoms import Atom
from fedfw.certificates import LowerBound, frank_wolfe_gap
from fedfw.errors import NonFiniteError
from fedfw.privacy.guarantee import Privacy
from fedfw.privacy.steps import PrivateGradient
from fedfw.problems.base import Oracle
from fedfw.problems.problem import Problem
from fedfw.sets.base import ConstraintSet
from fedfw.simulation.history import History, Record
from fedfw.simulation.ledger import Ledger
from fedfw.simulation.memory import EveryRow, Memory, TouchedRows
from fedfw.simulation.options import Options
from fedfw.simulation.participation import Attendance, Participation
from fedfw.simulation.random import minibatches
from fedfw.simulation.recorded import RecordedRounds
from fedfw.simulation.result import Run
from fedfw.simulation.setup import (
    can_be_recorded,
    certificate_kind,
    constraint_groups,
    describe_setting,
    feasible_start,
    few_take_part,
    fingerprint,
    private_steps,
    refuse_contradictions,
    usable_device,
)
from fedfw.simulation.steps import Party, Taken, take_steps
from fedfw.simulation.stopwatch import Stopwatch
from fedfw.simulation.storage import RunFolder, restore

Callback = Callable[["Simulation"], None]


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int = 100,
    participation: float | Sequence[float] | Attendance = 1.0,
    relax: Mapping[int, Any] | None = None,
    local_steps: int = 1,
    batch_size: int | None = None,
    tol: float | None = None,
    eval_every: int = 1,
    seed: int = 0,
    device: str | torch.device | None = None,
    callbacks: Sequence[Callback] = (),
    privacy: Privacy | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Run:
    """Run a federated algorithm with all clients on this machine.

    Parameters
    ----------
    participation
        A probability (float), one a client, a number of clients a round (int), or a function t -> clients.
    relax
        For stragglers: {client: a simpler set that contains the constraint}. At least one client keeps the constraint.
    local_steps
        Frank-Wolfe steps of a client a round; the clock advances with each.
    batch_size
        Samples of a gradient, drawn with replacement from the seed; None for all.
    tol
        Stop when F of the returned model is proven to be within tol of the optimum.
    eval_every
        Rounds between evaluations (loss, test, gap, surrogate, certificate); the last round is always evaluated.
    device
        Where to compute; by default where the model is.
    callbacks
        Called after every round with the `Simulation`.
    privacy
        A promise to keep: noise is added for it, and nothing that would break it is recorded (the loss, the gap).
    out
        A folder for history, model, plots and checkpoints; must not hold a run yet, unless ``resume``.
    resume
        Continue from the last good checkpoint in ``out``.
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm={algorithm!r}, expected an algorithm with its set, such as FedFW(L1Ball(10.0))")
    options = Options(rounds, participation, relax, local_steps, batch_size, tol, eval_every, seed, device, privacy)
    folder = None if out is None else RunFolder(Path(out), resume)
    return Simulation(problem, algorithm, options, folder).run(callbacks)


@dataclass
class Simulation:
    """A run in progress: what callbacks may look at."""

    problem: Problem
    algorithm: Algorithm
    options: Options
    folder: RunFolder | None = None
    t: int = 0
    history: History = field(default_factory=History)
    best_bound: float | None = None

    def __post_init__(self) -> None:
        options = self.options
        device = usable_device(options.device) if options.device is not None else self.problem.start.device
        self.problem = problem = self.problem.to(device)
        self.constraint = problem.bind(self.algorithm.constraint)
        self.participation = Participation(options.participation, problem.n, options.seed)
        self._groups = constraint_groups(self.constraint, options.relax, problem)
        refuse_contradictions(problem, self.algorithm, self.constraint, self.participation, options)
        self.private = private_steps(problem, self.algorithm, self.constraint, self.participation, options)
        start = feasible_start(self.constraint, problem.start)
        self.clock = Stopwatch(device)
        setting = describe_setting(problem, self.constraint, start, self.participation.p, options)
        self.plan = replace(self.algorithm.plan(setting), watch=self.clock.timed)
        self.server: Server = self.algorithm.start_server(start)
        self.memory = self.new_memory(start, few_take_part(problem, self.participation, options))
        self.ledger = Ledger(problem.n, start)
        self._everyone = problem.losses.everyone(start.device)
        self.bound = LowerBound(self.constraint, problem.n)
        self._weights = problem.weights.to(start.dtype)
        self.certificate = certificate_kind(problem, self.algorithm, options)
        self.dense_sums = 0
        alike = can_be_recorded(problem, self.participation, options, self.plan)
        self._recorded = RecordedRounds(self.plan, self._steps_of_everyone, self.clock, start.device) if alike else None
        self.attended = torch.zeros(problem.n, dtype=torch.int64)
        noise = None if self.private is None else self.private.noise
        self.fingerprint = fingerprint(self.plan, self.algorithm, options, start, noise)
        if self.folder is not None:
            restore(self, self.folder)

    def new_memory(self, start: Tensor, few: bool) -> Memory:
        """Of clients that begin at start (p,); all rows, or with ``few`` only those of clients that take part."""
        n = self.problem.n
        if few and self.algorithm.keeps_points:
            return TouchedRows(n, self.algorithm.start_clients(start[None].clone()))
        return EveryRow(self.algorithm.start_clients(start.repeat(n, 1)))

    @property
    def clients(self) -> State:
        """The memories of all clients, (n, ...) each."""
        state = self.memory.gather(self._everyone)
        # A replay overwrites its results.
        return state if self._recorded is None else {name: values.clone() for name, values in state.items()}

    # --- the loop ---

    def run(self, callbacks: Sequence[Callback] = ()) -> Run:
        """All rounds that are left."""
        stopped = "all that were asked for"
        done = bool(self.history) and self._within_tolerance(self.history[-1])  # a resumed run may have ended
        while self.t < self.options.rounds and not done:
            if self._budget_is_spent(self.t + 1):
                stopped = "the privacy budget is spent"
                break
            self.t += 1
            with self.clock.round():
                record = self._round()
            self.history.append(record)
            for callback in callbacks:
                callback(self)
            done = self._within_tolerance(record)
            if self.folder is not None:
                self.folder.after_round(self, last=done or self.t == self.options.rounds)
        self._recorded = None  # its steps are this object's: both would stay until the garbage is collected
        if done:
            stopped = f"within tol={self.options.tol:g} of the optimum"
        run = Run(
            self.problem,
            self.algorithm,
            self.plan,
            self.server.xbar,
            self.feasible(),
            self.history,
            self.best_bound,
            self.certificate,
            stopped,
            self.dense_sums,
            None if self.folder is None else self.folder.path,
            None if self.private is None else str(self.private),
        )
        if self.folder is not None:
            self.folder.finish(run.model, self.algorithm.name, self.history)
        return run

    def _round(self) -> Record:
        t, plan, algorithm = self.t, self.plan, self.algorithm
        present = self.participation(t)
        count, everyone = present.shape[0], present.shape[0] == plan.n
        if self.private is not None:
            self.attended[present] += 1
        # The same tensor for everyone in every round: losses recognise it without looking at its numbers.
        who = self._everyone if everyone else present.to(self._everyone.device)
        rates = None if plan.schedule is None else plan.rates(t)
        last = t == self.options.rounds or self._budget_is_spent(t + 1)
        evaluated = t % self.options.eval_every == 0 or last
        up = down = sums = 0
        anchor_gap = None
        if count:
            groups = [who] if len(self._groups) == 1 else [group[torch.isin(group, who)] for group, _ in self._groups]
            active = [(rows, D) for rows, (_, D) in zip(groups, self._groups, strict=True) if len(rows)]
            gradients = [self._gradient(plan, rows) for rows, _ in active]
            states = [self.memory.gather(rows) for rows, _ in active]
            if (anchored := algorithm.anchor(plan, self.server, states, gradients, t)) is not None:
                xbar = self.server.xbar
                self.server, states, learnt = anchored
                sums = 1 if everyone else 2
                self.dense_sums += sums
                if everyone:
                    anchor_gap = frank_wolfe_gap(self.constraint, xbar, learnt.gradient)
                    if self._proven_at_anchor(learnt.loss, anchor_gap):
                        return self._closing_record(learnt.loss, anchor_gap, who)
            known = states[0]["x"] if len(states) == 1 else torch.cat([state["x"] for state in states])
            taking_part = who if len(active) == 1 else torch.cat([rows for rows, _ in active])
            self.server, message = algorithm.broadcast(plan, self.server, taking_part, known, t)
            proves = self.certificate.startswith("valid")
            message = replace(message, wants_evidence=True) if evaluated and proves else message
            replayed = self._recorded.begin(self.server, states[0], message) if self._recorded is not None else None
            # An anchor sends its mean gradient down and, with absentees, xbar again: those present moved to it.
            down = self.ledger.down(t, present, message.vectors, sums, algorithm.sends_model)
            if replayed is not None:
                taken = replayed()
            else:
                parties = [
                    Party(rows, state, gradient, self._lmo(plan, D, rows, gradient))
                    for (rows, D), state, gradient in zip(active, states, gradients, strict=True)
                ]
                taken = take_steps(algorithm, plan, self.server, message, parties)
            for (rows, _), state in zip(active, taken.states, strict=True):
                self.memory.scatter(rows, state)
            self.server = taken.server
            self.ledger.step(t, *(mark.cpu() for mark in taken.marks))
            up = sum(upload.atoms.nbytes for upload in taken.uploads) + sums * self.ledger.dense_nbytes * count
            self._learn(taken.uploads)
        evaluate = self.clock.timed("evaluation", self._evaluate)
        judged = evaluate(0.0 if rates is None else rates.lam) if evaluated else {}
        return Record(
            round=t,
            anchor_gap=anchor_gap,
            lower_bound=self.best_bound,
            participants=count,
            **({} if rates is None else vars(rates)),
            bytes_up=up,
            bytes_down=down,
            bytes_dense=2 * count * self.ledger.dense_nbytes,
            epsilon=None if self.private is None else self.private.epsilon(int(self.attended.max())),
            seconds=self.clock.split(),
            **judged,
        )

    def _proven_at_anchor(self, loss: float, gap: float) -> bool:
        """An anchor knows F and the gap at xbar; whether they prove that xbar is within the tolerance."""
        if not self.problem.convex:
            return False
        self._improve(loss - gap)
        tol, bound = self.options.tol, self.best_bound
        return tol is not None and bound is not None and len(self._groups) == 1 and loss - bound <= tol

    def _closing_record(self, loss: float, gap: float, who: Tensor) -> Record:
        """The record of a round that ended with its anchor: xbar is good enough, nobody takes another step."""
        test = self.problem.test(self.server.xbar)
        dense = len(who) * self.ledger.dense_nbytes
        return Record(
            round=self.t,
            loss=loss,
            test_loss=test.loss,
            accuracy=test.accuracy,
            gap=gap,
            anchor_gap=gap,
            lower_bound=self.best_bound,
            distance=0.0,
            participants=len(who),
            bytes_up=dense,
            bytes_down=self.ledger.down(self.t, who.cpu(), {}, 0),
            bytes_dense=2 * dense,
            seconds=self.clock.split(),
        )

    def _budget_is_spent(self, t: int) -> bool:
        """Whether somebody who takes part in round t has no budget left for it."""
        if self.private is None:
            return False
        return bool((self.attended[self.participation(t)] >= self.private.most_rounds).any())

    def _steps_of_everyone(self, plan: Plan, server: Server, state: State, message: Message) -> Taken:
        gradient = self._gradient(plan, self._everyone)
        party = Party(self._everyone, state, gradient, self._lmo(plan, self.constraint, self._everyone, gradient))
        return take_steps(self.algorithm, plan, server, message, [party])

    def _gradient(self, plan: Plan, who: Tensor) -> Gradient:
        options = self.options
        if self.private is not None:
            return self.private.gradient(self.problem.losses, self._weights[who], who, self.t, who)
        pick = minibatches(
            options.seed, self.t, options.local_steps, self.problem.losses.sizes, options.batch_size, who
        )
        return plan.watch("gradient", Oracle(self.problem.losses, self._weights, who, pick, self.t))

    def _lmo(self, plan: Plan, constraint: ConstraintSet, who: Tensor, gradient: Gradient) -> Callable[[Tensor], Atom]:
        tol = None if plan.schedule is None else plan.oracle_tol(self.t)
        if isinstance(gradient, PrivateGradient):
            return plan.watch("oracle", gradient.lmo(constraint, tol))

        def oracle(g: Tensor) -> Atom:
            try:
                return constraint.lmo(g, batch=True, tol=tol)
            except NonFiniteError as error:
                clients = who[list(error.rows)].tolist()
                raise NonFiniteError(
                    f"round {self.t}: NaN or infinity in the direction of client {clients}", clients
                ) from None

        return plan.watch("oracle", oracle)

    def _learn(self, uploads: Sequence[Upload]) -> None:
        """Update the certificate from what the clients told."""
        if not self.certificate.startswith("valid"):
            return
        for upload in uploads:
            if upload.evidence is not None:
                self.bound.report(upload.who, upload.evidence.number, upload.evidence.q)
                self._improve(self.bound.value())

    def _improve(self, bound: float | None) -> None:
        if bound is not None and (self.best_bound is None or bound > self.best_bound):
            self.best_bound = bound

    # --- judging ---

    def feasible(self) -> Tensor:
        """The model that is judged and returned, (p,)."""
        xbar = self.server.xbar
        if len(self._groups) == 1 or self.constraint.contains(xbar):
            return xbar
        if self.constraint.has_projection:
            return self.constraint.project(xbar)
        keepers = next(rows for rows, D in self._groups if D is self.constraint)
        return self.clients["x"][keepers].mean(0)

    def _evaluate(self, lam: float) -> dict[str, Any]:
        """What may be told: in a private run the test data, which are public, and what the atoms sent say of x_i."""
        xbar, x = self.server.xbar, self.feasible()
        test = self.problem.test(x)
        inside = self.constraint.contains(xbar)
        far = self.constraint.distance(xbar) if not inside and self.constraint.has_projection else None
        judged = {"test_loss": test.loss, "accuracy": test.accuracy, "distance": 0.0 if inside else far}
        apart = None
        if self.algorithm.keeps_points:
            apart = self.memory.spread(xbar)
            judged["consensus"] = apart**0.5
        told = self.private is None and self.problem.losses.countable
        return judged | self._of_the_data(lam, apart) if told else judged

    def _of_the_data(self, lam: float, apart: float | None) -> dict[str, Any]:
        """Loss, gap and surrogate (from ||X - Xbar||^2), which only clients' data tell."""
        xbar = self.server.xbar
        loss, gradient = self.problem.value_and_gradient(xbar, self.t)
        gap = frank_wolfe_gap(self.constraint, xbar, gradient)
        if self.problem.convex:
            self._improve(loss - gap)
        told = {"loss": loss, "gap": gap}
        if apart is not None:
            points = self.clients["x"]
            values = self.problem.losses.value(points, self._everyone)
            told["surrogate"] = float((values.double() * self.problem.weights).sum()) + lam / 2 * apart
        return told

    def _within_tolerance(self, record: Record) -> bool:
        if self.options.tol is None or self.best_bound is None or record.loss is None:
            return False
        returned = self.feasible()
        loss = record.loss if returned is self.server.xbar else self.problem.value_and_gradient(returned)[0]
        return loss - self.best_bound <= self.options.tol
