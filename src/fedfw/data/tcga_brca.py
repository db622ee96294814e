"""TCGA-BRCA as FLamby prepared it: patients with breast cancer from six regions, and when they died
or were last seen.

Two files: what is known of each patient, and who is for training or testing in which region. The
variables are those of FLamby, which standardises nothing: the age, and 38 times yes or no as 1 or
0. The age is in centuries here, so that all of them lie between 0 and 1. That is a change of units
and needs nobody's data; with years one direction would be ten thousand times as steep as the
others, and every method that takes gradient or oracle steps would crawl.
"""

from pathlib import Path

import torch

from fedfw.data.base import Data, Part, Request
from fedfw.data.csv_text import number_in, read_csv

VARIABLES, REGIONS = 39, 6
PATIENTS = {
    "train": (248, 156, 164, 129, 129, 40),
    "test": (63, 40, 42, 33, 33, 11),
}
"""In each region: nothing else would show that rows are missing."""
_CENTURY = 100.0  # years: the unit of the first variable
_LARGEST = 1 << 20  # bytes of a file; the patients' has 113 kB


def load_tcga_brca(request: Request) -> Data:
    """866 + 222 patients; targets are (whether the patient died, days), owners the regions."""
    patients, places = request.files
    parts = read_patients(patients, places, VARIABLES)
    for fold, part in parts.items():
        counts = tuple(part.owners["region"].bincount(minlength=REGIONS).tolist())
        if counts != PATIENTS[fold]:
            raise ValueError(
                f"{places} is damaged: {counts} patients of {fold}, expected {PATIENTS[fold]}"
            )
    return Data(request.name, parts["train"], parts["test"], None)


def read_patients(patients: Path, places: Path, variables: int) -> dict[str, Part]:
    """The parts "train" and "test", in the order of the file of patients; who has no place is left
    out.

    A row of ``patients`` is an id, the variables, whether the event was seen (1.0 or 0.0), and the
    days. A row of ``places`` is an id, train or test, and the same with the region, as in train_0.
    """
    where = _read_places(places)
    found: dict[str, tuple[list[list[float]], list[int]]] = {"train": ([], []), "test": ([], [])}
    rows = read_csv(patients, _LARGEST)
    names = next(rows)
    if len(names) != variables + 3 or (names[0], *names[-2:]) != ("pid", "E", "T"):
        raise ValueError(
            f"{patients} is damaged: {len(names)} columns, expected pid, {variables} variables, E and T"
        )
    for patient, *cells in rows:
        try:
            numbers = [number_in(cell, name) for cell, name in zip(cells, names[1:], strict=True)]
            if numbers[-2] not in (0, 1) or numbers[-1] < 0:
                raise ValueError(
                    f"E, T are {numbers[-2:]}, expected 0 or 1, and days of at least 0"
                )
        except ValueError as error:
            raise ValueError(f"{patients} is damaged: patient {patient[:40]!r}: {error}") from None
        if patient in where:
            fold, region = where.pop(patient)
            found[fold][0].append(numbers)
            found[fold][1].append(region)
    if where:
        raise ValueError(
            f"{patients} is damaged: no patient {min(where)[:40]!r}, expected all those of {places}"
        )
    parts = {}
    for fold, (table, regions) in found.items():
        if not table:
            raise ValueError(f"{places} is damaged: nobody is for {fold}, expected somebody")
        inputs, targets = (
            part.clone() for part in torch.tensor(table).tensor_split([variables], 1)
        )
        inputs[:, 0] /= _CENTURY
        parts[fold] = Part(inputs, targets, {"region": torch.tensor(regions)})
    return parts


def _read_places(path: Path) -> dict[str, tuple[str, int]]:
    """Train or test, and the region, by the patient's id."""
    rows = read_csv(path, _LARGEST)
    if (names := next(rows)) != ["pid", "fold", "fold2"]:
        raise ValueError(
            f"{path} is damaged: columns {', '.join(names)[:100]!r}, expected pid, fold and fold2"
        )
    found = {}
    for patient, fold, place in rows:
        name, _, region = place.partition("_")
        if (
            patient in found
            or fold not in PATIENTS
            or name != fold
            or region not in map(str, range(REGIONS))
        ):
            shown = f"{patient[:40]!r}, {fold[:40]!r}, {place[:40]!r}"
            raise ValueError(
                f"{path} is damaged: a row {shown}, expected a new patient, train or test, and its region"
            )
        found[patient] = fold, int(region)
    return found
