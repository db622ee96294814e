"""The one place that turns the data that users have into tensors.

Numpy arrays, pandas frames, scipy's sparse matrices, torch datasets and loaders, dictionaries and
tuples of inputs all become a pair (inputs, targets) of tensors with a sample a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    default_collate,
)

from fedfw.checks import warn_of_identifiers
from fedfw.linalg.rows import rows_of_scipy, select_rows, tensor_of_array
from fedfw.problems.adapters import SplitInputs, pack_inputs
from fedfw.problems.composed import OnDemand
from fedfw.problems.stacks import Samples
from fedfw.ranks import Ranks

_TEXT = "TUSO"  # numpy's letters for texts and for objects, which may be texts


@dataclass(frozen=True)
class ReadSamples:
    """The samples of one owner, with what has to be the same for all owners.

    Parameters
    ----------
    inputs : Tensor
        (m, ...): dense or in rows (CSR).
    targets : Tensor or array of str
        (m, ...).
    split : SplitInputs, optional
        The hook that takes several inputs apart, where there are such.
    columns : tuple of str
        The names of the inputs, where they come from a frame.
    """

    inputs: Tensor
    targets: Tensor | npt.NDArray[np.str_]
    split: SplitInputs | None
    columns: tuple[str, ...]


def read_samples(data: Any, owner: str, dtype: torch.dtype) -> ReadSamples:
    """Return the samples in any of a user's forms as tensors; floating-point numbers in the model's
    dtype.

    Targets that are small integers become int64, which torch asks of class numbers.
    """
    if isinstance(data, OnDemand):
        data = data.read()
    collate = default_collate
    if isinstance(data, DataLoader):
        _validate_sampler(data, owner)
        collate = data.collate_fn
        data = data.dataset
    if isinstance(data, TensorDataset) and collate is default_collate:
        data = data.tensors
    if isinstance(data, IterableDataset):
        raise ValueError(f"{owner}: a dataset without length, expected one with len() and items")
    if isinstance(data, Dataset):
        items = [data[j] for j in range(len(data))]  # type: ignore[arg-type]
        data = collate(items) if items else ()
        if data and isinstance(data[0], list) and isinstance(data[0][0], Tensor):
            data = (tuple(data[0]), *data[1:])  # torch collates a tuple of inputs to a list
    if not isinstance(data, tuple | list) or len(data) != 2:
        got = f"{len(data)} parts" if isinstance(data, tuple | list) else type(data).__name__
        raise ValueError(
            f"{owner}: expected a pair (inputs, targets) or a dataset of pairs, got {got}"
        )
    inputs, split = _inputs(data[0], owner, dtype)
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
    if isinstance(targets, Tensor) and targets.is_floating_point():
        targets = targets.to(dtype)
    elif isinstance(targets, Tensor) and targets.dtype != torch.bool:
        targets = targets.to(torch.int64)
    columns = tuple(map(str, getattr(data[0], "columns", ())))
    return ReadSamples(inputs, targets, split, columns)


def _inputs(
    given: Any, owner: str, dtype: torch.dtype
) -> tuple[Tensor | npt.NDArray[np.str_], SplitInputs | None]:
    """Return inputs as one tensor (m, ...), and the hook that splits it where there are several
    inputs.
    """
    if isinstance(given, Mapping):
        named = {str(name): _tensor(part, owner) for name, part in given.items()}
        return pack_inputs(named, owner, dtype)
    if isinstance(given, tuple) and given and all(hasattr(part, "shape") for part in given):
        return pack_inputs(tuple(_tensor(part, owner) for part in given), owner, dtype)
    return _tensor(given, owner), None


def agree(
    read: Sequence[ReadSamples], owners: Sequence[str], ranks: Ranks
) -> tuple[list[Samples], tuple[str, ...]]:
    """Return the owners' samples with texts as class numbers, and the classes in order; refuse
    samples that do not fit each other.

    Raises
    ------
    ValueError
        Where owners have inputs of different columns or forms, or only some have texts.
    """
    for samples_of_owner, owner in zip(read, owners, strict=True):
        if samples_of_owner.inputs.layout != read[0].inputs.layout:
            raise ValueError(
                f"{owner}: layout {samples_of_owner.inputs.layout}, expected the same as "
                f"{owners[0]} has, {read[0].inputs.layout}"
            )
        if samples_of_owner.split != read[0].split:
            raise ValueError(
                f"{owner}: inputs {samples_of_owner.split}, expected the same as {owners[0]} has, "
                f"{read[0].split}"
            )
        if samples_of_owner.columns != read[0].columns:
            raise ValueError(
                f"{owner}: columns {samples_of_owner.columns}, expected the same as "
                f"{owners[0]} has, {read[0].columns}"
            )
    if read[0].columns and not read[0].inputs.is_sparse_csr:
        warn_of_identifiers(read[0].columns, read[0].inputs, owners[0])
    text_targets = [
        samples_of_owner.targets
        for samples_of_owner in read
        if isinstance(samples_of_owner.targets, np.ndarray)
    ]
    texts = {str(text) for targets in text_targets for text in targets.flat}
    # All ranks' texts, and whether a rank has texts alone.
    of_ranks = ranks.all_gather_object((sorted(texts), len(text_targets) == len(read)))
    classes = tuple(sorted(set().union(*(names for names, _ in of_ranks))))
    if classes and not all(all_texts for _, all_texts in of_ranks):
        raise ValueError("some targets are texts and some numbers, expected the same of all owners")
    samples = []
    for samples_of_owner in read:
        targets = samples_of_owner.targets
        if not isinstance(targets, Tensor):
            targets = torch.from_numpy(np.searchsorted(np.array(classes), targets.astype(str)))
        samples.append((samples_of_owner.inputs, targets))
    return samples, classes


def batch_size_of(clients: Sequence[Any]) -> int | None:
    """Return the size of the minibatches of clients' loaders; None where they have none."""
    sizes = {data.batch_size for data in clients if isinstance(data, DataLoader)}
    if len(sizes) > 1:
        raise ValueError(f"loaders have the batch sizes {sizes}, expected the same for all")
    return next(iter(sizes), None)


def _validate_sampler(loader: DataLoader[Any], owner: str) -> None:
    """Refuse loaders that select samples: minibatches are drawn by the run's seed."""
    if type(loader.sampler) not in (SequentialSampler, RandomSampler):
        raise ValueError(
            f"{owner}: a loader with a {type(loader.sampler).__name__}, expected one with "
            "shuffle=True or False: pass torch.utils.data.Subset for a selection"
        )


def _tensor(part: Any, owner: str) -> Tensor | npt.NDArray[np.str_]:
    """Return an array, frame, list or sparse matrix as a tensor, and texts as an array of them."""
    if isinstance(part, Tensor):
        return part if part.layout == torch.strided else part.to_sparse_csr()
    if hasattr(part, "tocsr"):
        return rows_of_scipy(part.tocsr())
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
    return tensor_of_array(part)


def lend_samples(samples: Sequence[Samples], share: float) -> tuple[list[Samples], Samples]:
    """Return the samples that clients keep, and all that they lend, together; a client lends
    ``share`` of its samples, rounded down, and so never its last.
    """
    if not 0 < share < 1:
        raise ValueError(f"held_out={share}, expected a share between 0 and 1")
    generator = torch.Generator().manual_seed(0)
    remaining: list[Samples] = []
    lent: list[Samples] = []
    for inputs, targets in samples:
        count = int(share * len(targets))
        rows = torch.randperm(len(targets), generator=generator)
        remaining.append((select_rows(inputs, rows[count:]), targets[rows[count:]]))
        if count:
            lent.append((select_rows(inputs, rows[:count]), targets[rows[:count]]))
    if not lent:
        raise ValueError("the clients have too few samples to lend some")
    pieces = [x for x, _ in lent]
    if pieces[0].is_sparse_csr:
        together = torch.cat([x.to_sparse() for x in pieces]).to_sparse_csr()
    else:
        together = torch.cat(pieces)
    return remaining, (together, torch.cat([y for _, y in lent]))


def first_samples(inputs: Tensor, count: int) -> Tensor:
    """Return a copy of the first samples, dense or in rows as the inputs are."""
    return select_rows(inputs, torch.arange(min(count, len(inputs)), device=inputs.device))


def in_dtype(model: nn.Module, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return inputs in the model's dtype where they are whole numbers that the model does not take
    as they are, as a trial on two samples shows.
    """
    if inputs.is_floating_point():
        return inputs
    first_inputs = first_samples(inputs, 2)
    fits = tried(model, first_inputs) is not None or tried(model, first_inputs.to(dtype)) is None
    return inputs if fits else inputs.to(dtype)


def tried(model: nn.Module, inputs: Tensor) -> Any:
    """Return a model's outputs for a few inputs; None where it fails, which validation explains."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return model(inputs.clone())
    except Exception:  # the user's code may fail in any way
        return None
