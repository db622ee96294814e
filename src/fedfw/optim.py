"""Central training by oracle steps: a torch optimizer over any set, of which Scion is a special
case.

With the gradient g of a parameter x, the set D of x, momentum beta and step size lr, a step is

    m <- beta m + (1 - beta) g            m = 0 at first
    d =  m                                with ``nesterov``: beta m + (1 - beta) g
    s =  argmin over D of <d, s>
    x <- (1 - lr) x + lr s                ``unconstrained``: x <- (1 - lr weight_decay) x + lr s
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from fedfw.atoms.composite import split_columns
from fedfw.errors import NonFiniteError, NoProjectionError
from fedfw.sets import ConstraintSet, Product
from fedfw.sets.base import Shape
from fedfw.sets.layers import LipschitzNet
from fedfw.sets.product import BoundProduct
from fedfw.sets.registry import as_set

__all__ = ["LMO"]


class LMO(Optimizer):
    """A torch optimizer that moves every parameter towards an extreme point of its set, so that it
    stays in the set.

    It trains one model on one machine, as `fedfw.simulate` does with many clients. All of torch's
    machinery works with it: parameter groups, schedulers of ``lr``, closures, `state_dict`.
    Constrained steps are Frank-Wolfe steps with momentum (constrained Scion on norm balls), and
    unconstrained ones with spectral balls and linf balls are Scion.

    Parameters
    ----------
    params : nn.Module, or iterable of Tensor, of (str, Tensor) or of dict
        A model, of which all trainable parameters are taken, or parameters, named parameters or
        parameter groups, as torch's optimizers take them. A group may have any of the options
        below, ``"constraint"`` too. Parameters without names are called ``"0"``, ``"1"`` and so on,
        within their group.
    constraint : ConstraintSet, Product, Oracle, str, or a sequence of sets
        The set of the parameters of a group. A `Product` has a set for each parameter by its name,
        and a sequence one for each in order. A single set is bound to all parameters of the group
        together, as `ConstraintSet.bind` does: a vector set to their flat vector, a matrix set to
        the matrix ``[W | b]`` of a linear layer. A text such as ``"l1:10"`` is read by
        `fedfw.parse_set`.
    lr : float, default 0.05
        The step size; at most 1 where steps are constrained.
    momentum : float, default 0.9
        The weight of the past in the running mean of gradients; at least 0 and below 1.
    nesterov : bool, default False
        Whether the direction mixes the gradient into the running mean once more.
    unconstrained : bool, default False
        Whether the set only shapes the steps and does not constrain the parameters.
    weight_decay : float, default 0.0
        How fast parameters shrink in unconstrained steps. Constrained steps need none, because they
        shrink by ``lr``.
    maximize : bool, default False
        Whether the objective is maximised.
    tol : float, optional
        Relative accuracy for oracles that iterate, as in `ConstraintSet.lmo`.

    Raises
    ------
    TypeError
        If a parameter is complex, or has a dtype of 16 bits where steps are constrained; if a
        gradient is sparse, or a constraint is not a set.
    ValueError
        If an option is out of its range, a set does not fit a parameter's shape, or the start lies
        outside of a set that has no projection.
    NonFiniteError
        If a gradient has a NaN or an infinity. It names the parameter, and no parameter has moved.

    Notes
    -----
    Parameters that lie outside of their set are moved to the nearest point of it when the optimizer
    is made, unless it is `unconstrained`. From then on every point is a convex combination of
    points of the set. Rounding can leave a parameter outside, by a relative error of at most about
    ``eps / lr`` with its dtype's epsilon. Because of it a start that is outside by less than
    ``sqrt(eps)`` is not moved, so that a resumed run keeps its bits. In bfloat16 and float16 a
    small step can be lost in one entry and not in another, and the point leaves the set:
    constrained steps refuse such parameters (keep them in float32, under `torch.autocast`).
    Unconstrained steps take them, and the oracle then works in float32.

    Parameters with equal sets, shapes and dtypes are one stack in a single call of the set's
    oracle. Momentum has its parameter's dtype. Parameters without a gradient stay where they are;
    it is an error if others that share their set have one.

    Oracles do not see the length of a direction, so momentum that starts at zero needs no
    correction: the direction is that of the mean of all gradients with weights ``momentum ** age``.

    With ``nesterov=False`` every step is that of Scion [1]_ up to rounding;
    the momentum of Scion is one minus ours. Its signs are zero where a direction is exactly zero;
    the oracle of `LinfBall` answers with a corner there.

    The sets are no part of `state_dict`, only their description is, and a state with another one is
    refused.

    References
    ----------
    .. [1] T. Pethick et al., "Training deep learning models with norm-constrained LMOs", ICML 2025,
       arXiv 2502.07529.

    Examples
    --------
    >>> import torch, fedfw
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    >>> sets = fedfw.Product({"*.weight": fedfw.SpectralBall(2.0), "*.bias": fedfw.LinfBall(0.5)})
    >>> optimizer = fedfw.optim.LMO(model, sets, lr=0.1)
    >>> decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=200)
    >>> x = torch.randn(64, 4)
    >>> for _ in range(200):
    ...     loss = torch.nn.functional.mse_loss(model(x), x[:, :1].abs())
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     optimizer.step()
    ...     decay.step()
    >>> loss.item() < 0.01
    True
    >>> [fedfw.SpectralBall(2.0).contains(layer.weight, 1e-5) for layer in (model[0], model[2])]
    [True, True]
    """

    def __init__(
        self,
        params: nn.Module | ParamsT,
        constraint: Any,
        *,
        lr: float | Tensor = 0.05,
        momentum: float = 0.9,
        nesterov: bool = False,
        unconstrained: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
        tol: float | None = None,
    ) -> None:
        """Store the options of all groups; `add_param_group`, which torch calls for each group,
        binds the set to its parameters and moves them into it.
        """
        if isinstance(constraint, str):
            constraint = as_set(constraint)
        if isinstance(params, nn.Module):
            # A LipschitzNet's radii depend on the layers, which parameters do not show.
            if isinstance(constraint, LipschitzNet):
                constraint = Product(constraint.balls(params))
            params = [(name, p) for name, p in params.named_parameters() if p.requires_grad]
        defaults = {
            "constraint": constraint,
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "unconstrained": unconstrained,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "tol": tol,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as torch's optimizers do, and move them into their set.

        Parameters
        ----------
        param_group : dict
            ``"params"``, and options that differ from those of the optimizer.

        Examples
        --------
        >>> import torch, fedfw
        >>> w, b = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        >>> optimizer = fedfw.optim.LMO([w], fedfw.L1Ball(1.0))
        >>> optimizer.add_param_group(
        ...     {"params": [b], "constraint": fedfw.LinfBall(0.5), "lr": 0.01}
        ... )
        >>> b.tolist()
        [0.5, 0.5, 0.5]
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            group["constraint"] = _bound(group)
            _check_options(group)
            if not group["unconstrained"]:
                _move_into_sets(group)
        except (TypeError, ValueError):
            self.param_groups.pop()  # torch added it
            raise

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step with the gradients that the parameters have.

        Parameters
        ----------
        closure : callable, optional
            A function that works out the gradients anew and returns the loss.

        Returns
        -------
        float or None
            What the closure returned.

        Examples
        --------
        >>> import torch, fedfw
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> w.grad = torch.tensor([1.0, -3.0])
        >>> fedfw.optim.LMO([w], fedfw.L1Ball(2.0), lr=0.5).step()
        >>> w.tolist()
        [0.0, 1.0]
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:  # all checks come before any parameter moves
            _check_options(group)
            _check_gradients(group)
        for group in self.param_groups:
            self._move(group)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer as numbers, texts and tensors, with each set by its
        description.

        Returns
        -------
        dict
            As torch's optimizers return it; `torch.load` reads it with ``weights_only=True``.
        """
        state = super().state_dict()
        for group in state["param_groups"]:
            group["constraint"] = repr(group["constraint"])
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned, with the sets that this optimizer was made
        with.

        Parameters
        ----------
        state_dict : dict
            The state of an optimizer with the same parameters and equal sets.

        Raises
        ------
        ValueError
            If the sets are others.
        """
        sets = [group["constraint"] for group in self.param_groups]
        # Torch refuses a state with another number of groups. A state has sets as texts.
        for constraint, saved in zip(sets, state_dict["param_groups"], strict=False):
            if repr(constraint) != saved.get("constraint"):
                raise ValueError(
                    f"the state has constraint={saved.get('constraint')}, expected {constraint!r}"
                )
        super().load_state_dict(state_dict)
        for group, constraint in zip(self.param_groups, sets, strict=True):
            group["constraint"] = constraint

    def _move(self, group: dict[str, Any]) -> None:
        """Take a step with all parameters of a group that have a gradient; parameters with the same
        set, shape, dtype and device share one call of the oracle.
        """
        stacks: dict[Any, list[Tensor]] = {}
        for constraint, shape, params in _blocks(group):
            if params[0].grad is not None:
                alike = constraint, shape, params[0].dtype, params[0].device
                stacks.setdefault(alike, []).extend(params)
        lr = float(group["lr"])
        for (constraint, shape, *_), params in stacks.items():
            directions = torch.cat([self._direction(p, group).reshape(-1) for p in params]).reshape(
                -1, *shape
            )
            # Atoms are rounded to at least float32, also for parameters of 16 bits.
            precision = torch.promote_types(directions.dtype, torch.float32)
            atoms = constraint.lmo(directions, batch=True, precision=precision, tol=group["tol"])
            for p, s in _pieces(atoms.dense(precision), params):
                if group["unconstrained"]:
                    p.mul_(1 - lr * group["weight_decay"]).add_(s, alpha=lr)
                else:  # lerp never leaves the interval between two numbers, whatever the rounding
                    p.lerp_(s.to(p.dtype), lr)

    def _direction(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the direction of p's step, in p's shape: the average m <- momentum m + (1 -
        momentum) gradient, which begins at 0, or with Nesterov the average after one more such
        update with the same gradient.
        """
        assert p.grad is not None  # `_move` leaves out parameters without a gradient
        gradient = p.grad
        if group["maximize"]:
            gradient = -p.grad
        state = self.state[p]
        momentum = group["momentum"]
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        mean: Tensor = state["momentum"].lerp_(gradient, 1 - momentum)
        if group["nesterov"]:
            return gradient.lerp(mean, momentum)
        return mean


def _names(group: dict[str, Any]) -> list[str]:
    return group.get("param_names") or [str(i) for i in range(len(group["params"]))]


def _bound(group: dict[str, Any]) -> ConstraintSet:
    """Return the group's set on the flat vector of its parameters, a `BoundProduct` where each
    parameter has a set; refuse parameters that are not of a floating-point dtype long enough.
    """
    names = _names(group)
    shapes = [tuple(p.shape) for p in group["params"]]
    for name, p in zip(names, group["params"], strict=True):
        if not p.is_floating_point() or (p.element_size() < 4 and not group["unconstrained"]):
            required = " of 32 or 64 bits, because shorter ones lose small steps"
            if group["unconstrained"]:
                required = ""
            raise TypeError(
                f"parameter {name!r} has dtype {p.dtype}, expected real floating-point "
                f"numbers{required}"
            )
    constraint = group["constraint"]
    if isinstance(constraint, str) or not isinstance(constraint, Sequence):
        bound: ConstraintSet = as_set(constraint).bind(dict(zip(names, shapes, strict=True)))
        return bound
    if len(constraint) != len(names):
        raise ValueError(
            f"constraint has {len(constraint)} sets, expected one for each of {len(names)} "
            "parameters"
        )
    return BoundProduct(tuple(names), tuple(map(as_set, constraint)), tuple(shapes))


def _blocks(group: dict[str, Any]) -> Iterator[tuple[ConstraintSet, Shape, list[Tensor]]]:
    """Yield each set of a group, the shape of its points, and the parameters that make up a point:
    one parameter in a product of sets, otherwise all of them as one flat vector.
    """
    bound = group["constraint"]
    params = group["params"]
    if isinstance(bound, BoundProduct):
        yield from (
            (part, shape, [p])
            for part, shape, p in zip(bound.parts, bound.shapes, params, strict=True)
        )
    else:
        yield bound, (sum(p.numel() for p in params),), params


def _pieces(points: Tensor, params: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Return each parameter with its piece of ``points``, which has as many entries as all of them
    together.
    """
    columns = split_columns(points.reshape(1, -1), [p.numel() for p in params])
    return ((p, column.reshape(p.shape)) for p, column in zip(params, columns, strict=True))


def _check_options(group: dict[str, Any]) -> None:
    """Refuse options that are out of range; a scheduler may have changed them before any step."""
    free = group["unconstrained"]
    largest, limit = (math.inf, "") if free else (1.0, " and at most 1")
    for name, fits, expected in (
        ("lr", 0 <= group["lr"] <= largest, f"a number of at least 0{limit}"),
        ("momentum", 0 <= group["momentum"] < 1, "a number of at least 0 and below 1"),
        ("weight_decay", group["weight_decay"] >= 0, "a number of at least 0"),
        (
            "weight_decay",
            free or group["weight_decay"] == 0,
            "0, because constrained steps shrink by lr",
        ),
    ):
        if not fits:
            raise ValueError(f"{name}={group[name]!r}, expected {expected}")


def _check_gradients(group: dict[str, Any]) -> None:
    """Refuse gradients with which no step is possible: missing ones beside others of a shared set,
    sparse ones, and those with a NaN or an infinity.
    """
    names = _names(group)
    gradients = [p.grad for p in group["params"]]
    given = [
        (name, gradient)
        for name, gradient in zip(names, gradients, strict=True)
        if gradient is not None
    ]
    if 0 < len(given) < len(names) and not isinstance(group["constraint"], BoundProduct):
        name = names[next(i for i, gradient in enumerate(gradients) if gradient is None)]
        raise ValueError(
            f"parameter {name!r} has no gradient, expected one because others that share its set "
            "have one"
        )
    for name, gradient in given:
        if gradient.layout is not torch.strided:
            raise TypeError(
                f"the gradient of parameter {name!r} is sparse ({gradient.layout}), expected a "
                "dense one"
            )
    # All checks are launched on a GPU before the host waits for the first result.
    finite = [gradient.isfinite().all() for _, gradient in given]
    for (name, _), answer in zip(given, finite, strict=True):
        if not answer:
            raise NonFiniteError(
                f"the gradient of parameter {name!r} has a NaN or an infinity, expected finite "
                "numbers"
            )


@torch.no_grad()
def _move_into_sets(group: dict[str, Any]) -> None:
    """Replace parameters outside of their set by the nearest point of the set."""
    for constraint, shape, params in _blocks(group):
        x = torch.cat([p.reshape(-1) for p in params]).reshape(shape)
        if constraint.contains(x, math.sqrt(torch.finfo(x.dtype).eps)):  # up to rounding errors
            continue
        try:
            nearest = constraint.project(x)
        except NoProjectionError as error:
            raise ValueError(
                f"the start lies outside the constraint: give a start inside ({error})"
            ) from None
        for p, piece in _pieces(nearest, params):
            p.copy_(piece)
