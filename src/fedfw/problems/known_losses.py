"""The losses of torch whose form is known: each is a mean over samples.

The table also states where a loss is convex in the model's outputs and a number that it is never
below. Certificates rest on both, so each holds for all options that are accepted, whatever the
targets.

Cross-entropy and the negative log-likelihood with class weights or an ignored class are a ratio,

    sum over the client's samples j of w[y_j] l_j   /   sum over the client's samples j of w[y_j],

so a sample's share in the mean depends on the other samples' targets. `KnownLoss.masses` are those
w[y_j].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isnan
from typing import Any, Literal

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.problems.glm import family_of
from fedfw.problems.survival import ties_of

_NO_CLASS = -(2**62)
"""A class number that no sample has."""
LossFunction = Callable[[Tensor, Tensor], Tensor]
Per = Literal["sample", "client"]


@dataclass(frozen=True, eq=False)
class Kind:
    """One line of the table.

    Parameters
    ----------
    function, module
        The loss as torch has it, twice.
    classes
        Whether targets are class numbers (m, ...) for outputs (m, classes, ...); otherwise they
        have the outputs' shape.
    ratio
        Whether class weights and an ignored class change the denominator of the mean.
    least, most
        Where targets that are not class numbers must lie, for the loss to be convex.
    allowed
        The only targets that the loss is defined for, where these are a few numbers.
    floor
        A number that the loss is never below, by default; None where none holds for all targets.
    convex
        Whether the loss is convex in the outputs, and torch's gradient a subgradient of it.
    """

    function: Callable[..., Tensor]
    module: type[nn.Module]
    classes: bool = False
    ratio: bool = False
    least: float = -inf
    most: float = inf
    allowed: tuple[float, ...] = ()
    floor: float | None = 0.0
    convex: bool = True


def scaled_cross_entropy(
    outputs: Tensor, targets: Tensor, scale: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Return cross-entropy of ``scale * outputs``; see `ScaledCrossEntropy`."""
    return nnf.cross_entropy(scale * outputs, targets, reduction=reduction)


class ScaledCrossEntropy(nn.modules.loss._Loss):
    """Cross-entropy of a multiple of the scores, for networks whose scores cannot grow.

    A network with a bounded Lipschitz constant cannot make its scores larger where it is sure. The
    larger the scale, the more the loss looks at samples near the border between two classes.

    Parameters
    ----------
    scale : float
        What the scores are multiplied by; positive and finite.
    reduction : str
        As for `torch.nn.CrossEntropyLoss`.

    Examples
    --------
    >>> import torch
    >>> scores, classes = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    >>> ScaledCrossEntropy(3.0)(scores, classes) == torch.nn.functional.cross_entropy(
    ...     3 * scores, classes
    ... )
    tensor(True)
    """

    def __init__(self, scale: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        if not 0 < scale < inf:
            raise ValueError(f"scale={scale}, expected a positive finite number")
        self.scale = float(scale)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of scores (m, classes, ...) and class numbers (m, ...)."""
        return scaled_cross_entropy(outputs, targets, self.scale, self.reduction)


KINDS = (
    Kind(nnf.cross_entropy, nn.CrossEntropyLoss, classes=True, ratio=True, least=0, most=1),
    Kind(scaled_cross_entropy, ScaledCrossEntropy, classes=True),
    # It is linear in the outputs: -w_y x_y.
    Kind(nnf.nll_loss, nn.NLLLoss, classes=True, ratio=True, floor=None),
    Kind(nnf.mse_loss, nn.MSELoss),
    Kind(nnf.l1_loss, nn.L1Loss),
    Kind(nnf.smooth_l1_loss, nn.SmoothL1Loss),
    Kind(nnf.huber_loss, nn.HuberLoss),
    Kind(nnf.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss, least=0, most=1),
    # torch replaces -log p by 100 below exp(-100), which is not convex, and -1/p by -1e12 below
    # 1e-12, which is no derivative of -log p: linearised there, the loss would be below its own
    # linearisation.
    Kind(nnf.binary_cross_entropy, nn.BCELoss, least=0, most=1, convex=False),
    # The least of exp(s) - y s over s is y - y log y, which falls without end as y rises (see
    # `KnownLoss.floor`).
    Kind(nnf.poisson_nll_loss, nn.PoissonNLLLoss, least=0, floor=None),
    # It is x for the target 1, and max(0, margin - x) for -1.
    Kind(nnf.hinge_embedding_loss, nn.HingeEmbeddingLoss, allowed=(-1, 1), floor=None),
)


_OPTION_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    # torch ignores a negative one for class numbers. For probabilities it would make the loss
    # concave in places.
    "label_smoothing": (lambda value: 0 <= value <= 1, "a number from 0 to 1"),
    "beta": (lambda value: value >= 0, "a number of at least 0"),
    "delta": (lambda value: value > 0, "a number above 0"),
    "scale": (lambda value: value > 0, "a number above 0"),
    "margin": (lambda value: not isnan(value), "a number"),
    "eps": (lambda value: not isnan(value), "a number"),
}
"""Options that are numbers: a test of the value, which is false of NaN, and what is expected. With
all values that pass, a loss has the floor and the convexity of the table.
"""


@dataclass(frozen=True, eq=False)
class KnownLoss:
    """A loss of the table with its options.

    Parameters
    ----------
    kind
        Its line of the table.
    options
        The function's keywords that differ from its defaults, such as ``weight`` or
        ``label_smoothing``.
    ignored
        The class number whose samples do not count; None where there is none.

    Examples
    --------
    >>> import torch
    >>> loss = known_loss(torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])))
    >>> loss.masses(torch.tensor([[0, 1, 1]])).tolist()
    [[1.0, 3.0, 3.0]]
    """

    kind: Kind
    options: dict[str, Any]
    ignored: int | None = None

    def __call__(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the loss of outputs (m, ...) and targets, with the loss's own weights on the
        device and in the dtype of the outputs.
        """
        tensors = {name: value for name, value in self.options.items() if isinstance(value, Tensor)}
        weights: dict[str, Any] = {
            name: value.to(outputs.device, outputs.dtype) for name, value in tensors.items()
        }
        if self.kind.ratio and self.ignored is None:
            # By default torch ignores class -100; a class that no target has ignores nothing.
            weights["ignore_index"] = _NO_CLASS
        return self.kind.function(outputs, targets, reduction=reduction, **(self.options | weights))

    def to(self, device: torch.device) -> KnownLoss:
        """Return the same with its weights on another device."""
        options = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in self.options.items()
        }
        return replace(self, options=options)

    def of_samples(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample (m,), with its weight; a sample's own numbers are
        averaged.
        """
        return self(outputs, targets, "none").reshape(len(targets), -1).mean(1)

    @property
    def floor(self) -> float | None:
        """Return a number that the loss is never below; None where none holds for all targets."""
        if self.kind.function is nnf.poisson_nll_loss and self.options.get("full", False):
            # The added constant is y log y - y + log(2 pi y) / 2 for targets y above 1. What is
            # left of the least value is log(2 pi y) / 2 there and y - y log y below, less eps for
            # rates that may be as low as -eps.
            if self.options.get("log_input", True):
                return 0.0
            return -float(self.options.get("eps", nn.PoissonNLLLoss().eps))
        return self.kind.floor

    @property
    def takes_probabilities(self) -> bool:
        """Return whether targets may be probabilities of classes instead of their numbers."""
        return self.kind.function is nnf.cross_entropy

    def weighs(self, targets: Tensor) -> bool:
        """Return whether samples with such targets have shares in the mean that depend on the other
        samples' targets.
        """
        classes = self.kind.ratio and not targets.is_floating_point()
        return classes and (self.options.get("weight") is not None or self.ignored is not None)

    def masses(self, targets: Tensor) -> Tensor:
        """Return (b, m): what samples with targets (b, m, ...) add to the denominator of their
        client's mean.
        """
        weight = self.options.get("weight")
        if not self.weighs(targets):
            # Every sample counts 1.
            return torch.ones(targets.shape[:2], device=targets.device)
        ignored = (
            torch.zeros_like(targets, dtype=torch.bool)
            if self.ignored is None
            else targets == self.ignored
        )
        if weight is None:
            masses = (~ignored).to(torch.get_default_dtype())
        else:
            masses = weight.to(targets.device)[targets.masked_fill(ignored, 0)].masked_fill(
                ignored, 0.0
            )
        # A sample with several targets counts with their mean.
        return masses.flatten(2).mean(2) if masses.ndim > 2 else masses

    def ignores_some(self, targets: Sequence[Tensor]) -> bool:
        """Return whether the class that is ignored was chosen, or a client has -100, which torch
        ignores by itself.
        """
        return "ignore_index" in self.options or any(bool((y == -100).any()) for y in targets)

    def settled(self, ignores_some: bool) -> KnownLoss:
        """Return the same without an ignored class, where no client has it."""
        return self if self.ignored is None or ignores_some else replace(self, ignored=None)

    def converted(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Return targets in the type that the function takes: int64 class numbers, or numbers in
        the model's ``dtype``.
        """
        if targets.is_floating_point():
            return targets.to(dtype)
        return targets.to(torch.int64 if self.kind.classes else dtype)


def known_loss(loss: LossFunction, per: Per = "sample") -> KnownLoss | None:
    """Return the table's entry with its options for a function of torch, its module, or a
    `functools.partial` of it; None for other losses.

    Raises
    ------
    ValueError
        For a reduction that gives no mean, and for options outside of the range for which the table
        holds.
    """
    options, function = _options_of(loss)
    reduction = options.pop("reduction", "mean")
    if reduction == "none" or (reduction == "sum" and per == "sample"):
        raise ValueError(
            f"the loss has reduction={reduction!r}, expected 'mean': a client's loss is the mean "
            "over its samples, so "
            "that it does not change with how they are split (weights= can give clients with more "
            "samples more weight)"
        )
    kind = next(
        (kind for kind in KINDS if function is kind.function or type(loss) is kind.module), None
    )
    if kind is None or reduction != "mean":
        return None
    if isinstance(loss, nn.Module) and is_changed(loss):
        return None
    defaults, _ = _options_of(kind.module())
    # An element-wise weight of the squared loss has a mean of its own.
    if not options.keys() <= defaults.keys():
        return None
    ignored = options.get("ignore_index")
    options = {
        name: value
        for name, value in options.items()
        if isinstance(value, Tensor) or value != defaults[name]
    }
    for name, value in options.items():
        _validate_option(name, value)
    return KnownLoss(kind, options, ignored)


def is_changed(module: nn.Module) -> bool:
    """Return whether a module computes something else than its class: it has hooks or a forward of
    its own.
    """
    attributes = vars(module)
    hooks = any(
        attributes[f"_{when}_hooks"]
        for when in ("forward", "forward_pre", "backward", "backward_pre")
    )
    global_hooks = (
        nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    )
    return bool(hooks or global_hooks or "forward" in attributes)


def _validate_option(name: str, value: Any) -> None:
    """Refuse a value for which the loss would not have the floor and the convexity of the table."""
    if name in ("weight", "pos_weight"):
        if not bool(((value >= 0) & value.isfinite()).all()):
            raise ValueError(
                f"the loss has {name}={value.tolist()}, expected numbers of at least 0, all "
                "finite: with others it has "
                "no minimum or is not convex. To leave out a class or an output, give it the "
                "weight 0"
            )
        return
    if name in _OPTION_RANGES:
        allowed, expected = _OPTION_RANGES[name]
        if not allowed(float(value)):
            raise ValueError(
                f"the loss has {name}={value}, expected {expected}: set {name} in the loss to such "
                "a number"
            )


def _options_of(loss: Any) -> tuple[dict[str, Any], Any]:
    """Return the options of a loss by name, and what to look up in the table: the function of a
    partial, or the loss itself.
    """
    if isinstance(loss, partial) and not loss.args:
        return dict(loss.keywords), loss.func
    if isinstance(loss, nn.modules.loss._Loss):
        settings = {
            name: value
            for name, value in vars(loss).items()
            if not name.startswith("_") and name != "training"
        }
        return settings | dict(loss._buffers), loss
    return {}, loss


def floor_of(loss: LossFunction) -> float | None:
    """Return a number that a loss is never below, whatever the model; None where none is known.

    Examples
    --------
    >>> import torch
    >>> floor_of(torch.nn.functional.mse_loss), floor_of(torch.nn.functional.nll_loss)
    (0.0, None)
    """
    if ties_of(loss) is not None or family_of(loss) is not None:
        return 0.0
    known = known_loss(loss, "client")
    return None if known is None else known.floor


def is_convex(loss: LossFunction) -> bool:
    """Return whether a loss is known to be convex in the model's outputs.

    Examples
    --------
    >>> import torch
    >>> is_convex(torch.nn.functional.l1_loss), is_convex(torch.nn.functional.binary_cross_entropy)
    (True, False)
    """
    if ties_of(loss) is not None or family_of(loss) is not None:
        return True
    known = known_loss(loss, "client")
    return known is not None and known.kind.convex
