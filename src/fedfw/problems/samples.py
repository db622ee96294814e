"""The one place that turns the data that users have into tensors.

Numpy arrays, pandas frames, scipy's sparse matrices, torch datasets and loaders, dictionaries and
tuples of inputs all become a pair (inputs, targets) of tensors with a sample a row. Several inputs
become one tensor, which a hook of the model takes apart again (see `models`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from fedfw.checks import warn_of_identifiers
from fedfw.problems.composed import OnDemand
from fedfw.problems.stacks import Samples
from fedfw.ranks import Ranks

_TEXT = "TUSO"  # numpy's letters for texts and for objects, which may be texts


@dataclass(frozen=True)
class Parts:
    """The several inputs of a model, which are the columns of one tensor.

    Parameters
    ----------
    names : tuple of str, optional
        Of a dictionary's entries; None for a tuple.
    shapes, dtypes : tuple
        Of each input of a sample; numbers that are no whole ones have the model's dtype.
    """

    names: tuple[str, ...] | None
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype | None, ...]

    def split(self, packed: Tensor) -> tuple[Tensor, ...]:
        """Return the inputs (m, ...) of packed ones (m, columns)."""
        pieces = torch.split(packed, [prod(shape) for shape in self.shapes], 1)
        return tuple(
            piece.reshape(len(packed), *shape).to(dtype or packed.dtype)
            for piece, shape, dtype in zip(pieces, self.shapes, self.dtypes, strict=True)
        )


@dataclass(frozen=True)
class ReadSamples:
    """The samples of one owner, with what has to be the same for all owners.

    Parameters
    ----------
    inputs : Tensor
        (m, ...): dense or in rows (CSR).
    targets : Tensor or array of str
        (m, ...).
    parts : Parts, optional
        Where there are several inputs.
    columns : tuple of str
        The names of the inputs, where they come from a frame.
    """

    inputs: Tensor
    targets: Tensor | npt.NDArray[np.str_]
    parts: Parts | None
    columns: tuple[str, ...]


def read_samples(data: Any, owner: str, dtype: torch.dtype) -> ReadSamples:
    """Return the samples of what a user has; floating-point numbers in the model's dtype.

    Targets that are small integers become int64, which torch asks of class numbers.
    """
    if isinstance(data, OnDemand):
        data = data.read()
    if isinstance(data, DataLoader):
        data = _dataset_of(data, owner)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, IterableDataset):
        raise ValueError(f"{owner}: a dataset without length, expected one with len() and items")
    if isinstance(data, Dataset):
        data = _stacked_items([data[j] for j in range(len(data))], owner)  # type: ignore[arg-type]
    if not isinstance(data, tuple | list) or len(data) != 2:
        got = f"{len(data)} parts" if isinstance(data, tuple | list) else type(data).__name__
        raise ValueError(
            f"{owner}: expected a pair (inputs, targets) or a dataset of pairs, got {got}"
        )
    inputs, parts = _packed(data[0], owner, dtype)
    targets = _tensor(data[1], owner)
    if isinstance(inputs, np.ndarray):
        raise ValueError(f"{owner}: inputs are texts, expected numbers: encode them")
    if not len(inputs) or len(inputs) != len(targets):
        raise ValueError(
            f"{owner}: {len(inputs)} inputs and {len(targets)} targets, expected equally many, at "
            "least one"
        )
    if inputs.is_floating_point():
        inputs = inputs.to(dtype)
    if isinstance(targets, Tensor):
        if targets.is_floating_point():
            targets = targets.to(dtype)
        elif targets.dtype != torch.bool:
            targets = targets.to(torch.int64)
    columns = tuple(map(str, getattr(data[0], "columns", ())))
    return ReadSamples(inputs, targets, parts, columns)


def agree(
    read: Sequence[ReadSamples], owners: Sequence[str], ranks: Ranks
) -> tuple[list[Samples], tuple[str, ...]]:
    """Return all owners' samples with texts as class numbers, and the classes in order.

    Raises
    ------
    ValueError
        Where owners have inputs of different columns or forms, or only some have texts.
    """
    for one, owner in zip(read, owners, strict=True):
        for what, own, first in (
            ("columns", one.columns, read[0].columns),
            ("inputs", one.parts, read[0].parts),
            ("layout", one.inputs.layout, read[0].inputs.layout),
        ):
            if own != first:
                raise ValueError(
                    f"{owner}: {what} {own}, expected the same as {owners[0]} has, {first}"
                )
    if read[0].columns and not read[0].inputs.is_sparse_csr:
        warn_of_identifiers(read[0].columns, read[0].inputs, owners[0])
    named = [one.targets for one in read if isinstance(one.targets, np.ndarray)]
    found = {str(text) for targets in named for text in targets.flat}
    everyones = ranks.all_gather_object((sorted(found), len(named) == len(read)))
    classes = tuple(sorted(set().union(*(names for names, _ in everyones))))
    if classes and not all(alone for _, alone in everyones):
        raise ValueError("some targets are texts and some numbers, expected the same of all owners")
    return [(one.inputs, _encoded(one.targets, classes)) for one in read], classes


def _encoded(targets: Tensor | npt.NDArray[np.str_], classes: tuple[str, ...]) -> Tensor:
    """Return class numbers in place of texts."""
    if isinstance(targets, Tensor):
        return targets
    return torch.from_numpy(np.searchsorted(np.array(classes), targets.astype(str)))


def batch_size_of(clients: Sequence[Any]) -> int | None:
    """Return the size of the minibatches of clients' loaders; None where they have none."""
    sizes = {data.batch_size for data in clients if isinstance(data, DataLoader)}
    if len(sizes) > 1:
        raise ValueError(f"loaders have the batch sizes {sizes}, expected the same for all")
    return next(iter(sizes), None)


def _dataset_of(loader: DataLoader[Any], owner: str) -> Any:
    """Return a loader's dataset, as its items are collated."""
    if type(loader.sampler) not in (SequentialSampler, RandomSampler):
        raise ValueError(
            f"{owner}: a loader with a {type(loader.sampler).__name__}, expected one with "
            "shuffle=True or False: pass torch.utils.data.Subset for a selection"
        )
    own_collate = loader.collate_fn is not torch.utils.data.default_collate
    if not own_collate or isinstance(loader.dataset, IterableDataset):
        return loader.dataset
    items = [loader.dataset[j] for j in range(len(loader.dataset))]  # type: ignore[arg-type]
    return loader.collate_fn(items)


def _stacked_items(items: list[Any], owner: str) -> tuple[Any, ...]:
    """Return the inputs and the targets of a dataset's items, each stacked; refuses items that are
    no pairs.
    """
    for j, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            got = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
            raise ValueError(
                f"{owner}: item {j} of the dataset is {got}, expected a pair (input, target)"
            )
    return tuple(_stacked([item[part] for item in items]) for part in (0, 1)) if items else ()


def _stacked(values: list[Any]) -> Any:
    """Return the values of samples with a new first axis, each input of several by itself."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _stacked([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stacked([value[place] for value in values]) for place in range(len(first)))
    if isinstance(first, str):
        return np.array(values)
    return torch.stack([torch.as_tensor(value) for value in values])


def _packed(inputs: Any, owner: str, dtype: torch.dtype) -> tuple[Any, Parts | None]:
    """Return inputs as one tensor, and how several ones are found in it."""
    named = isinstance(inputs, Mapping)
    several = isinstance(inputs, tuple) and all(hasattr(part, "shape") for part in inputs)
    if not named and not several:
        return _tensor(inputs, owner), None
    tensors = [_tensor(part, owner) for part in (inputs.values() if named else inputs)]
    dense = [part for part in tensors if isinstance(part, Tensor) and not part.is_sparse_csr]
    if not dense or len(dense) < len(tensors):
        raise ValueError(f"{owner}: expected each of several inputs to be a dense tensor or array")
    sizes = [len(part) for part in dense]
    if len(set(sizes)) > 1:
        raise ValueError(f"{owner}: inputs of {sizes} samples, expected equally many")
    columns = []
    for part in dense:
        packed = part.reshape(len(part), -1).to(dtype)
        if not part.is_floating_point() and not torch.equal(packed.to(part.dtype), part.flatten(1)):
            raise ValueError(
                f"{owner}: one of several inputs has a whole number that {dtype} does not hold, "
                "expected smaller ones, or a model in float64"
            )
        columns.append(packed)
    shapes = tuple(tuple(part.shape[1:]) for part in dense)
    kinds = tuple(None if part.is_floating_point() else part.dtype for part in dense)
    return torch.cat(columns, 1), Parts(tuple(inputs) if named else None, shapes, kinds)


def _tensor(part: Any, owner: str) -> Tensor | npt.NDArray[np.str_]:
    """Return an array, frame, list or sparse matrix as a tensor, and texts as an array of them."""
    if isinstance(part, Tensor):
        return part if part.layout == torch.strided else part.to_sparse_csr()
    if hasattr(part, "tocsr"):
        rows = part.tocsr()
        starts, columns = (
            _of_array(indices.astype(np.int64)) for indices in (rows.indptr, rows.indices)
        )
        values = _of_array(rows.data)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(
                starts, columns, values, rows.shape, check_invariants=True
            )
    if hasattr(part, "columns"):
        arrays = [_tensor(part[name], f"{owner}: column {name!r}") for name in part.columns]
        if not all(isinstance(array, Tensor) for array in arrays):
            raise ValueError(
                f"{owner}: columns of {', '.join(map(str, part.columns))} are texts, expected "
                "numbers: leave them out or encode them (pandas.get_dummies)"
            )
        return torch.from_numpy(np.column_stack([np.asarray(array) for array in arrays]))
    if hasattr(part, "to_numpy"):
        part = part.to_numpy()
    if isinstance(part, list) and part and isinstance(part[0], str):
        part = np.array(part)
    if not isinstance(part, np.ndarray):
        return torch.as_tensor(part)
    if part.dtype.kind in _TEXT:
        if all(isinstance(value, str) for value in part.flat):
            return part.astype(np.str_)
        try:
            part = part.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"{owner}: values are missing or no numbers, expected numbers"
            ) from None
    return _of_array(part)


def _of_array(array: npt.NDArray[Any]) -> Tensor:
    """Return an array as a tensor, copied where torch cannot look at its memory."""
    plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if plain else array.copy())


def lend_samples(samples: Sequence[Samples], share: float) -> tuple[list[Samples], Samples]:
    """Return what clients keep, and all that they lend together; no client lends its last
    sample.
    """
    if not 0 < share < 1:
        raise ValueError(f"held_out={share}, expected a share between 0 and 1")
    generator = torch.Generator().manual_seed(0)
    kept: list[Samples] = []
    lent: list[Samples] = []
    for inputs, targets in samples:
        count = int(share * len(targets))
        rows = torch.randperm(len(targets), generator=generator)
        kept.append((_rows_of(inputs, rows[count:]), targets[rows[count:]]))
        if count:
            lent.append((_rows_of(inputs, rows[:count]), targets[rows[:count]]))
    if not lent:
        raise ValueError("the clients have too few samples to lend some")
    pieces = [x for x, _ in lent]
    if pieces[0].is_sparse_csr:
        together = torch.cat([x.to_sparse() for x in pieces]).to_sparse_csr()
    else:
        together = torch.cat(pieces)
    return kept, (together, torch.cat([y for _, y in lent]))


def _rows_of(inputs: Tensor, rows: Tensor) -> Tensor:
    return select_rows(inputs, rows) if inputs.is_sparse_csr else inputs[rows]


def first_samples(inputs: Tensor, count: int) -> Tensor:
    """Return a copy of the first samples, dense or in rows as the inputs are."""
    if inputs.is_sparse_csr:
        return select_rows(inputs, torch.arange(min(count, len(inputs))))
    return inputs[:count].clone()


def select_rows(inputs: Tensor, rows: Tensor) -> Tensor:
    """Return these rows (k,) of a sparse matrix in rows (m, f), in their order."""
    starts = inputs.crow_indices()[rows]
    lengths = inputs.crow_indices().diff()[rows]
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    offsets = torch.arange(int(ends[-1])) - ends[:-1].repeat_interleave(lengths)
    places = starts.repeat_interleave(lengths) + offsets
    return torch.sparse_csr_tensor(
        ends,
        inputs.col_indices()[places],
        inputs.values()[places],
        (len(rows), inputs.shape[1]),
        check_invariants=False,
    )


def in_dtype(model: nn.Module, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return whole-numbered inputs in the model's dtype, where the model does not take them as they
    are; tried on a few.
    """
    if inputs.is_floating_point():
        return inputs
    few = first_samples(inputs, 2)
    fits = tried(model, few) is not None or tried(model, few.to(dtype)) is None
    return inputs if fits else inputs.to(dtype)


def tried(model: nn.Module, inputs: Tensor) -> Any:
    """Return a model's outputs for a few inputs; None where it fails, which validation explains."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return model(inputs.clone())
    except Exception:  # the user's code may fail in any way
        return None
