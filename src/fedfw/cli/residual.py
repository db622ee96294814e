"""How much of the way to the optimum is left after a run, where the optimum is known or quickly
found.
"""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import torch

from fedfw.problems import Problem
from fedfw.rounds.files import write_atomically
from fedfw.solving import Optimum, solve

OPTIMUM = "optimum.json"
"""The optimum of a run's problem, in its folder."""
_SECONDS = 5.0
"""How long anybody waits for it, on a busy machine; small problems take a tenth of a second."""
_WANTED, _GOOD_ENOUGH = 0.01, 0.05
"""How well F* is to be known, and how well it must be, as parts of F(x^1) - F*."""
_KEPT = ("value", "lower_bound", "start_value")


def quick_optimum(problem: Problem, constraint: Any) -> Optimum | None:
    """The optimum of a convex problem, if a central solver that sees all the data finds it in a few
    seconds.
    """
    if problem.convex is not True or not problem.losses.countable:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run has said already where it began
        found = solve(problem, constraint, tol=_WANTED, max_seconds=_SECONDS)
    return found if found.uncertainty <= _GOOD_ENOUGH else None


def keep_optimum(optimum: Optimum, folder: Path) -> None:
    """Write the optimum of a run's problem to the run's folder."""
    numbers = {name: getattr(optimum, name) for name in _KEPT}
    write_atomically(folder / OPTIMUM, (json.dumps(numbers) + "\n").encode())


def kept_optimum(folder: Path) -> Optimum | None:
    """What `keep_optimum` wrote, without the point; None where there is nothing."""
    path = folder / OPTIMUM
    if not path.is_file():
        return None
    try:
        numbers = {name: float(json.loads(path.read_text())[name]) for name in _KEPT}
    except (ValueError, TypeError, KeyError):
        numbers = {}
    if not numbers or not all(map(math.isfinite, numbers.values())):
        raise ValueError(f"{path} is damaged, expected the numbers {', '.join(_KEPT)}: remove it")
    return Optimum(
        torch.empty(0),
        value=numbers["value"],
        lower_bound=numbers["lower_bound"],
        start_value=numbers["start_value"],
        steps=0,
        method="kept in a run folder",
    )
