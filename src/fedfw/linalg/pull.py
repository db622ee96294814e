"""The pull of clients to the server's model, which the directions of FedFW have beside the
gradient.
"""

import torch
from torch import Tensor


def pulled(a: Tensor, x: Tensor, xbar: Tensor, lam: float | Tensor) -> Tensor:
    """Return a + lam (x - xbar), in the precision of a: only the difference needs that of the
    points.

    Parameters
    ----------
    a : Tensor
        (m, p): gradients.
    x : Tensor
        (m, p): the clients' points.
    xbar : Tensor
        (p,): the server's model.
    lam : float or Tensor
        The penalty.

    Examples
    --------
    >>> import torch
    >>> x, xbar = (
    ...     torch.tensor([[3.0, 1.0]], dtype=torch.float64),
    ...     torch.ones(2, dtype=torch.float64),
    ... )
    >>> pulled(torch.zeros(1, 2), x, xbar, 0.5)
    tensor([[1., 0.]])
    """
    apart = (x - xbar).to(a.dtype)
    if isinstance(lam, Tensor):
        return torch.addcmul(a, apart, lam.to(a.dtype))
    return torch.add(a, apart, alpha=lam)
