"""The data sets that ship with scikit-learn."""

from __future__ import annotations

import torch

from fedfw.data.base import Data, Part, Request, every_fifth


def load_digits(request: Request) -> Data:
    """1,797 handwritten digits of 8 x 8 in [0, 1]."""
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    inputs, targets = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(labels).long()
    test = every_fifth(len(inputs))
    return Data(request.name, Part(inputs[~test], targets[~test]), Part(inputs[test], targets[test]), 10)


def load_diabetes(request: Request) -> Data:
    """442 patients: ten features as they come, and a score with mean 0 and deviation 1 on the training part."""
    from sklearn import datasets

    features, scores = datasets.load_diabetes(return_X_y=True)
    inputs, targets = torch.from_numpy(features).float(), torch.from_numpy(scores)
    test = every_fifth(len(inputs))
    targets = ((targets - targets[~test].mean()) / targets[~test].std(correction=0)).float()
    return Data(request.name, Part(inputs[~test], targets[~test]), Part(inputs[test], targets[test]), None)
