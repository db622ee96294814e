"""Data sets without files to download: those that ship with scikit-learn, and those that are drawn
from the seed.
"""

import math
from importlib.metadata import distribution

import numpy as np
import numpy.typing as npt
import torch

from fedfw.data.base import Data, Part, Request, every_fifth, in_fifths
from fedfw.data.limits import check_drawn

SPARSE_FEATURES = 1000
MATTER = 10
SPARSE_SAMPLES = (5000, 2000)
# bytes that an input of `load_sparse` takes while it is drawn: a whole number, and float32 twice
_DRAWN = 16
FORMS = ("iid", "A,B", "published-10", "published-3")
FEATURES = 60
LARGEST = 20_000
_FEWEST = 50
# Bytes of a sample's inputs and class, which are there twice when clients are joined.
_SAMPLE = 2 * (4 * FEATURES + 8)

Numbers = npt.NDArray[np.float64]
Model = tuple[Numbers, Numbers]  # W (classes, features) and b (classes,)
Samples = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]
_DEVIATIONS = np.arange(1, FEATURES + 1) ** -0.6  # the square root of Sigma


# --- of scikit-learn ---


def load_digits(request: Request) -> Data:
    """Load 1,797 handwritten digits of 8 x 8 in [0, 1]."""
    # The file itself: importing scikit-learn takes longer than everything else a small run does.
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(str(path), np.uint8, delimiter=","))
    inputs = table[:, :-1].float().reshape(-1, 1, 8, 8) / 16
    targets = table[:, -1].long()
    return in_fifths(request.name, inputs, targets, 10)


def load_diabetes(request: Request) -> Data:
    """Load 442 patients: ten features as they come, and a score with mean 0 and deviation 1 on the
    training part.
    """
    from sklearn import datasets

    features, scores = datasets.load_diabetes(return_X_y=True)
    inputs = torch.from_numpy(features).float()
    targets = torch.from_numpy(scores)
    test = every_fifth(len(inputs))
    targets = ((targets - targets[~test].mean()) / targets[~test].std(correction=0)).float()
    return in_fifths(request.name, inputs, targets, None)


# --- drawn: a sparse classifier ---


def load_sparse(request: Request) -> Data:
    """Draw two classes that depend on few of many features, where an l1 ball is the right set.

    Features are signs drawn by coins. Ten of them matter: P(y = 1) = sigmoid of the sum of those
    ten, each with a sign of its own. ``sparse:P`` has P features, plain ``sparse`` a thousand;
    5,000 samples are for training, 2,000 for testing.
    """
    text = request.argument or str(SPARSE_FEATURES)
    features = int(text) if text.isdecimal() else 0
    if features < MATTER:
        raise ValueError(
            f"unknown data 'sparse:{request.argument}', expected sparse:P with at least {MATTER} "
            "features"
        )
    check_drawn(sum(SPARSE_SAMPLES) * features * _DRAWN, f"sparse:{features}")
    draw = torch.Generator().manual_seed(request.seed)
    # 2 b - 1 for a bit b is a sign, -1 or 1.
    inputs = 2.0 * torch.randint(0, 2, (sum(SPARSE_SAMPLES), features), generator=draw) - 1
    places = torch.randperm(features, generator=draw)[:MATTER]
    signs = torch.randint(0, 2, (MATTER,), generator=draw)
    chances = (inputs[:, places] @ (2.0 * signs - 1)).sigmoid()
    targets = (torch.rand(sum(SPARSE_SAMPLES), generator=draw) < chances).long()
    cut = SPARSE_SAMPLES[0]
    return Data(
        f"sparse:{features}",
        Part(inputs[:cut], targets[:cut]),
        Part(inputs[cut:], targets[cut:]),
        2,
    )


# --- drawn: clients of FedProx ---


def load_synthetic(request: Request) -> Data:
    """Draw the synthetic classification of FedProx (Li et al., 2020), also used by pFedMe (Dinh et
    al., 2020).

    Sixty features with covariance Sigma = diag(j^-1.2). For client k,

        u_k ~ N(0, alpha)    W_k, b_k entries ~ N(u_k, 1)
        B_k ~ N(0, beta)     v_k entries ~ N(B_k, 1)
        x ~ N(v_k, Sigma)    y = argmax softmax(W_k x + b_k)

    so that alpha says how much the clients' models differ and beta how much their inputs do. As in
    the published generators, alpha and beta are standard deviations, although the papers write them
    as if they were variances. A client has 50 + floor(lognormal(4, 2)) samples, at most 20,000 here
    (the tail is heavy: without a cap one in a few thousand has over 50,000).

    Forms of the name:

    ``synthetic:A,B``
        alpha = A, beta = B, ten classes; plain ``synthetic`` is ``synthetic:1,1``. Note that with
        0,0 each client still has a model and a mean of its own.
    ``synthetic:iid``
        One W and b ~ N(0, 1) for all clients and v_k = 0.
    ``synthetic:published-10``, ``synthetic:published-3``
        The data behind the published numbers of FedFW: as iid, with ten or three classes (the "3
        labels" case is a problem of three classes that all clients share) and five times the
        samples.

    Every client draws from a child seed of its own, so client k is the same whatever the number of
    clients. A quarter of each client's samples (at least one) is for testing.
    """
    spread, classes, times = _parse(request.argument)
    check_drawn(
        request.clients * times * _FEWEST * _SAMPLE, f"synthetic for {request.clients} clients"
    )
    # The first child draws the shared model, the others one client each.
    for_shared_model, *for_clients = (
        np.random.Generator(np.random.PCG64(child))
        for child in np.random.SeedSequence(request.seed).spawn(1 + request.clients)
    )
    shared = _draw_model(for_shared_model, 0.0, classes)
    train: list[Samples] = []
    test: list[Samples] = []
    drawn = 0
    for random in for_clients:
        samples = client_size(random, times)
        drawn += samples
        check_drawn(drawn * _SAMPLE, f"synthetic for {request.clients} clients")
        if spread is None:
            inputs, labels = _draw_samples(random, samples, 0.0, shared)
        else:
            alpha, beta = spread
            model = _draw_model(random, random.normal(0, alpha), classes)
            mean = random.normal(random.normal(0, beta), 1, FEATURES)
            inputs, labels = _draw_samples(random, samples, mean, model)
        cut = samples - max(1, samples // 4)
        train.append((inputs[:cut], labels[:cut]))
        test.append((inputs[cut:], labels[cut:]))
    name = f"{request.name}:{request.argument}" if request.argument else request.name
    return Data(name, _joined(train), _joined(test), classes)


def client_size(random: np.random.Generator, times: int) -> int:
    """Return the number of samples of one client."""
    return min(LARGEST, times * (_FEWEST + math.floor(random.lognormal(4, 2))))


def _draw_model(random: np.random.Generator, mean: float, classes: int) -> Model:
    """Return W (classes, features) and b (classes,)."""
    return random.normal(mean, 1, (classes, FEATURES)), random.normal(mean, 1, classes)


def _draw_samples(
    random: np.random.Generator, samples: int, mean: Numbers | float, model: Model
) -> Samples:
    """Return inputs (samples, features) in float32 and the classes the model gives them."""
    weights, bias = model
    inputs = (mean + random.standard_normal((samples, FEATURES)) * _DEVIATIONS).astype(np.float32)
    return inputs, (inputs @ weights.T + bias).argmax(1)


def _parse(argument: str) -> tuple[tuple[float, float] | None, int, int]:
    """Return (alpha, beta), None for one model shared by all clients; the number of classes; and
    the factor of the clients' sizes.
    """
    forms = {
        "": ((1.0, 1.0), 10, 1),
        "iid": (None, 10, 1),
        "published-10": (None, 10, 5),
        "published-3": (None, 3, 5),
    }
    if argument in forms:
        return forms[argument]
    try:
        alpha, beta = map(float, argument.split(","))
    except ValueError:
        alpha = beta = math.nan  # refused below, like numbers out of range
    if not (0 <= alpha < math.inf and 0 <= beta < math.inf):
        expected = ", ".join(f"synthetic:{form}" for form in FORMS)
        raise ValueError(
            f"unknown data 'synthetic:{argument}', expected one of {expected} (A and B at least 0)"
        )
    return (alpha, beta), 10, 1


def _joined(pieces: list[Samples]) -> Part:
    """Return the clients' samples as one part, which remembers whose each sample is."""
    inputs, labels = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    owners = np.repeat(np.arange(len(pieces)), [len(labels) for _, labels in pieces])
    return Part(
        torch.from_numpy(inputs), torch.from_numpy(labels), {"client": torch.from_numpy(owners)}
    )
