"""The scores of a model on the test data of a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.problems.known_losses import LossFunction
from fedfw.problems.modules import samples_at_once, unflatten
from fedfw.problems.survival import concordance, ties_of

if TYPE_CHECKING:
    from fedfw.problems.problem import Problem

_SAMPLES_AT_ONCE = 8192


class Test(NamedTuple):
    """The results of a model on its test data; values it cannot give are None."""

    loss: float | None
    accuracy: float | None
    concordance: float | None = None
    concordances: dict[str, float] | None = None
    """By the owners of the test data, without those who have nothing to be compared."""


def evaluate(problem: Problem, x: Tensor) -> Test:
    """Return the results of the model with parameters x (p,) on the problem's test data."""
    if problem.test_data is None:
        return Test(None, None)
    inputs, targets = problem.test_data
    parameters = unflatten(x, problem.shapes)
    at_once = len(inputs)
    if problem.losses.per == "sample" and not inputs.is_sparse_csr:
        at_once = min(_SAMPLES_AT_ONCE, samples_at_once(problem.model, inputs))
    sums = torch.zeros(4, dtype=torch.float64)
    with torch.no_grad():
        for begin in range(0, len(inputs), at_once):
            part = slice(begin, begin + at_once)
            inputs_of_part = (
                inputs if at_once == len(inputs) else inputs[part]
            )  # sparse rows have no slices
            outputs = torch.func.functional_call(problem.model, parameters, (inputs_of_part,))
            sums += _sums_over(problem, outputs, targets[part])
    if problem.tests_split:
        sums = problem.ranks.sums(sums)[0]
    loss, mass, correct, judged = sums.tolist()
    if ties_of(problem.loss) is not None:
        return Test(
            loss / mass, None, concordance(outputs, targets), _concordances(problem, outputs)
        )
    return Test(loss / mass, correct / judged if judged else None)


def _sums_over(problem: Problem, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (4,) for some samples: the sum of their losses, the sum of their weights in the mean,
    the number of correct answers, and the number of answers that are judged.
    """
    known = problem.known
    mass = float(len(targets))
    if known is not None:
        mass = float(known.masses(targets[None]).sum())
    loss = 0.0
    if mass:  # torch's mean of a part without weight is NaN
        loss = float((known or problem.loss)(outputs, targets)) * mass
    correct = judged = 0
    guesses = _decided(problem.loss, outputs, targets)
    if guesses is not None:
        counts = torch.ones_like(targets, dtype=torch.bool)
        if known is not None and known.ignored is not None:
            counts = targets != known.ignored
        correct = int((guesses == targets)[counts].sum())
        judged = int(counts.sum())
    return torch.tensor([loss, mass, correct, judged], dtype=torch.float64)


def _decided(loss: LossFunction, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Return the classes that outputs stand for, in the form of the targets; None where there are
    no classes.
    """
    if loss is nnf.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss):
        return (outputs > 0).to(targets.dtype)
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return None
    return outputs.argmax(1)


def _concordances(problem: Problem, outputs: Tensor) -> dict[str, float] | None:
    """Return the concordance by owner, from the outputs (m, 1) of all test samples."""
    if problem.test_data is None or problem.test_owners is None:
        return None
    concordances = {}
    for owner in sorted(set(problem.test_owners.tolist())):
        rows = problem.test_owners == owner
        value = concordance(outputs[rows], problem.test_data[1][rows])
        if value is not None:
            concordances[str(owner)] = value
    return concordances
