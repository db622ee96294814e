"""Certificates: how far a point is from the optimum, and a lower bound on the optimum that training provides.

The clients minimise ``F(x) = sum_i w_i f_i(x)`` over a set D. Suppose that every f_i is convex. Take any points x_i and
vectors q_i, and for each client a number m_i that is at most the minimum of ``<w_i grad f_i(x_i) + q_i, u>`` over u in
a set D_i that contains D. Then, with ``q = sum_i q_i``,

    F* >= sum_i [ w_i f_i(x_i) - <w_i grad f_i(x_i), x_i> + m_i ] - max over u in D of <q, u>.

The directions that FedFW gives to the oracle have the form ``w_i grad f_i(x_i) + q_i``, so the answers of the oracle
prove such a bound in every round. When all clients take part, q is zero in exact arithmetic. Computers round, so the
last term is worked out in every case, and everything that enters the bound is worked out in float64, whatever the
precision of the training.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedfw.atoms import Atom
from fedfw.sets.base import ConstraintSet


def least_product(constraint: ConstraintSet, g: Tensor) -> float:
    """A lower bound on the minimum of ``<g, u>`` over a set, found by one call of the oracle.

    Parameters
    ----------
    constraint : ConstraintSet
        The set.
    g : Tensor
        The direction, of shape (p,).

    Returns
    -------
    float
        The minimum itself; for oracles that iterate, a true lower bound on it.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.certificates import least_product
    >>> least_product(fedfw.L1Ball(2.0), torch.tensor([1.0, -3.0]))
    -6.0
    """
    atom: Atom = constraint.lmo(g)
    return float(atom.dot(g) if atom.bound is None else atom.bound[0])


def frank_wolfe_gap(constraint: ConstraintSet, x: Tensor, gradient: Tensor) -> float:
    """The Frank-Wolfe gap: the maximum of ``<gradient, x - u>`` over u in the set.

    For a convex function it is an upper bound on ``F(x) - F*``; it is zero exactly at points from which no direction
    into the set decreases the function to first order.

    Parameters
    ----------
    constraint : ConstraintSet
        The set.
    x : Tensor
        A point of the set, of shape (p,).
    gradient : Tensor
        The gradient of F at x, of shape (p,).

    Returns
    -------
    float
        The gap.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.certificates import frank_wolfe_gap
    >>> x = torch.zeros(2)
    >>> frank_wolfe_gap(fedfw.L1Ball(2.0), x, gradient=torch.tensor([1.0, -3.0]))
    6.0
    """
    return float((gradient.double() * x.double()).sum()) - least_product(constraint, gradient)


class LowerBound:
    """The lower bound on the optimum described at the top of this file, updated as clients report.

    If all clients report together every time, their n numbers and the sum of the q_i are stored. Otherwise the last q_i
    of every client is stored, which takes n p numbers.

    Parameters
    ----------
    constraint : ConstraintSet
        The set D.
    n : int
        Number of clients.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.certificates import LowerBound
    >>> bound = LowerBound(fedfw.L1Ball(1.0), n=2)
    >>> bound.report(torch.tensor([0, 1]), torch.tensor([-1.0, -2.0]), torch.zeros(2, 3))
    >>> bound.value()
    -3.0
    """

    def __init__(self, constraint: ConstraintSet, n: int) -> None:
        self._constraint, self._n = constraint, n
        self.numbers: Tensor | None = None  # (n,), NaN for clients that have not reported
        self.q: Tensor | None = None  # (n, p), or (1, p): the sum, while all clients report together

    def report(self, who: Tensor, number: Tensor, q: Tensor) -> None:
        """Store what some of the clients report.

        Parameters
        ----------
        who : Tensor
            Numbers of the clients, integers of shape (m,).
        number : Tensor
            Their terms of the sum, ``w_i f_i(x_i) - <w_i grad f_i(x_i), x_i> + m_i``, of shape (m,), in float64.
        q : Tensor
            Their vectors q_i, of shape (m, p), in float64.
        """
        if self.numbers is None:
            self.numbers = torch.full((self._n,), torch.nan, dtype=torch.float64, device=number.device)
        self.numbers[who] = number.double()
        q = q.double()
        if len(who) == self._n and (self.q is None or len(self.q) == 1):
            self.q = q.sum(0, keepdim=True)
            return
        if self.q is None or len(self.q) != self._n:
            # So far all clients reported together, and their q_i were not stored one by one. Their numbers are
            # therefore discarded: the bound is None until every client has reported again.
            self.q = torch.zeros(self._n, q.shape[1], dtype=q.dtype, device=q.device)
            self.numbers = torch.full_like(self.numbers, torch.nan)
            self.numbers[who] = number.double()
        self.q[who] = q

    def value(self) -> float | None:
        """The bound from the latest reports.

        Returns
        -------
        float or None
            A lower bound on F*; None until every client has reported.
        """
        if self.numbers is None or self.q is None or bool(self.numbers.isnan().any()):
            return None
        # - max <q, u> = min <-q, u>
        return float(self.numbers.sum()) + least_product(self._constraint, -self.q.sum(0))

    def state(self) -> dict[str, Tensor]:
        """The tensors from which `load` can restore the bound, for a checkpoint.

        Returns
        -------
        dict from str to Tensor
            The numbers of the clients and, where they are stored, their vectors q_i.
        """
        held = {"numbers": self.numbers, "q": self.q}
        return {name: value for name, value in held.items() if value is not None}

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Restore the bound from a checkpoint.

        Parameters
        ----------
        held : mapping from str to Tensor
            What `state` returned.
        """
        self.numbers, self.q = held.get("numbers"), held.get("q")
