"""Who takes part in a round."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfw.problems.digest import digest_of, text_of
from fedfw.randomness import generator

Attendance = Callable[[int], Sequence[int]]
_MANY = 100_000
"""Registered clients from which a draw costs as much as there are participants, not as there are
clients.
"""


class Participation:
    """Draws the clients of round t; the same t always gives the same clients.

    Parameters
    ----------
    wanted
        A probability in (0, 1]; one a client; a number of clients a round (an ``int`` above 1); or
        a function t -> clients. 1 is all clients.
    n, seed
        Number of clients, and what their draws follow from.
    rounds
        How many rounds are planned. A function is asked for all of them at once: then it is known
        how often each client takes part, and a function that draws at random cannot answer the plan
        in one way and the round in another.
    """

    def __init__(
        self,
        wanted: float | Sequence[float] | Tensor | np.ndarray[Any, Any] | Attendance,
        n: int,
        seed: int,
        rounds: int = 0,
    ) -> None:
        """Read the kind of participation, a function, a number or probabilities, and derive the
        probability p that schedules use.
        """
        self._n = n
        self._seed = seed
        self._rounds = rounds
        # One of these three is set: a function of t, a number of clients, or probabilities (n,).
        self._function: Attendance | None = None
        self._count: int | None = None
        self._chances: Tensor | None = None
        self._chance: float | None = None  # the probability, where it is the same for all
        # What a function said: it may draw at random, so it is asked once a round.
        self._drawn: dict[int, Tensor] = {}
        self.p = 1.0
        """The probability that schedules go by: the least one, for a function the least share of
        the rounds in which any client takes part. Clients that never do are not counted: no step
        size would suit them.
        """
        if callable(wanted):
            self._function = wanted
            attended = self.attended(rounds)
            self.p = float(attended[attended > 0].min()) / rounds if bool(attended.any()) else 1.0
        # participation=1 is the probability 1, and not one client a round.
        elif isinstance(wanted, int) and not isinstance(wanted, bool) and wanted != 1:
            if not 1 <= wanted <= n:
                raise ValueError(
                    f"participation={wanted} clients a round, expected 1 to {n} (or a probability "
                    "as a float)"
                )
            self._count = wanted
            self.p = wanted / n
        else:
            chances = torch.as_tensor(wanted, dtype=torch.float64).flatten()
            if len(chances) not in (1, n) or not bool(((chances > 0) & (chances <= 1)).all()):
                raise ValueError(
                    f"participation={wanted}, expected a probability in (0, 1], or {n} of them"
                )
            self._chances = chances.expand(n)
            self.p = float(chances.min())
            self._chance = float(chances[0]) if len(chances) == 1 else None

    @property
    def expected(self) -> float | None:
        """Return how many take part in a round; None where a function chooses them."""
        if self._function is not None:
            return None
        return self._count if self._chances is None else float(self._chances.sum())

    @property
    def is_full(self) -> bool:
        """Return whether all clients take part in every round."""
        return self._function is None and self.p == 1.0

    def attended(self, rounds: int) -> Tensor:
        """(n,) int64: in how many of the rounds 1 to ``rounds`` each client takes part."""
        counts = torch.zeros(self._n, dtype=torch.int64)
        for t in range(1, rounds + 1):
            counts[self(t)] += 1
        return counts

    def __str__(self) -> str:
        """Return what was asked for; of a function, which clients it chose in the rounds that are
        planned.
        """
        if self._function is not None:
            chosen = digest_of(self(t) for t in range(1, self._rounds + 1))
            return f"a function that chose {chosen} in {self._rounds} rounds"
        if self.is_full:
            return "everyone"
        return text_of(self._count or self._chance or self._chances)

    def __call__(self, t: int) -> Tensor:
        """Return the clients of round t, ascending, (m,) int64; m may be 0."""
        if self._function is not None:
            # A function may draw at random: it is called once a round.
            if t not in self._drawn:
                clients = torch.tensor(
                    sorted({int(i) for i in self._function(t)}), dtype=torch.int64
                )
                if len(clients) and not (int(clients[0]) >= 0 and int(clients[-1]) < self._n):
                    raise ValueError(
                        f"round {t}: participation names clients {clients.tolist()}, expected 0 to "
                        f"{self._n - 1}"
                    )
                self._drawn[t] = clients
            return self._drawn[t]
        if self.is_full:
            return torch.arange(self._n)
        random = generator(self._seed, "participation", t)
        if self._n > _MANY and (self._count is not None or self._chance is not None):
            # Millions of coins or a permutation would take long.
            return self._few_of_many(random)
        if self._count is not None:
            return torch.randperm(self._n, generator=random)[: self._count].sort().values
        assert self._chances is not None
        return (
            (torch.rand(self._n, generator=random, dtype=torch.float64) < self._chances)
            .nonzero()
            .flatten()
        )

    def _few_of_many(self, random: torch.Generator) -> Tensor:
        """Return the drawn clients, ascending (m,), without a permutation of all, which would take
        long for millions.
        """
        numpy_random = np.random.default_rng(int(torch.randint(2**62, (), generator=random)))
        count = (
            self._count
            if self._chance is None
            else int(numpy_random.binomial(self._n, self._chance))
        )
        chosen = numpy_random.choice(self._n, count, replace=False, shuffle=False)
        return torch.from_numpy(np.sort(chosen))
