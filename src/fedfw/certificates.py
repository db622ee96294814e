"""Certificates: how far a point is from the optimum, and a lower bound on the optimum that training
provides.

The clients minimise ``F(x) = sum_i w_i f_i(x)`` over a set D. Suppose that every f_i is convex.
Take any points x_i and vectors q_i, and for each client a number m_i that is at most the minimum of
``<w_i grad f_i(x_i) + q_i, u>`` over u in a set D_i that contains D. Then, with ``q = sum_i q_i``,

    F* >= sum_i [ w_i f_i(x_i) - <w_i grad f_i(x_i), x_i> + m_i ] - max over u in D of <q, u>.

The directions that FedFW gives to the oracle have the form ``w_i grad f_i(x_i) + q_i``, so the
answers of the oracle prove such a bound in every round. When all clients take part, q is zero in
exact arithmetic. Computers round, so the last term is worked out in every case, and everything that
enters the bound is worked out in float64, whatever the precision of the training.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedfw.atoms import Atom
from fedfw.errors import ContradictionError
from fedfw.ranks import ALONE, Ranks
from fedfw.sets.base import ConstraintSet

_INSIDE = 1e-6
"""The distance outside of a set, relative to its size, at which a point counts as inside."""


def least_product(constraint: ConstraintSet, g: Tensor) -> float:
    """Return a lower bound on the minimum of ``<g, u>`` over a set, found by one call of the
    oracle.

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
    alone = g.unsqueeze(0)  # a stack of one: to take it out again would cost as much as the oracle
    atoms: Atom = constraint.lmo(alone, batch=True)
    return float(atoms.dot(alone) if atoms.bound is None else atoms.bound)


def frank_wolfe_gap(constraint: ConstraintSet, x: Tensor, gradient: Tensor) -> float:
    """Return the Frank-Wolfe gap: the maximum of ``<gradient, x - u>`` over u in the set.

    For a convex function it is an upper bound on ``F(x) - F*``; it is zero exactly at points from
    which no direction into the set decreases the function to first order.

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


def validate_gap(
    constraint: ConstraintSet, x: Tensor, gradient: Tensor, gap: float, where: str
) -> None:
    """Refuse a Frank-Wolfe gap that is below zero by more than rounding explains.

    At a point of the set no gap is negative, whatever the function: x is one of the points u that
    the gap's maximum is over. At distance d from the set it is at least -d ||gradient||. Below that
    the oracle did not find the minimum, and bounds drawn from it are false.

    Parameters
    ----------
    constraint : ConstraintSet
        The set.
    x, gradient : Tensor
        Where the gap was worked out, and the gradient there, of shape (p,).
    gap : float
        What `frank_wolfe_gap` gave.
    where : str
        The place in the run, for the message, such as ``"round 3"``.

    Raises
    ------
    ContradictionError
        If the gap is negative beyond rounding.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.certificates import validate_gap
    >>> x, ball = torch.zeros(2), fedfw.L1Ball(2.0)
    >>> validate_gap(ball, x, torch.ones(2), gap=-1e-9, where="round 3")
    """
    if not gap < 0:
        return
    # A bound on the distance of x from the set.
    diameter = constraint.diameter(tuple(x.shape))
    if constraint.has_projection:
        nearest = constraint.project(x.double())
        outside = float(constraint._violation(nearest.reshape(1, -1), tuple(x.shape))[0])
        if not outside <= _INSIDE:
            # The projection misses the set, so it bounds no distance; the last check of a run
            # refuses such points.
            return
        # A projection that iterates ends a little outside of the set.
        distance = float((x.double() - nearest).norm()) + max(outside, 0.0) * diameter * math.sqrt(
            len(x)
        )
    elif constraint.contains(x, _INSIDE):
        # As far as a point may be outside that counts as inside, in each of its coordinates.
        distance = _INSIDE * diameter * math.sqrt(len(x))
    else:  # outside, at an unknown distance
        return
    # Both products <gradient, x> and <gradient, u> are sums of many numbers in this precision.
    rounding = 64 * torch.finfo(gradient.dtype).eps * (float(x.double().norm()) + diameter)
    slack = float(gradient.double().norm()) * (distance + rounding)
    if gap >= -slack:
        return
    raise ContradictionError(
        f"{where}: the Frank-Wolfe gap is {gap:.9g}, and rounding explains {slack:.2g} of that; at "
        "a point of the set a gap is at least 0, so no bound is reported. Likely cause: the linear "
        f"minimization oracle of {constraint!r} does not return a minimizer over the set. "
        "fedfw.testing.check_constraint tries an oracle on many directions"
    )


class LowerBound:
    """The lower bound on the optimum described at the top of this file, updated as clients report.

    If all clients report together every time, their n numbers and the sum of the q_i are stored.
    Otherwise the last q_i of every client is stored, which takes n p numbers, or n w where the q_i
    are zero outside of w coordinates.

    Parameters
    ----------
    constraint : ConstraintSet
        The set D.
    n : int
        Number of clients.
    p : int, optional
        Number of parameters, for vectors q_i that are given by their columns.
    ranks : Ranks
        The processes that share a run: reports are then of this rank's clients, and `value` is of
        all.
    own : range, optional
        Which clients those are; by default all.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.certificates import LowerBound
    >>> bound = LowerBound(fedfw.L1Ball(1.0), n=2)
    >>> bound.report(torch.tensor([0, 1]), torch.tensor([-1.0, -2.0]), torch.zeros(2, 3))
    >>> bound.value()
    -3.0
    """

    def __init__(
        self,
        constraint: ConstraintSet,
        n: int,
        p: int | None = None,
        ranks: Ranks = ALONE,
        own: range | None = None,
    ) -> None:
        """Begin without a report: there is no bound until every client has reported once."""
        self._own = range(n) if own is None else own  # the numbers of this rank's clients
        self._constraint = constraint
        self._n = len(self._own)
        self._p = p
        self._ranks = ranks
        self.numbers: Tensor | None = None  # (n,), NaN for clients that have not reported
        # The vectors q_i (n, w), or their sum (1, w) while all clients report together.
        self.q: Tensor | None = None
        self.columns: Tensor | None = None  # (w,): the coordinates that q has; None for all
        self._summed = False  # whether q is the sum

    def report(
        self,
        who: Tensor,
        number: Tensor,
        q: Tensor,
        columns: Tensor | None = None,
        together: bool | None = None,
    ) -> None:
        """Store what some of the clients report.

        Parameters
        ----------
        who : Tensor
            Numbers of the clients, integers of shape (m,).
        number : Tensor
            Their terms of the sum, ``w_i f_i(x_i) - <w_i grad f_i(x_i), x_i> + m_i``, of shape
            (m,), in float64.
        q : Tensor
            Their vectors q_i, of shape (m, p), in float64.
        columns : Tensor, optional
            Coordinates, integers of shape (w,): q then has shape (m, w), and the q_i are zero
            elsewhere.
        together : bool, optional
            Whether all clients of all ranks report; by default whether those of this rank do.
        """
        if together is None:
            together = len(who) == self._n
        who = who - self._own.start
        if self.numbers is None or (self._summed and not together):
            # While all clients report together their q_i are not stored one by one. When some of
            # them report alone, earlier numbers are discarded: the bound is None until every client
            # has reported again.
            self.numbers = torch.full(
                (self._n,), torch.nan, dtype=torch.float64, device=number.device
            )
        self.numbers[who] = number.double()
        q = q.double()
        # The sum is enough, and stays so until some of the clients report alone.
        if together and (self.q is None or self._summed):
            self.q = q.sum(0, keepdim=True)
            self.columns = columns
            self._summed = True
            return
        if self.q is None or self._summed:
            self.q = torch.zeros(self._n, q.shape[1], dtype=q.dtype, device=q.device)
            self.columns = columns
            self._summed = False
        if columns is not self.columns:  # both at the union of their columns; None is all of them
            joint = None
            if columns is not None and self.columns is not None:
                joint = torch.unique(torch.cat([self.columns, columns]))
            self.q = self._widened(self.q, self.columns, joint)
            q = self._widened(q, columns, joint)
            self.columns = joint
        self.q[who] = q

    def _widened(self, rows: Tensor, columns: Tensor | None, joint: Tensor | None) -> Tensor:
        """Return vectors (m, w) at ``columns`` as vectors at the ascending columns ``joint``, which
        include them, with zeros elsewhere; None stands for all p columns.
        """
        if columns is None:  # then joint is None, too
            return rows
        if joint is None:
            assert self._p is not None, "q that has few columns says nothing of how many there are"
            wide = rows.new_zeros(len(rows), self._p)
            wide[:, columns] = rows
        else:
            wide = rows.new_zeros(len(rows), len(joint))
            wide[:, torch.searchsorted(joint, columns)] = rows
        return wide

    def value(self) -> float | None:
        """Return the bound from the latest reports.

        Returns
        -------
        float or None
            A lower bound on F*; None until every client has reported.
        """
        # NaN stands for missing reports, so that all ranks take part in the sums.
        constant = torch.full((), torch.nan, dtype=torch.float64)
        q = torch.zeros(self._p or 0, dtype=torch.float64)
        if self.numbers is not None and self.q is not None:
            constant = self.numbers.sum()
            q = self._widened(self.q.sum(0, keepdim=True), self.columns, None)[0]
        constant, q = self._ranks.sums(constant, q)
        if bool(constant.isnan()):
            return None
        # max <q, u> = -min <-q, u>
        return float(constant) + least_product(self._constraint, -q)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors from which `load` can restore the bound, for a checkpoint.

        Returns
        -------
        dict from str to Tensor
            The numbers of the clients and, where they are stored, their vectors q_i and their
            columns.
        """
        tensors = {"numbers": self.numbers, "q": self.q, "columns": self.columns}
        stored = {name: value for name, value in tensors.items() if value is not None}
        if self._ranks.size == 1:
            return stored
        # Ranks report in the same rounds, so all of them store a sum or all store rows. Only the
        # root gets the states; with several ranks there are no columns.
        states = self._ranks.gather_to_root(stored)
        if not states or not stored:
            return {}
        if self._summed:
            q = torch.stack([state["q"] for state in states]).sum(0)
        else:
            q = torch.cat([state["q"] for state in states])
        return {"numbers": torch.cat([state["numbers"] for state in states]), "q": q}

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Restore the bound from a checkpoint.

        Parameters
        ----------
        held : mapping from str to Tensor
            What `state` returned.
        """
        self.numbers = held.get("numbers")
        self.q = held.get("q")
        self.columns = held.get("columns")
        # A sum has one row for many clients. (Of one client, its row is the sum.)
        self._summed = (
            self.q is not None and self.numbers is not None and len(self.q) < len(self.numbers)
        )
        if self._ranks.size == 1 or self.numbers is None or self.q is None:
            return
        own_rows = slice(self._own.start, self._own.stop)
        if not self._summed:
            self.q = self.q[own_rows]
        elif not self._ranks.first:  # the sum of all clients is the first rank's
            self.q = torch.zeros_like(self.q)
        self.numbers = self.numbers[own_rows]
