"""Which clients use which set: stragglers may use a larger, simpler one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedfw.problems.problem import Problem
from fedfw.sets.base import ConstraintSet

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
    shape = tuple(problem.start.shape)
    g = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0)).to(problem.start)
    atoms = constraint.lmo(g, batch=True).dense(torch.float64)
    if not bool(torch.as_tensor(looser.contains(atoms, 1e-5, batch=True)).all()):
        raise ValueError(
            f"relax: the set of client {client}, {looser!r}, does not contain the constraint {constraint!r}"
        )
