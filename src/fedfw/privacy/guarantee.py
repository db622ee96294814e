"""What is promised: example-level differential privacy for every client's data, against the server and all others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedfw.parsing import parse_number

LEAST_CLIP, MOST_CLIP = 1e-12, 1e12
"""Bounds on gradients stay far from where floating-point numbers end: clipping and its noise keep their precision."""
_BOUNDS = {"eps": (1e-12, 1e12), "delta": (1e-50, 1.0), "noise": (1e-9, 1e9)}
"""Within them the accountant's sums neither overflow nor take minutes."""


@dataclass(frozen=True)
class Privacy:
    """(eps, delta)-differential privacy of all that a client sends, when one of its samples is added or removed.

    Parameters
    ----------
    eps, delta
        The promise: the smaller, the stronger. delta should be well below one over the samples of a client.
    clip
        Bound on a sample's gradient, in the norm that the mechanism asks for (linf for vertices of an l1 ball); from
        1e-12 to 1e12.
    noise
        Noise multiplier; by default the least that keeps the promise for the planned rounds. With a number the run
        ends when the budget is spent. For Gaussian noise it is sigma / sensitivity; other mechanisms have the noise
        of the same zero-concentrated privacy, 1 / (2 noise^2) a step.
    mechanism
        ``auto``: private selection on sets of vertices, Gaussian noise elsewhere. ``gaussian``: always the latter.
    not_private_seed
        Draws the noise from a seed, so that runs repeat. Whoever knows the seed sees through the noise: NOT private.
    samples
        Samples of the smallest client, by which the noise of minibatches is planned: its samples are looked at most
        often. By default a simulation takes the number of its smallest client, and a deployed client its own number,
        with which a larger client adds less noise.

    Examples
    --------
    >>> import fedfw
    >>> print(fedfw.Privacy(eps=4.0, delta=1e-5))
    eps 4, delta 1e-05, samples clipped at 1
    >>> fedfw.Privacy.parse("eps=4,delta=1e-5,clip=0.5").clip
    0.5
    """

    eps: float
    delta: float
    clip: float = 1.0
    noise: float | None = None
    mechanism: str = "auto"
    not_private_seed: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ValueError(f"eps={self.eps}, expected a positive number")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta={self.delta}, expected a number between 0 and 1, below 1 / samples of a client")
        if not LEAST_CLIP <= self.clip <= MOST_CLIP:
            raise ValueError(f"clip={self.clip}, expected a number from {LEAST_CLIP:g} to {MOST_CLIP:g}")
        if self.noise is not None and not (math.isfinite(self.noise) and self.noise > 0):
            raise ValueError(f"noise={self.noise}, expected a positive finite number")
        if self.samples is not None and not self.samples >= 1:
            raise ValueError(f"samples={self.samples}, expected a whole number of at least 1")
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name}={value}, expected a number from {least:g} to {most:g}")
        if self.mechanism not in ("auto", "gaussian"):
            raise ValueError(f"mechanism={self.mechanism!r}, expected auto or gaussian")

    def __str__(self) -> str:
        text = f"eps {self.eps:g}, delta {self.delta:g}, samples clipped at {self.clip:g}"
        if self.not_private_seed is not None:
            text += ", NOT PRIVATE: noise from a seed"
        return text

    @property
    def text(self) -> str:
        """The promise as `parse` reads it."""
        given = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        return ",".join(f"{name}={value}" for name, value in given if value is not None)

    @classmethod
    def parse(cls, text: str) -> Privacy:
        """From ``eps=4,delta=1e-5``, with the other fields in the same way; dashes and underscores are the same."""
        values: dict[str, object] = {}
        for part in text.split(","):
            key, _, value = (piece.strip() for piece in part.partition("="))
            values[key.replace("-", "_")] = value if key == "mechanism" else parse_number(value)
        known = cls.__dataclass_fields__
        strange = [key for key in values if key not in known]
        if strange or not {"eps", "delta"} <= values.keys():
            raise ValueError(
                f"privacy={text!r}, expected eps=NUMBER,delta=NUMBER and perhaps {', '.join(list(known)[2:])}"
            )
        wrong = [key for key, value in values.items() if key != "mechanism" and not isinstance(value, int | float)]
        if wrong:
            raise ValueError(f"privacy={text!r}: {wrong[0]}={values[wrong[0]]!r}, expected a number")
        return cls(**values)  # type: ignore[arg-type]
