"""A check for people who write their own algorithm, which our tests run on every algorithm of ours."""

import math
from typing import Any

import torch

from fedfw.algorithms.channels import unpack
from fedfw.algorithms.contract import Aggregate, Algorithm, Kept, State, Up, Upload
from fedfw.algorithms.oracle_steps import move_mean
from fedfw.algorithms.taking_part import follow, take_part
from fedfw.atoms import Dense, TupleAtom
from fedfw.options import options_of
from fedfw.problems.oracles import Cohort, PlainOracles
from fedfw.problems.problem import Problem
from fedfw.rounds.options import Options
from fedfw.simulation.simulator import Simulation, simulate
from fedfw.testing.problems import quadratics
from fedfw.tuning import setting_of


def check_algorithm(
    algorithm: Algorithm, *, problem: Problem | None = None, rounds: int = 6, tol: float = 1e-5
) -> None:
    """Check that an algorithm keeps its contract with the simulator and a deployment;
    AssertionError says where not.

    - its contract is true: what goes down and what clients remember are the names it lists, atoms
      are atoms of the set;
    - a stack of clients takes the steps that each of them takes alone, and their order does not
      matter;
    - xbar is the mean of the clients' points, present or not, where they have any, and lies in the
      set;
    - what the server rebuilds of a client (`Algorithm.follow`) is what the client holds;
    - a step that the algorithm calls repeatable gives the server's step when it is repeated;
    - a round that nobody joins changes nothing, and the same seed gives the same bits;
    - its options are checked, and its grid names options of its own.

    Where clients talk to their neighbours and to no server, everyone takes part, and nobody takes a
    step alone.

    Parameters
    ----------
    algorithm : Algorithm
        With its set, which must be for vectors of the problem.
    problem : Problem, optional
        By default four quadratics in five dimensions (`quadratics`).
    rounds : int
        How many rounds are watched.
    tol : float
        Allowed error, relative to the size of the set.

    Examples
    --------
    >>> import fedfw
    >>> fedfw.testing.check_algorithm(fedfw.FedFW(fedfw.L2Ball(1.0), penalty=0.1))
    """
    problem = quadratics() if problem is None else problem
    n = problem.n
    some, one = (lambda t: range(t % 2, n, 2)), (lambda t: [] if t == 2 else [t % n])
    for participation in (1.0, some, one):
        _AlgorithmChecker(algorithm, problem, tol).run(rounds, participation)
    first, again = (
        simulate(problem, algorithm, rounds=rounds, participation=0.5, seed=3).x for _ in range(2)
    )
    assert torch.equal(first, again), "two runs with the same seed differ"
    own, grid = (
        options_of(type(algorithm)),
        algorithm.grid(setting_of(problem, algorithm, Options(rounds=rounds))),
    )
    strange = [name for name in grid if name not in own]
    assert not strange, (
        f"the grid names {strange}, which are no options of {type(algorithm).__name__}: {list(own)}"
    )
    assert algorithm.name, f"{type(algorithm).__name__} has no name for the command line"
    assert algorithm.title, f"{type(algorithm).__name__} has no title for tables"


class _AlgorithmChecker:
    def __init__(self, algorithm: Algorithm, problem: Problem, tol: float) -> None:
        self.algorithm, self.problem, self.tol = algorithm, problem, tol

    def run(self, rounds: int, participation: Any) -> None:
        """Watch a run from the inside."""
        options = {"rounds": rounds, "participation": participation}
        simulation = Simulation(
            self.problem, self.algorithm, Options(**options), callbacks=self.after_round
        )
        constraint = simulation.constraint
        self.size = max(constraint.diameter(tuple(self.problem.start.shape)), 1e-300)
        self.before = {name: value.clone() for name, value in simulation.clients.items()}
        self.server = simulation.server
        simulation.run()

    def after_round(self, simulation: Simulation) -> None:
        now, contract, t = simulation.now, simulation.algorithm.contract, simulation.t
        after, xbar = simulation.clients, simulation.xbar
        absent = [
            i
            for i in range(self.problem.n)
            if i not in ([] if not now.groups else now.who.tolist())
        ]
        for name, value in after.items():
            assert name in contract.remembers, (
                f"a client remembers {name!r}, which its contract does not list"
            )
            same = torch.equal(value[absent], self.before[name][absent])
            assert same or contract.sums, f"round {t}: {name} of an absent client changed"
        assert simulation.constraint.contains(xbar, 1e-4), (
            f"round {t}: xbar lies outside of the set"
        )
        if contract.points:
            drift = float((after["x"].double().mean(0) - xbar.double()).abs().max())
            assert drift <= self.tol * self.size, (
                f"round {t}: xbar is off the mean of the points by {drift}"
            )
        if not now.uploads:
            assert torch.equal(simulation.server.xbar, self.server.xbar), (
                f"round {t}: nobody took part, and xbar moved"
            )
        else:
            self.messages(simulation)
        self.before, self.server = (
            {name: value.clone() for name, value in after.items()},
            simulation.server,
        )

    def messages(self, simulation: Simulation) -> None:
        now, algorithm = simulation.now, simulation.algorithm
        plan = simulation.coordinator.plan_of(now)
        contract, message, shape = algorithm.contract, now.message, tuple(self.problem.start.shape)
        assert message is not None
        strange = [name for name in message.vectors if name not in algorithm.down]
        assert not strange, f"{strange} go down, and the algorithm says {algorithm.down}"
        (upload,), (state,) = now.uploads, now.states
        beside = algorithm.sends(now.t, len(now.after.xbar))
        first, *rest = (
            upload.atoms.parts
            if beside and isinstance(upload.atoms, TupleAtom)
            else (upload.atoms,)
        )
        sizes = [math.prod(part.shape) for part in rest if isinstance(part, Dense)]
        assert sizes == list(beside.values()), (
            f"beside it go vectors of {sizes} numbers, and `sends` says {beside}"
        )
        if contract.up is Up.ATOM:
            fine = all(simulation.constraint.accepts(atom, shape) for atom in first)
            assert fine, "something that is no atom of the set went up, and the contract says atoms"
        else:
            whole = isinstance(first, Dense) or algorithm.compressor is not None
            assert whole, "the contract says that vectors go up, and something else did"
        followed = follow(
            algorithm,
            plan,
            contract.rebuilt(state),
            message,
            unpack(algorithm, now.t, upload.atoms),
        )
        after = {name: values[upload.who] for name, values in simulation.clients.items()}
        for name, kept in contract.remembers.items():
            if kept is Kept.REBUILT and name in after and after[name].numel():
                off = float((followed[name] - after[name]).abs().max())
                assert off <= self.tol * self.size, (
                    f"the server rebuilds {name} with an error of {off}"
                )
        self.alone(simulation, upload, state)
        aggregate = Aggregate.of([upload], plan.n, now.after.xbar, contract.points, beside)
        rates = algorithm.repeatable(plan, aggregate, now.t)
        if rates is not None and (aggregate.sparse or "rest" not in simulation.server.vectors):
            repeated = move_mean(now.after.xbar, *rates, aggregate.total)
            assert torch.equal(repeated, simulation.server.xbar), (
                "repeating the repeatable step gives another xbar"
            )

    def alone(self, simulation: Simulation, upload: Upload, state: State) -> None:
        """Each client by itself sends what it sends in the stack."""
        now, constraint = simulation.now, simulation.constraint
        plan = simulation.coordinator.plan_of(now)
        assert now.message is not None
        tol = None if plan.schedule is None else plan.oracle_tol(now.t)
        weights = self.problem.weights.to(self.problem.start.dtype)
        oracles = PlainOracles(self.problem.losses, 1, None, 0, None)
        for row, client in enumerate(upload.who.tolist()):
            one = torch.tensor([client])
            gradient, lmo = oracles.pair(Cohort(one, weights[one], one, constraint), now.t, tol)
            own = {name: values[row : row + 1] for name, values in state.items()}
            _, atom, _ = take_part(simulation.algorithm, plan, own, now.message, gradient, lmo)
            off = float((atom.dense() - upload.atoms[row].dense()).abs().max())
            assert off <= self.tol * self.size, (
                f"client {client} alone sends something else, by {off}"
            )
