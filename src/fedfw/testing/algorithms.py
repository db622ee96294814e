"""A check for people who write their own algorithm, which our tests run on every algorithm of
ours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfw.algorithms.contract import Algorithm, Exchange, Kind, Message, Run, State
from fedfw.algorithms.optin import Certifies, Tunable
from fedfw.algorithms.setting import Setting
from fedfw.atoms import Atom
from fedfw.atoms.base import read_framed, stack_atoms
from fedfw.atoms.bits import Reader
from fedfw.options import options_of
from fedfw.problems.oracles import Cohort, Gradient, Lmo, PlainOracles
from fedfw.problems.problem import Problem
from fedfw.rounds.channels import make_channels, pack
from fedfw.rounds.client_steps import ClientState, Method, Sending, WatchedOracles, split, take_part
from fedfw.rounds.coordinator import Coordinator
from fedfw.rounds.downlink import make_downlink
from fedfw.rounds.memory import EveryRow
from fedfw.rounds.options import Options
from fedfw.rounds.round import Round
from fedfw.rounds.setup import describe_setting, feasible_start
from fedfw.rounds.sums import Upload
from fedfw.testing.problems import quadratics


def check_algorithm(
    algorithm: Algorithm, *, problem: Problem | None = None, rounds: int = 6, tol: float = 1e-5
) -> None:
    """Check that an algorithm keeps the contract; AssertionError says where not.

    Six rounds are taken with all clients, with absentees, and with clients that drop out between
    exchanges; with one local step and with three; in float32 and float64, or in the precision of
    the problem where one is given. Bits are compared, not tolerances:

    - clients one by one, with bytes in between, take the steps of the stack;
    - a server without data rebuilds every client's shared state;
    - a run that is resumed in the middle goes on to the same bits;
    - no function writes to its arguments, or to an oracle's result.

    Up to rounding, `Algorithm.means` are the means, the model lies in the set, atoms are atoms of
    the set, and what a certified direction adds to the gradient is `Certifies.public_direction`.

    Parameters
    ----------
    algorithm : Algorithm
        With its set, which must be for vectors of the problem.
    problem : Problem, optional
        By default four quadratics in five dimensions (`quadratics`).
    rounds : int
        How many rounds are watched.
    tol : float
        Allowed error of means and directions, relative to the size of the set.

    Examples
    --------
    >>> import fedfw
    >>> fedfw.testing.check_algorithm(fedfw.FedFW(fedfw.L2Ball(1.0), penalty=0.1))
    """
    _check_declarations(algorithm)
    problems = (
        [problem]
        if problem is not None
        else [quadratics(dtype=dtype) for dtype in (torch.float64, torch.float32)]
    )
    for each_problem in problems:
        for local_steps in (1, 3):
            for attendance in (_all_present, _some_present, _dropping_out):
                case = _Case(algorithm, each_problem, local_steps, attendance, rounds, tol)
                if not case.is_refused:
                    case.compare()


def _check_declarations(algorithm: Algorithm) -> None:
    """Check names, labels and the grid."""
    kind = type(algorithm)
    assert algorithm.name, f"{kind.__name__} has no name for the command line"
    assert algorithm.title, f"{kind.__name__} has no title for tables"
    labels = [exchange.label for exchange in algorithm.all_exchanges]
    assert len(set(labels)) == len(labels), f"exchanges share a label: {labels}"
    if isinstance(algorithm, Tunable):
        setting = describe_setting(
            quadratics(), algorithm.constraint, quadratics().start, 1.0, Options()
        )
        unknown = [name for name in algorithm.grid(setting) if name not in options_of(kind)]
        assert not unknown, f"the grid names {unknown}, which are no options of {kind.__name__}"


Attendance = tuple[float, float]
"""The share of clients that are asked, and of those that answer an exchange."""
_all_present: Attendance = (1.0, 1.0)
_some_present: Attendance = (0.6, 1.0)
_dropping_out: Attendance = (0.8, 0.7)


def _drawn(rows: Tensor, share: float, seed: int) -> Tensor:
    """Return some of the rows (m,), at least one."""
    if share == 1.0:
        return rows
    coins = torch.rand(len(rows), generator=torch.Generator().manual_seed(seed))
    chosen = rows[coins < share]
    return chosen if len(chosen) else rows[:1]


class _Unwritten:
    """Gradients and oracles whose results must stay as they are."""

    def __init__(self, gradient: Gradient, lmo: Lmo) -> None:
        self._gradient = gradient
        self._lmo = lmo
        self._given: list[tuple[Tensor, Tensor]] = []

    def gradient(
        self,
        x: Tensor,
        full: bool = False,
        exact: bool = False,
        plain: bool = False,
        times: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient, and keep a copy to see if a method writes to it."""
        loss, a = self._gradient(x, full=full, exact=exact, plain=plain, times=times)
        self._given.append((a, a.clone()))
        return loss, a

    def lmo(self, g: Tensor) -> Atom:
        """Return the atom, and keep copies of its tensors to see if a method writes to them."""
        atom = self._lmo(g)
        for part in vars(atom).values():
            if isinstance(part, Tensor):
                self._given.append((part, part.clone()))
        return atom

    def check(self) -> None:
        for tensor, copied in self._given:
            assert torch.equal(tensor, copied), "local_update writes to an oracle's result"


class _Case:
    """One configuration of a run."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        local_steps: int,
        attendance: Attendance,
        rounds: int,
        tol: float,
    ) -> None:
        """Set up one combination of problem, local steps and attendance; the tolerance grows in
        float32.
        """
        self.problem = problem
        self.attendance = attendance
        self.rounds = rounds
        dtype = problem.start.dtype
        self.tol = tol if dtype is torch.float64 else max(tol, 1e-4)
        self.constraint = problem.bind(algorithm.constraint)
        self.start = feasible_start(self.constraint, problem.start)
        options = Options(rounds=rounds, local_steps=local_steps)
        # Attendance: the probability to be invited, and that of those invited to arrive.
        p = attendance[0] * attendance[1]
        self.setting: Setting = describe_setting(problem, self.constraint, self.start, p, options)
        self.is_refused = False
        try:
            configured, rule = algorithm.configure(self.setting)
        except ValueError:
            if local_steps == 1 and p == 1:
                raise
            self.is_refused = True  # it takes one step a round, or has no absentees
            return
        channels = make_channels(configured, self.setting, rule.reports_curvature)
        self.method = Method(configured, rule, channels)
        self.run = Run(problem.n, self.constraint, dtype)
        self.size = max(self.constraint.diameter(tuple(self.start.shape)), 1e-300)
        self.weights = problem.weights.to(dtype)

    # --- runs ---

    def compare(self) -> None:
        """Compare a stack with clients one by one, and with a run that is resumed."""
        stack = self.new_coordinator()
        alone = self.new_coordinator()
        resumed = self.new_coordinator()
        rows = torch.arange(self.problem.n)
        private = self.method.init(self.run, self.start.repeat(len(rows), 1)).flat()
        clients = {name: values.clone() for name, values in private.items()}
        for t in range(1, self.rounds + 1):
            invited = _drawn(rows, self.attendance[0], 7 * t)
            for coordinator in (stack, alone, resumed):
                one_by_one = coordinator is alone
                keep = clients if one_by_one else None
                self.take_round(coordinator, t, invited, keep)
            self.check_state(stack, t)
            self.check_copies(alone, clients, t)
            assert torch.equal(stack.server.held, alone.server.held), (
                f"round {t}: a client alone takes another step than in a stack"
            )
            assert torch.equal(stack.server.held, resumed.server.held), (
                f"round {t}: a resumed run takes another step"
            )
            saved = {name: value.clone() for name, value in resumed.state().items()}
            resumed = self.new_coordinator()
            resumed.load(saved)

    def new_coordinator(self) -> Coordinator:
        """Return a coordinator at the start, with a memory of all rows."""
        state = self.method.init(self.run, self.start.repeat(self.problem.n, 1)).flat()
        rows = {name: values.clone() for name, values in state.items()}
        memory = EveryRow(rows, self.problem.n)
        downlink = make_downlink(self.method.algorithm, self.start.dtype)
        return Coordinator(self.method, self.run, self.start, memory, downlink)

    def take_round(
        self,
        coordinator: Coordinator,
        t: int,
        invited: Tensor,
        clients: State | None,
    ) -> None:
        """Take round t with the clients ``invited``: as a stack, or, with ``clients``' own states,
        one by one and through bytes.
        """
        this_round = coordinator.open(t, [invited])
        while not this_round.is_over:
            before = {name: value.clone() for name, value in coordinator.server.state.items()}
            message = coordinator.announce(this_round)
            present = _drawn(this_round.who, self.attendance[1], 100 * t + this_round.index)
            if clients is None:
                self.send_stacked(coordinator, this_round, message, present)
            else:
                self.send_one_by_one(coordinator, this_round, message, present, clients)
            coordinator.number(this_round)
            server = this_round.before
            coordinator.close(this_round)
            self.check_unchanged(before, server.state, "broadcast or server_step")

    def send_stacked(
        self, coordinator: Coordinator, this_round: Round, message: Message, present: Tensor
    ) -> None:
        """Take all participants' steps as one stack, as a simulation does."""
        flat = {name: value.clone() for name, value in coordinator.memory.gather(present).items()}
        state = split(flat, coordinator.shared_names)
        after, sending = self.steps(this_round.exchange, message, state, present)
        self.check_atoms(this_round.exchange, sending)
        shared = state.client.shared
        this_round.arrive(
            Upload(
                present,
                shared,
                sending.sent,
                sending.decoded,
                after.flat(),
                None,
                *self.weigh(present),
            )
        )

    def send_one_by_one(
        self,
        coordinator: Coordinator,
        this_round: Round,
        message: Message,
        present: Tensor,
        clients: State,
    ) -> None:
        """Let every client take its step by itself; the server reads bytes and rebuilds the
        rest.
        """
        channels = self.method.channels
        atoms: list[Atom] = []
        for row in torch.split(present, 1):
            client_state = {name: values[row].clone() for name, values in clients.items()}
            state = split(client_state, coordinator.shared_names)
            after, sending = self.steps(this_round.exchange, message, state, row)
            for name, values in after.flat().items():
                clients[name][row] = values
            reader = Reader(pack(sending.sent)[0].to_bytes())
            atoms.append(
                read_framed(reader, channels.readers(this_round.exchange, self.run, message))
            )
            reader.finish()
        sent = channels.unpack(this_round.exchange, stack_atoms(atoms))
        upload = coordinator.decode(this_round, present, sent, weights=self.weigh(present)[0])
        this_round.arrive(upload)

    def weigh(self, who: Tensor) -> tuple[Tensor | None, float]:
        """Return n w_i of some clients, None where they are not used, and their sum."""
        if not self.method.algorithm.weighted or not self.is_unequal:
            return None, float(len(who))
        weights = self.weights[who] * self.problem.n
        return weights, float(weights.sum())

    @property
    def is_unequal(self) -> bool:
        return bool((self.weights != self.weights[0]).any())

    def steps(
        self, step: Exchange, message: Message, state: ClientState, who: Tensor
    ) -> tuple[ClientState, Sending]:
        """Return the state and the uploads of clients after an exchange; refuse functions that
        write to their arguments.
        """
        losses = self.problem.losses
        oracles = PlainOracles(losses, len(message.rates), None, 0, losses.sizes)
        weights = self.weights[who]
        cohort = Cohort(who, weights, who, self.constraint, self.problem.weights[who])
        unwritten = _Unwritten(*oracles.pair(cohort, message.t, message.oracle_tol))
        watched = WatchedOracles(unwritten.gradient, unwritten.lmo, len(who), self.run.n)
        before = {name: value.clone() for name, value in state.flat().items()}
        vectors = {name: value.clone() for name, value in message.vectors.items()}
        certify = isinstance(step, Certifies)
        result = take_part(self.method, step, self.run, state, message, watched, certify)
        self.check_unchanged(before, state.flat(), "a client's function")
        self.check_unchanged(vectors, message.vectors, "a client's function")
        unwritten.check()
        if isinstance(step, Certifies) and not step.averages and step.proves_bounds:
            self.check_direction(step, message, state.client.shared, watched)
        return result

    # --- what is checked ---

    def check_direction(
        self, step: Certifies, message: Message, shared: State, oracles: WatchedOracles
    ) -> None:
        """Check that the LMO's input less the gradient is what the server can derive."""
        assert isinstance(step, Exchange)
        gradient = oracles.first_gradient[2]
        direction = oracles.first_answer[0]
        received = step.receive(self.run, shared, message)
        public = step.public_direction(self.run, received, message)
        error = float((direction.double() - gradient.double() - public.double()).abs().max())
        scale = float(direction.abs().max()) + float(public.abs().max())
        assert error <= self.tol * scale, f"public_direction is off by {error:.1e}"

    def check_atoms(self, step: Exchange, sending: Sending) -> None:
        """Check that entries declared as atoms lie in the set."""
        shape = tuple(self.start.shape)
        for name, kind in step.uploads.items():
            if kind is Kind.ATOM:
                for atom in sending.sent[name]:
                    assert self.constraint.accepts_net(atom, shape), (
                        f"{name} is declared as an atom of the set, and lies outside of it"
                    )

    def check_unchanged(self, before: State, after: State, culprit: str) -> None:
        for name, value in before.items():
            assert torch.equal(value, after[name]), f"{culprit} writes to its argument {name}"

    def check_state(self, coordinator: Coordinator, t: int) -> None:
        """Check the server's means against clients' states, and that the model lies in the set."""
        algorithm = self.method.algorithm
        rows = split(
            coordinator.memory.gather(torch.arange(self.problem.n)), coordinator.shared_names
        )
        weights = self.problem.weights.double() * self.problem.n
        for name, shared_name in algorithm.means.items():
            values = rows.client.shared[shared_name].double()
            if algorithm.weighted:
                values = values * weights[:, None]
            error = float((values.mean(0) - coordinator.server.state[name].double()).abs().max())
            scale = max(self.size, float(values.abs().max()))
            assert error <= self.tol * scale, (
                f"round {t}: {name} is off the mean of the clients' {shared_name} by {error:.1e}"
            )
        xbar = coordinator.server.xbar.to(self.start.dtype)
        assert self.constraint.contains(xbar, 1e-4), f"round {t}: xbar lies outside of the set"

    def check_copies(self, coordinator: Coordinator, clients: State, t: int) -> None:
        """Check that a server without data holds what clients hold."""
        for name in sorted(coordinator.shared_names):
            copies = coordinator.memory.gather(torch.arange(self.problem.n))[name]
            assert torch.equal(copies, clients[name]), (
                f"round {t}: the server rebuilds another {name} than clients hold"
            )
