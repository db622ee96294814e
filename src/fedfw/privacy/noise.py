"""Where noise comes from: the operating system's generator, or a seed for studies that must repeat."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedfw.randomness import generator


@dataclass
class Noise:
    """Draws (m, count) in float64, a row for each of the clients ``who`` in round t.

    Without a seed every draw is new and nobody can repeat it. With one, a client's draws depend on the seed, the round
    and its number alone, whoever else is drawn for.
    """

    seed: int | None
    t: int
    who: Sequence[int]
    device: torch.device
    _calls: int = 0

    def uniform(self, count: int) -> Tensor:
        """In (0, 1), never an end."""
        if self.seed is None:
            words = np.frombuffer(os.urandom(8 * count * len(self.who)), np.uint64) >> np.uint64(12)
            drawn = torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-52).reshape(len(self.who), count)
        else:
            self._calls += 1
            rows = [
                torch.rand(count, generator=generator(self.seed, "noise", self.t, self._calls, i), dtype=torch.float64)
                for i in self.who
            ]
            drawn = torch.stack(rows).clamp_(2.0**-53, 1 - 2.0**-53)
        return drawn.to(self.device)

    def gumbel(self, count: int) -> Tensor:
        """Standard Gumbel: the largest of scores with it is drawn by their softmax."""
        return -(-self.uniform(count).log()).log()

    def logistic(self, count: int) -> Tensor:
        """Standard logistic, the difference of two Gumbel draws."""
        return torch.logit(self.uniform(count))

    def gaussian(self, count: int) -> Tensor:
        """Standard normal."""
        drawn: Tensor = torch.special.ndtri(self.uniform(count))
        return drawn
