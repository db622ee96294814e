"""Norm balls whose atoms have at most k non-zero entries, or non-zero entries in one group of
coordinates only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.atoms import Atom, GroupVector, ReadAtom, SparseSigns, SparseValues
from fedfw.atoms.floats import round_inside
from fedfw.linalg.k_support import k_support_norm, k_support_projection
from fedfw.linalg.selection import first_argmax, first_top_k, robust_norms, unit_rows
from fedfw.linalg.water import shrink_magnitudes
from fedfw.sets.base import ConstraintSet, Count, Request, Shape, Size


@dataclass(frozen=True, eq=False)
class KSparse(ConstraintSet):
    """The set ``{x : sum |x_j| <= k r, max |x_j| <= r}``, whose atoms have k entries of equal
    magnitude.

    It is the intersection of an l1 ball and an linf ball, so it favours sparse models as `L1Ball`
    does, but one atom updates k coordinates instead of one. Its extreme points have k entries r or
    -r and zeros elsewhere; an atom is sent as k indices and k signs. For a parameter with at most k
    entries the set is `LinfBall`, and for k = 1 it is `L1Ball`.

    Parameters
    ----------
    k : int
        How many non-zero entries an atom has; at least 1.
    r : float, default 1.0
        The magnitude of those entries; positive and finite.

    Raises
    ------
    ValueError
        If k is not a whole number of at least 1, or r is not a positive finite number.

    Notes
    -----
    The oracle puts ``-r sign(g_j)`` at the k coordinates with the largest ``|g_j|`` in O(p)
    operations, where p is the number of entries. The projection costs O(p log p). The diameter is
    ``2 r sqrt(min(k, p))``.

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.KSparse(2, 1.0)
    >>> ball.lmo(torch.tensor([0.5, -3.0, 0.1, 2.0])).dense().tolist()
    [0.0, 1.0, 0.0, -1.0]
    >>> fedfw.KSparse(79, 1.0).lmo(torch.ones(7850)).nbytes
    91
    """

    name: ClassVar[str] = "ksparse"
    is_polytope: ClassVar[bool] = True

    k: Count
    r: Size = 1.0

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return -r sign(g_j) at the k coordinates j where |g| is largest; ties go to the first."""
        indices = first_top_k(g.abs(), min(self.k, g.shape[1]))
        # Where g_j is 0, both signs minimise: + is taken.
        signs = torch.where(g.gather(1, indices) > 0, -1, 1).to(torch.int8)
        return SparseSigns(
            shape=shape,
            batched=True,
            precision=request.precision,
            indices=indices,
            signs=signs,
            scale=self.r,
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        a = x.abs()
        return torch.maximum(a.sum(1) / (self.k * self.r), a.amax(1) / self.r) - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return shrink_magnitudes(x.abs(), self.k * self.r, cap=self.r).copysign(x)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        k = min(self.k, prod(shape))
        return {SparseSigns: partial(SparseSigns.read, shape=shape, k=k, scale=self.r, signed=True)}

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r * math.sqrt(min(self.k, prod(shape)))

    def _face(self, support: Tensor, shape: Shape) -> ConstraintSet:
        return self  # in fewer coordinates

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l1": self.r * min(self.k, prod(shape)), "linf": self.r}


@dataclass(frozen=True, eq=False)
class KSupport(ConstraintSet):
    """The ball of the k-support norm: the convex hull of vectors with at most k non-zeros and l2
    norm at most r.

    It is the tightest convex set around sparse vectors of bounded Euclidean norm, and suits sparse
    models whose relevant features are correlated, where `L1Ball` tends to keep only one of them.
    Its extreme points have at most k non-zero entries and norm r, so an atom is sent as k indices
    and k numbers. For a parameter with at most k entries the set is `L2Ball`, and for k = 1 it is
    `L1Ball`.

    Parameters
    ----------
    k : int
        The largest number of non-zero entries of an atom; at least 1.
    r : float, default 1.0
        The Euclidean norm of the atoms; positive and finite.

    Raises
    ------
    ValueError
        If k is not a whole number of at least 1, or r is not a positive finite number.

    Notes
    -----
    The oracle keeps the k entries of g with the largest magnitudes and returns ``-r`` times that
    vector over its norm, in O(p) operations, where p is the number of entries. The projection sorts
    the magnitudes once and then searches by bisection, so it costs O(p log p). The diameter is 2r.
    The norm is due to Argyriou, Foygel and Srebro, "Sparse Prediction with the k-Support Norm"
    (2012).

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.KSupport(2, 10.0)
    >>> [round(v, 4) for v in ball.lmo(torch.tensor([0.5, 3.0, 0.1, -4.0])).dense().tolist()]
    [0.0, -6.0, 0.0, 8.0]
    >>> ball.contains(torch.tensor([6.0, 8.0, 0.0])), ball.contains(torch.tensor([6.0, 6.0, 6.0]))
    (True, False)
    """

    name: ClassVar[str] = "ksupport"

    k: Count
    r: Size = 1.0

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return -r times the unit vector along the k largest coordinates of g, rounded inside."""
        indices = first_top_k(g.abs(), min(self.k, g.shape[1]))
        unit, norms = unit_rows(g.gather(1, indices))
        return SparseValues(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=-self.r * norms,
            indices=indices,
            values=round_inside(-unit, request.precision),
            scale=self.r,
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return k_support_norm(x, self.k) / self.r - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return k_support_projection(x, self.k, self.r)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        """Return the reader of k indices with their values."""
        return {
            SparseValues: partial(
                SparseValues.read, shape=shape, k=min(self.k, prod(shape)), scale=self.r
            )
        }

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r

    def _face(self, support: Tensor, shape: Shape) -> ConstraintSet:
        return self  # in fewer coordinates

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l1": self.r * math.sqrt(min(self.k, prod(shape))), "l2": self.r}


@dataclass(frozen=True, eq=False)
class GroupBall(ConstraintSet):
    """The group-norm ball ``{x : sum over groups of ||x_group||_2 <= r}``, which selects whole
    groups of coordinates.

    It is the constraint of the group lasso: groups, such as all weights of one input feature, are
    kept or dropped together. Its extreme points are zero outside one group and have Euclidean norm
    r inside it, so an atom is sent as the number of the group and the values in it.

    Parameters
    ----------
    r : float
        Radius: the largest sum of the groups' Euclidean norms; positive and finite.
    groups : str or Tensor, default "rows"
        "rows" or "columns" makes every row or column of a matrix parameter a group. For a parameter
        with p entries, a tensor of integers of shape (p,) says for each coordinate which group (0,
        1, ...) it belongs to; every number up to the largest must occur.

    Raises
    ------
    ValueError
        If r is not a positive finite number, or ``groups`` has none of the forms above.

    Notes
    -----
    The oracle finds the group on which g has the largest norm and returns ``-r g_group /
    ||g_group||`` there. The projection shrinks the vector of group norms as `L1Ball` would. Both
    cost O(p). The diameter is 2r.

    Examples
    --------
    >>> import torch, fedfw
    >>> g = torch.tensor([[1.0, 3.0], [1.0, 4.0]])
    >>> atom = fedfw.GroupBall(10.0, "columns").lmo(g)
    >>> [[round(v, 4) for v in row] for row in atom.dense().tolist()]
    [[0.0, -6.0], [0.0, -8.0]]
    >>> three_entries_in_two_groups = fedfw.GroupBall(1.0, torch.tensor([0, 0, 1]))
    >>> three_entries_in_two_groups.lmo(torch.tensor([1.0, 1.0, 5.0])).dense().round(
    ...     decimals=4
    ... ).tolist()
    [0.0, 0.0, -1.0]
    """

    name: ClassVar[str] = "group"

    r: Size
    groups: str | Tensor = "rows"

    def __post_init__(self) -> None:
        """Check the groups: rows, columns, or a vector of group numbers in which none is left
        out.
        """
        super().__post_init__()
        if isinstance(self.groups, str):
            if self.groups not in ("rows", "columns"):
                raise ValueError(
                    f'GroupBall: groups={self.groups!r}, expected "rows", "columns" or an index '
                    "vector"
                )
            return
        labels = torch.as_tensor(self.groups)
        object.__setattr__(self, "groups", labels)
        if (
            labels.is_floating_point()
            or labels.ndim != 1
            or labels.numel() == 0
            or int(labels.min()) < 0
        ):
            raise ValueError(
                f"GroupBall: groups={self.groups}, expected a vector of group numbers from 0 up"
            )
        if int((labels.bincount() == 0).sum()):  # numbers that no coordinate has
            largest = int(labels.max())
            raise ValueError(
                f"GroupBall: group numbers up to {largest} with some left out, expected each to "
                "occur"
            )

    @property
    def entries(self) -> int | None:
        if isinstance(self.groups, str):
            return None
        return len(self.groups)

    @property
    def needs_matrix(self) -> bool:  # type: ignore[override]
        """Return whether the groups are rows or columns."""
        return isinstance(self.groups, str)

    def _group_norms(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the Euclidean norm of each group: (n, p) -> (n, groups), in float64."""
        squares = x.new_zeros(len(x), int(labels.max()) + 1, dtype=torch.float64)
        return squares.index_add_(1, labels, x.double().square()).sqrt()

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return -r times the unit vector along the group where g is longest."""
        labels, order, starts = (t.to(g.device) for t in _layout(self.groups, shape))
        scale = g.abs().amax(1, keepdim=True).double()
        # Divided by the largest entry, so that no square overflows or is rounded to zero.
        norms = self._group_norms(torch.where(scale > 0, g / scale, 0.0), labels)
        group = first_argmax(norms)
        atom = GroupVector(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=-self.r * norms.amax(1) * scale[:, 0],
            group=group,
            values=torch.empty(0),  # filled in below: the atom knows the places of its group
            order=order,
            starts=starts,
            scale=self.r,
        )
        chosen = torch.where(atom.inside(), g.gather(1, atom.places()), 0.0)
        return replace(atom, values=round_inside(-unit_rows(chosen)[0], request.precision))

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        labels = _layout(self.groups, shape)[0].to(x.device)
        norms = robust_norms(x, lambda rows: self._group_norms(rows, labels))
        return norms.sum(1) / self.r - 1

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        labels = _layout(self.groups, shape)[0].to(x.device)
        norms = robust_norms(x, lambda rows: self._group_norms(rows, labels))
        factors = torch.where(norms > 0, shrink_magnitudes(norms, self.r) / norms, 0.0)
        return x * factors[:, labels]

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        """Return whether an atom has this set's groups, values in one of them only, and at most
        length r.
        """
        _, order, starts = _layout(self.groups, shape)
        if not isinstance(atom, GroupVector) or not 0 <= int(atom.group[0]) < len(starts) - 1:
            return False
        if atom.order is not order and not (
            torch.equal(atom.order.cpu(), order) and torch.equal(atom.starts.cpu(), starts)
        ):
            return False
        values = atom.entries()[1]
        if bool(values[~atom.inside()].any()) or not bool(values.isfinite().all()):
            return False
        return float(values.norm()) <= self.r * (1 + tol)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        """Return the function that decodes an atom: a group's number and the values in it."""
        _, order, starts = _layout(self.groups, shape)
        return {
            GroupVector: partial(
                GroupVector.read, shape=shape, order=order, starts=starts, scale=self.r
            )
        }

    def diameter(self, shape: Shape) -> float:
        return 2 * self.r

    def _face(self, support: Tensor, shape: Shape) -> ConstraintSet:
        labels = _layout(self.groups, shape)[0].to(support.device)[support]
        return GroupBall(self.r, torch.unique(labels, return_inverse=True)[1])

    def _norms(self, shape: Shape) -> dict[str, float]:
        largest = int(_layout(self.groups, shape)[2].diff().max())
        return {"l1": self.r * math.sqrt(largest), "l2": self.r}


@lru_cache(maxsize=32)
def _layout(groups: str | Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Return for a parameter's shape the group of each coordinate (p,), the coordinates ordered by
    group (p,), and where each group starts in that order (groups + 1,); cached.
    """
    place = torch.arange(prod(shape))
    if isinstance(groups, str):
        columns = prod(shape[1:])
        if groups == "rows":
            labels = place // columns
        else:
            labels = place % columns
    else:
        labels = groups.long().cpu()
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), labels.bincount().cumsum(0)])
    return labels, labels.argsort(stable=True), starts
