"""The names under which results are kept: frozen, so that no renaming in the code loses a result.

A task says what it computes as a mapping, its *identity*. Names in it are those of this file and of
the tasks' ``identity`` methods; they never change. What they stand for in today's code may change:
a renamed option or algorithm gets its new name on the right-hand side of a table here, and the key
stays.

When an algorithm's or a task's results change, its revision is raised by hand: results of the
earlier revision are then no longer found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from fedfw.config import RunConfig

SCHEMA = 1
"""Part of every key; raised only if all kept results are to be computed anew."""

ALGORITHMS = {
    name: name
    for name in (
        "fast-fedda",
        "fedadam",
        "fedadamw",
        "fedadmm",
        "fedavg",
        "fedavgm",
        "fedcm",
        "fedda",
        "feddr",
        "fedfw",
        "fedfw+",
        "fedfw-anchored",
        "fedfw-sto",
        "fedlmo",
        "fedmuon",
        "fedmuon-cv",
        "fedpal",
        "fedpgd",
        "frank-wolfe",
        "local-muon",
        "naive",
        "scaffold",
    )
}
"""The frozen name of each algorithm, and its name on today's command line."""

ONCE_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedlmo-server": ("fedlmo", {"oracle_at": "server"}),
}
"""Algorithms on today's command line that were an option of another one: its frozen name, and the
frozen option.
"""

OPTIONS = {
    name: name
    for name in (
        "alignment",
        "alpha",
        "anchor_every",
        "batch_size",
        "beta",
        "beta1",
        "beta2",
        "certify",
        "client_column",
        "clients",
        "compress",
        "compress_down",
        "constraint",
        "correction",
        "dataset",
        "decay",
        "depth",
        "eta",
        "eval_every",
        "extrapolation",
        "gradient_at",
        "heads",
        "l2",
        "local_steps",
        "lr",
        "mixed",
        "model",
        "momentum",
        "mu",
        "multiplier_every",
        "participation",
        "partition",
        "penalty",
        "per_parameter",
        "polish",
        "privacy",
        "renew_every",
        "rounds",
        "schedule",
        "seed",
        "separate",
        "server_lr",
        "server_momentum",
        "strong",
        "target",
        "tau",
        "time",
        "tol",
        "weight_decay",
        "weights",
        "width",
    )
}
"""The frozen name of each option, and its name in today's configurations."""

ONCE_PLAIN = ("fedfw", "fedfw+", "fedfw-anchored", "frank-wolfe")
"""Algorithms, by frozen name, that had no momentum on convex problems when results were kept: a
cell that names none is computed without it, and its key stays.
"""

NEUTRAL: dict[str, Any] = {"separate": False}
"""Options that came after results were kept, with the value that means what a run did before: it is
left out.
"""

NOT_PART = ("algorithm", "data_dir", "device")
"""Keys of a configuration that are no options here: the algorithm has its own entry, and the other
two say where.
"""

REVISIONS = {"fedfw-anchored": 2}
"""Algorithms, by frozen name, whose results have changed since they were first kept; all others
have revision 1.
"""

TASK_REVISIONS: dict[str, int] = {}
"""Tasks, by the frozen name in their identity, whose results have changed; all others have revision
1.
"""

Identity = dict[str, Any]


def identity(task: str, **parts: Any) -> Identity:
    """Return what a task computes, by frozen names; parts that are None are left out."""
    given = {name: part for name, part in parts.items() if part is not None}
    return {"task": task, "revision": TASK_REVISIONS.get(task, 1), **given}


def configuration(config: RunConfig) -> Identity:
    """Return a run's configuration by frozen names, with the algorithm's revision."""
    given = {
        key: value for key, value in config.items().items() if key.replace("-", "_") not in NOT_PART
    }
    described: Identity = {"options": options(given.items())}
    if config.algorithm in ONCE_OPTIONS:
        name, option = ONCE_OPTIONS[config.algorithm]
        described["options"] |= option
        described["algorithm"] = algorithm(name)
    elif config.algorithm is not None:
        described["algorithm"] = algorithm(config.algorithm)
    return described


def algorithm(name: str) -> Identity:
    """Return an algorithm's frozen name and revision from its name on the command line."""
    frozen = _frozen(ALGORITHMS, name.lower(), "algorithm")
    return {"name": frozen, "revision": REVISIONS.get(frozen, 1)}


def options(given: Iterable[tuple[str, Any]]) -> Identity:
    """Return options by frozen names from pairs of a key and a value, such as a point or the axes
    of a grid.
    """
    named = {_frozen(OPTIONS, key.replace("-", "_"), "option"): value for key, value in given}
    return {
        name: value
        for name, value in named.items()
        if name not in NEUTRAL or value != NEUTRAL[name]
    }


def _frozen(table: Mapping[str, str], current: str, kind: str) -> str:
    for frozen, name in table.items():
        if name == current:
            return frozen
    raise ValueError(
        f"{kind} {current!r} has no frozen name: add it to the table in fedfw_reproduction/schema.py"
    )


def key(described: Identity) -> str:
    """Return the key of an identity: 20 hexadecimal digits.

    Examples
    --------
    >>> key(identity("optimum", seeds=3)) == key({"seeds": 3, "revision": 1, "task": "optimum"})
    True
    """
    text = json.dumps({"schema": SCHEMA, **described}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
