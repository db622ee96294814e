"""Ready problems: a data set, divided among clients, with a model, all by their names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedfw.data import Data, load_data, partition
from fedfw.models import MODELS, make_model
from fedfw.problems import Problem


def load_problem(
    dataset: str = "digits",
    model: str | None = None,
    clients: int = 10,
    rule: str | None = None,
    data_dir: str | Path | None = None,
    weights: str = "equal",
    l2: float = 0.0,
    seed: int = 0,
) -> Problem:
    """A problem by the names of its parts.

    Parameters
    ----------
    dataset, data_dir
        See `fedfw.data.load_data`.
    model
        A key of `fedfw.models.MODELS`; None for the simplest that fits the data.
    rule
        Who holds what, see `fedfw.data.partition`; None for what is usual with the data (`usual_rule`).
    weights
        ``equal``, or ``samples`` for clients that count by how much they hold.
    l2
        Adds l2/2 ||x||^2 to every client's loss.
    """
    data = load_data(dataset, None if data_dir is None else Path(data_dir), clients, seed)
    return make_problem(data, model or usual_model(data), clients, rule or usual_rule(data), weights, l2, seed)


def make_problem(
    data: Data,
    model: str,
    clients: int,
    rule: str,
    weights: str = "equal",
    l2: float = 0.0,
    seed: int = 0,
    held_out: float = 0.0,
) -> Problem:
    """`load_problem` for data that are loaded already.

    With ``held_out`` each client lends that fraction of its samples to be tested on, and the test data stay unseen.
    """
    if weights not in ("equal", "samples"):
        raise ValueError(f"weights={weights!r}, expected equal or samples")
    module, kind = make_model(model, data, seed), MODELS[model]
    parts = partition(rule, data.train, clients, data.classes, seed)
    if held_out:
        parts, lent = _lend(parts, held_out, seed)
    test = data.train.take(lent) if held_out else data.test.take()
    return Problem(
        module,
        kind.loss,
        [kind.samples(data.train.take(part)) for part in parts],
        kind.samples(test),
        [len(part) for part in parts] if weights == "samples" else None,
        kind.convex,
        l2,
    )


def usual_model(data: Data) -> str:
    """The name of the simplest model that fits the data."""
    if data.sides is not None:
        return "completion"
    return {None: "linear", 2: "logistic"}.get(data.classes, "mclr")


def usual_rule(data: Data) -> str:
    """Whole users of ratings, clients as they were drawn; else three labels a client where there are more, or iid."""
    natural = [kind for kind in ("user", "client") if kind in data.train.owners]
    return natural[0] if natural else "labels:3" if data.classes is not None and data.classes > 3 else "iid"


def _lend(parts: list[Tensor], fraction: float, seed: int) -> tuple[list[Tensor], Tensor]:
    """What clients keep, and all that they lend; nobody lends the last sample."""
    generator = torch.Generator().manual_seed(seed)
    kept, lent = [], []
    for part in parts:
        shuffled = part[torch.randperm(len(part), generator=generator)]
        count = int(fraction * len(part))
        kept.append(shuffled[count:])
        lent.append(shuffled[:count])
    if not any(len(piece) for piece in lent):
        raise ValueError("the clients have too few samples to lend some")
    return kept, torch.cat(lent)
