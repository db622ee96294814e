"""The Birkhoff polytope: doubly stochastic matrices, by SciPy's Hungarian method."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.atoms import Atom, Permutation, ReadAtom
from fedfw.sets.base import ConstraintSet, Request, Shape
from fedfw.sets.projections import SOLVED_WITHIN

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Birkhoff(ConstraintSet):
    """The Birkhoff polytope: square matrices with non-negative entries whose rows and columns each
    sum to 1.

    Such matrices are called doubly stochastic. The set is the convex relaxation of problems over
    permutations, such as matching, ranking and assignment. Its extreme points are the permutation
    matrices, and an atom of an m x m parameter is sent in about log2(m!) bits.

    Notes
    -----
    The oracle solves the assignment problem with costs g by the Hungarian method in O(m^3)
    operations. The projection is a Newton method, which solves 5 to 30 linear systems at O(m^3)
    each. The diameter is ``sqrt(2 m)`` for m > 1. A parameter that is not a square matrix is
    refused with a ValueError where it is used.

    Examples
    --------
    >>> import torch, fedfw
    >>> fedfw.Birkhoff().lmo(torch.tensor([[5.0, 1.0], [0.0, 2.0]])).dense().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    >>> fedfw.Birkhoff().contains(torch.full((4, 4), 0.25))
    True
    """

    name: ClassVar[str] = "birkhoff"
    is_polytope: ClassVar[bool] = True
    needs_matrix: ClassVar[bool] = True

    def _check_shape(self, shape: Shape) -> None:
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"Birkhoff needs a square matrix, got a parameter of shape {shape}")

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return the permutation matrices that solve the assignment problems with costs g."""
        from scipy.optimize import linear_sum_assignment

        matrices = g.reshape(-1, *shape).double().cpu().numpy()
        # linear_sum_assignment returns (rows, columns); the rows are 0, ..., m - 1.
        columns = np.stack([linear_sum_assignment(matrix)[1] for matrix in matrices])
        return Permutation(
            shape=shape,
            batched=True,
            precision=request.precision,
            columns=torch.from_numpy(columns).to(g.device),
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        matrices = x.reshape(-1, *shape)
        sums = torch.cat([matrices.sum(1), matrices.sum(2)], 1)
        return torch.maximum((sums - 1).abs().amax(1), -x.amin(1))

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        if not isinstance(atom, Permutation) or atom.columns.shape != (1, shape[0]):
            return False
        return sorted(atom.columns[0].tolist()) == list(range(shape[0]))

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        rows = [
            _project_doubly_stochastic(matrix) for matrix in x.reshape(-1, *shape).cpu().numpy()
        ]
        return torch.from_numpy(np.stack(rows)).to(x.device).flatten(1)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {Permutation: partial(Permutation.read, shape=shape)}

    def diameter(self, shape: Shape) -> float:
        if shape[0] > 1:
            return math.sqrt(2 * shape[0])
        return 0.0

    def _norms(self, shape: Shape) -> dict[str, float]:
        return {"l1": float(shape[0]), "linf": 1.0, "spectral": 1.0, "l2": math.sqrt(shape[0])}


def _project_doubly_stochastic(target: Array, tol: float = 1e-12, steps: int = 200) -> Array:
    """Project one matrix by a semismooth Newton method on the dual problem (Li, Sun and Toh, 2020).

    The projection is ``X = max(target + a 1' + 1 b', 0)``, where the row multipliers a and the
    column multipliers b minimise a convex piecewise quadratic function. Its gradient is the row and
    column sums of X minus 1, and its Hessian counts the positive entries of X.
    """
    m = len(target)
    if np.abs(target).max() > SOLVED_WITHIN:
        target = _without_potentials(target)
    dual = np.zeros(2 * m)

    def primal(dual: Array) -> Array:
        return np.maximum(target + dual[:m, None] + dual[None, m:], 0)

    def value(dual: Array) -> float:  # the dual objective, |X|^2 / 2 - sum a - sum b
        return float(0.5 * np.square(primal(dual)).sum() - dual.sum())

    for _ in range(steps):
        x = primal(dual)
        gradient = np.concatenate([x.sum(1), x.sum(0)]) - 1
        if np.abs(gradient).max() <= tol:
            break
        positive = (x > 0).astype(float)
        hessian = np.block(
            [[np.diag(positive.sum(1)), positive], [positive.T, np.diag(positive.sum(0))]]
        ) + np.eye(2 * m) * min(1e-6, np.abs(gradient).max())  # the Hessian itself is singular
        step = -np.linalg.solve(hessian, gradient)
        length = 1.0
        start_value = value(dual)
        slope = float(gradient @ step)
        # Backtracking until the value falls by a part of what the slope promises (Armijo).
        while value(dual + length * step) > start_value + 1e-4 * length * slope and length > 1e-10:
            length /= 2
        dual = dual + length * step
    return primal(dual)


def _without_potentials(target: Array) -> Array:
    """Return a matrix with the same projection on the Birkhoff polytope, whose entries lie between
    -m - 1 and 0.

    Numbers that are added to whole rows and columns do not change the projection. With the dual
    solution of the assignment problem, all entries become at most 0, and those of an optimal
    assignment 0. An entry below -m is zero in the projection: were it not, moving along a cycle
    from it to the assignment would come closer, since that changes at most 2 m entries by the same
    amount. So all entries below -m - 1 are alike.
    """
    from scipy.optimize import linear_sum_assignment

    m = len(target)
    assigned = linear_sum_assignment(target, maximize=True)[1]  # the column of each row
    permuted = target[:, assigned]
    losses = np.diagonal(permuted)[:, None] - permuted  # of row i in the column of row j
    # The lengths of the shortest paths from any row to row j (Bellman and Ford), which solve the
    # dual problem; an optimal assignment has no cycle of negative length.
    potentials = np.zeros(m)
    for _ in range(m):
        shorter = np.minimum(potentials, (potentials[:, None] + losses).min(0))
        if np.array_equal(shorter, potentials):
            break
        potentials = shorter
    reduced = np.empty_like(target)
    reduced[:, assigned] = np.clip((potentials[None] - potentials[:, None]) - losses, -m - 1.0, 0.0)
    return reduced
