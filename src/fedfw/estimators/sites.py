"""The data of several sites, from what users have: arrays or frames with a column that says who
holds a row, or one pair (X, y) a site.

Everything is float64 from here on. A `Site` is what one client holds; estimators ask it for sums
over its rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfw.estimators.reading import (
    Array,
    Part,
    Target,
    columns_of,
    labels_of,
    matrix_of,
    parts_by_group,
    parts_of_pairs,
    refuse_missing,
    row_numbers,
    targets_of,
    validate_lengths,
)


@dataclass(frozen=True, eq=False)
class Site:
    """The rows of one client.

    Parameters
    ----------
    X : Tensor
        (m, p), float64.
    y : Tensor
        (m,), float64; class numbers from 0 for labels; (m, 2) pairs (event, time) for survival.
    weights, offset : Tensor, optional
        (m,): what a row's term is multiplied by, and what is added to its linear predictor.
    name : str
        Of the site, for messages.
    """

    X: Tensor
    y: Tensor
    weights: Tensor | None = None
    offset: Tensor | None = None
    name: str = "site 0"

    def __len__(self) -> int:
        return len(self.X)

    @cached_property
    def row_weights(self) -> Tensor:
        """Return the weights (m,), which are 1 where none were given."""
        return torch.ones_like(self.X[:, 0]) if self.weights is None else self.weights

    def rows(self, chosen: Tensor) -> Site:
        """Return the site with these rows, numbers (k,) or a mask (m,)."""
        weights = None if self.weights is None else self.weights[chosen]
        offset = None if self.offset is None else self.offset[chosen]
        return Site(self.X[chosen], self.y[chosen], weights, offset, self.name)


@dataclass(frozen=True, eq=False)
class Sites(Sequence[Site]):
    """The sites of one study, with the names of the columns that all of them have.

    Parameters
    ----------
    sites : tuple of Site
    names : tuple of str
        Of the p columns.
    named : bool
        Whether the names come from a frame.
    classes : array, optional
        The labels that the class numbers stand for, in order.
    """

    sites: tuple[Site, ...]
    names: tuple[str, ...]
    named: bool = False
    classes: Array | None = None

    def __len__(self) -> int:
        return len(self.sites)

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __getitem__(self, i: Any) -> Any:
        return self.sites[i]

    @property
    def p(self) -> int:
        """Return the number of columns."""
        return len(self.names)

    @property
    def n(self) -> int:
        """Return the number of rows of all sites."""
        return sum(len(site) for site in self.sites)

    @property
    def weight(self) -> float:
        """Return the sum of all rows' weights."""
        return sum(float(site.row_weights.sum()) for site in self.sites)

    def transformed(self, transform: Callable[[Tensor], Tensor]) -> Sites:
        """Return the same with each site's X replaced by ``transform(X)``, (m, p)."""
        return replace(self, sites=tuple(replace(s, X=transform(s.X)) for s in self.sites))

    def pooled_rows(self) -> Site:
        """Return the rows of all sites as one site, in the order of the sites.

        It is for comparisons on one machine: a federated fit never calls it.
        """
        weights = None
        offset = None
        if any(site.weights is not None for site in self.sites):
            weights = torch.cat([site.row_weights for site in self.sites])
        if any(site.offset is not None for site in self.sites):
            offset = torch.cat(
                [
                    torch.zeros_like(site.X[:, 0]) if site.offset is None else site.offset
                    for site in self.sites
                ]
            )
        X = torch.cat([site.X for site in self.sites])
        return Site(X, torch.cat([site.y for site in self.sites]), weights, offset, "all sites")

    def pooled(self) -> Sites:
        """Return all rows as the only site, for comparisons on one machine."""
        return replace(self, sites=(self.pooled_rows(),))


def as_sites(
    X: Any,
    y: Any = None,
    groups: Any = None,
    *,
    sample_weight: Any = None,
    offset: Any = None,
    target: Target = "number",
) -> Sites:
    """Return the sites of rows with groups, or of one pair (X, y) a site.

    Parameters
    ----------
    X : array, frame, or sequence of pairs
        (m, p) with ``y``; or one pair (X, y) a site, without ``y`` and ``groups``.
    y : array, optional
        (m,) numbers or labels; for survival (m, 2) columns event and time, or a structured array
        with these two fields.
    groups : array, optional
        (m,) whose each row is; sites are in the order of the sorted groups. Without groups, all
        rows are one site.
    sample_weight, offset : array, optional
        (m,); one array a site where X is one pair a site.
    target : str
        What y is: ``"number"``, ``"label"`` or ``"survival"``.

    Raises
    ------
    ValueError
        For missing values (with the columns' names), text columns, unequal columns and lengths,
        sites without rows, and negative weights.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.ones((4, 2)), np.array([1.0, 2.0, 3.0, 4.0])
    >>> sites = as_sites(X, y, groups=["north", "south", "north", "south"])
    >>> [(site.name, site.y.tolist()) for site in sites]
    [('north', [1.0, 3.0]), ('south', [2.0, 4.0])]
    >>> as_sites([(X, y), (X[:1], y[:1])]).n
    5
    """
    if y is None:
        if groups is not None:
            raise ValueError("groups without y, expected X (m, p), y and groups, or pairs (X, y)")
        parts = parts_of_pairs(X, sample_weight, offset)
    else:
        whole = Part(X, y, sample_weight, offset, "all rows")
        validate_lengths(whole)
        parts = [whole] if groups is None else parts_by_group(whole, groups)
    matrices = []
    labels = None
    for part in parts:
        validate_lengths(part)
        labels = columns_of(part, labels, parts[0].name)
        matrices.append(matrix_of(part.X, part.name))
    refuse_missing(matrices, parts, labels)
    p = matrices[0].shape[1]
    names = labels if labels is not None else tuple(f"x{j}" for j in range(p))
    classes = None
    if target == "label":
        classes = np.unique(np.concatenate([np.unique(labels_of(part)) for part in parts]))
    sites = []
    for part, matrix in zip(parts, matrices, strict=True):
        values = targets_of(part, target, classes)
        weights = row_numbers(part.weights, "sample_weight", part)
        if weights is not None and bool((weights < 0).any()):
            raise ValueError(
                f"{part.name}: a negative sample_weight, expected numbers of at least 0"
            )
        shifts = row_numbers(part.offset, "offset", part)
        sites.append(Site(torch.from_numpy(matrix), values, weights, shifts, part.name))
    found = Sites(tuple(sites), names, labels is not None, classes)
    if found.weight <= 0:
        raise ValueError("sample_weight is zero for all rows, expected a positive one")
    return found
