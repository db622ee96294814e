"""The promise: example-level differential privacy for every client's data, against the server
and all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fedfw.options import check_options, option, options_of, parse_table

LEAST_CLIP = 1e-12
MOST_CLIP = 1e12
"""Bounds on gradients stay far from where floating-point numbers end: clipping and its noise keep
their precision.
"""
LEAST_EPS = 1e-12
MOST_EPS = 1e12
"""Within these bounds, and those on delta and noise, the accountant's sums neither overflow nor
take minutes.
"""


@dataclass(frozen=True)
class Privacy:
    """(eps, delta)-differential privacy of all that a client sends, when one of its samples is
    added or removed.

    Parameters
    ----------
    eps, delta
        The promise: the smaller, the stronger. delta should be well below one over the samples of a
        client. An eps of inf promises nothing: samples are clipped, and there is no noise unless
        ``noise`` is given.
    clip
        Bound on a sample's gradient, in the norm that the mechanism asks for (linf for vertices of
        an l1 ball); from 1e-12 to 1e12.
    noise
        Noise multiplier; by default the least that keeps the promise for the planned rounds. With a
        number the run ends when the budget is spent. For Gaussian noise it is sigma / sensitivity;
        other mechanisms have the noise of the same zero-concentrated privacy, 1 / (2 noise^2) a
        step.
    mechanism
        ``auto``: private selection on sets of vertices, Gaussian noise elsewhere. ``gaussian``:
        always the latter.
    not_private_seed
        Draws the noise from a seed, so that runs repeat. A reader of the seed sees through the
        noise: NOT private.
    samples
        Samples of the smallest client, by which the noise of minibatches is planned: its samples
        are looked at most often. By default a simulation takes the number of its smallest client,
        and a deployed client its own number, with which a larger client adds less noise.

    Examples
    --------
    >>> import fedfw
    >>> print(fedfw.Privacy(eps=4.0, delta=1e-5))
    eps 4, delta 1e-05, samples clipped at 1
    >>> fedfw.Privacy.parse("eps=4,delta=1e-5,clip=0.5").clip
    0.5
    """

    eps: Annotated[
        float,
        option(
            "epsilon",
            ge=LEAST_EPS,
            le=math.inf,
            allow_inf_nan=True,
            expected=f"a number from {LEAST_EPS:g} to {MOST_EPS:g}, or inf",
        ),
    ]
    delta: Annotated[
        float,
        option(
            "delta",
            ge=1e-50,
            lt=1,
            expected="a number from 1e-50 to 1, below 1 / samples of a client",
        ),
    ]
    clip: Annotated[
        float,
        option(
            "bound on gradients",
            ge=LEAST_CLIP,
            le=MOST_CLIP,
            expected=f"a number from {LEAST_CLIP:g} to {MOST_CLIP:g}",
        ),
    ] = 1.0
    noise: Annotated[
        float | None,
        option("noise multiplier", ge=1e-9, le=1e9, expected="a number from 1e-9 to 1e9"),
    ] = None
    mechanism: Annotated[Literal["auto", "gaussian"], option("where noise goes")] = "auto"
    not_private_seed: Annotated[
        int | None, option("seed of the noise", le=2**63 - 1, expected="a whole number")
    ] = None
    samples: Annotated[int | None, option("samples of the smallest client", ge=1)] = None

    def __post_init__(self) -> None:
        """Check the options, and that eps is in the range in which noise can be worked out."""
        check_options(self)
        if MOST_EPS < self.eps < math.inf:
            raise ValueError(
                f"eps={self.eps}, expected a number from {LEAST_EPS:g} to {MOST_EPS:g}, or inf"
            )

    def __str__(self) -> str:
        text = f"eps {self.eps:g}, delta {self.delta:g}, samples clipped at {self.clip:g}"
        if self.not_private_seed is not None:
            text += ", NOT PRIVATE: noise from a seed"
        return text

    @property
    def text(self) -> str:
        """Return the promise as `parse` reads it."""
        given = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        return ",".join(f"{name}={value}" for name, value in given if value is not None)

    @classmethod
    def parse(cls, text: str) -> Privacy:
        """Return the promise that a text such as ``eps=4,delta=1e-5,clip=0.5`` states; keys are
        fields, with dashes or underscores.
        """
        table = {}
        for part in text.split(","):
            key, _, value = (piece.strip() for piece in part.partition("="))
            table[key.replace("_", "-")] = value
        # `options_of` takes any dataclass, which a type checker does not know of cls.
        any_class: Any = cls
        values = parse_table(options_of(any_class).values(), table, f"privacy={text!r}")
        if not {"eps", "delta"} <= values.keys():
            raise ValueError(
                f"privacy={text!r}, expected eps=NUMBER,delta=NUMBER and perhaps others"
            )
        return cls(**values)
