"""What clients hand to the server, and the sums of it that the server's step is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedfw.atoms import Atom, TupleAtom, is_sparse
from fedfw.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a client's first local step proves about the optimum (see `fedfw.certificates`): from
    exact gradients only.

    Parameters
    ----------
    number : Tensor
        (m,), in float64: w_i f_i(x_i) - <w_i grad f_i(x_i), x_i> + m_i.
    q : Tensor or None
        (m, p), in float64: the direction less w_i grad f_i(x_i). It does not travel: None where the
        server has to work it out.
    """

    number: Tensor
    q: Tensor | None


@dataclass(frozen=True, eq=False)
class Upload:
    """What the clients ``who`` hand to the server.

    Parameters
    ----------
    who : Tensor
        (m,): the clients' numbers.
    atoms : Atom
        A stack of m atoms, or of m dense vectors; with vectors beside them what `parcel` makes.
    x : Tensor
        (m, p): the clients' points before the round. They are not sent: the server rebuilds them
        from the atoms it was sent before (the simulator, where both are the same bits, passes the
        clients' own).
    evidence : Evidence or None
        Where it was asked for.
    columns : Tensor or None
        (w,): x is (m, w) and has these coordinates of the points, which are zero elsewhere; None
        for all coordinates.
    weights : Tensor or None
        (m,): n w_i, which the server knows; None where they are all 1.
    visited : Tensor or None
        (m, 1): 1 for clients that took part before, else 0, where the server keeps account of it.
    weight : float or None
        The sum of the weights; None to have it worked out, for which a GPU has to be asked.
    """

    who: Tensor
    atoms: Atom
    x: Tensor
    evidence: Evidence | None = None
    columns: Tensor | None = None
    weights: Tensor | None = None
    visited: Tensor | None = None
    weight: float | None = None


@dataclass(frozen=True, eq=False)
class Aggregate:
    """All that the server is given of a round's uploads.

    Parameters
    ----------
    count : int
        How many clients sent something.
    everyone : bool
        Whether these are all clients that there are.
    total : Tensor
        (p,): the sum of what they sent. Where clients keep points of their own and some of them are
        absent, it is the sum of what they sent less the sum of the senders' points, which is what
        the sum of all points gains.
    sparse : bool
        Whether everyone sent atoms that name few coordinates, so that the total is short enough to
        be sent down.
    beside : dict of str to Tensor
        The sums of the vectors that came beside, by name.
    weight : float
        The sum of the weights n w_i with which all this was added up; the count where every client
        counts the same.
    new : Tensor or None
        (1,): what of that weight belongs to clients that took part for the first time, where that
        is kept account of.
    """

    count: int
    everyone: bool
    total: Tensor
    sparse: bool = False
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    weight: float = 0.0
    new: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """(p,): the mean of what was sent."""
        return self.total / self.weight

    @classmethod
    def of(
        cls,
        uploads: Sequence[Upload],
        n: int,
        like: Tensor,
        points: bool,
        beside: Mapping[str, int] | None = None,
        count: int | None = None,
    ) -> Aggregate:
        """Add up uploads.

        Parameters
        ----------
        uploads : sequence of Upload
            Of different clients.
        n : int
            How many clients there are.
        like : Tensor
            A vector (p,) of the type and on the device of the sum.
        points : bool
            Whether clients keep points of their own.
        beside : mapping of str to int, optional
            The vectors that come beside, by name, and their lengths.
        count : int, optional
            How many clients sent something, where some of them sent it to other ranks.
        """
        count = sum(upload.who.shape[0] for upload in uploads) if count is None else count
        everyone, total = count == n, torch.zeros_like(like)
        sums = {name: like.new_zeros(size) for name, size in beside.items()} if beside else {}
        sparse, weight, new = everyone, 0.0, None
        for upload in uploads:
            first = upload.atoms
            if sums:
                first, *rest = first.parts if isinstance(first, TupleAtom) else (first,)
                for atoms, into in zip(rest, sums.values(), strict=True):
                    _add_up(atoms, upload.weights, into)
            _add_up(first, upload.weights, total)
            sparse = sparse and is_sparse(first)
            weight += upload.who.shape[0] if upload.weight is None else upload.weight
            if upload.visited is not None:
                came = (
                    1 - upload.visited
                    if upload.weights is None
                    else (1 - upload.visited) * upload.weights[:, None]
                )
                new = came.sum(0) if new is None else new + came.sum(0)
            if points and not everyone and upload.columns is None:
                total -= upload.x.sum(0)
            elif points and not everyone:
                total[upload.columns] -= upload.x.sum(0)
        return cls(count, everyone, total, sparse, sums, weight, new)

    def over(self, ranks: Ranks) -> Aggregate:
        """The same over all ranks, each of which has added up what its own clients sent."""
        if ranks.size == 1:
            return self
        came = 0.0 if self.new is None else float(self.new)
        mine = (self.weight, self.sparse, came, self.new is not None)
        numbers = torch.tensor(mine, dtype=torch.float64, device=self.total.device)
        total, numbers, *sums = ranks.sums(self.total, numbers, *self.beside.values())
        weight, sparse, came, counted = numbers.tolist()
        return replace(
            self,
            total=total,
            sparse=sparse == ranks.size,
            beside=dict(zip(self.beside, sums, strict=True)),
            weight=weight,
            new=total.new_tensor([came]) if counted else None,
        )


def _add_up(atoms: Atom, weights: Tensor | None, into: Tensor) -> None:
    """Add a stack of m atoms, times their weights (m,), to one tensor."""
    if weights is None:
        atoms.add_sum_to(into)
    else:
        into += (atoms.dense(into.dtype) * weights.to(into.dtype)[:, None]).sum(0)
