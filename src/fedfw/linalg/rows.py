"""Rows of matrices, dense or sparse (CSR), and tensors of numpy's arrays and SciPy's matrices."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def tensor_of_array(array: npt.NDArray[Any]) -> Tensor:
    """Return an array as a tensor, copied where torch cannot look at its memory."""
    plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if plain else array.copy())


def rows_of_scipy(matrix: Any) -> Tensor:
    """Return SciPy's CSR matrix (m, f) as a tensor in rows."""
    starts = tensor_of_array(matrix.indptr.astype(np.int64))
    columns = tensor_of_array(matrix.indices.astype(np.int64))
    values = tensor_of_array(matrix.data)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(starts, columns, values, matrix.shape, check_invariants=True)


def select_rows(inputs: Tensor, rows: Tensor) -> Tensor:
    """Return these rows (k,) of samples (m, ...) or of a sparse matrix (m, f), in their order."""
    if not inputs.is_sparse_csr:
        return inputs[rows]
    starts = inputs.crow_indices()[rows]
    lengths = inputs.crow_indices().diff()[rows]
    new_starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    # The place of every value of the result among those of ``inputs``: the start of its row, plus
    # its offset within the row.
    offsets = torch.arange(int(new_starts[-1])) - new_starts[:-1].repeat_interleave(lengths)
    places = starts.repeat_interleave(lengths) + offsets
    return torch.sparse_csr_tensor(
        new_starts,
        inputs.col_indices()[places],
        inputs.values()[places],
        (len(rows), inputs.shape[1]),
        check_invariants=False,  # rows of a valid matrix are valid
    )
