"""The columns of a model's robustness: its Lipschitz constant, and its certified accuracy at
some radii.
"""

from typing import Any

import torch
from torch import Tensor

from fedfw.lipschitz import certified_accuracy, lipschitz_bound
from fedfw.problems.problem import Problem
from fedfw.rounds.options import Options


def refuse_uncertifiable(problem: Problem | None, options: Options) -> None:
    """Refuse ``certify`` where nothing could be certified: without test data, or for models without
    a Lipschitz bound.

    Parameters
    ----------
    problem : Problem or None
        With the test data; None where there are none.
    options : Options
        How the run goes.
    """
    if not options.radii:
        return
    data = None if problem is None else problem.test_data
    if problem is None or data is None:
        raise ValueError(f"certify={options.certify!r} needs test data, and there are none")
    try:
        # Two samples show whether the model can be certified.
        few = tuple(part[:2] for part in data)
        certified_accuracy(problem.model, few, options.radii)  # type: ignore[arg-type]
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"certify={options.certify!r}: {error}") from None


def certified(problem: Problem, x: Tensor, options: Options) -> dict[str, Any]:
    """Return the fields of a record on the certified accuracy of the model with parameters x (p,);
    none without ``certify``.

    Parameters
    ----------
    problem : Problem
        With the test data.
    x : Tensor
        (p,).
    options : Options
        How the run goes.
    """
    if not options.radii or problem.test_data is None:
        return {}
    model = problem.trained(x)
    constant = lipschitz_bound(model)
    shares = certified_accuracy(model, problem.test_data, options.radii, constant)
    if problem.tests_split:
        count = len(problem.test_data[0])
        sums = torch.tensor(
            [count, *(share * count for share in shares.values())], dtype=torch.float64
        )
        count_of_all, *correct = problem.ranks.sums(sums)[0].tolist()
        shares = {
            radius: correct_here / count_of_all
            for radius, correct_here in zip(shares, correct, strict=True)
        }
    return {
        "lipschitz": constant,
        "certified": {f"{radius:g}": share for radius, share in shares.items()},
    }
