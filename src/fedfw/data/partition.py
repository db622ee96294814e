"""Who holds which samples."""

import heapq
import re
import warnings

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.data.base import Data, Part
from fedfw.data.folder import MissingDataError
from fedfw.options import nearest, parse_number

OWNERS = ("writer", "user", "client", "speaker", "region")
RULES = ("iid", "labels:K", "labels:K,unequal", "dirichlet:ALPHA", *OWNERS)


def partition(
    partition: str, data: Data | Part, clients: int = 10, classes: int | None = None, seed: int = 0
) -> list[Tensor]:
    """Divide a data set among clients.

    Parameters
    ----------
    partition : str
        ``iid``: shuffled and dealt out evenly.

        ``labels:k``: client i holds labels i, ..., i+k-1 modulo the classes; each label's samples
        are shuffled and split evenly among its holders.

        ``labels:k,unequal``: the same holders, but a label's samples are divided in proportion to
        lognormal(0, 2) draws; every holder gets one at least where there are enough.

        ``dirichlet:alpha``: each label's samples are divided among all clients by a
        Dirichlet(alpha) draw; a client left with nothing is given one sample of the largest client.

        ``writer``, ``user``, ``client``, ``speaker``, ``region``: whole natural owners. As many
        clients as owners: client i is the owner with the i-th smallest id. Fewer: owners go,
        largest first (equal ones in random order), to the client that has the fewest samples.
    data : Data or Part
        What `fedfw.load_data` gave, of which the training samples are divided; or samples alone.
    clients : int
        How many clients there are.
    classes : int, optional
        Targets are in 0 .. classes - 1; None where they are numbers. A `Data` has it.
    seed : int
        Fixes what is drawn.

    Returns
    -------
    list of Tensor
        The numbers of each client's samples, (samples,) each. No sample is given twice, and none is
        left out but those of labels that no client holds.

    Raises
    ------
    ValueError
        If the name is unknown or does not go with the data, or a client would have no samples.

    Examples
    --------
    >>> import fedfw
    >>> parts = fedfw.partition("labels:3", fedfw.load_data("digits"), clients=10)
    >>> len(parts), sum(map(len, parts))
    (10, 1437)
    """
    rule = partition.lower()
    if isinstance(data, Data):
        classes = data.classes
        data = data.train
    if clients < 1:
        raise ValueError(f"clients={clients}, expected at least 1")
    # Refused before a list of so many parts is made, which a huge number would not survive.
    if rule not in OWNERS and clients > len(data):
        raise ValueError(
            f"partition {rule!r} leaves client {len(data)} of {clients} without samples"
        )
    if rule == "iid":
        parts = list(torch.randperm(len(data), generator=_generator(seed)).tensor_split(clients))
    elif rule in OWNERS:
        parts = _by_owners(_owners(rule, data), rule, clients, seed)
    else:
        parts = _by_class(rule, data.targets, clients, classes, seed)
    empty = [i for i, part in enumerate(parts) if not len(part)]
    if empty:
        raise ValueError(
            f"partition {rule!r} leaves client {empty[0]} of {clients} without samples"
        )
    return parts


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- by class


def _by_class(
    rule: str, labels: Tensor, clients: int, classes: int | None, seed: int
) -> list[Tensor]:
    """Divide samples by their classes, as ``labels:K`` or ``dirichlet:ALPHA`` says."""
    name, _, value = rule.partition(":")
    choice = re.fullmatch("([0-9]+)(,unequal)?", value)
    alpha = parse_number(value)
    if name in ("labels", "dirichlet"):
        if classes is None or labels.ndim > 1:
            kind = "numbers" if classes is None else "sequences"
            raise ValueError(
                f"partition {rule!r} goes by classes, but the targets are {kind}: expected iid or "
                "owners"
            )
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(
                f"classes {int(labels.min())} .. {int(labels.max())}, expected 0 .. {classes - 1}"
            )
        if name == "labels" and choice and 1 <= int(choice[1]) <= classes:
            return _by_labels(labels, clients, classes, int(choice[1]), bool(choice[2]), seed)
        # Draws with a huge ALPHA are not shares any more, and 1e6 is even enough.
        if name == "dirichlet" and isinstance(alpha, int | float) and 0 < alpha <= 1e6:
            return _by_dirichlet(labels, clients, classes, alpha, seed)
    limits = f"K from 1 to {classes or 'the number of classes'}, ALPHA above 0 and at most 1e6"
    rules = ("iid", "labels", "dirichlet", *OWNERS)
    close = "" if name in rules else nearest(name, rules)
    raise ValueError(
        f"unknown partition {rule!r}{close}, expected one of {', '.join(RULES)} ({limits})"
    )


def _by_labels(
    labels: Tensor, clients: int, classes: int, k: int, unequal: bool, seed: int
) -> list[Tensor]:
    """Give each client samples of k labels: client i holds labels i, ..., i + k - 1 modulo their
    number, and those who hold a label share its samples, equally or by log-normal draws.
    """
    generator = _generator(seed)
    pieces: list[list[Tensor]] = [[] for _ in range(clients)]
    unheld = 0
    for label in range(classes):
        samples = _shuffled(labels == label, generator)
        holders = [i for i in range(clients) if (label - i) % classes < k]
        if not holders:
            unheld += 1
            continue
        shares = samples.tensor_split(len(holders))
        if unequal:
            # exp(2 z) for a normal z is lognormal(0, 2).
            draws = (2 * torch.randn(len(holders), generator=generator, dtype=torch.float64)).exp()
            shares = _divide(samples, draws.numpy(), least=1 if len(samples) >= len(holders) else 0)
        for holder, share in zip(holders, shares, strict=True):
            pieces[holder].append(share)
    if unheld:
        warnings.warn(
            f"with {clients} clients and labels:{k}, {unheld} of {classes} labels are held by no "
            "client"
        )
    return [torch.cat(parts) for parts in pieces]


def _by_dirichlet(
    labels: Tensor, clients: int, classes: int, alpha: float, seed: int
) -> list[Tensor]:
    """Divide the samples of each label in proportions drawn from Dirichlet(alpha, ..., alpha); a
    client without samples takes one of the largest client, because an empty client has no loss.
    """
    generator = _generator(seed)
    random = np.random.Generator(np.random.PCG64(seed))  # torch has no seeded Dirichlet
    shares = [
        _divide(_shuffled(labels == label, generator), random.dirichlet([alpha] * clients))
        for label in range(classes)
    ]
    parts = [torch.cat(of_client) for of_client in zip(*shares, strict=True)]
    for i in range(clients):
        if not len(parts[i]):
            largest = max(range(clients), key=lambda j: len(parts[j]))
            parts[i] = parts[largest][-1:]
            parts[largest] = parts[largest][:-1]
    return parts


def _shuffled(chosen: Tensor, generator: torch.Generator) -> Tensor:
    """Return the numbers of the samples that a mask (samples,) chooses, in random order."""
    samples = chosen.nonzero().flatten()
    return samples[torch.randperm(len(samples), generator=generator)]


def _divide(
    samples: Tensor, weights: npt.NDArray[np.float64], least: int = 0
) -> tuple[Tensor, ...]:
    """Return consecutive pieces of ``least`` samples and of the others in proportion to the
    weights.
    """
    free = len(samples) - least * len(weights)
    until = np.cumsum(weights)
    ends = np.rint(free * until / until[-1]) + least * np.arange(1, len(weights) + 1)
    return samples.tensor_split(ends[:-1].astype(int).tolist())


# --- by owner


def _owners(kind: str, data: Part) -> Tensor:
    """Return each sample's owner of this kind; refuses a kind that the data do not have."""
    if kind in data.owners:
        return data.owners[kind]
    if data.owners_hint:
        raise MissingDataError(f"partition {kind!r}: {data.owners_hint}")
    kinds = ", ".join(data.owners) or "none"
    raise ValueError(
        f"partition {kind!r} needs samples with a {kind}; natural owners of these data: {kinds}"
    )


def _by_owners(owners: Tensor, kind: str, clients: int, seed: int) -> list[Tensor]:
    """Deal whole owners out to clients: each goes, largest first, to the client with the fewest
    samples so far, so that clients are nearly equal.
    """
    ids, sizes = np.unique(owners.numpy(), return_counts=True)
    if clients > len(ids):
        raise ValueError(
            f"partition {kind!r}: {clients} clients, but there are {len(ids)} owners to be dealt "
            "out, expected at "
            "most so many"
        )
    # One piece an owner, ids ascending.
    holdings = owners.argsort(stable=True).tensor_split(sizes.cumsum()[:-1].tolist())
    if clients == len(ids):
        return list(holdings)
    shuffled = torch.randperm(len(ids), generator=_generator(seed)).tolist()
    emptiest = [(0, i) for i in range(clients)]  # a heap of (samples, client)
    pieces: list[list[Tensor]] = [[] for _ in range(clients)]
    for owner in sorted(shuffled, key=lambda owner: -sizes[owner]):
        samples, client = emptiest[0]  # the least pair: fewest samples, then lowest number
        pieces[client].append(holdings[owner])
        heapq.heapreplace(emptiest, (samples + len(holdings[owner]), client))
    return [torch.cat(piece) for piece in pieces]
