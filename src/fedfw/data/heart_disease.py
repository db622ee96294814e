"""The UCI Heart Disease collection as FLamby prepared it: patients of four hospitals, and whether
they have a heart disease.

A file a hospital, each checked by its SHA-256 when it is read, so their contents are not checked
again. Of the 13 variables of a row three, which most hospitals lack, are left out, and so are rows
with a missing value. The kind of chest pain and the ECG become dummy variables. A disease of any
degree counts. FLamby standardises the variables by each hospital's own training data; here they
keep their scale, but the age is in centuries, and blood pressure, cholesterol and heart rate are in
hundreds, so that all of them are of order 1. That is a change of units and needs no data of others.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedfw.data.base import Data, Part, Request
from fedfw.data.sources import HEART_DISEASE_FILES, SOURCES, has_checksum

HOSPITALS = ("Cleveland", "Hungarian", "Switzerland", "VA Long Beach")
"""In the order of `HEART_DISEASE_FILES`: hospital 0 to 3 of the data set."""
COLUMNS = (
    "age",
    "male",
    "blood_pressure",
    "cholesterol",
    "blood_sugar",
    "heart_rate",
    "exercise_angina",
    "st_depression",
    "pain_2",
    "pain_3",
    "pain_4",
    "ecg_1",
    "ecg_2",
)
PATIENTS = {"train": 486, "test": 254}
_KEPT = 10  # columns of a row that are read; the target is the last of 14
_NUMBERS = (0, 1, 3, 4, 5, 7, 8, 9)
_HUNDREDS = (0, 2, 3, 5)  # of the numbers: age, pressure, cholesterol and heart rate
_LEVELS = ((2, (2, 3, 4)), (6, (1, 2)))  # columns of a row, and the levels that have a dummy
_SPLIT_SEED = 43  # FLamby's
_TRAIN, _TEST = 0.66, 0.34


def load_heart_disease(request: Request) -> Data:
    """Load 486 + 254 patients; targets are 0 or 1, owners the hospitals."""
    for path, source in zip(request.files, SOURCES["heart-disease"].sources, strict=True):
        if not has_checksum(path, source.sha256):
            raise ValueError(f"{path} is damaged: expected a file of SHA-256 {source.sha256}")
    hospitals = [read_hospital(path) for path in request.files]
    folds = [split_rows(targets) for _, targets in hospitals]
    train, test = (_part(hospitals, [fold[k] for fold in folds]) for k in range(2))
    return Data(request.name, train, test, 2, columns=COLUMNS)


def read_hospital(path: Path) -> tuple[Tensor, Tensor]:
    """Return variables (m, 13) and targets (m,) of a file's complete rows, in their order."""
    table = []
    targets = []
    with open(path, encoding="utf-8", newline="") as text:
        for row in csv.reader(text):
            variables = row[:_KEPT]
            if "?" in variables:  # a missing value
                continue
            values = [float(cell) for cell in variables]
            numbers = [values[j] for j in _NUMBERS]
            dummies = [float(values[j] == level) for j, levels in _LEVELS for level in levels]
            table.append(numbers + dummies)
            targets.append(int(float(row[-1]) > 0))  # 1 to 4 are degrees of the disease
    inputs = torch.tensor(table)
    inputs[:, list(_HUNDREDS)] /= 100
    return inputs, torch.tensor(targets)


def split_rows(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows for training and for testing of a hospital, as FLamby draws them: in
    proportion to the classes where each has more than two patients.
    """
    from sklearn.model_selection import train_test_split

    proportional = int(targets.bincount(minlength=2).min()) > 2
    train, test = train_test_split(
        torch.arange(len(targets)).numpy(),
        train_size=_TRAIN,
        test_size=_TEST,
        random_state=_SPLIT_SEED,
        shuffle=True,
        stratify=targets.numpy() if proportional else None,
    )
    return torch.from_numpy(train), torch.from_numpy(test)


def _part(hospitals: Sequence[tuple[Tensor, Tensor]], rows: Sequence[Tensor]) -> Part:
    """Return the part with these rows of each hospital, whose numbers are the owners."""
    inputs = [variables[chosen] for (variables, _), chosen in zip(hospitals, rows, strict=True)]
    targets = [diseases[chosen] for (_, diseases), chosen in zip(hospitals, rows, strict=True)]
    sizes = torch.tensor([len(part) for part in targets])
    owners = torch.arange(len(sizes)).repeat_interleave(sizes)
    assert len(sizes) == len(HEART_DISEASE_FILES)
    return Part(torch.cat(inputs), torch.cat(targets), {"hospital": owners})
