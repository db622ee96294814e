"""Who holds which samples."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

NAMES = ("iid", "labels:K")


def partition(rule: str, labels: Tensor, clients: int, classes: int, seed: int) -> list[Tensor]:
    """Sample numbers of each client.

    Parameters
    ----------
    rule
        ``iid``: shuffled and dealt out evenly. ``labels:k``: client i holds labels i, ..., i+k-1 modulo the classes;
        each label's samples are shuffled and split evenly among its holders.
    labels
        (samples,) in 0 .. classes - 1.
    """
    if clients < 1:
        raise ValueError(f"clients={clients}, expected at least 1")
    generator = torch.Generator().manual_seed(seed)
    name, _, value = rule.partition(":")
    if rule == "iid":
        parts = torch.randperm(len(labels), generator=generator).tensor_split(clients)
    elif name == "labels" and value.isdigit() and 1 <= int(value) <= classes:
        parts = tuple(_by_labels(labels, clients, classes, int(value), generator))
    else:
        raise ValueError(f"unknown partition {rule!r}, expected one of {', '.join(NAMES)} (K from 1 to {classes})")
    empty = [i for i, part in enumerate(parts) if not len(part)]
    if empty:
        raise ValueError(f"partition {rule!r} leaves client {empty[0]} of {clients} without samples")
    return list(parts)


def _by_labels(labels: Tensor, clients: int, classes: int, k: int, generator: torch.Generator) -> list[Tensor]:
    pieces: list[list[Tensor]] = [[] for _ in range(clients)]
    for label in range(classes):
        samples = (labels == label).nonzero().flatten()
        samples = samples[torch.randperm(len(samples), generator=generator)]
        holders = [i for i in range(clients) if (label - i) % classes < k]
        for holder, share in zip(holders, samples.tensor_split(max(1, len(holders))), strict=False):
            pieces[holder].append(share)
    unheld = classes - len({(i + j) % classes for i in range(clients) for j in range(k)})
    if unheld:
        warnings.warn(f"with {clients} clients and labels:{k}, {unheld} of {classes} labels are held by nobody")
    return [torch.cat(parts) for parts in pieces]
