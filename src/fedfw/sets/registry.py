"""The table of sets: a name, the class and an example. Tests, the command line and the docs go through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch

from fedfw.parsing import parse_number
from fedfw.sets.base import ConstraintSet, Shape, parameters_of
from fedfw.sets.norm_balls import Box, L1Ball, L2Ball, LinfBall
from fedfw.sets.polytopes import Birkhoff, Hull, Polytope
from fedfw.sets.simplices import CappedSimplex, Hypersimplex, Simplex
from fedfw.sets.sparse_balls import GroupBall, KSparse, KSupport
from fedfw.sets.spectral import NuclearBall, PartialIsometry, Spectrahedron, SpectralBall


@dataclass(frozen=True)
class Entry:
    """A set's class and a typical one for a parameter of a given shape."""

    cls: type[ConstraintSet]
    example: Callable[[Shape], ConstraintSet]


def _one_percent(shape: Shape) -> int:
    return max(1, round(prod(shape) / 100))


def _example_hull(shape: Shape) -> ConstraintSet:
    return Hull(torch.randn(32, *shape, generator=torch.Generator().manual_seed(0)))


def _example_polytope(shape: Shape) -> ConstraintSet:
    """The box [-1, 1]^p cut by one diagonal inequality."""
    p = prod(shape)
    if p > 500:
        raise ValueError(f"Polytope: no example with {p} variables, its dense A would be large (at most 500)")
    unit = torch.eye(p, dtype=torch.float64)
    A = torch.cat([unit, -unit, torch.ones(1, p, dtype=torch.float64)])
    return Polytope(A, torch.cat([torch.ones(2 * p), torch.tensor([p / 2])]).double())


_ENTRIES = (
    Entry(L1Ball, lambda shape: L1Ball(10.0)),
    Entry(L2Ball, lambda shape: L2Ball(10.0)),
    Entry(LinfBall, lambda shape: LinfBall(1.0)),
    Entry(Box, lambda shape: Box(-1.0, 2.0)),
    Entry(KSparse, lambda shape: KSparse(_one_percent(shape), 1.0)),
    Entry(KSupport, lambda shape: KSupport(_one_percent(shape), 10.0)),
    Entry(GroupBall, lambda shape: GroupBall(10.0, "columns")),
    Entry(Simplex, lambda shape: Simplex(1.0)),
    Entry(CappedSimplex, lambda shape: CappedSimplex(1.0)),
    Entry(Hypersimplex, lambda shape: Hypersimplex(_one_percent(shape))),
    Entry(NuclearBall, lambda shape: NuclearBall(10.0)),
    Entry(SpectralBall, lambda shape: SpectralBall(1.0)),
    Entry(PartialIsometry, lambda shape: PartialIsometry(2, 1.0)),
    Entry(Spectrahedron, lambda shape: Spectrahedron(1.0)),
    Entry(Birkhoff, lambda shape: Birkhoff()),
    Entry(Hull, _example_hull),
    Entry(Polytope, _example_polytope),
)

SETS: dict[str, Entry] = {entry.cls.name: entry for entry in _ENTRIES}
"""Every set by its name."""


def parse_set(text: str) -> ConstraintSet:
    """A set from its name and numbers: ``l1:10``, ``ksparse:k=79,r=1``, ``box:lo=-1,hi=1``, ``group:10,columns``."""
    name, _, arguments = text.partition(":")
    if name not in SETS:
        raise ValueError(f"unknown constraint set {name!r}, expected one of {', '.join(SETS)}")
    cls = SETS[name].cls
    known = parameters_of(cls)
    if cls in (Hull, Polytope):
        raise ValueError(f"{name} is built from arrays: use fedfw.{cls.__name__} in Python")
    values: dict[str, float | str] = {}
    for position, piece in enumerate(arguments.split(",") if arguments else []):
        key, equals, value = piece.partition("=")
        if not equals:
            key, value = (known[position] if position < len(known) else ""), piece
        if key not in known or key in values:
            form = f"{name}:" + ",".join(f"{parameter}=..." for parameter in known)
            raise ValueError(f"{text!r}: cannot place {piece!r}, expected {form if known else name}")
        values[key] = parse_number(value)
    try:
        return cls(**values)
    except TypeError:
        missing = ", ".join(parameter for parameter in known if parameter not in values)
        problem = f"{name} also needs {missing}" if missing else f"expected numbers for {', '.join(known)}"
        raise ValueError(f"{text!r}: {problem}") from None
