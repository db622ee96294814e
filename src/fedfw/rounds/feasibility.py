"""The last check of a run: the model that it returns lies in its set."""

import torch
from torch import Tensor

from fedfw.errors import InfeasibleError
from fedfw.sets.base import ConstraintSet

ROUNDING = {torch.bfloat16: 0.1, torch.float16: 0.03, torch.float32: 1e-3, torch.float64: 1e-6}
"""How far outside of its set a final point may be, relative to the set's size: what rounding in a
run can explain.

A round rounds every point a few times, and the errors add up over thousands of rounds. In float64
that stays below the default tolerance of `ConstraintSet.contains`.
"""


def validate_final(constraint: ConstraintSet, x: Tensor, *, tol: float | None = None) -> None:
    """Refuse the final point of a run if it lies outside of the set by more than rounding explains.

    Parameters
    ----------
    constraint : ConstraintSet
        The set.
    x : Tensor
        The point, (p,).
    tol : float, optional
        How far outside it may be, relative to the set's size; by default `ROUNDING` of its dtype.

    Raises
    ------
    InfeasibleError
        It says how far outside the point is.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.rounds.feasibility import validate_final
    >>> validate_final(fedfw.L2Ball(1.0), torch.tensor([0.6, 0.8]))
    >>> try:
    ...     validate_final(fedfw.L2Ball(1.0), torch.tensor([30.0, 40.0]))
    ... except fedfw.InfeasibleError as error:
    ...     print(error)
    the final model lies outside of L2Ball(r=1.0): by 49 of the set's size, with entries up to 40.
    It must lie inside up to 0.001 of the size, so no model is returned; use a smaller step size or
    float64
    """
    tol = ROUNDING[x.dtype] if tol is None else tol
    if constraint.contains(x, tol):
        return
    if not bool(x.isfinite().all()):
        raise InfeasibleError(
            f"the final model has a NaN or an infinity. It must lie in {constraint!r}, so no model "
            "is returned; use a smaller step size"
        )
    violation = float(constraint._violation(x.double().reshape(1, -1), tuple(x.shape))[0])
    raise InfeasibleError(
        f"the final model lies outside of {constraint!r}: by {violation:.3g} of the set's size, "
        "with entries up to "
        f"{float(x.abs().max()):.3g}. It must lie inside up to {tol:g} of the size, so no model is "
        "returned; use a "
        "smaller step size or float64"
    )


def final_model(constraint: ConstraintSet, x: Tensor, *, tol: float | None = None) -> Tensor:
    """The model that a run returns: its final point, or the projection where rounding has moved it
    out of the set.

    Parameters
    ----------
    constraint, x, tol
        As for `validate_final`.

    Returns
    -------
    Tensor
        Shape (p,): x itself if the set contains it up to the default tolerance of
        `ConstraintSet.contains`. Otherwise its projection, if the set has one.

    Raises
    ------
    InfeasibleError
        If x is outside by more than rounding explains.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.rounds.feasibility import final_model
    >>> final_model(fedfw.LinfBall(1.0), torch.tensor([0.5, 1.0001])).tolist()
    [0.5, 1.0]
    """
    validate_final(constraint, x, tol=tol)
    if not constraint.has_projection or constraint.contains(x):
        return x
    return constraint.project(x)
