"""What is compared: a line for each method, with at most six settings that are tried on every
problem.

All methods take one full gradient a round. The best of a method's settings is chosen by the
training loss itself: this is a study of how fast the optimum is reached, and the loss is what all
of them minimise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from fedfw import ALGORITHMS
from fedfw.algorithms import Algorithm, Reveals, gathers_gradients
from fedfw.sets import L2Ball

Setting = tuple[tuple[str, Any], ...]
"""An algorithm's own options by name, as a tuple: tasks are hashed."""


@dataclass(frozen=True)
class Method:
    """A method as a row of the tables.

    Parameters
    ----------
    title : str
        In tables and pictures; it tells methods apart.
    algorithm : str
        Its name on the command line.
    settings : tuple of Setting
        What is tried.

    Examples
    --------
    >>> method = Method("FedFW", "fedfw", grid(momentum=(0.0, 0.9)))
    >>> method.settings, method.sees, method.projects
    (((('momentum', 0.0),), (('momentum', 0.9),)), 'atoms', False)
    """

    title: str
    algorithm: str
    settings: tuple[Setting, ...]

    @property
    def sees(self) -> str:
        """What the server sees of a client, one of `fedfw.advice.SEES`; all settings of a method
        are alike in it.
        """
        return seen(self.algorithm, self.settings[0])

    @property
    def projects(self) -> bool:
        """Whether the set needs a projection."""
        return ALGORITHMS[self.algorithm].projects


def seen(algorithm: str, setting: Setting) -> str:
    """What the server sees of a client, from little to much.

    Steps from curvature take two numbers of each client in every round. Error feedback gives both
    sides the same estimate of each client's gradient, so no sum hides it.

    Examples
    --------
    >>> seen("fedfw", ()), seen("fedfw-anchored", ()), seen("fedavg", ())
    ('atoms', 'sums', 'gradients')
    """
    made = _made(algorithm, setting)
    options = dict(setting)
    if made.reveals is Reveals.ATOMS:
        return "numbers" if options.get("schedule") == "auto" else "atoms"
    summed = gathers_gradients(made) and options.get("compress", "none") == "none"
    return "sums" if summed else "gradients"


def grid(**choices: tuple[Any, ...]) -> tuple[Setting, ...]:
    """Every combination of some options' values."""
    return tuple(tuple(zip(choices, values, strict=True)) for values in product(*choices.values()))


def depends_on_horizon(setting: Setting) -> bool:
    """Whether a run of fewer rounds is another run, not the beginning of a longer one."""
    return any(
        name in ("schedule", "decay") and str(value).startswith("linear") for name, value in setting
    )


_STEPS = ("convex", "linear-decay:0.2", "auto")
_KNOWN_STEPS = ("convex", "linear-decay:0.2", "linear-decay:0.05")
_TWO_STEPS = ("convex", "linear-decay:0.2")
_WEIGHTS = (0.0, 0.9)  # of past gradients: the momentum
_LRS = tuple(f"auto:{multiple:g}" for multiple in (0.25, 0.5, 1, 2, 4, 8))
_FEW_LRS = ("auto:0.25", "auto:1", "auto:4")
_NESTEROV = ("nesterov",)


def _anchored(k: int, every: tuple[int | str, ...]) -> Method:
    settings = grid(compress=(f"topk:{k}",), momentum=_WEIGHTS, anchor_every=every)
    return Method(f"anchored FedFW top-{k}", "fedfw-anchored", settings)


def _ef21_fw(name: str, compress: str) -> Method:
    return Method(
        f"EF21-FW {name}",
        "frank-wolfe",
        grid(compress=(compress,), momentum=_WEIGHTS, schedule=_STEPS),
    )


METHODS = (
    Method("FedFW", "fedfw", grid(momentum=_WEIGHTS, schedule=_KNOWN_STEPS)),
    Method("FedFW auto", "fedfw", grid(momentum=_WEIGHTS, schedule=("auto",))),
    Method("FedFW+", "fedfw+", grid(momentum=_WEIGHTS, schedule=_KNOWN_STEPS)),
    Method("FedFW+ auto", "fedfw+", grid(momentum=_WEIGHTS, schedule=("auto",))),
    Method(
        "anchored FedFW", "fedfw-anchored", grid(momentum=_WEIGHTS, anchor_every=(5, 20, "auto"))
    ),
    _anchored(64, (2, 5, "auto")),
    _anchored(1024, (5, 10, "auto")),
    Method("FedLMO", "fedlmo", grid(schedule=_TWO_STEPS, momentum=(0.0, 0.9, 0.97))),
    Method(
        "FedLMO 8-bit", "fedlmo", grid(compress=("bits:8",), schedule=_TWO_STEPS, momentum=_WEIGHTS)
    ),
    Method(
        "FedLMO top-64",
        "fedlmo",
        grid(compress=("topk:64",), schedule=_TWO_STEPS, momentum=_WEIGHTS),
    ),
    Method(
        "lazy FedLMO", "fedlmo", grid(momentum=(0.0,), schedule=_TWO_STEPS, renew_every=(2, 5, 20))
    ),
    Method("Frank-Wolfe", "frank-wolfe", grid(momentum=_WEIGHTS, schedule=_STEPS)),
    _ef21_fw("top-1", "topk:1"),
    _ef21_fw("top-64", "topk:64"),
    _ef21_fw("rank-1", "rank:1"),
    _ef21_fw("8 atoms", "atoms:8"),
    Method("FedAvg", "fedavg", grid(lr=_LRS)),
    Method("FedAvg 8-bit", "fedavg", grid(compress=("bits:8",), lr=_FEW_LRS)),
    Method("FedAvg EF21 top-64", "fedavg", grid(compress=("topk:64",), lr=_LRS)),
    Method("FedProx", "fedavg", grid(mu=(0.01, 0.1), lr=_FEW_LRS)),
    Method("projected gradient", "fedpgd", grid(lr=_LRS)),
    Method("accelerated gradient", "fedpgd", grid(extrapolation=_NESTEROV, lr=_LRS)),
    Method("EF21-PGD top-1", "fedpgd", grid(compress=("topk:1",), lr=_LRS)),
    Method("EF21-PGD top-8", "fedpgd", grid(compress=("topk:8",), lr=_LRS)),
    Method("EF21-PGD top-64", "fedpgd", grid(compress=("topk:64",), lr=_LRS)),
    Method("EF21-PGD rank-1", "fedpgd", grid(compress=("rank:1",), lr=_LRS)),
    Method(
        "accelerated EF21 top-16",
        "fedpgd",
        grid(compress=("topk:16",), extrapolation=_NESTEROV, lr=_LRS),
    ),
    Method(
        "accelerated EF21 top-128",
        "fedpgd",
        grid(compress=("topk:128",), extrapolation=_NESTEROV, lr=_LRS),
    ),
    Method("SCAFFOLD", "scaffold", grid(lr=_LRS)),
    Method("FedDA", "fedda", grid(lr=_LRS)),
    Method("Fast-FedDA", "fast-fedda", grid(lr=_LRS)),
)
"""Every method."""


def _made(algorithm: str, setting: Setting) -> Algorithm:
    return ALGORITHMS[algorithm](L2Ball(1.0), **dict(setting))
