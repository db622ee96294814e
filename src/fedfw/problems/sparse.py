"""One linear layer with sparse samples: the gradients of `linear` by products with sparse
matrices, client after client.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedfw.linalg.rows import select_rows
from fedfw.linalg.singular import top_singular
from fedfw.problems.base import ClientLosses
from fedfw.problems.scores import CURVATURE, Derivative
from fedfw.problems.stacks import Samples


class SparseLosses(ClientLosses):
    """Losses of one linear layer on samples that are the rows of sparse matrices (CSR)."""

    def __init__(self, model: nn.Linear, derivative: Derivative, clients: list[Samples]) -> None:
        """Keep the clients' sparse rows, and their transposes for gradients."""
        self.model = model
        self.derivative = derivative
        self.n = len(clients)
        self.outputs, self.inputs = model.weight.shape
        self.sizes: Tensor = torch.tensor([len(x) for x, _ in clients])
        self._clients = clients  # sparse rows, and targets
        # Transposed for gradients, which are products with A^T.
        self._transposed = [x.t().to_sparse_csr() for x, _ in clients]

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return losses (m,) and gradients (m, p), by products with each client's sparse matrix and
        its transpose.
        """
        values = x.new_empty(len(x))
        gradients = torch.empty_like(x)
        weight_count = self.outputs * self.inputs
        for row, client in enumerate(who.tolist()):
            A, targets = self._clients[client]
            transposed = self._transposed[client]
            if picks is not None:
                A = select_rows(A, picks[row])
                targets = targets[picks[row]]
                transposed = A.t().to_sparse_csr()
            scores = A @ x[row, :weight_count].view(self.outputs, self.inputs).mT
            if self.model.bias is not None:
                scores = scores + x[row, weight_count:]
            losses, slopes = self.derivative(scores.mT[None].contiguous(), targets[None])
            values[row] = losses.mean()
            slopes = slopes[0] / len(A)
            gradients[row, :weight_count] = (transposed @ slopes.mT.contiguous()).mT.reshape(-1)
            if self.model.bias is not None:
                gradients[row, weight_count:] = slopes.sum(1)
        return values, gradients

    @cached_property
    def _in_float64(self) -> SparseLosses:
        exact = [(A.double(), y.double() if y.is_floating_point() else y) for A, y in self._clients]
        return SparseLosses(self.model, self.derivative, exact)

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        raise ValueError("privacy is not for sparse inputs, expected dense ones")

    def smoothness(self) -> Tensor:
        """Return the loss's largest curvature times the largest eigenvalue of A'A/m (to a
        thousandth), A with its ones.
        """
        largest = [
            _top_singular(A, self.model.bias is not None) ** 2 / len(A) for A, _ in self._clients
        ]
        return CURVATURE[self.derivative](self.outputs) * torch.tensor(largest, dtype=torch.float64)

    def data(self) -> Iterator[Tensor]:
        for client in self._clients:
            yield from client

    def to(self, device: torch.device) -> SparseLosses:
        if device.type != "cpu":
            raise ValueError(f"sparse inputs on {device.type}, expected device='cpu'")
        return self

    def __reduce__(self) -> tuple[type[SparseLosses], tuple[Any, ...]]:
        return SparseLosses, (self.model, self.derivative, self._clients)


def _top_singular(A: Tensor, with_ones: bool) -> float:
    """Return the largest singular value of a sparse matrix (m, f), with a column of ones where it
    has one.
    """
    from scipy.sparse import csr_matrix, hstack
    from scipy.sparse.linalg import svds

    values = A.values().double().numpy()
    rows = csr_matrix((values, A.col_indices().numpy(), A.crow_indices().numpy()), A.shape)
    if with_ones:
        rows = hstack([rows, csr_matrix([[1.0]] * len(A))]).tocsr()
    least = min(rows.shape)
    if least < 3:  # ARPACK looks for fewer values than there are
        return float(top_singular(torch.from_numpy(rows.toarray())[None], tol=1e-3).value[0])
    start = torch.ones(least, dtype=torch.float64).numpy()
    return float(svds(rows, k=1, tol=1e-3, v0=start, return_singular_vectors=False)[0])
