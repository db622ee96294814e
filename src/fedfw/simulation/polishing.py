"""Polishing: after the last round F is minimised over the support of the model, and coordinates
that this sets to zero are dropped.

A Frank-Wolfe iterate is an average of atoms. An atom that an early round chose keeps a weight above
zero for ever, so the iterate has more non-zeros than the optimum. Minimised over the points that
are zero where the iterate is, F has its own sparse minimiser, and projected gradient steps reach
its support after finitely many steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw.problems.problem import Problem
from fedfw.report.tables import human_bytes
from fedfw.rounds.projected_gradient import accelerated_steps
from fedfw.rounds.vectors import encoded, whole_nbytes
from fedfw.rounds.wire import NUMBER_NBYTES
from fedfw.sets.base import ConstraintSet

_MOST_STEPS = 200
_SMALLEST_STEP = 1e-6
"""The length of a step, relative to the point, at which the steps end."""


@dataclass(frozen=True)
class Polishing:
    """The results of polishing a model.

    Parameters
    ----------
    accepted : bool
        Whether the polished model is the one that is returned. It is where it lies in the set and
        its loss is not larger.
    loss : float
        The loss of the polished model.
    before, after : int
        How many coordinates are not zero before and after it.
    steps : int
        Projected gradient steps.
    bytes_up, bytes_down : int
        What all clients together sent and were sent: points, gradients and losses, on the support
        alone.
    """

    accepted: bool
    loss: float
    before: int
    after: int
    steps: int
    bytes_up: int
    bytes_down: int

    def __str__(self) -> str:
        """Return in words whether the polished model is kept, its coordinates, loss, steps and
        bytes.
        """
        traffic = f"{human_bytes(self.bytes_up)} up, {human_bytes(self.bytes_down)} down"
        remark = "" if self.accepted else "not kept, "
        return (
            f"{remark}{self.after} of {self.before} coordinates, loss {self.loss:.4g}, "
            f"{self.steps} steps with sums of gradients on them ({traffic})"
        )


class _OnSupport:
    """F as a function of the coordinates (k,) of a support, and the bytes that clients exchange to
    evaluate it.
    """

    def __init__(self, problem: Problem, x: Tensor) -> None:
        """Begin with x (p,), which clients are sent with the places of its support."""
        self.support = x.nonzero().flatten()
        self._problem = problem
        self._zeros = torch.zeros_like(x)
        self.bytes_up = 0
        self.bytes_down = problem.n * encoded(x).nbytes

    def widen(self, z: Tensor) -> Tensor:
        """Return z (k,) as a point (p,)."""
        return self._zeros.index_copy(0, self.support, z)

    def value(self, z: Tensor) -> float:
        self.bytes_down += self._problem.n * whole_nbytes(z)
        self.bytes_up += self._problem.n * NUMBER_NBYTES
        return self._problem.value(self.widen(z))

    def value_and_gradient(self, z: Tensor) -> tuple[float, Tensor]:
        value, gradient = self._problem.value_and_gradient(self.widen(z))
        self.bytes_down += self._problem.n * whole_nbytes(z)
        self.bytes_up += self._problem.n * (NUMBER_NBYTES + whole_nbytes(z))
        return value, gradient[self.support]


def validate_polishing(constraint: ConstraintSet, p: int) -> None:
    """Refuse a set whose points have no support, for parameters (p,)."""
    # A face is the part of the set with a given support; None for sets that are not sparse.
    if constraint._face(torch.arange(p), (p,)) is None:
        raise ValueError(
            f'polish="support" does not go with {constraint!r}: expected one set of sparse vectors '
            "for all parameters (l1, ksparse, ksupport, group, simplex, capped-simplex, "
            "hypersimplex)"
        )


def polish_support(
    problem: Problem, constraint: ConstraintSet, x: Tensor
) -> tuple[Tensor, Polishing]:
    """Return the polished model (p,), or x where the loss did not fall, and a report.

    Every step is an exchange with all clients: the point down, gradients up, both on the support
    of x alone. A trial of a step size is another: the point down, losses up.
    """
    objective = _OnSupport(problem, x)
    face = constraint._face(objective.support, tuple(x.shape))
    assert face is not None, "validate_polishing refuses such sets"
    loss = problem.value(x)  # the first exchange below gives it, too: it costs no bytes
    z = x[objective.support]
    steps = 0
    for next_z in accelerated_steps(objective, face.project, z) if len(z) else ():
        steps += 1
        length = float((next_z - z).norm())
        z = next_z
        if steps == _MOST_STEPS or length <= _SMALLEST_STEP * float(z.norm()):
            break
    polished = objective.widen(z)
    polished_loss = objective.value(z)
    accepted = polished_loss <= loss and constraint.contains(polished)
    report = Polishing(
        accepted,
        polished_loss,
        before=len(z),
        after=int(z.count_nonzero()),
        steps=steps,
        bytes_up=objective.bytes_up,
        bytes_down=objective.bytes_down,
    )
    return polished if accepted else x, report
