"""How good a point is: the Frank-Wolfe gap, and a lower bound on the optimum that comes with training.

If every f_i is convex then for any x_i and q_i, and m_i at most the minimum over D_i (which contains D) of
<w_i grad f_i(x_i) + q_i, u>,

    F* >= sum_i [ w_i f_i(x_i) - <w_i grad f_i(x_i), x_i> + m_i ] - max over u in D of <q, u>,   q = sum_i q_i.

FedFW's directions have exactly this form, so every round proves a bound; with everyone present q is zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfw.atoms import Atom
from fedfw.sets.base import ConstraintSet


def least_product(constraint: ConstraintSet, g: Tensor) -> float:
    """A true lower bound on min over u in the set of <g, u>, exact but for oracles that iterate; g is (p,)."""
    atom: Atom = constraint.lmo(g)
    return float(atom.dot(g) if atom.bound is None else atom.bound[0])


def frank_wolfe_gap(constraint: ConstraintSet, x: Tensor, gradient: Tensor) -> float:
    """max over u in the set of <grad F(x), x - u>; x and the gradient are (p,)."""
    return float((gradient.double() * x.double()).sum()) - least_product(constraint, gradient)


class LowerBound:
    """The bound above, kept up to date as clients report; None until everybody has reported once.

    With everyone present every round only n numbers are kept. Otherwise each client's last q_i is kept too: (n, p).
    """

    def __init__(self, constraint: ConstraintSet, n: int) -> None:
        self._constraint, self._n = constraint, n
        self.numbers: Tensor | None = None  # (n,), NaN for those who have not reported
        self.q: Tensor | None = None  # (n, p)

    def report(self, who: Tensor, number: Tensor, q: Tensor) -> None:
        """Numbers (m,) and directions (m, p) of the clients ``who`` (m,)."""
        if self.numbers is None:
            self.numbers = torch.full((self._n,), torch.nan, dtype=torch.float64, device=number.device)
        self.numbers[who] = number.double()
        if len(who) == self._n and self.q is None:
            return
        if self.q is None:
            # Those who reported before all did so together, so their q_i added up to zero: nothing is lost by
            # asking everybody to report again.
            self.q = torch.zeros(self._n, q.shape[1], dtype=q.dtype, device=q.device)
            self.numbers = torch.full_like(self.numbers, torch.nan)
            self.numbers[who] = number.double()
        self.q[who] = q

    def value(self) -> float | None:
        """The bound from the latest reports."""
        if self.numbers is None or bool(self.numbers.isnan().any()):
            return None
        total = float(self.numbers.sum())
        if self.q is not None:
            total += least_product(self._constraint, -self.q.sum(0))  # - max <q, u> = min <-q, u>
        return total
