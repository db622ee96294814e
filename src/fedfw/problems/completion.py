"""Matrix completion: the model is a matrix, and a client holds some of its entries.

f_i(X) = mean over client i's entries (r, c, value) of (X[r, c] - value)^2. Its gradient is zero but
for those entries, so it costs as many operations as the client has entries.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedfw.problems.base import ClientLosses
from fedfw.problems.stacks import Samples


class MatrixCompletion(nn.Module):
    """A matrix (rows, columns) that is asked for entries: pairs (samples, 2) -> values
    (samples,).
    """

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns))

    def forward(self, pairs: Tensor) -> Tensor:
        return self.weight[pairs[:, 0], pairs[:, 1]]


class CompletionLosses(ClientLosses):
    """Squared losses of matrix completion.

    ``cells`` are each client's places in the flat matrix, ``values`` the ratings that stand there.
    """

    sizes: Tensor

    def __init__(self, cells: list[Tensor], values: list[Tensor]) -> None:
        self._cells = cells
        self._values = values
        self.n = len(cells)
        self.sizes = torch.tensor([len(place) for place in cells])

    @classmethod
    def of(cls, model: MatrixCompletion, clients: list[Samples]) -> CompletionLosses:
        """Return the losses with pairs (user, item) as positions in the flat matrix; refuse pairs
        outside of it.
        """
        rows, columns = model.weight.shape
        cells = []
        for i, (pairs, _) in enumerate(clients):
            inside = (
                (pairs >= 0).all() and (pairs[:, 0] < rows).all() and (pairs[:, 1] < columns).all()
            )
            if not bool(inside):
                raise ValueError(
                    f"client {i} holds an entry outside the matrix of {rows} x {columns}"
                )
            cells.append(pairs[:, 0] * columns + pairs[:, 1])
        return cls(cells, [values for _, values in clients])

    def data(self) -> Iterator[Tensor]:
        for cells, values in zip(self._cells, self._values, strict=True):
            yield cells
            yield values

    def to(self, device: torch.device) -> CompletionLosses:
        return CompletionLosses(
            [c.to(device) for c in self._cells], [v.to(device) for v in self._values]
        )

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the mean squared residuals of the clients' entries and their gradients, which are
        zero elsewhere.
        """
        values = []
        gradients = torch.zeros_like(x)
        for row, i in enumerate(who.tolist()):
            cells = self._cells[i]
            targets = self._values[i]
            if picks is not None:
                cells = cells[picks[row]]
                targets = targets[picks[row]]
            residual = x[row, cells] - targets
            values.append(residual.square().mean())
            # The gradient of the mean of residual^2 is 2 residual / m at its entry.
            gradients[row].index_add_(0, cells, residual, alpha=2 / len(cells))
        return torch.stack(values), gradients

    def smoothness(self) -> Tensor:
        # An entry that is held k times weighs k times as much.
        most = [int(torch.bincount(cells).max()) for cells in self._cells]
        return 2 * torch.tensor(most, dtype=torch.float64) / self.sizes
