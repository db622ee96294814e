"""What a simulation makes before its first round: the clients' memories, their oracles, a private run's plan."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedfw.algorithms.base import Algorithm, State
from fedfw.privacy.steps import PrivacyPlan, PrivateOracles
from fedfw.problems.oracles import ClientOracles, PlainOracles
from fedfw.problems.problem import Problem
from fedfw.problems.split import SplitLosses
from fedfw.rounds.memory import ClientMemory, EveryRow, SplitMemory, TouchedRows
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation
from fedfw.sets.base import ConstraintSet
from fedfw.sets.containment import TRIED, contains_set
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


Groups = list[tuple[Tensor, ConstraintSet]]


def constraint_groups(constraint: ConstraintSet, relax: Mapping[int, Any] | None, problem: Problem) -> Groups:
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
    inside = contains_set(looser, constraint, tuple(problem.start.shape))
    if inside is False:
        raise ValueError(
            f"relax: the set of client {client}, {looser!r}, does not contain the constraint {constraint!r}"
        )
    if inside is None:
        warnings.warn(
            f"relax: it is not known whether the set of client {client}, {looser!r}, contains the constraint "
            f"{constraint!r}: {TRIED} of its extreme points do lie inside, and nothing more was proven",
            stacklevel=2,
        )
