"""From what users have to float64 tensors, with refusals that name the site and the column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.problems.survival import validate_event_times

Array = npt.NDArray[Any]
Target = Literal["number", "label", "survival"]
"""The kind of y: a number; a class, by its number or its name; or an event and its time."""


@dataclass(frozen=True)
class Part:
    """The form in which one site was given: see `as_sites`."""

    X: Any
    y: Any
    weights: Any
    offset: Any
    name: str


def parts_of_pairs(X: Any, sample_weight: Any, offset: Any) -> list[Part]:
    """Return the parts of a sequence of pairs (X, y)."""
    if not isinstance(X, list | tuple) or not X:
        raise ValueError("y is missing: expected X (m, p) and y (m,), or one pair (X, y) a site")
    parts = []
    for i, pair in enumerate(X):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"site {i} is a {type(pair).__name__}, expected a pair (X, y)")
        own: list[Any] = [None, None]
        for place, (what, given) in enumerate(
            (("sample_weight", sample_weight), ("offset", offset))
        ):
            if given is None:
                continue
            if len(given) != len(X):
                raise ValueError(
                    f"{what} of {len(given)} sites for {len(X)} sites, expected one array a site"
                )
            own[place] = given[i]
        parts.append(Part(pair[0], pair[1], own[0], own[1], f"site {i}"))
    return parts


def parts_by_group(whole: Part, groups: Any) -> list[Part]:
    """Return the rows by group, in the order of the sorted groups."""
    groups = np.asarray(groups)
    if groups.shape != (_length(whole.X),):
        raise ValueError(
            f"groups of shape {groups.shape}, expected one for each of {_length(whole.X)} rows"
        )
    if groups.dtype.kind == "O" or groups.dtype.kind == "f":
        missing = np.array([value is None or value != value for value in groups], dtype=bool)
        if missing.any():
            row = int(missing.nonzero()[0][0])
            raise ValueError(f"groups: row {row} has none, expected the holder of every row")
    parts = []
    for group in _sorted_groups(groups):
        rows = np.flatnonzero(groups == group)
        part = Part(
            _take(whole.X, rows),
            _take(whole.y, rows),
            _take(whole.weights, rows),
            _take(whole.offset, rows),
            str(group),
        )
        parts.append(part)
    return parts


def _sorted_groups(groups: Array) -> Array:
    """Return the groups in order; refuse kinds that have none, such as texts beside numbers."""
    try:
        return np.unique(groups)
    except TypeError:
        kinds = sorted({type(group).__name__ for group in groups})
        raise ValueError(
            f"groups are of several types, {', '.join(kinds)}, expected one: use groups.astype(str)"
        ) from None


def _take(part: Any, rows: Array) -> Any:
    """Return these rows of an array, frame or series; None for None."""
    if part is None:
        return None
    return part.iloc[rows] if hasattr(part, "iloc") else np.asarray(part)[rows]


def _length(part: Any) -> int:
    """Return the number of rows."""
    return int(part.shape[0]) if hasattr(part, "shape") and part.shape else len(part)


def validate_lengths(part: Part) -> None:
    """Refuse a site without rows, and columns of unequal lengths."""
    m = _length(part.X)
    if m == 0:
        raise ValueError(f"{part.name} has no rows, expected at least one: leave the site out")
    for what, given in (("y", part.y), ("sample_weight", part.weights), ("offset", part.offset)):
        if given is not None and (np.ndim(given) == 0 or _length(given) != m):
            raise ValueError(
                f"{part.name}: {what} of shape {np.shape(given)} for {m} rows of X, expected one "
                "value a row"
            )


def columns_of(part: Part, labels: tuple[str, ...] | None, first: str) -> tuple[str, ...] | None:
    """Return the columns' names, None for arrays; refuse any that differ from the first site's."""
    own = None
    if hasattr(part.X, "columns"):
        own = tuple(map(str, part.X.columns))
    if labels is not None and own is not None and own != labels:
        raise ValueError(
            f"{part.name} has the columns {', '.join(own)}, expected those of {first} in their "
            f"order: {', '.join(labels)}"
        )
    return labels if own is None else own


def matrix_of(X: Any, name: str) -> npt.NDArray[np.float64]:
    """Return X as a new float64 array (m, p)."""
    if hasattr(X, "tocsr"):
        raise ValueError(f"{name}: X is sparse, expected a dense array: use X.toarray()")
    try:
        matrix = np.array(X.to_numpy() if hasattr(X, "to_numpy") else X, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: X has values that are no numbers, expected numbers: encode texts as columns "
            "of 0 and 1 (pandas.get_dummies)"
        ) from None
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise ValueError(f"{name}: X of shape {matrix.shape}, expected (rows, columns)")
    return matrix


def refuse_missing(
    matrices: list[npt.NDArray[np.float64]], parts: list[Part], labels: tuple[str, ...] | None
) -> None:
    """Refuse unequal numbers of columns, and missing or infinite values, by their column."""
    p = matrices[0].shape[1]
    bad = np.zeros(p, dtype=bool)
    where = []
    for matrix, part in zip(matrices, parts, strict=True):
        if matrix.shape[1] != p:
            raise ValueError(
                f"{part.name} has {matrix.shape[1]} columns, expected {p} as {parts[0].name} has"
            )
        own = ~np.isfinite(matrix).all(0)
        bad |= own
        if own.any():
            where.append(part.name)
    if bad.any():
        names = [str(j) if labels is None else labels[j] for j in bad.nonzero()[0]]
        raise ValueError(
            f"X has NaN or infinity (missing values) in the columns {', '.join(names)} of "
            f"{', '.join(where)}, expected finite numbers: impute them, or leave rows out"
        )


def labels_of(part: Part) -> Array:
    """Return the labels (m,) of a site; refuses missing ones."""
    labels = np.asarray(part.y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"{part.name}: y of shape {labels.shape}, expected one label a row")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"{part.name}: y has NaN or infinity, expected a label in every row")
    return labels


def targets_of(part: Part, target: Target, classes: Array | None) -> Tensor:
    """Return y as float64: (m,), or (m, 2) for survival."""
    if classes is not None:
        return torch.from_numpy(np.searchsorted(classes, labels_of(part)).astype(np.float64))
    y = np.asarray(part.y)
    if target == "survival":
        if y.dtype.names is not None:
            y = _columns_of(y, part.name)
        pairs = torch.from_numpy(np.array(y, dtype=np.float64))
        validate_event_times(pairs, part.name)
        return pairs
    values = torch.from_numpy(np.array(y, dtype=np.float64))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(
            f"{part.name}: y of shape {tuple(values.shape)}, expected one number a row"
        )
    if not bool(values.isfinite().all()):
        raise ValueError(f"{part.name}: y has NaN or infinity, expected finite numbers")
    return values


def _columns_of(y: Array, name: str) -> Array:
    """Return the two fields of a structured array as columns event and time, (m, 2)."""
    fields = y.dtype.names or ()
    if len(fields) != 2:
        raise ValueError(f"{name}: y has the fields {fields}, expected two: event and time")
    first, second = (y[field] for field in fields)
    if first.dtype.kind != "b" and second.dtype.kind == "b":
        first, second = second, first
    return np.column_stack([first.astype(np.float64), second.astype(np.float64)])


def row_numbers(given: Any, what: str, part: Part) -> Tensor | None:
    """Return numbers (m,) in float64; None for None."""
    if given is None:
        return None
    values = torch.from_numpy(np.array(given, dtype=np.float64))
    if values.ndim != 1 or not bool(values.isfinite().all()):
        raise ValueError(
            f"{part.name}: {what} of shape {tuple(values.shape)} with NaN or infinity or not one "
            "number a row, expected a finite number for every row"
        )
    return values
