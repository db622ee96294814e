"""Run two versions of the package side by side and compare the models of every round.

    python scripts/compare_trees.py OLD NEW [--rounds 7] [--methods "FedAvg;FedDR"] [--keep results/]

OLD and NEW are checkouts, each with src/fedfw and tests/table.py. Each runs in a process of its
own, on small problems: all methods of tests/table.py and of `fedfw.contrib`, with every set, in
float32 and float64, with all and half of the clients, 1 and 3 local steps, with and without
compression, and some with minibatches. A table has one row a method: runs
with the same bits in every round, and the largest relative difference of the loss of the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

DTYPES = ("float64", "float32")
TOLERANCES = {"float64": 1e-12, "float32": 1e-6}
SIZES = (9, 4, 7, 5, 12, 3)
"""Samples of each client: weights differ."""
FEATURES = 6
CLASSES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--methods", default="", help="names, separated by semicolons; all if empty"
    )
    parser.add_argument("--keep", type=Path, help="a folder for what every run gave")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        run_tree(options.trees[0], options)
        return
    old, new = options.trees
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        children = [start_child(old, keep / "old.json", options)]
        children.append(start_child(new, keep / "new.json", options))
        codes = [child.wait() for child in children]
        if any(codes):
            sys.exit("a tree could not be run")
        found = [results_in(keep / name) for name in ("old.json", "new.json")]
    compare(*found)


def start_child(tree: Path, out: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, str(tree.resolve()), "--child", str(out)]
    command += ["--rounds", str(options.rounds), "--methods", options.methods]
    environment = os.environ | {"PYTHONPATH": str(tree.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment)


# --- in the process of a tree ---


def run_tree(tree: Path, options: argparse.Namespace) -> None:
    """Write what all runs of a tree give."""
    import torch

    import fedfw

    torch.set_num_threads(1)
    assert Path(fedfw.__file__).is_relative_to(tree / "src"), fedfw.__file__
    sys.path.insert(0, str(tree / "tests"))
    chosen = set(filter(None, options.methods.split(";")))
    with options.child.open("w") as out:
        for name, method in methods().items():
            if chosen and name not in chosen:
                continue
            for label, dtype, algorithm, keywords in runs_of(method):
                found = run(dtype, algorithm, keywords, options.rounds)
                out.write(json.dumps([f"{name} | {dtype} | {label}", found]) + "\n")
            out.flush()


def methods() -> dict[str, Any]:
    """Return all methods by name."""
    import table

    import fedfw

    found = dict(table.METHODS)
    found["FedDR"] = fedfw.FedDR(fedfw.L1Ball(5.0), lr=0.5)
    contrib = fedfw.contrib
    found["FedADMM"] = contrib.FedADMM(fedfw.L1Ball(5.0), lr=0.5)
    found["FedPAL"] = contrib.FedPAL(fedfw.L1Ball(5.0), lr=0.5)
    return found


def sets(algorithm: Any) -> dict[str, Any]:
    """Return the sets on which a method runs, by name."""
    import fedfw

    found = {
        "l1": fedfw.L1Ball(3.0),
        "l2": fedfw.L2Ball(3.0),
        "simplex": fedfw.Simplex(3.0),
        "nuclear": fedfw.NuclearBall(3.0),
    }
    if type(algorithm.constraint) not in map(type, found.values()):
        found["own set"] = algorithm.constraint
    return found


def runs_of(method: Any) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Yield label, dtype, algorithm and keywords of every run of a method."""
    from fedfw.options import options_of

    compressions: list[str | None] = [None]
    if "compress" in options_of(type(method)) and method.compress == "none":
        compressions.append("topk:3")
    axes = product(sets(method).items(), compressions, DTYPES, (1.0, 0.5), (1, 3))
    for (on, constraint), compress, dtype, participation, local_steps in axes:
        algorithm = dataclasses.replace(method, constraint=constraint)
        if compress is not None:
            algorithm = dataclasses.replace(algorithm, compress=compress)
        keywords: dict[str, Any] = {"participation": participation, "local_steps": local_steps}
        label = f"{on}, {compress or 'as it is'}, p={participation:g}, K={local_steps}"
        yield label, dtype, algorithm, keywords
        if on == "l2" and local_steps == 1:
            yield label + ", minibatches", dtype, algorithm, keywords | {"batch_size": 2}


def problem_in(dtype: str) -> Any:
    """Return a softmax regression whose clients have different numbers of samples."""
    import torch
    import torch.nn.functional as nnf

    import fedfw

    generator = torch.Generator().manual_seed(3)
    precision = getattr(torch, dtype)
    data = []
    for size in SIZES:
        centre = torch.randn(FEATURES, generator=generator, dtype=torch.float64)
        X = centre + torch.randn(size, FEATURES, generator=generator, dtype=torch.float64)
        y = torch.randint(CLASSES, (size,), generator=generator)
        data.append((X.to(precision), y))
    model = torch.nn.Linear(FEATURES, CLASSES, dtype=precision)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return fedfw.Problem(model, nnf.cross_entropy, data)


def run(dtype: str, algorithm: Any, keywords: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return digests of every round's model, losses, bounds and bytes; or why there are none."""
    import fedfw

    models: list[str] = []

    def keep(simulation: Any) -> None:
        models.append(digest(simulation.xbar))

    problem = problem_in(dtype)
    common: dict[str, Any] = {"rounds": rounds, "seed": 1, "callbacks": keep} | keywords
    try:
        end = fedfw.simulate(problem, algorithm, **common)
    except Exception as refusal:
        return {"refused": f"{type(refusal).__name__}: {refusal}"}
    return {
        "models": models,
        "losses": [record.loss for record in end.history],
        "bounds": [record.lower_bound for record in end.history],
        "up": [record.bytes_up for record in end.history],
        "down": [record.bytes_down for record in end.history],
    }


def digest(x: Any) -> str:
    """Return a short digest of a model's bits."""
    import hashlib

    return hashlib.sha256(x.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


# --- comparing ---


def results_in(path: Path) -> dict[str, Any]:
    """Return what the runs of a tree gave, by label."""
    return dict(json.loads(line) for line in path.read_text().splitlines())


def compare(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Print a row a method, and every run whose difference is above the tolerance."""
    rows: dict[str, Counter[str]] = {}
    worst: dict[str, dict[str, float]] = {}
    notes = []
    for key in old.keys() | new.keys():
        name, dtype, _ = key.split(" | ")
        counts = rows.setdefault(name, Counter())
        if key not in old or key not in new:
            counts["of one tree"] += 1
            continue
        before, after = old[key], new[key]
        if "refused" in before or "refused" in after:
            kind = "refused by both" if "refused" in before and "refused" in after else "refused"
            counts[kind] += 1
            if kind == "refused":
                which = "old" if "refused" in before else "new"
                reason = before.get("refused") or after["refused"]
                notes.append(f"{key}: refused by {which} alone: {reason[:150]}")
            continue
        counts["runs"] += 1
        counts["same bits"] += before["models"] == after["models"]
        loss = difference(before["losses"], after["losses"])
        bound = difference(before["bounds"], after["bounds"])
        bytes_differ = [way for way in ("up", "down") if before[way] != after[way]]
        counts["bytes differ"] += bool(bytes_differ)
        largest = worst.setdefault(name, dict.fromkeys(DTYPES, 0.0))
        largest[dtype] = max(largest[dtype], loss)
        if loss > TOLERANCES[dtype]:
            notes.append(f"{key}: loss differs by {loss:.1e}")
        if bound > TOLERANCES[dtype]:
            notes.append(f"{key}: bound differs by {bound:.1e}")
        for way in bytes_differ:
            notes.append(f"{key}: bytes {way} {before[way]} and {after[way]}")
    print_table(rows, worst)
    print()
    print("\n".join(sorted(notes)) or "no difference above the tolerances")


def difference(before: list[float | None], after: list[float | None]) -> float:
    """Return the largest relative difference of two columns; infinity where one has a gap."""
    largest = 0.0 if len(before) == len(after) else math.inf
    for a, b in zip(before, after, strict=False):
        if a is None or b is None:
            largest = max(largest, 0.0 if a is b else math.inf)
        elif a != b:
            largest = max(largest, abs(a - b) / max(abs(a), 1e-300))
    return largest


def print_table(rows: dict[str, Counter[str]], worst: dict[str, dict[str, float]]) -> None:
    header = ("method", "runs", "same bits", "float64", "float32", "bytes differ")
    header = (*header, "refused by both", "by one")
    print("| " + " | ".join(header) + " |")
    print("|---|" + "---:|" * (len(header) - 1))
    for name in sorted(rows):
        counts = rows[name]
        largest = worst.get(name, {})
        cells = [name, str(counts["runs"]), str(counts["same bits"])]
        cells += [f"{largest.get(dtype, 0.0):.1e}" for dtype in DTYPES]
        cells += [str(counts["bytes differ"]), str(counts["refused by both"])]
        cells += [str(counts["refused"] + counts["of one tree"])]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
