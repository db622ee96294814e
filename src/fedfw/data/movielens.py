"""MovieLens-100k: ratings 1 .. 5 of 1,682 films by 943 users, less what users and films explain on
average.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedfw.data.base import Data, Part, Request

USERS = 943
ITEMS = 1682
RATINGS = 100_000
_LINE = 64  # bytes of a line, at most

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def load_ml_100k(request: Request) -> Data:
    """Load MovieLens-100k; a fifth of the ratings, drawn by the seed, is for testing.

    Targets are rating - mean of the user - mean of the film, so that predicting 0 is to predict by
    the means alone.
    """
    table = read_ratings(request.files[0], USERS, ITEMS, RATINGS)
    shuffled = np.random.Generator(np.random.PCG64(request.seed)).permutation(len(table))
    held_out = np.zeros(len(table), bool)
    held_out[shuffled[: len(table) // 5]] = True
    residuals = without_means(table, ~held_out, USERS, ITEMS)
    train, test = (
        Part(
            torch.from_numpy(table[rows, :2]),
            torch.from_numpy(residuals[rows]).float(),
            {"user": torch.from_numpy(table[rows, 0])},
        )
        for rows in (~held_out, held_out)
    )
    return Data(request.name, train, test, None, (USERS, ITEMS))


def read_ratings(path: Path, users: int, items: int, ratings: int) -> Indices:
    """Return (ratings, 3): user and item from 0, and the rating.

    A line is user, item, rating and time, with tabs between them. The number of lines is checked
    because nothing else in the file would show that it was cut off.
    """
    size = path.stat().st_size
    if size > _LINE * ratings:
        raise ValueError(
            f"{path} is damaged: {size} bytes, expected at most {_LINE} for each of {ratings} "
            "ratings"
        )
    try:
        table: Indices = np.loadtxt(path, np.int64, comments=None, delimiter="\t", ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if table.shape != (ratings, 4):
        raise ValueError(
            f"{path} is damaged: {table.shape[0]} lines of {table.shape[1]}, expected {ratings} of "
            "4 numbers"
        )
    highest = np.array([users, items, 5])
    bad = ((table[:, :3] < 1) | (table[:, :3] > highest)).any(1)
    if bad.any():
        line = int(bad.argmax())
        raise ValueError(
            f"{path} is damaged: {table[line, :3]} in line {line + 1}, expected user, item and "
            f"rating from 1 to {highest}"
        )
    table = table[:, :3] - np.array([1, 1, 0])  # users and items count from 0, ratings stay
    if len(np.unique(table[:, 0] * items + table[:, 1])) < ratings:
        raise ValueError(f"{path} is damaged: a user rates an item twice")
    return table


def without_means(table: Indices, train: npt.NDArray[np.bool_], users: int, items: int) -> Numbers:
    """Return (ratings,): what remains of each rating; the means are those of the training rows
    alone.

    First each user's mean goes (the overall mean for users without ratings), then each item's mean
    of what remains (0 for items without ratings).
    """
    residuals = table[:, 2].astype(np.float64)
    # Column 0 has the users, column 1 the items.
    for column, count, otherwise in ((0, users, residuals[train].mean()), (1, items, 0.0)):
        owner = table[:, column]
        seen = np.bincount(owner[train], minlength=count)
        total = np.bincount(owner[train], residuals[train], minlength=count)
        means = np.where(seen > 0, total / np.maximum(seen, 1), otherwise)
        residuals = residuals - means[owner]
    return residuals
