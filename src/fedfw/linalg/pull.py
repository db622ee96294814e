"""The pull of clients to the server's model, which the directions of FedFW have beside the gradient."""

import torch
from torch import Tensor

from fedfw.linalg.compiled import REAL, compiled, may_be_handed_over


def pulled(a: Tensor, x: Tensor, xbar: Tensor, lam: float | Tensor) -> Tensor:
    """a + lam (x - xbar), in the precision of a: only the difference needs that of the points.

    On a processor it is one pass of compiled code for stacks of any size, so that a client has the same bits alone and
    among others.

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
    >>> x, xbar = torch.tensor([[3.0, 1.0]], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    >>> pulled(torch.zeros(1, 2), x, xbar, 0.5)
    tensor([[1., 0.]])
    """
    a, x, xbar = a.contiguous(), x.contiguous(), xbar.contiguous()
    fit = x.shape == a.shape and xbar.shape == a.shape[1:] and x.dtype is xbar.dtype is torch.float64
    number = may_be_handed_over(lam) and lam.ndim == 0 if isinstance(lam, Tensor) else True
    if fit and number and a.dtype in REAL and may_be_handed_over(a, x, xbar):
        (n, p), into = a.shape, torch.empty_like(a)
        assert compiled is not None
        addresses = a.data_ptr(), x.data_ptr(), xbar.data_ptr()
        compiled.pull(*addresses, n, p, a.dtype is torch.float64, into.data_ptr(), float(lam))
        return into
    apart = (x - xbar).to(a.dtype)
    return torch.addcmul(a, apart, lam.to(a.dtype)) if isinstance(lam, Tensor) else torch.add(a, apart, alpha=lam)
