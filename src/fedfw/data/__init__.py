"""Data sets and how they are divided among clients."""

from fedfw.data.base import Columns, Data, Part
from fedfw.data.datasets import DATASETS, USUAL_CLIENTS, load_data
from fedfw.data.folder import MissingDataError, data_folder
from fedfw.data.partition import partition

__all__ = [
    "DATASETS",
    "USUAL_CLIENTS",
    "Columns",
    "Data",
    "MissingDataError",
    "Part",
    "data_folder",
    "load_data",
    "partition",
]
