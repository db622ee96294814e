"""The simulator: many clients on one machine, the algorithm's own steps, a record a round."""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedfw.algorithms.contract import Algorithm, Message, Run, State
from fedfw.algorithms.optin import GathersGradients
from fedfw.algorithms.rules import Rates
from fedfw.algorithms.step_sizes import reports_curvature
from fedfw.errors import ContradictionError
from fedfw.problems.digest import describe_problem
from fedfw.problems.oracles import Cohort
from fedfw.problems.problem import Problem
from fedfw.rounds.channels import make_channels
from fedfw.rounds.checkpoints import joined, part
from fedfw.rounds.client_steps import Method, sends_model
from fedfw.rounds.contradictions import ContradictionCheck
from fedfw.rounds.coordinator import Coordinator
from fedfw.rounds.downlink import make_downlink
from fedfw.rounds.feasibility import final_model
from fedfw.rounds.fingerprint import Fingerprint, after_rounds, fingerprint, refuse_another_run
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation
from fedfw.rounds.records import History, Record
from fedfw.rounds.round import Round
from fedfw.rounds.server_steps import ServerState
from fedfw.rounds.setup import (
    Certificate,
    certificate_of,
    describe_setting,
    feasible_start,
    usable_device,
    validate_reports,
)
from fedfw.rounds.stopwatch import Stopwatch, timed_set
from fedfw.simulation.callbacks.base import Callback
from fedfw.simulation.callbacks.checkpoints import Checkpoints
from fedfw.simulation.callbacks.endings import Budget, EarlyStop
from fedfw.simulation.callbacks.evaluation import Evaluation
from fedfw.simulation.callbacks.hooks import Callbacks, Hooks, as_callbacks
from fedfw.simulation.executor import Cohorts, EagerExecutor, ReplayExecutor
from fedfw.simulation.polishing import polish_support
from fedfw.simulation.replay import Following
from fedfw.simulation.result import Run as Result
from fedfw.simulation.setup import (
    can_be_replayed,
    choose_oracles,
    constraint_groups,
    new_memory,
    plan_privacy,
    refuse_contradictions,
    refuse_different_runs,
    refuse_drift,
)


class Simulation:
    """A run in progress: what callbacks look at.

    Parameters
    ----------
    problem, algorithm, options
        What is run.
    folder : RunFolder, optional
        Where the run is kept; a checkpoint there is continued.
    callbacks
        See `simulate`.

    Attributes
    ----------
    t : int
        The present round.
    history : History
        The records so far.
    coordinator : Coordinator
        The server's side.
    now : Round
        The present round in its parts.
    evaluates : bool
        Whether the present round is evaluated: by its number, because a private run ends with it,
        or because its gathered sum proves the tolerance.
    stopped : str or None
        Why the run ends after this round; None where it goes on.
    contradictions : ContradictionCheck or None
        What compares losses with bounds; None in runs that prove none.
    refuted : bool
        Whether the run ended because it refuted its own proofs; it then has no bound.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        options: Options,
        *,
        folder: RunFolder | None = None,
        callbacks: Callbacks = (),
    ) -> None:
        """Check the run, set up the server and its clients, and resume from the folder's
        checkpoint, if there is one.
        """
        device = (
            usable_device(options.device) if options.device is not None else problem.start.device
        )
        self.problem = problem.to(device)
        self.options = options
        self.constraint = self.problem.bind(algorithm.constraint)
        self.participation = Participation(
            options.participation, problem.n, options.seed, options.rounds
        )
        self._groups = constraint_groups(self.constraint, options.relax, self.problem)
        refuse_contradictions(self.problem, algorithm, self.constraint, self.participation, options)
        start = feasible_start(self.constraint, self.problem.start)
        setting = describe_setting(
            self.problem, self.constraint, start, self.participation.p, options
        )
        validate_reports(reports_curvature(algorithm), options)
        self.algorithm, rule = algorithm.configure(setting)
        validate_reports(rule.reports_curvature, options)
        channels = make_channels(self.algorithm, setting, rule.reports_curvature)
        self.method = Method(self.algorithm, rule, channels)
        self.privacy = plan_privacy(
            self.problem, self.algorithm, self.constraint, self.participation, options
        )
        self.clock = Stopwatch(device)
        self.ranks = problem.ranks
        timed = timed_set(self.constraint, self.clock)
        setup = Run(problem.n, timed, start.dtype)
        self.certificate = certificate_of(self.problem, self.algorithm, options)
        memory = new_memory(
            self.problem, self.method, setup, self.participation, options, start, self.privacy
        )
        downlink = make_downlink(self.algorithm, start.dtype)
        self.coordinator = Coordinator(
            self.method,
            setup,
            start,
            memory,
            downlink,
            convex=self.certificate.proves,
            floor=self.problem.floor,
            ranks=self.ranks,
        )
        self.cohorts = Cohorts(self.problem, self._groups)
        self.everyone = self.cohorts.all_here
        self._oracles = choose_oracles(self.problem, self.privacy, options)
        eager = EagerExecutor(
            self.method,
            setup,
            downlink,
            self.coordinator.shared_names,
            self._oracles,
            self.cohorts,
            self.clock,
        )
        self._executor: EagerExecutor | ReplayExecutor = eager
        self._is_replayed = can_be_replayed(self.problem, self.participation, options, self.method)
        if self._is_replayed:
            self._executor = ReplayExecutor(eager, start.device)
        self._start = start
        self.t = self.resumed_at = 0
        self.history = History()
        self.contradictions: ContradictionCheck | None = None
        if self.certificate.proves:
            self.contradictions = ContradictionCheck(self.problem, self.constraint)
        self.stopped: str | None = None
        self.evaluates = self.refuted = False
        self._sends_model = sends_model(self.method, setup, start, downlink)
        self.hooks = Hooks(self._all_callbacks(folder, callbacks), self.ranks)
        self._folder = folder
        if self.ranks.size > 1:
            refuse_different_runs(self.ranks, self._fingerprint_of_run(), options)
        self._resume(folder)

    # --- what callbacks look at ---

    @property
    def run_info(self) -> Run:
        """Return what is fixed before the first round."""
        return self.coordinator.run

    @property
    def xbar(self) -> Tensor:
        """The server's model, (p,), in the precision of the problem."""
        return self.coordinator.server.xbar.to(self.problem.start.dtype)

    @property
    def server(self) -> ServerState:
        """Return the server's state."""
        return self.coordinator.server

    @property
    def best_bound(self) -> float | None:
        """The best proven lower bound on the optimum."""
        return self.coordinator.best_bound

    @property
    def clients(self) -> State:
        """Return the memories of all clients, (n, ...) each; of this rank's clients where several
        share the run.
        """
        state = self.coordinator.memory.gather(self.everyone)
        if not self._is_replayed:
            return state
        # A replay overwrites its results.
        return {name: values.clone() for name, values in state.items()}

    @property
    def relaxed(self) -> bool:
        """Return whether some clients use a larger set."""
        return len(self._groups) > 1

    @property
    def rates(self) -> Rates | None:
        """Return step size, penalty and averaging weight of the present round, for methods that
        take Frank-Wolfe steps.
        """
        rule = self.method.rule
        if not rule.uses_oracles or not self.t:
            return None
        if self.now.rates is not None:
            return self.now.rates
        return rule.rates(self.coordinator.server.rule_state, self.t)[0]

    @property
    def reports_loss(self) -> bool:
        """Return whether loss and gap may be worked out: not in private runs, nor where nobody sums
        over all clients.
        """
        return self.privacy is None and self.problem.losses.countable

    def feasible(self) -> Tensor:
        """Return the model that is judged and returned, (p,): xbar, or with relaxed clients a point
        of the set near it.
        """
        xbar = self.xbar
        if not self.relaxed or self.constraint.contains(xbar):
            return xbar
        if self.constraint.has_projection:
            return self.constraint.project(xbar)
        keepers = next(rows for rows, D in self._groups if D is self.constraint)
        # The mean of points of the set lies in it.
        keepers_here = keepers[torch.isin(keepers, self.everyone)]
        (total,) = self.ranks.sums(self.coordinator.memory.gather(keepers_here)["x"].sum(0))
        return (total / len(keepers)).to(xbar.dtype)

    # --- the loop ---

    def run(self) -> Result:
        """Take all rounds that are left."""
        self.resumed_at = self.t
        try:
            self._check_start()
            while self.t < self.options.rounds and not self._ends("before_round"):
                self.t += 1
                self.clock.begin()
                self._round()
                self._record()
                if self._ends("after_round"):
                    break
            feasible = final_model(self.constraint, self.feasible())
            polishing = None
            if self.options.polish is not None:
                feasible, polishing = polish_support(self.problem, self.constraint, feasible)
            self._check_returned_model(feasible)
        except BaseException as error:
            if isinstance(error, ContradictionError):
                self.refuted = True
                self.coordinator.proof.withdraw()
                self.history.withdraw_bounds()
            for callback in self.hooks.callbacks:
                callback.abandon(self)
            raise
        run = Result(
            problem=self.problem,
            algorithm=self.algorithm,
            x=self.problem.shaped(self.xbar),
            feasible=self.problem.shaped(feasible),
            history=self.history,
            lower_bound=self.best_bound,
            certificate=self.certificate,
            stopped=self.stopped or "all that were asked for",
            dense_sums=self.coordinator.proof.dense_sums,
            out=None if self._folder is None else self._folder.path,
            privacy=None if self.privacy is None else str(self.privacy),
            polishing=polishing,
        )
        self.hooks.finish(self, run)
        return run

    def _check_start(self) -> None:
        """Compare the loss at the start with what is known of the optimum before any round."""
        if self.t == 0 and self.contradictions is not None:
            self.contradictions.start_at(self._start)
            self.contradictions.compare(0, self.best_bound)

    def _check_returned_model(self, x: Tensor) -> None:
        """Compare the loss of the returned model x (p,) with the bound, unless an evaluation
        already did.
        """
        if self.contradictions is None or self.best_bound is None:
            return
        is_evaluated = self.contradictions.has_loss_of(self.t)
        if is_evaluated and not self.relaxed and self.options.polish is None:
            return
        self.contradictions.add_loss(self.t, x, self.problem.value(x))
        self.contradictions.compare(self.t, self.best_bound)

    def _round(self) -> None:
        """Take one round, in the phases of `fedfw.rounds.coordinator`."""
        coordinator = self.coordinator
        participants = self.participation(self.t)
        cohorts, rows_on_host = self.cohorts.of(participants)
        together = participants.shape[0] == self.problem.n and not self.relaxed
        self.now = this_round = coordinator.open(
            self.t, [cohort.rows for cohort in cohorts], rows_on_host, together=together
        )
        self.evaluates = self.options.evaluates(self.t) or self._budget_ends()
        if not len(participants):
            return
        while not this_round.is_over:
            self._exchange(this_round, cohorts)

    def _exchange(self, this_round: Round, cohorts: list[Cohort]) -> None:
        """Take one exchange of a round: a message down, all clients' steps, and the server's."""
        coordinator = self.coordinator
        gathers = isinstance(this_round.exchange, GathersGradients)
        # Gathered gradients prove a bound in every such exchange, oracles' answers at evaluations.
        certify = self.certificate.proves if gathers else self.evaluates and self._proves
        message = coordinator.announce(this_round)
        # Numbering and counting the message need no results: a GPU works meanwhile.
        finish = self._executor.begin(
            this_round, cohorts, message, certify, self._following(this_round, message)
        )
        coordinator.number(this_round)
        coordinator.count_down(this_round)
        steps = finish()
        with_loss = not gathers and self.evaluates and self.reports_loss and self._sends_model
        before = replace(this_round.traffic)
        for upload in steps.uploads:
            this_round.arrive(upload, with_loss=with_loss)
        this_round.sum_over(self.ranks, before)
        coordinator.close(this_round, steps.step)
        if gathers:
            # A sum that proves the tolerance lets this round be evaluated, and so end the run.
            self._check_gathered()
            self.evaluates = self.evaluates or self._gathered_within_tol()

    def _following(self, this_round: Round, message: Message) -> Following | None:
        """Return the rates of the next round and whether it asks for evidence, so that a GPU can
        begin it ahead; None where more than this round's results may go into it.

        That is where the server derives something for its message, as it had to for this one, or
        has more exchanges.
        """
        sends_model_alone = this_round.after is this_round.before and list(message.vectors) == [
            "xbar"
        ]
        has_more_exchanges = len(self.algorithm.all_exchanges) > 1
        if (
            not self._is_replayed
            or has_more_exchanges
            or not sends_model_alone
            or self.t == self.options.rounds
        ):
            return None
        rates = self.method.rule.rates(self.coordinator.server.rule_state, self.t + 1)
        return rates, self.options.evaluates(self.t + 1) and self._proves

    def _gathered_within_tol(self) -> bool:
        """Return whether a gathered sum proves the tolerance, so that this round's model is
        evaluated and may end the run.
        """
        gathered = self.now.gathered
        bound = self.best_bound
        if self.options.tol is None or gathered is None or gathered.gradient is None:
            return False
        return bound is not None and gathered.loss - bound <= self.options.tol

    def _check_gathered(self) -> None:
        """Compare F(xbar), where a sum over all clients gave it, with the bound."""
        gathered = self.now.gathered
        if self.contradictions is None or gathered is None or gathered.gradient is None:
            return
        # This loss may be below F by what rounding can change of the sum: a contradiction is
        # confirmed before it counts.
        self.contradictions.add_loss(self.t - 1, self.xbar, gathered.loss)
        self.contradictions.compare(self.t, self.best_bound)

    def _record(self) -> None:
        """Append the record of the round: what the run measured, and what callbacks give."""
        this_round = self.now
        if self.evaluates:
            refuse_drift(self.ranks, self.t, self.xbar)
        from_callbacks, reason = self.hooks.record(self)
        self.stopped = self.stopped or reason
        count = this_round.count
        rates = self.rates
        values = {
            "round": self.t,
            "anchor_gap": this_round.anchor_gap,
            "lower_bound": self.best_bound,
            "participants": count,
            **({} if rates is None else _recorded(rates)),
            **vars(this_round.traffic),
            "bytes_dense": 2 * count * self.coordinator.wire.dense_nbytes,
            "seconds": self.clock.split(),
        }
        if repeated := from_callbacks.keys() & values.keys():
            raise TypeError(
                f"callbacks give {sorted(repeated)} for the record, which the simulation fills in "
                "itself"
            )
        self.history.append(Record(**values | from_callbacks))

    def _ends(self, hook: str) -> bool:
        """Call a method of every callback; return whether the run ends."""
        self.stopped = self.stopped or self.hooks.call(hook, self)
        return self.stopped is not None

    # --- setting up ---

    @property
    def _proves(self) -> bool:
        return self.certificate is Certificate.EVERY_ROUND

    def _budget_ends(self) -> bool:
        """Return whether a client of the next round has no privacy budget left for it."""
        if self.privacy is None or self.t == self.options.rounds:
            return False
        budget = next(one for one in self.hooks.callbacks if isinstance(one, Budget))
        return budget.spent_by(self.participation(self.t + 1))

    def _all_callbacks(self, folder: RunFolder | None, callbacks: Callbacks) -> list[Callback]:
        """Return the callbacks of every run, around those that the user gave."""
        of_user = as_callbacks(callbacks)
        budget = [] if self.privacy is None else [Budget(self.privacy, self.problem.n)]
        stop = [] if self.options.tol is None else [EarlyStop(self.options.tol)]
        # A private run keeps every round: what it has spent must not be forgotten.
        has_folder = self.ranks.broadcast_object(folder is not None)
        checkpoints = (
            [Checkpoints(folder, every=10 if self.privacy is None else 1)] if has_folder else []
        )
        # Evaluation comes before those that read its results, and checkpoints are written last.
        return [*budget, Evaluation(), *of_user, *stop, *checkpoints]

    # --- checkpoints ---

    @property
    def fingerprint(self) -> Fingerprint:
        """Return what must agree for a checkpoint of the present round to be continued."""
        return after_rounds(self._fingerprint, self.method.rule, self.t)

    @cached_property
    def _fingerprint(self) -> Fingerprint:
        # Files of a private run hold no digest of data. What must not change is how many samples
        # there are.
        private = self.options.promise is not None
        return describe_problem(self.problem, private=private) | self._fingerprint_of_run()

    def _fingerprint_of_run(self) -> Fingerprint:
        noise = None if self.privacy is None else self.privacy.noise
        return fingerprint(
            self.run_info, self.algorithm, self.options, self._start, self.participation, noise
        )

    def state(self) -> dict[str, Tensor]:
        """Return the tensors from which a run goes on to the same bits."""
        parts = self.hooks.state()
        lowest = {} if self.contradictions is None else self.contradictions.state()
        return joined(
            {
                "coordinator": self.coordinator.state(),
                "lowest": lowest,
                **parts,
            }
        )

    def _resume(self, folder: RunFolder | None) -> None:
        """Continue from the newest checkpoint, which rank 0 reads for all ranks; begin anew without
        one.
        """
        checkpoint = None if folder is None else folder.latest()
        saved_tensors, saved_meta = (None, None) if checkpoint is None else checkpoint
        meta = self.ranks.broadcast_object(saved_meta)
        if meta is None:
            return
        tensors = self.ranks.broadcast_tensors(saved_tensors)
        here = after_rounds(
            self._fingerprint, self.method.rule, min(meta["round"], self.options.rounds)
        )
        if folder is not None:
            refuse_another_run(folder.path, meta["fingerprint"], here, meta["round"])
        self.coordinator.load(part(tensors, "coordinator"))
        if self.contradictions is not None:
            self.contradictions.load(part(tensors, "lowest"))
        self.hooks.load(tensors)
        self.t = self.resumed_at = meta["round"]
        self.history = History.from_jsonl(meta["history"])


def _recorded(rates: Rates) -> dict[str, float]:
    """Return what a record has of rates."""
    return {"eta": float(rates.eta), "lam": float(rates.lam), "rho": float(rates.rho)}
