"""Small problems with known answers."""

import torch

from fedfw.problems.problem import Problem
from fedfw.problems.quadratics import quadratic_problem, random_quadratics


def quadratics(
    clients: int = 4,
    dimension: int = 5,
    *,
    condition: float = 10.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """Random quadratics f_i(x) = (x - c_i)' A_i (x - c_i) / 2, with known smoothness, from zero.

    Parameters
    ----------
    clients, dimension : int
        How many clients, and how many parameters.
    condition : float
        The eigenvalues of A_i go from 1 to this.
    seed : int
        Draws A_i and c_i.
    dtype : torch.dtype
        float32 or float64.

    Returns
    -------
    Problem

    Examples
    --------
    >>> quadratics().n, round(quadratics().smoothness(), 6)
    (4, 10.0)
    """
    A, c = random_quadratics(clients, dimension, condition, 1.0, seed)
    return quadratic_problem(A.to(dtype), c.to(dtype), torch.zeros(dimension, dtype=dtype))


def two_quadratics() -> Problem:
    """Two clients on the line, f_1 = (x - 3)^2 and f_2 = (x + 1)^2, with equal weights; start at 0,
    in float64.

    On [-1, 1] the best common point is 1, where F is 4. Averaged local Frank-Wolfe steps stay at 0.

    Returns
    -------
    Problem

    Examples
    --------
    >>> import torch
    >>> problem = two_quadratics()
    >>> problem.value(torch.ones(1, dtype=torch.float64))
    4.0
    """
    A = torch.full((2, 1, 1), 2.0, dtype=torch.float64)
    centres = torch.tensor([[3.0], [-1.0]], dtype=torch.float64)
    return quadratic_problem(A, centres, torch.zeros(1, dtype=torch.float64))
