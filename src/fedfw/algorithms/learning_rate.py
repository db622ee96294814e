"""The options ``lr`` and ``decay`` of methods that take gradient steps, and the steps themselves.

Methods that average local models or gradients take local steps on f_i, and their means have the
weights w_i. Those that split F = (1/n) sum h_i into the clients' terms take them on h_i = n w_i
f_i, and their means are plain (docs/algorithms.md, "Weights of clients"). A local step minimises
the linearised loss near x, pulled to a centre:

    x <- argmin over u of <grad h_i(x), u> + ||u - x||^2 / (2 lr) + weight ||u - centre||^2 / 2
       = x - (grad h_i(x) + weight (x - centre)) / (1/lr + weight)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedfw.algorithms.contract import Algorithm, Message, Oracles
from fedfw.algorithms.optin import Tunable
from fedfw.algorithms.rules import GradientSteps, StepRule
from fedfw.algorithms.setting import Setting, scaled
from fedfw.compression import CompressDownOption, CompressOption
from fedfw.errors import NonFiniteError
from fedfw.options import option

NETWORK_LR = 0.1
"""Step size of gradient steps where no smoothness constant is known."""
_LARGEST = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float64)}
_NETWORK_GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)

LrOption = Annotated[
    float | str,
    option(
        "step size of the projected methods: a number, auto (tested defaults), theory "
        "(1/smoothness), or a multiple",
        expected='a positive number, "auto", "theory", or a multiple of these such as "auto:2"',
    ),
]
"""The option ``lr``."""
DecayOption = Annotated[
    Literal["none", "linear"],
    option("whether lr stays as it is, or falls linearly to zero over the run's rounds"),
]
"""The option ``decay``."""


def validate_lr(lr: float | str) -> None:
    """Refuse what is no step size, whatever the problem is."""
    if scaled("lr", lr, {"auto": lambda: 1.0, "theory": lambda: 1.0}) == 0:
        raise ValueError(f"lr={lr!r}, expected a positive number")


def theory_lr(setting: Setting, weighted: bool) -> float | None:
    """Return 1 / L', where the problem's smoothness is known.

    L' is max L_i for means with the weights w_i, and n max w_i L_i for the others.
    """
    smoothness = setting.smoothness
    if weighted and setting.local_smoothness is not None:
        smoothness = setting.local_smoothness
    largest = smoothness()
    return None if largest is None else 1 / largest


def lr_grid(setting: Setting, multiples: Sequence[float]) -> tuple[Any, ...]:
    """Return multiples of the default, or plain step sizes where no smoothness is known."""
    if setting.network or setting.smoothness() is None:
        return _NETWORK_GRID[: max(2, len(multiples))]
    return tuple(f"auto:{multiple:g}" for multiple in multiples)


def few_lrs(setting: Setting, for_networks: tuple[float, ...]) -> tuple[Any, ...]:
    """Return step sizes of a grid that has another option, too."""
    if setting.network or setting.smoothness() is None:
        return for_networks
    return lr_grid(setting, (0.2, 0.5, 1, 2))


FULL_GRID = (0.05, 0.1, 0.2, 0.4, 0.8, 1, 1.4, 2, 3, 4, 6, 8)
"""Multiples for a method that has no other option to try."""


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Algorithm, Tunable):
    """A method whose clients take gradient steps and send vectors, and whose server projects.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size. "theory" is 1 / L', where the problem's smoothness is known. "auto" selects
        tested defaults: a tuned multiple of that for softmax regression, 0.1 for networks; "auto:2"
        is twice that.
    decay : {"none", "linear"}
        Whether the step size stays as it is, or falls linearly: lr_t = lr (1 - (t - 1) / T) in
        round t of T.
    compress : str
        What is done to what clients send: "topk:64", for example; see `fedfw.compression`.
    compress_down : str
        What is done to the model that the server sends: "none", or "topk:64" for its 64 largest
        changes.
    """

    lr: LrOption = "auto"
    decay: DecayOption = "none"
    compress: CompressOption = "none"
    compress_down: CompressDownOption = "none"

    projects: ClassVar[bool] = True
    tuned: ClassVar[float] = 1.0
    """"auto" for softmax regression, in units of classes / L'."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_lr(self.lr)

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"lr": lr_grid(setting, FULL_GRID)}

    def default_lr(self, setting: Setting) -> float | None:
        """Return what "auto" is, or None where it cannot be derived.

        For softmax regression it is a tuned multiple of classes / L', see docs/defaults.md: the
        bound L' takes the loss's curvature to be 1/2; near the uniform scores where training begins
        it is 1 / classes.
        """
        if setting.network:
            return NETWORK_LR
        step = theory_lr(setting, self.weighted)
        if step is None or setting.classes is None:
            return step
        return self.tuned * setting.classes * step

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        """Replace "auto" and "theory" by a step size; return the method and its rule of steps."""
        units = {
            "auto": lambda: self.default_lr(setting),
            "theory": lambda: theory_lr(setting, self.weighted),
        }
        lr = scaled("lr", self.lr, units)
        horizon = setting.rounds if self.decay == "linear" else 0  # 0: the steps stay as long
        return replace(self, lr=lr), GradientSteps(lr, setting.local_steps, horizon)


def descend(
    x: Tensor, msg: Message, oracles: Oracles, centre: Tensor, weight: float, times: str
) -> Tensor:
    """Return the points (m, p) after gradient steps from x (m, p) on
    h_i + (weight/2) |x - centre|^2, where h_i is f_i times a `Weight`, and ``centre`` is (m, p) or
    (p,).
    """
    for rates in msg.rates:
        step = 1 / (1 / rates.eta + weight)  # the quadratic term adds its weight to the curvature
        if step > _LARGEST[x.dtype]:
            raise NonFiniteError(
                f"round {msg.t}: a step size of {step:g} is infinite in {x.dtype}, expected a "
                "smaller lr"
            )
        slope = oracles.gradient(x, times=times)
        if weight:
            slope = torch.add(slope, x - centre, alpha=weight)
        x = torch.add(x, slope, alpha=-step)
    return x
