"""Two classes that depend on few of many features: sparse logistic regression, where an l1 ball is the right set.

Features are signs drawn by coins. Ten of them matter: P(y = 1) = sigmoid of the sum of those ten, each with a sign of
its own. ``sparse:P`` has P features, plain ``sparse`` a thousand; 5,000 samples are for training, 2,000 for testing.
"""

import torch

from fedfw.data.base import Data, Part, Request
from fedfw.data.limits import check_drawn

FEATURES, MATTER, SAMPLES = 1000, 10, (5000, 2000)
_DRAWN = 16  # bytes that an input takes while it is drawn: a whole number, and float32 twice


def load_sparse(request: Request) -> Data:
    """Drawn from the seed."""
    features = int(request.argument) if request.argument.isdecimal() else 0 if request.argument else FEATURES
    if features < MATTER:
        raise ValueError(f"unknown data 'sparse:{request.argument}', expected sparse:P with at least {MATTER} features")
    check_drawn(sum(SAMPLES) * features * _DRAWN, f"sparse:{features}")
    draw = torch.Generator().manual_seed(request.seed)
    inputs = 2.0 * torch.randint(0, 2, (sum(SAMPLES), features), generator=draw) - 1
    places, signs = torch.randperm(features, generator=draw)[:MATTER], torch.randint(0, 2, (MATTER,), generator=draw)
    chances = (inputs[:, places] @ (2.0 * signs - 1)).sigmoid()
    targets = (torch.rand(sum(SAMPLES), generator=draw) < chances).long()
    cut = SAMPLES[0]
    return Data(f"sparse:{features}", Part(inputs[:cut], targets[:cut]), Part(inputs[cut:], targets[cut:]), 2)
