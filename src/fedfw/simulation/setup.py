"""What a simulation makes before its first round: the clients' memories, their oracles, a private run's plan."""

from torch import Tensor

from fedfw.algorithms.base import Algorithm, State
from fedfw.privacy.steps import PrivacyPlan, PrivateOracles
from fedfw.problems.oracles import ClientOracles, PlainOracles
from fedfw.problems.problem import Problem
from fedfw.problems.split import SplitLosses
from fedfw.rounds.memory import ClientMemory, EveryRow, TouchedRows
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation
from fedfw.rounds.split import SplitMemory
from fedfw.sets.base import ConstraintSet
from fedfw.simulation.refusals import few_take_part


def new_memory(
    problem: Problem,
    algorithm: Algorithm,
    participation: Participation,
    options: Options,
    start: Tensor,
    privacy: PrivacyPlan | None = None,
) -> ClientMemory:
    """A row for everyone who begins at start (p,), or only for clients that take part where those are few."""

    def begin(points: Tensor) -> State:
        state = algorithm.start_clients(points)
        return state if privacy is None else privacy.memory(algorithm.contract, state)

    losses, first = problem.losses, begin(start[None].clone())
    own = losses.own if isinstance(losses, SplitLosses) else range(problem.n)
    memory: ClientMemory
    if few_take_part(problem, participation, options):
        memory = TouchedRows(len(own), first)
    else:
        memory = EveryRow(begin(start.repeat(len(own), 1)))
    return memory if problem.ranks.size == 1 else SplitMemory(memory, own, problem.n, first, problem.ranks)


def plan_privacy(
    problem: Problem, algorithm: Algorithm, constraint: ConstraintSet, participation: Participation, options: Options
) -> PrivacyPlan | None:
    """How a promise is kept, with noise for as many rounds as any client takes part in; None where none was made."""
    promise, sizes = options.promise, problem.losses.sizes
    if promise is None or sizes is None:
        return None
    return PrivacyPlan.of(
        promise,
        algorithm,
        constraint,
        shape=tuple(problem.start.shape),
        fewest_samples=int(sizes.min()),
        rounds=max(1, int(participation.attended(options.rounds).max())),
        local_steps=options.local_steps,
        batch_size=options.batch_size,
    )


def choose_oracles(problem: Problem, privacy: PrivacyPlan | None, options: Options) -> ClientOracles:
    """Where the clients' gradients and atoms come from: plainly, or with noise for a promise."""
    losses = problem.losses
    if privacy is not None:
        return PrivateOracles(privacy, losses)
    return PlainOracles(losses, options.local_steps, options.batch_size, options.seed, losses.sizes)
