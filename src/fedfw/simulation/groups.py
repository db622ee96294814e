"""Which clients use which set: stragglers may use a larger, simpler one."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedfw.problems.problem import Problem
from fedfw.sets.base import ConstraintSet
from fedfw.sets.containment import TRIED, contains_set

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
