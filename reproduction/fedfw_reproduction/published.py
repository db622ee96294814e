"""The paper's numbers: test accuracy in per cent, as printed in its tables 1 to 3."""

from __future__ import annotations

Key = tuple[str, str, str, str]
"""(set, split, data, algorithm)"""


def _table(
    constraint: str, columns: list[tuple[str, str]], rows: dict[str, list[float]]
) -> dict[Key, float]:
    return {
        (constraint, split, data, algorithm): value
        for algorithm, values in rows.items()
        for (split, data), value in zip(columns, values, strict=True)
    }


_SPLITS = ("IID", "non-IID")
_CONVEX = [(split, data) for split in _SPLITS for data in ("MNIST", "Synthetic", "CIFAR-10")]
_NETWORKS = [(split, data) for split in _SPLITS for data in ("MNIST", "Synthetic")]
_STOCHASTIC = [
    (split, data)
    for split in _SPLITS
    for data in ("EMNIST-10", "EMNIST-62", "Synthetic", "CIFAR-10")
]

TABLE_1 = _table(
    "l2",
    _CONVEX,
    {
        "feddr": [89.59, 78.24, 39.95, 83.72, 92.97, 37.79],
        "fedfw": [86.96, 80.20, 36.30, 86.95, 94.81, 38.13],
        "fedfw+": [86.50, 79.96, 36.30, 86.98, 94.56, 37.20],
    },
) | _table(
    "l1",
    _CONVEX,
    {
        "feddr": [72.18, 79.00, 23.25, 74.29, 93.81, 24.77],
        "fedfw": [78.07, 81.63, 21.86, 80.54, 90.84, 25.08],
        "fedfw+": [69.17, 81.92, 21.99, 71.32, 91.20, 25.16],
    },
)
TABLE_2 = _table(
    "l2",
    _NETWORKS,
    {
        "feddr": [96.89, 75.96, 88.93, 93.85],
        "fedfw": [95.87, 81.70, 92.70, 96.13],
        "fedfw+": [95.05, 81.96, 91.79, 96.08],
    },
) | _table(
    "l1",
    _NETWORKS,
    {
        "feddr": [11.72, 78.59, 16.75, 93.51],
        "fedfw": [23.88, 75.52, 37.62, 91.53],
        "fedfw+": [20.40, 76.44, 36.27, 91.96],
    },
)
TABLE_3 = _table(
    "l2",
    _STOCHASTIC,
    {
        "feddr": [92.18, 39.58, 67.68, 36.39, 85.70, 41.09, 84.70, 34.91],
        "fedfw-sto": [93.79, 41.22, 72.01, 38.52, 91.88, 60.51, 87.32, 37.83],
    },
)
