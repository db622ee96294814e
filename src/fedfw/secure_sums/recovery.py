"""How the server takes the masks out of the sum of all uploads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations, islice

from fedfw.secure_sums.errors import ShareError, TooFewSharesError
from fedfw.secure_sums.graph import Batch, RoundPlan
from fedfw.secure_sums.primitives import Primitives
from fedfw.secure_sums.ring import Residues
from fedfw.secure_sums.statements import KeyRecord, pair_context, self_context
from fedfw.secure_sums.wire import Bits

_MOST_CHOICES = 500
"""Sets of shares that are tried where some of them are wrong."""


def remove_masks(
    total: Residues,
    batch: Batch,
    plan: RoundPlan,
    dealers: Bits,
    survivors: Bits,
    records: Mapping[int, bytes],
    reveals: Mapping[int, Mapping[int, bytes]],
    primitives: Primitives,
) -> None:
    """Take all masks out of the sum of the survivors' uploads, in place.

    Parameters
    ----------
    total : array
        The sum of uploads (p,).
    batch, plan
        Of the round.
    dealers, survivors : sequence of bool
        Of the round, by place among the invited clients.
    records : mapping
        By client: rows of a `KeyRecord`.
    reveals : mapping
        By client that revealed shares: the shares by dealer.
    primitives : Primitives
        As the clients have.

    Raises
    ------
    TooFewSharesError, ShareError
        If a secret cannot be opened.
    """
    ring, count = batch.terms.ring, batch.terms.entries
    surviving = [client for client in plan.invited if survivors[plan.place[client]]]
    for client in plan.invited:
        if not dealers[plan.place[client]]:
            continue
        record = KeyRecord.from_row(records[client], primitives)
        shares = _shares_of(client, plan, reveals)
        bound = self_context(batch.context, plan.number, client)
        if client in surviving:
            opens = partial(_is_seed, primitives, record, bound)
            seed = _opened(client, shares, batch.terms.threshold, primitives, opens)
            ring.subtract(total, primitives.mask(seed, bound, ring, count))
            continue
        opens = partial(_is_key, primitives, record)
        key = _opened(client, shares, batch.terms.threshold, primitives, opens)
        for other in plan.neighbours(client):
            if not survivors[plan.place[other]]:
                continue
            public = KeyRecord.from_row(records[other], primitives).mask
            bound = pair_context(batch.context, plan.number, client, other)
            values = primitives.mask(primitives.agree(key, public, bound), bound, ring, count)
            if other < client:  # the survivor has added it
                ring.subtract(total, values)
            else:
                ring.add(total, values)


def _shares_of(
    client: int, plan: RoundPlan, reveals: Mapping[int, Mapping[int, bytes]]
) -> dict[int, bytes]:
    """Return the revealed shares of a client's secret by their positions, from 1."""
    return {
        position: reveals[holder][client]
        for position, holder in enumerate(plan.holders(client), start=1)
        if client in reveals.get(holder, {})
    }


def _is_seed(primitives: Primitives, record: KeyRecord, bound: bytes, seed: bytes) -> bool:
    """Return whether a self-mask seed is the one of the record."""
    return primitives.check_value(seed, bound) == record.check


def _is_key(primitives: Primitives, record: KeyRecord, key: bytes) -> bool:
    """Return whether a key seed is the one of the record."""
    return primitives.public_key(key) == record.mask


def _opened(
    client: int,
    shares: Mapping[int, bytes],
    threshold: int,
    primitives: Primitives,
    opens: Callable[[bytes], bool],
) -> bytes:
    """Return the secret that passes its check, from as many shares as the threshold says.

    Wrong shares of a few holders are passed over by trying other sets of shares.
    """
    if len(shares) < threshold:
        raise TooFewSharesError(
            f"{len(shares)} shares of a secret of client {client} were revealed, expected at "
            f"least {threshold}"
        )
    for chosen in islice(combinations(sorted(shares), threshold), _MOST_CHOICES):
        secret = primitives.combine({position: shares[position] for position in chosen})
        if opens(secret):
            return secret
    raise ShareError(f"the revealed shares do not open the secret of client {client}")
