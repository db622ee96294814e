"""K oracle steps of every participant from xbar, and the mean of where they end.

    x <- xbar;   K times:  x <- (1 - eta_t/K) x + (eta_t/K) lmo_D(direction)
    xbar <- mean of the x  =  (1 - a_t) xbar + a_t (mean of the net atoms),    a_t = 1 - (1 - eta_t/K)^K

Means are over those present, with the weights w_i. Published methods of this kind take x <- x + eta
lmo(direction) without a set. A step inside of D is theirs with decoupled weight decay, x <- x - eta
x + eta lmo(direction), whose radius is that of D; it keeps every x and xbar in D.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedfw.algorithms.contract import Affine, Message, Oracles, Run, Sums
from fedfw.algorithms.rules import Rates
from fedfw.algorithms.setting import Setting
from fedfw.atoms import Atom
from fedfw.atoms.mixture import mix

Move = Callable[[Tensor, Atom, Rates], Tensor]
"""(x (m, p), atoms, rates) -> x (m, p): a local step."""


def step_to(x: Tensor, atom: Atom, rates: Rates) -> Tensor:
    """Return the points (m, p) after a step to a stack of m atoms."""
    return atom.stepped(x.contiguous(), rates.eta)


def take_local_steps(
    run: Run,
    msg: Message,
    oracles: Oracles,
    direction: Callable[[Tensor], Tensor],
    move: Move = step_to,
) -> Atom:
    """Return the net atoms of the local steps from xbar along the direction (m, p) at x (m, p)."""
    x = msg.xbar.to(run.dtype).expand(oracles.m, -1)
    atoms: list[Atom] = []
    for rates in msg.rates:
        atoms.append(oracles.lmo(direction(x)))
        x = move(x, atoms[-1], rates)
    return mix(atoms, msg.shares)


def mean_of_ends(sums: Sums, msg: Message) -> Affine:
    """Return the update with which xbar becomes the mean of the participants' points."""
    return Affine(1 - msg.step, msg.step / sums.weight, sums.total("atom"))


def local_grid(setting: Setting) -> dict[str, tuple[Any, ...]]:
    """Return the schedules and momenta that `fedfw.tune` tries."""
    if setting.network:
        return {
            "schedule": ("linear-decay:0.2", "linear-decay:0.1", "linear-decay:0.05"),
            "momentum": (0.9, 0.95),
        }
    steps = ("convex", "linear-decay:0.2", "linear-decay:0.1", "linear-decay:0.05")
    return {"schedule": steps, "momentum": (0.0, 0.9, 0.97)}
