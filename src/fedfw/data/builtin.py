"""The data sets that ship with scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedfw.data.base import Data, Part, Request, every_fifth


def load_digits(request: Request) -> Data:
    """1,797 handwritten digits of 8 x 8 in [0, 1]."""
    # The file itself: importing scikit-learn takes longer than everything else a small run does.
    table = torch.from_numpy(np.loadtxt(_file("digits.csv.gz"), np.uint8, delimiter=","))
    inputs, targets = table[:, :-1].float().reshape(-1, 1, 8, 8) / 16, table[:, -1].long()
    test = every_fifth(len(inputs))
    return Data(request.name, Part(inputs[~test], targets[~test]), Part(inputs[test], targets[test]), 10)


def _file(name: str) -> Path:
    """A data file of scikit-learn, found without importing it."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "datasets" / "data" / name


def load_diabetes(request: Request) -> Data:
    """442 patients: ten features as they come, and a score with mean 0 and deviation 1 on the training part."""
    from sklearn import datasets

    features, scores = datasets.load_diabetes(return_X_y=True)
    inputs, targets = torch.from_numpy(features).float(), torch.from_numpy(scores)
    test = every_fifth(len(inputs))
    targets = ((targets - targets[~test].mean()) / targets[~test].std(correction=0)).float()
    return Data(request.name, Part(inputs[~test], targets[~test]), Part(inputs[test], targets[test]), None)
