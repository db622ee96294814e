"""The participants of an exchange, as a server step sees them: sums over all of them, and over all
processes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw.algorithms.contract import Payload, State
from fedfw.atoms import Atom, is_sparse
from fedfw.ranks import ALONE, Ranks
from fedfw.rounds.channels import Sent, dense
from fedfw.rounds.columns import spread_out


@dataclass(frozen=True, eq=False)
class Evidence:
    """Terms of the lower bound on the optimum, client by client (see `fedfw.certificates`).

    Parameters
    ----------
    number : Tensor
        (m,), in float64: w_i f_i(x_i) - <w_i grad f_i(x_i), x_i> + m_i; where gradients at xbar
        are gathered, w_i f_i(xbar).
    q : Tensor or None
        (m, p), in float64: the direction less w_i grad f_i(x_i). It does not travel: None where the
        server has to derive it.
    """

    number: Tensor
    q: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Upload:
    """The uploads of the clients ``who`` (m,) in an exchange.

    Parameters
    ----------
    who : Tensor
        (m,): rows of the memory.
    before : dict of str to Tensor
        Their shared state before the exchange, which the server has as well.
    sent : mapping of str to Atom
        What travels, by name: stacks of atoms, or of vectors as atoms.
    decoded : dict
        The payload as both ends decode it.
    after : dict of str to Tensor, optional
        The clients' whole state after the exchange, where it is known (in a simulation).
    evidence : Evidence or None
        Where it was asked for.
    weights : Tensor or None
        (m,): n w_i, which the server has; None where they are all 1.
    weight : float or None
        The sum of the weights; None to add them up, for which a GPU would have to be waited for.
    """

    who: Tensor
    before: State
    sent: Sent
    decoded: Payload
    after: State | None = None
    evidence: Evidence | None = None
    weights: Tensor | None = None
    weight: float | None = None


def no_upload(shared: State) -> Upload:
    """Return a group of no clients, from the shared state of any: its sums are zero, and have their
    shapes.
    """
    before = {name: rows[:0] for name, rows in shared.items()}
    return Upload(torch.zeros(0, dtype=torch.int64), before, {}, {}, weight=0.0)


class Participants:
    """`fedfw.algorithms.Present` and, once payloads are there, `fedfw.algorithms.Sums`.

    Parameters
    ----------
    n : int
        How many clients there are.
    count : int
        How many of them take part, over all processes.
    like : Tensor
        A vector (p,) of the type and on the device of the sums.
    groups : sequence of Upload
        The participants of this process; where it has none, a group of none.
    estimates : mapping of str to Tensor
        The sums (p,) over all clients of what error feedback holds after this exchange.
    columns : Tensor, optional
        (w,): shared states are (m, w) and zero elsewhere; None for all coordinates.
    ranks : Ranks
        The processes that share the run.
    names : collection of str
        The entries of the payloads, which a process without participants cannot see.
    """

    def __init__(
        self,
        n: int,
        count: int,
        like: Tensor,
        groups: Sequence[Upload],
        estimates: Mapping[str, Tensor] | None = None,
        columns: Tensor | None = None,
        ranks: Ranks = ALONE,
        names: Collection[str] = (),
    ) -> None:
        """Keep the uploads; sums are made when they are asked for."""
        self.count = count  # clients that take part, over all processes
        self.complete = count == n  # no client is absent
        self._n = n  # clients, absent ones included
        self._like = like  # (p,): type and device of the sums
        self._groups = groups  # uploads of this process alone
        # Entry -> sum (p,) over all clients, absent ones included.
        self._estimates = estimates or {}
        self._columns = columns  # coordinates (w,) of the shared states; None for all p
        self._ranks = ranks
        self._names = names  # entries of a payload
        # Both are worked out when first asked for: each costs an exchange between the processes.
        self._weight: float | None = None
        self._totals: dict[str, Tensor] = {}  # entry -> sum (p,) over all processes

    @property
    def weight(self) -> float:
        """Return the sum of the participants' weights."""
        if self._weight is None:
            own_weight = 0.0
            for group in self._groups:
                if group.weight is not None:
                    own_weight += group.weight
                elif group.weights is None:
                    own_weight += len(group.who)
                else:
                    own_weight += float(group.weights.sum())
            self._weight = sum(row[0] for row in self._ranks.numbers(own_weight))
        return self._weight

    def shared(self, name: str) -> Tensor:
        """Return the sum (p,) of a shared vector over the participants, as it was before the
        exchange.
        """
        total: Tensor | None = None
        for group in self._groups:
            rows = group.before[name]
            if group.weights is not None:
                rows = rows * group.weights.to(rows.dtype)[:, None]
            part = rows.sum(0)
            total = part if total is None else total + part
        assert total is not None, "a process without participants has a group of none"
        total = spread_out(total, self._columns, len(self._like))
        return self._ranks.sums(total)[0]

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def total(self, name: str) -> Tensor:
        """Return the sum (p,) of an entry over the participants, as decoded."""
        if name not in self._totals:
            total = torch.zeros_like(self._like)
            for group in self._groups:
                if not len(group.who):
                    continue
                entry = group.decoded[name]
                atoms = entry if isinstance(entry, Atom) else dense(entry)
                add_up(atoms, group.weights, total)
            self._totals[name] = self._ranks.sums(total)[0]
        return self._totals[name]

    def mean(self, name: str) -> Tensor:
        """Estimate the mean over all clients: absent ones count with error feedback's estimate."""
        if name in self._estimates:
            return (self._estimates[name] / self._n).to(self._like.dtype)
        return self.total(name) / self.weight

    @property
    def sparse(self) -> bool:
        """Return whether all clients sent atoms that name few coordinates."""
        if not self.complete:
            return False
        own_sparse = True
        for group in self._groups:
            atoms = [entry for entry in group.decoded.values() if isinstance(entry, Atom)]
            # The first atom stands for all: an exchange sends atoms of one kind.
            own_sparse = own_sparse and bool(atoms) and is_sparse(atoms[0])
        return all(bool(row[0]) for row in self._ranks.numbers(own_sparse))


def add_up(atoms: Atom, weights: Tensor | None, into: Tensor) -> None:
    """Add a stack of m atoms, times their weights (m,), to one tensor."""
    if weights is None:
        atoms.add_sum_to(into)
    else:
        into += (atoms.dense(into.dtype) * weights.to(into.dtype)[:, None]).sum(0)
