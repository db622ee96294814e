"""The terms on which all members of a batch of rounds agree, and what an owner allows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import ClassVar

from fedfw.secure_sums.errors import ConsentError, TermsError
from fedfw.secure_sums.ring import Ring
from fedfw.secure_sums.wire import Message, Rows, tagged

COMPLETE = 400
"""The most clients of a round that form a complete graph."""
MOST_DEGREE = 50
MOST_STARTS = 1024
"""The most batches that an owner may begin in one run: each is another draw of the graph."""
_MOST_ROUNDS = 1 << 16
_MOST_ENTRIES = 1 << 32
_UNLIKELY = 40
"""The bounds on colluding neighbours fail with probability at most 2^-40."""


def fingerprint(public: bytes) -> str:
    """Return the fingerprint of a public key, which consent files list.

    Parameters
    ----------
    public : bytes
        An Ed25519 public key, 32 bytes.

    Returns
    -------
    str
        Its SHA-256 digest, as 64 hexadecimal digits.

    Examples
    --------
    >>> from fedfw.secure_sums import fingerprint
    >>> fingerprint(bytes(32))[:8]
    '66687aad'
    """
    return hashlib.sha256(public).hexdigest()


@dataclass(frozen=True)
class Terms(Message):
    """The public parameters of a batch of rounds.

    Parameters
    ----------
    run : bytes
        The name of the run, at most 64 bytes.
    first, rounds : int
        The number of the first round, and how many rounds the batch has.
    owners : tuple of bytes
        The Ed25519 public keys of all owners, distinct, in ascending order.
    invited : int
        How many owners are invited to a round.
    degree : int
        Neighbours of a client in a round; 0 for a complete graph, else even and at most 50.
    threshold : int
        Shares that open a secret: t > (h + c) / 2 for h holders and c colluding ones.
    least : int
        The least number of clients in a sum.
    dropouts : int
        How many invited clients may be absent from a sum. It needs as many signatures as
        ``signatures`` says all the same.
    colluders : int
        How many clients may collude with the server.
    entries : int
        The length p of the vectors.
    modulus : int
        Of the sums; see `Ring.for_sum`.

    Examples
    --------
    >>> from fedfw.secure_sums import Terms
    >>> owners = tuple(bytes([i]) * 32 for i in range(5))
    >>> terms = Terms.for_owners(b"run", owners, entries=10, span=2, dropouts=1)
    >>> terms.threshold, terms.least, terms.modulus
    (3, 4, 16)
    """

    kind: ClassVar[int] = 1
    run: bytes
    first: int
    rounds: int
    owners: Rows
    invited: int
    degree: int
    threshold: int
    least: int
    dropouts: int
    colluders: int
    entries: int
    modulus: int

    @classmethod
    def for_owners(
        cls,
        run: bytes,
        owners: Rows,
        *,
        entries: int,
        span: int,
        dropouts: int = 0,
        colluders: int = 0,
        first: int = 0,
        rounds: int = 1,
        invited: int | None = None,
        least: int | None = None,
    ) -> Terms:
        """Return terms with the least safe threshold, and a graph that fits the number of clients.

        Parameters
        ----------
        run, owners, entries, dropouts, colluders, first, rounds
            As for `Terms`; the owners in any order.
        span : int
            The largest number that one client adds to an entry of the sum.
        invited : int, optional
            By default all owners.
        least : int, optional
            By default all invited clients but the dropouts.

        Returns
        -------
        Terms
            They have not been checked; `validate` does that.
        """
        count = len(owners) if invited is None else invited
        degree = 0 if count <= COMPLETE else MOST_DEGREE
        holders = degree + 1 if degree else count
        nearby = colluders_among(holders - 1, count, colluders, rounds)
        return cls(
            run=run,
            first=first,
            rounds=rounds,
            owners=tuple(sorted(owners)),
            invited=count,
            degree=degree,
            threshold=(holders + nearby) // 2 + 1,
            least=count - dropouts if least is None else least,
            dropouts=dropouts,
            colluders=colluders,
            entries=entries,
            modulus=Ring.for_sum(count, span).modulus,
        )

    @property
    def ring(self) -> Ring:
        """Return the ring of the sums."""
        return Ring(self.modulus)

    @property
    def span(self) -> int:
        """Return the largest number that one client may add to an entry."""
        return (self.modulus - 1) // self.invited

    @property
    def holders(self) -> int:
        """Return how many clients hold shares of one client's secrets, itself included."""
        return self.degree + 1 if self.degree else self.invited

    @property
    def signatures(self) -> int:
        """Return how many invited clients must sign a list of survivors: no two lists can have so
        many, for each honest client signs one.
        """
        return max((self.invited + self.colluders) // 2 + 1, min(self.threshold, self.invited))

    @cached_property
    def digest(self) -> bytes:
        """Return the hash of the terms, to which commitments are bound."""
        return hashlib.sha256(tagged("terms", self.to_bytes())).digest()

    def validate(self) -> None:
        """Refuse terms that contradict themselves or hide too little.

        Raises
        ------
        TermsError
            With the condition that fails.
        """
        for wrong, condition in self._conditions():
            if wrong:
                raise TermsError(f"terms: {condition}")

    def _conditions(self) -> list[tuple[bool, str]]:
        """Return pairs (it fails, what is required), the sizes first: later ones rest on them."""
        count, owners = self.invited, self.owners
        sizes = [
            (not 1 <= len(self.run) <= 64, "the name of the run needs 1 to 64 bytes"),
            (not 1 <= self.rounds <= _MOST_ROUNDS, f"rounds must be 1 to {_MOST_ROUNDS}"),
            (not 1 <= self.entries <= _MOST_ENTRIES, f"entries must be 1 to {_MOST_ENTRIES}"),
            (self.first >= 1 << 62, "first must be below 2^62"),
            (not owners or len(owners[0]) != 32, "owners' keys must have 32 bytes"),
            (list(owners) != sorted(set(owners)), "owners must be distinct and ascending"),
            (not 2 <= count <= len(owners), "invited must be at least 2 and at most all owners"),
            (not count <= self.modulus - 1 < 1 << 62, "the modulus is too small or too large"),
            (self.degree == 0 and count > COMPLETE, f"a complete graph has at most {COMPLETE}"),
            (
                self.degree != 0 and not _is_regular(self.degree, count),
                f"degree must be even, 2 to {MOST_DEGREE}, and below invited - 1",
            ),
        ]
        if any(wrong for wrong, _ in sizes):
            return sizes
        holders = self.holders
        nearby = colluders_among(holders - 1, count, self.colluders, self.rounds)
        around = self.degree or count - 1
        beside = 2 * colluders_among(around // 2, count, self.colluders, self.rounds)
        removed = self.dropouts + min(self.colluders, beside if self.degree else count)
        return [
            (2 * self.threshold <= holders + nearby, "threshold must exceed (holders + c) / 2"),
            (self.threshold > holders, "threshold must not exceed the number of holders"),
            (not self.colluders + 2 <= self.least <= count, "least must be c + 2 to invited"),
            (removed >= around, "dropouts and colluders could disconnect a client"),
        ]


def _is_regular(degree: int, count: int) -> bool:
    return degree % 2 == 0 and 2 <= degree <= MOST_DEGREE and degree < count - 1


def colluders_among(chosen: int, count: int, colluders: int, rounds: int) -> int:
    """Return how many of ``chosen`` random neighbours may collude, up to a negligible probability.

    Parameters
    ----------
    chosen : int
        Neighbours of a client, drawn from the other ``count - 1``.
    count : int
        Clients that are invited to a round, all colluding ones among them.
    colluders : int
        How many of these collude with the server.
    rounds : int
        Rounds of the batch.

    Returns
    -------
    int
        At most ``colluders``. The probability that any client has more, in any round of any of the
        batches that owners may begin, is at most 2^-40.

    Examples
    --------
    >>> from fedfw.secure_sums.terms import colluders_among
    >>> colluders_among(9, 10, 2, 1), colluders_among(50, 1000, 20, 1)
    (2, 15)
    """
    most = min(colluders, chosen)
    others = count - 1
    if chosen >= others or colluders >= others:
        return most
    limit = comb(others, chosen)
    cases = count * rounds * MOST_STARTS << _UNLIKELY
    tail = 0
    bound = most
    # Exact hypergeometric tail, from the largest number downwards.
    while bound > 0:
        tail += comb(colluders, bound) * comb(others - colluders, chosen - bound)
        if tail * cases > limit:
            break
        bound -= 1
    return bound


@dataclass(frozen=True)
class Consent:
    """An owner's consent: with whom its numbers may be summed.

    Parameters
    ----------
    fingerprints : frozenset of str
        The `fingerprint` of every other owner's key. The server does not vouch for identities.
    least : int
        The least number of clients that a sum must contain, this owner included.
    colluders : int, default 0
        Against how many clients that collude with the server the owner must be safe.
    starts : int, default 16
        How many batches may be begun in one run.
    rounds : int, default 1000
        How many rounds a batch may have: keys and shares are made for all of them.

    Examples
    --------
    >>> from fedfw.secure_sums import Consent, fingerprint
    >>> Consent(frozenset({fingerprint(bytes(32))}), least=2).colluders
    0
    """

    fingerprints: frozenset[str]
    least: int
    colluders: int = 0
    starts: int = 16
    rounds: int = 1000

    def check(self, terms: Terms, own: bytes) -> None:
        """Refuse terms that go beyond this consent.

        Parameters
        ----------
        terms : Terms
            What the server proposes.
        own : bytes
            The owner's public key.

        Raises
        ------
        TermsError, ConsentError
            With the reason.
        """
        terms.validate()
        if not 0 < self.starts <= MOST_STARTS:
            raise ConsentError(f"starts={self.starts}, expected 1 to {MOST_STARTS}")
        if own not in terms.owners:
            raise ConsentError("this owner's key is not in the list of owners")
        strangers = [
            key for key in terms.owners if key != own and fingerprint(key) not in self.fingerprints
        ]
        if strangers:
            raise ConsentError(f"no consent to sums with the key {fingerprint(strangers[0])}")
        if terms.rounds > self.rounds:
            raise ConsentError(f"a batch of {terms.rounds} rounds, expected at most {self.rounds}")
        if terms.least < self.least:
            raise ConsentError(f"sums of {terms.least}, expected at least {self.least} clients")
        if terms.colluders < self.colluders:
            raise ConsentError(
                f"safe against {terms.colluders} colluding clients, expected {self.colluders}"
            )
