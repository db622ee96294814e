"""The table of all sets, with an example of each; the tests, the command line and the documentation
use it.

Other packages add theirs by an entry point of the group ``fedfw.sets``: a name and an `Entry` for
it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from fedfw.options import nearest, parse_number
from fedfw.plugins import PluginTable
from fedfw.sets.base import ConstraintSet, Shape, parameters_of
from fedfw.sets.birkhoff import Birkhoff
from fedfw.sets.layers import LayerBalls, LipschitzNet
from fedfw.sets.norm_balls import Box, L1Ball, L2Ball, LinfBall, RowBalls
from fedfw.sets.own import Oracle, OracleSet
from fedfw.sets.polytopes import Hull, Polytope
from fedfw.sets.simplices import CappedSimplex, Hypersimplex, Simplex
from fedfw.sets.sparse_balls import GroupBall, KSparse, KSupport
from fedfw.sets.spectral import NuclearBall, PartialIsometry, Spectrahedron, SpectralBall

_FLOAT32 = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Entry:
    """One row of the table `SETS`.

    Parameters
    ----------
    cls : type
        The class of the set.
    example : callable
        Maps the shape of a parameter to a typical set of this class for it.
    summary : str
        The definition in one line.
    oracle_cost, projection_cost : str
        Operations for one call, for a parameter with p entries or an m x n matrix.
    strongly_convex : bool, default False
        Whether the surface is curved everywhere, which can make Frank-Wolfe methods converge
        faster.

    Examples
    --------
    >>> import torch, fedfw
    >>> fedfw.SETS["ksparse"].example((10, 785))
    KSparse(k=78, r=1.0)
    """

    cls: type[ConstraintSet]
    example: Callable[[Shape], ConstraintSet]
    summary: str = ""
    oracle_cost: str = "?"
    projection_cost: str = "none"
    strongly_convex: bool = False


def _one_percent(shape: Shape) -> int:
    """Return one percent of the parameter's entries, rounded, and at least 1."""
    return max(1, round(prod(shape) / 100))


def _example_polytope(shape: Shape) -> ConstraintSet:
    """Return the box [-1, 1]^p cut by one diagonal inequality."""
    p = prod(shape)
    if p > 500:
        raise ValueError(
            f"Polytope: no example with {p} variables, its dense A would be large (at most 500)"
        )
    unit = torch.eye(p, dtype=torch.float64)
    A = torch.cat([unit, -unit, torch.ones(1, p, dtype=torch.float64)])
    return Polytope(A, torch.cat([torch.ones(2 * p), torch.tensor([p / 2])]).double())


_ENTRIES = (
    Entry(L1Ball, lambda shape: L1Ball(10.0), "sum |x_j| <= r", "p", "p log p"),
    Entry(
        L2Ball, lambda shape: L2Ball(10.0), "Euclidean norm <= r", "p", "p", strongly_convex=True
    ),
    Entry(LinfBall, lambda shape: LinfBall(1.0), "max |x_j| <= r", "p", "p"),
    Entry(Box, lambda shape: Box(-1.0, 2.0), "lo <= x_j <= hi", "p", "p"),
    Entry(
        KSparse,
        lambda shape: KSparse(_one_percent(shape), 1.0),
        "sum |x_j| <= k r and max |x_j| <= r",
        "p",
        "p log p",
    ),
    Entry(
        KSupport,
        lambda shape: KSupport(_one_percent(shape), 10.0),
        "hull of: at most k non-zeros, l2 <= r",
        "p",
        "p log p",
    ),
    Entry(
        GroupBall,
        lambda shape: GroupBall(10.0, "columns"),
        "sum over groups of their l2 norms <= r",
        "p",
        "p",
    ),
    Entry(Simplex, lambda shape: Simplex(1.0), "x >= 0, sum x_j = r", "p", "p log p"),
    Entry(CappedSimplex, lambda shape: CappedSimplex(1.0), "x >= 0, sum x_j <= r", "p", "p log p"),
    Entry(
        Hypersimplex,
        lambda shape: Hypersimplex(_one_percent(shape)),
        "0 <= x_j <= 1, sum x_j = k",
        "p",
        "p log p",
    ),
    Entry(
        NuclearBall,
        lambda shape: NuclearBall(10.0),
        "sum of singular values <= r",
        "m n, 10-50 times",
        "m n min(m, n)",
    ),
    Entry(
        SpectralBall,
        lambda shape: SpectralBall(1.0),
        "largest singular value <= r",
        "m n min(m, n)",
        "m n min(m, n)",
    ),
    Entry(
        PartialIsometry,
        lambda shape: PartialIsometry(2, 1.0),
        "singular values <= r, their sum <= k r",
        "m n min(m, n)",
        "m n min(m, n)",
    ),
    Entry(
        Spectrahedron,
        lambda shape: Spectrahedron(1.0),
        "X positive semidefinite, trace r",
        "m^2, 10-50 times",
        "m^3",
    ),
    Entry(RowBalls, lambda shape: RowBalls(1.0), "Euclidean norm of each row <= r", "p", "p"),
    Entry(
        Birkhoff,
        lambda shape: Birkhoff(),
        "X >= 0, rows and columns sum to 1",
        "m^3",
        "m^3, 5-30 times",
    ),
    Entry(
        Hull,
        lambda shape: Hull(torch.randn(32, *shape, generator=torch.Generator().manual_seed(0))),
        "convex hull of given points",
        "p x vertices",
        "non-negative least squares",
    ),
    Entry(
        Polytope, _example_polytope, "A x <= b", "a linear program", "non-negative least squares"
    ),
    Entry(
        LayerBalls,
        lambda shape: LayerBalls(4.0),
        "a network: spectral balls, rows, linf by layer",
        "m n min(m, n)",
        "m n min(m, n)",
    ),
    Entry(
        LipschitzNet,
        lambda shape: LipschitzNet(1.0),
        "a network with l2 Lipschitz constant <= L",
        "m n min(m, n)",
        "m n min(m, n)",
    ),
)


def _find_problem(name: str, found: Any) -> str | None:
    """Return what is wrong with an entry point's object, or None."""
    if not isinstance(found, Entry):
        return f"{found!r}, expected a fedfw.sets.registry.Entry"
    if found.cls.name != name:
        return f"the class's name is {found.cls.name!r}, expected that of its entry point"
    return None


SETS: PluginTable[Entry] = PluginTable(
    "fedfw.sets", {entry.cls.name: entry for entry in _ENTRIES}, _find_problem
)
"""All sets by name, in the order of the documentation: ``SETS["l1"].cls`` is `L1Ball`; see `Entry`.
"""


def parse_set(text: str) -> ConstraintSet:
    """Build a set from a text such as ``l1:10``, which is how the command line and configuration
    files name a set.

    Parameters
    ----------
    text : str
        The name of a set in small or capital letters, a colon, and its parameters separated by
        commas, in order or as ``name=value``. A set without parameters, such as ``birkhoff``, has
        no colon.

    Returns
    -------
    ConstraintSet
        The set.

    Raises
    ------
    ValueError
        If the name is unknown, a parameter is missing, unknown or has a bad value, or the set is
        built from arrays (`Hull` and `Polytope`), which a text cannot hold.

    Examples
    --------
    >>> import torch, fedfw
    >>> fedfw.parse_set("l1:10"), fedfw.parse_set("L1:10")
    (L1Ball(r=10), L1Ball(r=10))
    >>> fedfw.parse_set("ksparse:k=79,r=1"), fedfw.parse_set("box:lo=-1,hi=1")
    (KSparse(k=79, r=1), Box(lo=-1, hi=1))
    >>> fedfw.parse_set("group:10,columns")
    GroupBall(r=10, groups='columns')
    """
    given, _, arguments = text.partition(":")
    name = given.lower()
    if name not in SETS:
        raise ValueError(
            f"unknown constraint set {given!r}{nearest(name, SETS)}, expected one of "
            f"{', '.join(SETS)}"
        )
    cls = SETS[name].cls
    known = parameters_of(cls)
    if cls in (Hull, Polytope):
        raise ValueError(f"{name} is built from arrays: use fedfw.{cls.__name__} in Python")
    values: dict[str, float | str] = {}
    for position, piece in enumerate(arguments.split(",") if arguments else []):
        key, equals, value = piece.rpartition("=")  # "", "", piece for a value without a name
        if not equals and position < len(known):
            key = known[position]
        if key not in known or key in values:
            form = f"{name}:" + ",".join(f"{parameter}=..." for parameter in known)
            raise ValueError(
                f"{text!r}: cannot place {piece!r}, expected {form if known else name}"
            )
        number = parse_number(value)
        if isinstance(number, int | float) and abs(number) > _FLOAT32:
            raise ValueError(
                f"{given}: {key}={value[:40]}, expected a number of at most {_FLOAT32:.3g}, as "
                "float32 has"
            )
        values[key] = number
    try:
        return cls(**values)
    except TypeError:  # an argument is missing, or a text stands where a number must
        missing = ", ".join(parameter for parameter in known if parameter not in values)
        if missing:
            problem = f"{name} also needs {missing}"
        else:
            problem = f"expected numbers for {', '.join(known)}"
        raise ValueError(f"{text!r}: {problem}") from None


def as_set(wanted: Any) -> Any:
    """Return a set or a `Product` as it is, and the set that a text or an oracle stands for.

    Parameters
    ----------
    wanted : ConstraintSet, Product, str or Oracle
        The constraint as a caller gave it; see `OracleSet` for what an oracle is.

    Returns
    -------
    ConstraintSet or Product

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If `parse_set` refuses the text.

    Examples
    --------
    >>> import fedfw
    >>> from fedfw.sets.registry import as_set
    >>> as_set("l2:3"), as_set(fedfw.L2Ball(3))
    (L2Ball(r=3), L2Ball(r=3))
    """
    if isinstance(wanted, str):
        return parse_set(wanted)
    if hasattr(wanted, "bind"):  # a ConstraintSet or a Product
        return wanted
    if isinstance(wanted, Oracle):
        return OracleSet(wanted)
    raise TypeError(
        f"constraint={wanted!r}, expected a constraint set, a Product, text such as 'l1:10', or an "
        "object with methods lmo(g) and diameter(shape)"
    )
