"""Where noise comes from: the operating system's generator, or a seed for studies that must
repeat.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfw.randomness import generator


@dataclass
class Noise:
    """Draws (m, count) in float64, a row for each of the clients ``who`` in round t.

    Without a seed every draw is new and cannot be repeated. With one, a client's draws depend on
    the seed, the round and its number alone, whichever other clients draw.
    """

    seed: int | None
    t: int
    who: Sequence[int]
    device: torch.device
    _calls: int = 0

    def uniform(self, count: int) -> Tensor:
        """Draw from (0, 1), as a real number would be rounded: small draws have 53 digits, too, and
        none is 0.
        """
        return self._uniform([count] * len(self.who), count)

    def coins(self, counts: Tensor, expected: Tensor, width: int) -> Tensor:
        """Return which samples are looked at, (m, width) of bool: each of a client's samples by
        itself.

        Parameters
        ----------
        counts : Tensor
            (m,): how many samples each client has. A client's draws depend on this number of its
            own, and not on the width of the stack.
        expected : Tensor
            (m,): how many of them are expected to be looked at.
        width : int
            At least the largest of ``counts``; places beyond a client's samples are False.
        """
        drawn = self._uniform(counts.tolist(), width)
        return drawn < (expected.double() / counts.double())[:, None]

    def _uniform(self, counts: Sequence[int], width: int) -> Tensor:
        """Return uniform draws (m, width) from (0, 1); with a seed only the first ``counts[i]`` of
        row i are drawn, and 1 follows, so that a client's draws do not depend on the width.
        """
        if self.seed is None:
            # Two words of 8 bytes for each draw.
            words = np.frombuffer(os.urandom(16 * width * len(self.who)), np.int64).reshape(
                2, len(self.who), width
            )
            return torch.from_numpy(_as_real(words)).to(self.device)
        self._calls += 1
        drawn = np.ones((len(self.who), width))
        for row, (client, count) in enumerate(zip(self.who, counts, strict=True)):
            source = generator(self.seed, "noise", self.t, self._calls, client)
            words = torch.randint(-(2**63), 2**63 - 1, (2, count), generator=source).numpy()
            drawn[row, :count] = _as_real(words)
        return torch.from_numpy(drawn).to(self.device)

    def gumbel(self, count: int) -> Tensor:
        """Return standard Gumbel: the largest of scores with it is drawn by their softmax."""
        # -log(-log(1 - u)) rather than -log(-log u): draws near 0, which are precise, then make the
        # large values, and a maximum depends on those.
        return -(-torch.log1p(-self.uniform(count))).log()

    def logistic(self, count: int) -> Tensor:
        """Return standard logistic, the difference of two Gumbel draws."""
        u, sign = self._half(count)
        return sign * (torch.log1p(-u) - u.log())

    def gaussian(self, count: int) -> Tensor:
        """Return standard normal."""
        u, sign = self._half(count)
        quantile: Tensor = torch.special.ndtri(u)
        return -sign * quantile

    def _half(self, count: int) -> tuple[Tensor, Tensor]:
        """Return draws from (0, 1/2), and signs: both tails of a symmetric law are made from small,
        precise draws.
        """
        return self.uniform(count) / 2, torch.where(self.uniform(count) < 0.5, -1.0, 1.0).double()


def _as_real(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return uniform draws (...) from (0, 1), in float64, from pairs of random words (2, ...),
    int64.

    A draw is distributed as a uniform real number that is cut to 53 binary digits. The usual
    k 2^-53 for a random integer k would be 0 at times, and its small draws would have few digits:
    the tails of Gumbel or normal noise would then be cut off and coarse, and privacy proofs assume
    neither.
    """
    bits = words.view(np.uint64)
    # In [1/2, 1): 52 random bits behind a leading one (2^52), scaled by 2^-53.
    mantissa = ((bits[0] >> np.uint64(12)) | np.uint64(2**52)).astype(np.float64) * 2.0**-53
    # A uniform number is in [2^-(k+1), 2^-k) with probability 2^-(k+1): k has the distribution of
    # the number of zeros behind the lowest one of a random word. w & -w keeps that lowest one only;
    # it is a power of two, hence exact in float64. A word of zeros counts as k = 64.
    lowest_one = (bits[1] & (~bits[1] + np.uint64(1))).astype(np.float64)
    k = np.where(lowest_one > 0, np.frexp(lowest_one)[1] - 1, 64)
    uniform: np.ndarray[Any, Any] = np.ldexp(mantissa, -k)
    return uniform
