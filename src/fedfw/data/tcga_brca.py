"""TCGA-BRCA as FLamby prepared it: patients with breast cancer from six regions, and when they died
or were last seen.

Two files: the variables of each patient, and who is for training or testing in which region. Both
are checked by their SHA-256, so their contents are not checked again. The variables are those of
FLamby, which standardises nothing: the age, and 38 times yes or no as 1 or 0. The age is in
centuries here, so that all of them lie between 0 and 1. That is a change of units and needs no
data of others; with years one direction would be ten thousand times as steep as the others, and
every method that takes gradient or oracle steps would crawl.
"""

import csv
from pathlib import Path

import torch

from fedfw.data.base import Data, Part, Request
from fedfw.data.sources import SOURCES, has_checksum

VARIABLES = 39
PATIENTS = {"train": 866, "test": 222}
_CENTURY = 100.0  # years: the unit of the first variable


def load_tcga_brca(request: Request) -> Data:
    """Load 866 + 222 patients; targets are (whether the patient died, days), owners the regions."""
    for path, source in zip(request.files, SOURCES["tcga-brca"].sources, strict=True):
        if not has_checksum(path, source.sha256):
            raise ValueError(f"{path} is damaged: expected a file of SHA-256 {source.sha256}")
    patients, places = request.files
    train, test = (read_patients(patients, places, fold) for fold in PATIENTS)
    return Data(request.name, train, test, None)


def read_patients(patients: Path, places: Path, fold: str) -> Part:
    """Return the part of a fold, train or test, in the order of the file of patients.

    A row of ``patients`` is an id, the variables, whether the event was seen, and the days. A row
    of ``places`` is an id, the fold, and the same with the region, as in train_0. Patients without
    a place are left out.
    """
    with open(places, encoding="utf-8", newline="") as text:
        where = {row["pid"]: row["fold2"] for row in csv.DictReader(text)}
    table = []
    regions = []
    with open(patients, encoding="utf-8", newline="") as text:
        for patient, *cells in csv.reader(text):
            name, _, region = where.get(patient, "").partition("_")
            if name == fold:
                table.append([float(cell) for cell in cells])
                regions.append(int(region))
    # The last two columns are the event and the days.
    inputs, targets = (part.clone() for part in torch.tensor(table).tensor_split([-2], 1))
    inputs[:, 0] /= _CENTURY
    return Part(inputs, targets, {"region": torch.tensor(regions)})
