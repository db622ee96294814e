"""Data sets and how they are divided among clients."""

from fedfw.data.datasets import DATASETS, Data, load_data
from fedfw.data.partition import partition

__all__ = ["DATASETS", "Data", "load_data", "partition"]
