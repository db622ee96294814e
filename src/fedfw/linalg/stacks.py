"""The common parts of oracles with a proof: a stack is treated matrix by matrix on a CPU, and what
fails is done again.

A result is a dataclass of tensors whose first axis is that of the stack.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar

import torch
from torch import Tensor

from fedfw.checks import all_finite, holds
from fedfw.errors import NonFiniteError

Result = TypeVar("Result")


def one_by_one(each: Callable[[Tensor], Result], g: Tensor) -> Result:
    """Return ``each(g)``, on a CPU one matrix after the other, so that a matrix has the same result
    to the bit in every stack.

    Parameters
    ----------
    each : callable
        Takes a stack (n, rows, columns) and returns a dataclass of tensors (n, ...).
    g : Tensor
        The stack.

    Returns
    -------
    Result
        The result for the whole stack.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.polar import polar_factor
    >>> from fedfw.linalg.stacks import one_by_one
    >>> one_by_one(polar_factor, torch.eye(2).repeat(3, 1, 1)).s.shape
    torch.Size([3, 2, 2])
    """
    if len(g) == 1 or g.device.type != "cpu":
        return each(g)
    results = [each(g[i : i + 1]) for i in range(len(g))]
    return type(results[0])(
        *(torch.cat([getattr(result, name) for result in results]) for name in _names(results[0]))
    )


def mended(found: Result, good: Tensor, exact: Callable[[Tensor], Result]) -> Result:
    """Return the results ``found`` of a stack, of which those that are not good are replaced by
    what ``exact`` returns for them; the host waits for a GPU once.

    Parameters
    ----------
    found : Result
        The results for a stack of n matrices.
    good : Tensor
        Which of them can stay: bool, of shape (n,).
    exact : callable
        Takes the indices of those that cannot, and returns their results.

    Returns
    -------
    Result
        The results.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.polar import Polar
    >>> from fedfw.linalg.stacks import mended
    >>> found = Polar(torch.ones(2, 1, 1), torch.ones(2), torch.ones(2))
    >>> instead = Polar(torch.zeros(1, 1, 1), torch.zeros(1), torch.zeros(1))
    >>> mended(found, torch.tensor([True, False]), lambda bad: instead).value.tolist()
    [1.0, 0.0]
    """
    if holds(good):  # all of them
        return found
    bad = (~good).nonzero().flatten()
    instead = exact(bad)
    return type(found)(
        *(getattr(found, name).index_copy(0, bad, getattr(instead, name)) for name in _names(found))
    )


def check_finite(rows: Tensor) -> None:
    """Raise an error if a row has a NaN or an infinity.

    Parameters
    ----------
    rows : Tensor
        Shape (n, p).

    Raises
    ------
    NonFiniteError
        It lists the rows that are not finite.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.linalg.stacks import check_finite
    >>> try:
    ...     check_finite(torch.tensor([[1.0], [float("inf")]]))
    ... except fedfw.NonFiniteError as error:
    ...     print(error)
    NaN or infinity in row 1 of 2
    """
    if all_finite(rows):
        return
    bad = (~rows.isfinite()).any(1).nonzero().flatten().tolist()
    if bad:
        named = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise NonFiniteError(f"NaN or infinity in row {named} of {len(rows)}", bad)


def _names(result: object) -> list[str]:
    """Return the names of the tensors of a result."""
    return [field.name for field in fields(result)]  # type: ignore[arg-type]
