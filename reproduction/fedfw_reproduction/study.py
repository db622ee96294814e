"""What a study of a bound is: how much is run, and what was measured beside the bound."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Study:
    """Measured values against a bound, over rounds t or horizons T.

    Parameters
    ----------
    bound : str
        Its name in theory.py.
    setting : str
        On what, in words.
    t, measured, limit : Tensor
        (k,) each; ``limit`` is the bound.
    slope : float
        The least-squares slope of log measured against log t over the later part.
    exponent : float
        The bound's exponent in t.
    steepest : float or None
        The slope that the measured values must have at most, where one is asked for.
    slack : Tensor
        (k,): three standard errors of a mean over seeds; zero where nothing is random.
    """

    bound: str
    setting: str
    t: Tensor
    measured: Tensor
    limit: Tensor
    slope: float
    exponent: float
    steepest: float | None = None
    slack: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    @property
    def held(self) -> int:
        """At how many of the points the bound held."""
        return int((self.measured <= self.limit + self.slack).sum())

    @property
    def tightness(self) -> float:
        """The largest measured share of the bound."""
        return float((self.measured / self.limit).max())

    @property
    def passed(self) -> bool:
        """Whether the bound held at every point and the slope is as steep as asked for."""
        return self.held == len(self.t) and (self.steepest is None or self.slope <= self.steepest)

    def to_json(self) -> str:
        """Everything, for the cache."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(
            {key: v.tolist() if isinstance(v, Tensor) else v for key, v in columns.items()}
        )

    @classmethod
    def from_json(cls, text: str) -> Study:
        """The inverse of `to_json`."""
        columns = json.loads(text)
        for key in ("t", "measured", "limit", "slack"):
            columns[key] = torch.tensor(columns[key], dtype=torch.float64)
        return cls(**columns)


@dataclass(frozen=True)
class Effort:
    """How much is run."""

    rounds: int = 5000
    seeds: int = 10
    every: int = 10


QUICK = Effort(rounds=1500, seeds=4)
