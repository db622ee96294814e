"""The simulator: many clients on one machine, the algorithm's own steps, a record a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfw.algorithms.anchored import FedFWAnchored
from fedfw.algorithms.base import Algorithm, Evidence, Gradient, Plan, Server, State, Upload
from fedfw.atoms import Atom
from fedfw.certificates import LowerBound, frank_wolfe_gap, least_product
from fedfw.problems.base import Oracle
from fedfw.problems.problem import Problem
from fedfw.sets.base import ConstraintSet
from fedfw.simulation.history import History, Record
from fedfw.simulation.ledger import Ledger
from fedfw.simulation.participation import Attendance, Participation
from fedfw.simulation.random import minibatch
from fedfw.simulation.storage import RunFolder

Callback = Callable[["Simulation"], None]


@dataclass(frozen=True)
class Options:
    """How a run goes, beside the problem and the algorithm. See `simulate`."""

    rounds: int = 100
    participation: float | Sequence[float] | Attendance = 1.0
    relax: Mapping[int, Any] | None = None
    local_steps: int = 1
    batch_size: int | None = None
    tol: float | None = None
    eval_every: int = 1
    seed: int = 0
    device: str | torch.device | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "local_steps", "eval_every"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}, expected a whole number of at least 1")
        if self.batch_size is not None and (not isinstance(self.batch_size, int) or self.batch_size < 1):
            raise ValueError(f"batch_size={self.batch_size!r}, expected a whole number of at least 1, or None for all")
        if self.tol is not None and not self.tol > 0:
            raise ValueError(f"tol={self.tol!r}, expected a positive number or None")


@dataclass
class Run:
    """What a simulation gives back."""

    problem: Problem
    algorithm: Algorithm
    plan: Plan
    x: Tensor
    """xbar, (p,), in ``named_parameters()`` order."""
    feasible: Tensor
    """What is judged and returned: xbar, or with relaxed clients the nearest point that the set holds."""
    history: History
    lower_bound: float | None
    certificate: str
    """What the lower bound rests on, or why there is none."""
    stopped: str
    """Why the run ended."""
    out: Path | None = None

    @property
    def model(self) -> nn.Module:
        """A trained copy of the module, inside the set."""
        return self.problem.trained(self.feasible)

    def plot(self) -> Any:
        """A matplotlib figure of the run."""
        from fedfw.report.plots import plot_runs

        return plot_runs({self.algorithm.name: self.history})


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
        Rounds between evaluations (loss, test, gap); the last round is always evaluated.
    device
        Where to compute; by default where the model is.
    callbacks
        Called after every round with the `Simulation`.
    out
        A folder for history, model, plots and checkpoints; must be new or empty unless ``resume``.
    resume
        Continue from the last good checkpoint in ``out``.
    """
    options = Options(rounds, participation, relax, local_steps, batch_size, tol, eval_every, seed, device)
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
        device = torch.device(options.device) if options.device is not None else self.problem.start.device
        self.problem = problem = self.problem.to(device)
        self.constraint = problem.bind(self.algorithm.constraint)
        self.participation = Participation(options.participation, problem.n, options.seed)
        self._groups = _constraint_groups(self.constraint, options.relax, problem)
        start = _feasible_start(self.constraint, problem.start)
        horizon = options.rounds * options.local_steps
        schedule = self.algorithm.make_schedule(problem.convex, self.participation.p, horizon)
        automatic = isinstance(self.algorithm.penalty, str)
        unit = _automatic_penalty(problem, self.constraint, start) if automatic else 1.0
        lam_0 = self.algorithm.resolve_penalty(unit)
        self.plan = Plan(problem.n, self.constraint, lam_0, schedule, options.local_steps)
        self.server: Server = self.algorithm.start_server(start)
        self.clients: State = self.algorithm.start_clients(start.repeat(problem.n, 1))
        self.ledger = Ledger(problem.n, start)
        self.bound = LowerBound(self.constraint, problem.n)
        self._weights = problem.weights.to(start.dtype)
        self.certificate = _certificate(problem, self.algorithm, options)
        self.clock = Stopwatch(device)
        self.dense_sums = 0
        if options.batch_size is not None and problem.losses.sizes is None:
            raise ValueError("batch_size needs clients with samples; these are plain functions")
        if self.folder is not None:
            self._restore()

    # --- the loop ---

    def run(self, callbacks: Sequence[Callback] = ()) -> Run:
        """All rounds that are left."""
        stopped = f"{self.options.rounds} rounds"
        while self.t < self.options.rounds:
            self.t += 1
            with self.clock.round():
                record = self._round()
            self.history.append(record)
            for callback in callbacks:
                callback(self)
            done = self._within_tolerance(record)
            if self.folder is not None:
                self.folder.after_round(self, last=done or self.t == self.options.rounds)
            if done:
                stopped = f"within tol={self.options.tol:g} of the optimum"
                break
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
            None if self.folder is None else self.folder.path,
        )
        if self.folder is not None:
            self.folder.finish(run)
        return run

    def _round(self) -> Record:
        t, plan, algorithm = self.t, self.plan, self.algorithm
        device = self.server.xbar.device
        who = self.participation(t).to(device)
        rates = plan.rates(t)
        evaluated = t % self.options.eval_every == 0 or t == self.options.rounds
        up = down = sums = 0
        surrogate = anchor_gap = None
        if len(who):
            groups = [group[torch.isin(group, who)] for group, _ in self._groups]
            active = [(rows, D) for rows, (_, D) in zip(groups, self._groups, strict=True) if len(rows)]
            gradients = [self._gradient(rows) for rows, _ in active]
            states = [self._gather(rows) for rows, _ in active]
            if isinstance(algorithm, FedFWAnchored) and algorithm.is_anchor(t):
                anchored_at = self.server.xbar
                self.server, states, mean = algorithm.anchor(plan, self.server, states, gradients)
                sums = 1 if len(who) == plan.n else 2
                if len(who) == plan.n:
                    anchor_gap = frank_wolfe_gap(self.constraint, anchored_at, plan.n * mean)
            known = torch.cat([state["x"] for state in states])
            self.server, message = algorithm.broadcast(plan, self.server, who, known, t)
            down = self.ledger.down(t, who.cpu(), len(message.vectors) + (1 if sums else 0))
            uploads = []
            for (rows, D), state, gradient in zip(active, states, gradients, strict=True):
                before = state["x"]
                state, atoms, evidence = algorithm.client_step(plan, state, message, gradient, self._lmo(D))
                self._scatter(rows, state)
                uploads.append(Upload(rows, atoms, before, evidence))
            up = sum(upload.atoms.nbytes for upload in uploads) + sums * self.ledger.dense_nbytes * len(who)
            surrogate = self._learn(uploads, message.xbar, rates.lam)
            xbar = self.server.xbar
            self.server = algorithm.server_step(plan, self.server, uploads, t)
            everyone = len(who) == plan.n
            self.ledger.step(t, xbar, self.server.xbar, [upload.atoms for upload in uploads], everyone)
            self.dense_sums += sums
        judged = self._evaluate(anchor_gap) if evaluated else {"gap": anchor_gap}
        return Record(
            round=t,
            surrogate=surrogate,
            lower_bound=self.best_bound,
            participants=len(who),
            eta=rates.eta,
            lam=rates.lam,
            rho=rates.rho,
            bytes_up=up,
            bytes_down=down,
            bytes_dense=2 * len(who) * self.ledger.dense_nbytes,
            seconds=self.clock.split(),
            **judged,
        )

    def _gradient(self, who: Tensor) -> Gradient:
        steps = iter(range(self.options.local_steps))
        sizes, batch = self.problem.losses.sizes, self.options.batch_size

        def pick() -> Tensor | None:
            if batch is None or sizes is None:
                return None
            tick = (self.t - 1) * self.options.local_steps + next(steps)
            return minibatch(self.options.seed, tick, sizes, batch)[who.cpu()].to(who.device)

        oracle = Oracle(self.problem.losses, self._weights, who, pick, self.t)
        return self.clock.timed("gradient", oracle)

    def _lmo(self, constraint: ConstraintSet) -> Callable[[Tensor], Atom]:
        return self.clock.timed("oracle", lambda g: constraint.lmo(g, batch=True))

    def _gather(self, rows: Tensor) -> State:
        if len(rows) == self.problem.n:
            return self.clients
        return {name: values[rows] for name, values in self.clients.items()}

    def _scatter(self, rows: Tensor, state: State) -> None:
        if len(rows) == self.problem.n:
            self.clients = state
            return
        for name, values in state.items():
            self.clients[name][rows] = values

    def _learn(self, uploads: Sequence[Upload], xbar: Tensor, lam: float) -> float | None:
        """Update the certificate; the surrogate when everyone told its exact loss."""
        evidence: list[Evidence] = [upload.evidence for upload in uploads if upload.evidence is not None]
        if not evidence or self.options.batch_size is not None:
            return None
        if self.certificate.startswith("valid"):
            for upload, told in zip(uploads, evidence, strict=True):
                self.bound.report(upload.who, told.number, told.q)
            if self.participation.everyone or self.t % self.options.eval_every == 0 or self.t == self.options.rounds:
                self._improve(self.bound.value())
        if sum(len(upload.who) for upload in uploads) < self.problem.n:
            return None
        apart = sum(float((upload.x - xbar).square().sum()) for upload in uploads)
        return sum(float(told.loss.sum()) for told in evidence) + lam / 2 * apart

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

    def _evaluate(self, anchor_gap: float | None) -> dict[str, Any]:
        xbar, x = self.server.xbar, self.feasible()
        loss, gradient = self.problem.value_and_gradient(xbar, self.t)
        slack = float((gradient.double() * xbar.double()).sum()) - least_product(self.constraint, gradient)
        if self.problem.convex:
            self._improve(loss - slack)
        test = self.problem.test(x)
        inside = self.constraint.contains(xbar)
        far = self.constraint.distance(xbar) if not inside and self.constraint.has_projection else None
        apart = (self.clients["x"] - xbar).double().square().sum()
        return {
            "loss": loss,
            "test_loss": test.loss,
            "accuracy": test.accuracy,
            "gap": slack,
            "consensus": float(apart.sqrt()),
            "distance": 0.0 if inside else far,
        }

    def _within_tolerance(self, record: Record) -> bool:
        if self.options.tol is None or self.best_bound is None or record.loss is None:
            return False
        returned = self.feasible()
        loss = record.loss if returned is self.server.xbar else self.problem.value_and_gradient(returned)[0]
        return loss - self.best_bound <= self.options.tol

    # --- checkpoints ---

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint must hold to go on to the same bits."""
        held = {f"client.{name}": value for name, value in self.clients.items()}
        held |= {"server.xbar": self.server.xbar}
        held |= {f"server.{name}": value for name, value in self.server.vectors.items()}
        held |= {f"ledger.{name}": value for name, value in self.ledger.state().items()}
        if self.bound.numbers is not None:
            held["bound.numbers"] = self.bound.numbers
        if self.bound.q is not None:
            held["bound.q"] = self.bound.q
        return held

    def _restore(self) -> None:
        assert self.folder is not None
        found = self.folder.latest()
        if found is None:
            return
        tensors, meta = found
        device = self.server.xbar.device

        def part(prefix: str) -> dict[str, Tensor]:
            skip = len(prefix)
            return {name[skip:]: value.to(device) for name, value in tensors.items() if name.startswith(prefix)}

        self.clients, server = part("client."), part("server.")
        self.server = Server(server.pop("xbar"), server)
        self.ledger.load({name: value.cpu() for name, value in part("ledger.").items()})
        bound = part("bound.")
        self.bound.numbers, self.bound.q = bound.get("numbers"), bound.get("q")
        self.t, self.best_bound, self.dense_sums = meta["round"], meta["best_bound"], meta["dense_sums"]
        self.history = History.from_jsonl(meta["history"])


class Stopwatch:
    """Splits a round's seconds into gradient, oracle and the rest."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._parts, self._begin = device, {"gradient": 0.0, "oracle": 0.0}, 0.0

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    @contextmanager
    def round(self) -> Any:
        self._parts, self._begin = {"gradient": 0.0, "oracle": 0.0}, self._now()
        yield

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            begin = self._now()
            result = function(*arguments, **options)
            self._parts[part] += self._now() - begin
            return result

        return wrapped

    def split(self) -> dict[str, float]:
        rest = self._now() - self._begin - sum(self._parts.values())
        return {**self._parts, "rest": rest}


def _constraint_groups(
    constraint: ConstraintSet, relax: Mapping[int, Any] | None, problem: Problem
) -> list[tuple[Tensor, ConstraintSet]]:
    """Clients by the set they use: first those that keep the constraint itself."""
    device = problem.start.device
    relax = dict(relax or {})
    strange = [i for i in relax if not (isinstance(i, int) and 0 <= i < problem.n)]
    if strange:
        raise ValueError(f"relax names clients {strange}, expected numbers from 0 to {problem.n - 1}")
    keepers = [i for i in range(problem.n) if i not in relax]
    if not keepers:
        raise ValueError("relax names every client: somebody must keep the constraint, or it is dropped altogether")
    groups = [(torch.tensor(keepers, device=device), constraint)]
    by_set: dict[int, tuple[list[int], Any]] = {}
    for i, looser in sorted(relax.items()):
        by_set.setdefault(id(looser), ([], looser))[0].append(i)
    for clients, looser in by_set.values():
        bound = problem.bind(looser)
        _refuse_smaller(constraint, bound, problem, clients[0])
        groups.append((torch.tensor(clients, device=device), bound))
    return groups


def _refuse_smaller(constraint: ConstraintSet, looser: ConstraintSet, problem: Problem, client: int) -> None:
    shape = tuple(problem.start.shape)
    g = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0)).to(problem.start)
    atoms = constraint.lmo(g, batch=True).dense(torch.float64)
    if not bool(torch.as_tensor(looser.contains(atoms, 1e-5, batch=True)).all()):
        raise ValueError(
            f"relax: the set of client {client}, {looser!r}, does not contain the constraint {constraint!r}"
        )


def _feasible_start(constraint: ConstraintSet, start: Tensor) -> Tensor:
    if constraint.contains(start):
        return start
    if not constraint.has_projection:
        raise ValueError(f"the start lies outside {constraint!r}, which has no projection: give a start inside")
    return constraint.project(start)


def _automatic_penalty(problem: Problem, constraint: ConstraintSet, start: Tensor) -> float:
    """lam_0 = zeta / (2 n diameter), zeta^2 = (1/n) sum ||grad f_i - grad F||^2 at the start (f_i scaled by n w_i)."""
    n = problem.n
    who = torch.arange(n, device=start.device)
    _, gradients = Oracle(problem.losses, problem.weights.to(start.dtype) * n, who, lambda: None, 0)(
        start.expand(n, -1)
    )
    zeta = float((gradients - gradients.mean(0)).double().square().sum(1).mean().sqrt())
    return zeta / (2 * n * max(constraint.diameter(tuple(start.shape)), 1e-300))


def _certificate(problem: Problem, algorithm: Algorithm, options: Options) -> str:
    if problem.convex is not True:
        return "not valid: the losses are not known to be convex"
    if options.batch_size is not None:
        return "from F - gap at evaluations only: minibatch gradients prove nothing"
    if not algorithm.has_certificate:
        return "from F - gap at evaluations only"
    if not algorithm.exact:
        return "from F - gap at evaluations only: averaged gradients prove nothing"
    return "valid: from every round's oracle answers and from F - gap at evaluations"
