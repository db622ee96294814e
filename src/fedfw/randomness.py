"""Randomness that is a function of the seed, its purpose and the round: there is no state to
lose.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

_MANY = 100_000


def generator(seed: int, purpose: str, *counters: int) -> torch.Generator:
    """Return a CPU generator of its own for each purpose and counters."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{'/'.join(map(str, counters))}".encode()).digest()
    # 63 bits, because torch takes seeds as signed numbers.
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def minibatch(seed: int, tick: int, sizes: Tensor, batch_size: int) -> Tensor:
    """Return sample numbers for every client, drawn with replacement: sizes (n,) -> (n,
    batch_size).
    """
    uniform = torch.rand(
        len(sizes), batch_size, generator=generator(seed, "minibatch", tick), dtype=torch.float64
    )
    return (uniform * sizes[:, None]).long()


def minibatches(
    seed: int, t: int, local_steps: int, sizes: Tensor | None, batch_size: int | None, who: Tensor
) -> Callable[[], Tensor | None]:
    """Return a function without arguments whose k-th call returns the samples (m, batch_size) of
    the clients ``who`` (m,) in the k-th local step of round t.
    """
    steps = iter(range(local_steps))

    def pick() -> Tensor | None:
        """Return the samples of the next local step; None for full batches."""
        if batch_size is None or sizes is None:
            return None
        tick = (t - 1) * local_steps + next(steps)
        # With many clients a draw for all of them would cost more than the round.
        if len(sizes) > _MANY:
            return minibatch(seed, tick, sizes[who.cpu()], batch_size).to(who.device)
        return minibatch(seed, tick, sizes, batch_size)[who.cpu()].to(who.device)

    return pick
