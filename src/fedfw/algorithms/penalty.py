"""The option ``penalty``: lam_0 as a number, or a multiple of gradient norm / (2 n diameter).

The gradient norm is the root mean square over the clients at the start, so one number of each
client is enough.

What decides on the multiple of "auto" is how much of the model the atoms of a run can reach. The
*coverage* is the number of oracle steps that a client takes, times the share of an atom's entries
that are not zero. Below one half a client cannot touch half of its entries: a strong pull then
makes clients chase agreement one coordinate at a time, and a weak one is better. docs/defaults.md
says how the numbers below were chosen, and where they are bad.
"""

from typing import Annotated

import torch

from fedfw.algorithms.curvature import SPARSE
from fedfw.algorithms.setting import Setting, scaled
from fedfw.options import option
from fedfw.sets.base import ConstraintSet

PenaltyOption = Annotated[
    float | str,
    option(
        "initial penalty lam_0: a number, auto (tested defaults, by kind of set), theory, or a "
        "multiple such as auto:3",
        expected='a number of at least 0, "auto", "theory", or a multiple of these such as '
        '"auto:3"',
    ),
]
"""The option ``penalty``."""

GRID = tuple(f"auto:{multiple}" for multiple in (0.03, 0.1, 0.3, 1, 3, 10))
"""Multiples of the default that `fedfw.tune` tries."""
LITTLE_COVERAGE = 0.5
"""Below which a weak pull is better."""
LITTLE_BESIDE_ANCHORS = 5.0
"""The same beside anchors, which give each client its dual at once."""
WEAK = 0.001
AVERAGED = 0.2
PLAIN = 1.0
NETWORK = 3.0
"""The multiples: for little coverage; else for averaged gradients or beside anchors, for plain
ones, for networks.
"""


def validate_penalty(penalty: float | str) -> None:
    """Refuse what is no penalty, whatever the problem is."""
    scaled("penalty", penalty, {"auto": lambda: 1.0, "theory": lambda: 1.0})


def choose_penalty(
    penalty: float | str, setting: Setting, averages: bool, anchored: bool = False
) -> float:
    """Return lam_0, the penalty of the first round, as a number.

    Parameters
    ----------
    penalty : float or str
        As the user gave it.
    setting : Setting
        Of the run.
    averages : bool
        Whether gradients are averaged over rounds.
    anchored : bool
        Whether anchors give each client its dual.
    """

    def auto() -> float | None:
        unit = setting.per_diameter(setting.rms_gradient_norm())
        if unit is None:
            return None
        return default_penalty_scale(setting, averages, anchored) * unit

    def theory() -> float | None:
        return setting.per_diameter(setting.heterogeneity())

    return scaled("penalty", penalty, {"auto": auto, "theory": theory})


def default_penalty_scale(setting: Setting, averages: bool, anchored: bool) -> float:
    """Return lam_0 in units of gradient norm / (2 n diameter) for penalty="auto": the multiple that
    worked best over many problems of a kind.
    """
    steps = setting.rounds * setting.local_steps * setting.p  # expected for a client
    # Coverage, steps times the share of nonzeros in an atom: how often an entry can be reached.
    little = LITTLE_BESIDE_ANCHORS if anchored else LITTLE_COVERAGE
    if steps * atom_density(setting.constraint, setting.shape) < little:
        return WEAK
    if setting.network:
        return NETWORK
    return AVERAGED if averages or anchored else PLAIN


def is_sparse(setting: Setting) -> bool:
    """Return whether atoms name few coordinates."""
    return atom_density(setting.constraint, setting.shape) < SPARSE


def atom_density(constraint: ConstraintSet, shape: tuple[int, ...]) -> float:
    """Return the share of an atom's entries that are not zero, at a direction from a fixed seed.

    Examples
    --------
    >>> import fedfw
    >>> atom_density(fedfw.L1Ball(1.0), (50,)), atom_density(fedfw.L2Ball(1.0), (50,))
    (0.02, 1.0)
    """
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    atom = constraint.lmo(g).dense(torch.float64)
    return float(atom.count_nonzero()) / atom.numel()
