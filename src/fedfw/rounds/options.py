"""How a run goes, beside the problem and the algorithm: each option declared once."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch

from fedfw.options import check_options, option, options_of, parse_number
from fedfw.privacy.guarantee import Privacy


@dataclass(frozen=True)
class Options:
    """How a run goes, beside the problem and the algorithm; the keywords of `fedfw.simulate`.

    Examples
    --------
    >>> Options(rounds=10).participation
    1.0
    >>> Options(rounds=0)
    Traceback (most recent call last):
        ...
    ValueError: rounds=0, expected a whole number of at least 1 and at most 1000000000
    """

    rounds: Annotated[int, option("number of rounds", ge=1, le=1_000_000_000)] = 100
    participation: Annotated[
        int
        | float
        | Sequence[float]
        | torch.Tensor
        | np.ndarray[Any, Any]
        | Callable[[int], Sequence[int]],
        option(
            "probability that a client takes part (0.5), or how many do (5); 1 is all",
            expected="a probability, a number of clients, one probability a client, or a function "
            "t -> clients",
        ),
    ] = 1.0
    relax: Annotated[
        Mapping[int, Any] | None,
        option(
            "for stragglers: {client: a simpler set that contains the constraint}; some client "
            "keeps "
            "the constraint",
            expected="a dictionary {client: set}",
            scope="python",
        ),
    ] = None
    local_steps: Annotated[
        int,
        option(
            "steps of a client a round; the schedule's clock advances with each", ge=1, le=100_000
        ),
    ] = 1
    batch_size: Annotated[
        int | None,
        option(
            "samples of a gradient, drawn with replacement from the seed",
            otherwise="all",
            ge=1,
            le=100_000_000,
        ),
    ] = None
    tol: Annotated[
        float | None, option("stop when the loss is proven to be this close to the optimum", gt=0)
    ] = None
    eval_every: Annotated[
        int,
        option(
            "rounds between evaluations of loss, test data, gap and certificate; the last one "
            "always is",
            ge=1,
        ),
    ] = 1
    certify: Annotated[
        float | Sequence[float] | str | None,
        option(
            "l2 radii, such as 0.1,0.5, in the inputs' units: share of test data whose class is "
            "proven to stay",
            expected="positive numbers, or text such as 0.1,0.25,0.5",
        ),
    ] = None
    polish: Annotated[
        Literal["support"] | None,
        option(
            "after the last round minimise the loss over the model's support and drop what that "
            "sets to zero; shares gradients on the support",
            otherwise="no",
        ),
    ] = None
    seed: Annotated[
        int, option("fixes data split, start, attendance and minibatches", ge=0, lt=2**63)
    ] = 0
    device: Annotated[
        str | torch.device | None,
        option(
            "device to compute on: cpu or cuda",
            otherwise="where the model is",
            expected="cpu or cuda",
        ),
    ] = None
    privacy: Annotated[
        Privacy | str | None,
        option(
            "differential privacy of every client's samples, such as eps=4,delta=1e-5 (see "
            "docs/privacy.md)",
            expected="a Privacy, or text such as eps=4,delta=1e-5",
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.promise, self.radii  # a text that cannot be read is refused here

    @property
    def promise(self) -> Privacy | None:
        """The privacy that is promised, if any."""
        return Privacy.parse(self.privacy) if isinstance(self.privacy, str) else self.privacy

    @property
    def radii(self) -> tuple[float, ...]:
        """Return the radii at which accuracy is certified; none without ``certify``."""
        given = self.certify
        if given is None:
            return ()
        parts = (
            given.split(",")
            if isinstance(given, str)
            else [given]
            if isinstance(given, int | float)
            else given
        )
        radii = [parse_number(part) if isinstance(part, str) else part for part in parts]
        if not radii or not all(
            isinstance(radius, int | float) and 0 < radius < math.inf for radius in radii
        ):
            raise ValueError(
                f"certify={given!r}, expected {options_of(Options)['certify'].expected}"
            )
        return tuple(map(float, radii))

    def evaluates(self, t: int) -> bool:
        """Return whether round t is evaluated by its number."""
        return t % self.eval_every == 0 or t == self.rounds
