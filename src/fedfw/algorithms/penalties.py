"""The default penalty: which multiple of steepness / (2 n diameter) works, by the kind of set and
of problem.

Steepness is the root mean square of the clients' gradient norms at the start, so one number of each
client is enough.

What decides is how much of the model the atoms of a run can reach. The *coverage* is the number of
oracle steps that a client takes, times the share of an atom's entries that are not zero. Below one
half a client cannot touch half of its entries: a strong pull then makes clients chase agreement one
coordinate at a time, and a weak one is better. docs/algorithms.md says how the numbers below were
chosen, and where they are bad.
"""

import torch

from fedfw.algorithms.contract import Algorithm, Setting
from fedfw.sets.base import ConstraintSet

GRID = tuple(f"auto:{multiple}" for multiple in (0.03, 0.1, 0.3, 1, 3, 10))
"""Multiples of the default that `fedfw.tune` tries."""
LITTLE_COVERAGE, LITTLE_BESIDE_ANCHORS = 0.5, 5.0
"""Below which a weak pull is better; beside anchors, which give each client its dual at once, that
is so for longer.
"""
WEAK, AVERAGED, PLAIN, NETWORK = 0.001, 0.2, 1.0, 3.0
"""The multiples: for little coverage; else for averaged gradients or beside anchors, for plain
ones, for networks.
"""


def usual_multiple(algorithm: Algorithm, setting: Setting) -> float:
    """The multiple that worked best over many problems.

    Parameters
    ----------
    algorithm : Algorithm
        With its momentum filled in.
    setting : Setting
        Of the run.
    """
    steps = setting.rounds * setting.local_steps * setting.p
    anchored = algorithm.contract.sums
    little = LITTLE_BESIDE_ANCHORS if anchored else LITTLE_COVERAGE
    if steps * atom_density(setting.constraint, setting.shape) < little:
        return WEAK
    if setting.network:
        return NETWORK
    return PLAIN if algorithm.exact and not anchored else AVERAGED


def atom_density(constraint: ConstraintSet, shape: tuple[int, ...]) -> float:
    """The share of an atom's entries that are not zero, at a direction drawn from a fixed seed.

    Examples
    --------
    >>> import fedfw
    >>> atom_density(fedfw.L1Ball(1.0), (50,)), atom_density(fedfw.L2Ball(1.0), (50,))
    (0.02, 1.0)
    """
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    atom = constraint.lmo(g).dense(torch.float64)
    return float(atom.count_nonzero()) / atom.numel()
