"""Facts about a run before it begins, from which an algorithm fills in its defaults."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedfw.options import LARGEST
from fedfw.sets.base import ConstraintSet, Shape


def _unknown() -> float | None:
    return None


@dataclass(frozen=True)
class Setting:
    """Facts about a run before it begins, from which an algorithm fills in its defaults and
    makes its plan.

    Parameters
    ----------
    n : int
        Number of clients.
    constraint : ConstraintSet
        The set on the flat vector of parameters.
    shape : tuple of int
        Of that vector, (p,).
    convex : bool or None
        Whether the losses are; None if that is not known. False stands for a network.
    classes : int or None
        Number of classes of a softmax regression; None for other models.
    p : float
        The least probability that a client takes part.
    rounds, local_steps : int
        How many there will be.
    reports_allowed : bool
        Whether clients may report numbers of their data in every round: not in private
        runs, nor in a deployment, unless its task asks for it by name.
    whole : bool
        Whether gradients are of all samples; else they are of minibatches, or noisy.
    private : bool
        Whether noise makes the run private.
    heterogeneity : callable
        () -> zeta, the root mean square of ||grad h_i - mean|| over the clients at the start, where
        h_i = n w_i f_i; None where it is not known. Theory's penalty is made from it.
    rms_gradient_norm : callable
        () -> the root mean square of ||grad h_i|| at the start: one number of each client is enough
        for it.
    smoothness : callable
        () -> n max w_i L_i, or None where it is not known.
    local_smoothness : callable, optional
        () -> max L_i, or None where it is not known; left out where all weights are equal, as it is
        the same then.
    shapes : tuple of tuple of int
        The shapes of the parameters, one after the other in that vector; empty where they are not
        known.
    """

    n: int
    constraint: ConstraintSet
    shape: tuple[int, ...]
    convex: bool | None
    classes: int | None = None
    p: float = 1.0
    rounds: int = 100
    local_steps: int = 1
    reports_allowed: bool = True
    whole: bool = True
    private: bool = False
    heterogeneity: Callable[[], float | None] = _unknown
    rms_gradient_norm: Callable[[], float | None] = _unknown
    smoothness: Callable[[], float | None] = _unknown
    local_smoothness: Callable[[], float | None] | None = None
    shapes: tuple[Shape, ...] = ()

    @property
    def network(self) -> bool:
        """Return whether the losses are known not to be convex."""
        return self.convex is False

    def per_diameter(self, scale: float | None) -> float | None:
        """scale / (2 n D): the penalty at which a pull over the diameter D balances gradients of
        that size.
        """
        return (
            None
            if scale is None
            else scale / (2 * self.n * max(self.constraint.diameter(self.shape), 1e-300))
        )


def scaled(name: str, value: float | str, units: Mapping[str, Callable[[], float | None]]) -> float:
    """Return an option as a number: a number unchanged, and "auto", "theory" or a multiple such as
    "auto:3" as that multiple of what the word stands for in this run.

    Parameters
    ----------
    name : str
        Of the option, for the refusal.
    value : float or str
        As the user gave it.
    units : mapping of str to callable
        () -> the number that each word stands for in this run, or None where it cannot be worked
        out.

    Raises
    ------
    ValueError
        For anything else, and where the number cannot be worked out.
    """
    factor: float = math.nan  # NaN fails the range check below, which refuses the value
    if not isinstance(value, str):
        factor = value
    elif (word := value.partition(":")[0]) in units:
        unit = units[word]()
        if unit is None:
            raise ValueError(
                f"Cannot derive {name}={value!r} for this problem: pass a number, for example "
                f"{name}=0.1"
            )
        try:
            factor = unit * float(value.partition(":")[2] or 1)
        except ValueError:
            factor = math.nan
    if not 0 <= factor <= LARGEST:
        words = " or ".join(f'"{word}" (or a multiple such as "{word}:3")' for word in units)
        raise ValueError(
            f"{name}={value!r}, expected a number of at least 0, {words}; at most {LARGEST:g}"
        )
    return factor


def validate_one_step(method: str, setting: Setting) -> None:
    """Refuse local steps for a method that takes one step a round, at the server."""
    if setting.local_steps > 1:
        raise ValueError(
            f"local_steps={setting.local_steps}: {method} takes one step a round, at the server, "
            "expected 1"
        )
