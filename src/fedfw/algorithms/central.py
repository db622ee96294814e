"""Frank-Wolfe itself, with the data still on the clients: every round each one sends its whole
gradient.

    x <- (1 - eta_t) x + eta_t argmin over s in D of <grad F(x), s>,    grad F(x) = sum_i w_i grad f_i(x)

With absentees it is the mean over those present, with the weights w_i, that takes the place of grad
F(x).

The central reference, and what FedFW saves: dense gradients instead of atoms. With `compress` it is
EF21-FW: gradients travel as compressed changes of what both sides remember of them
(`fedfw.algorithms.feedback`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms import pacing
from fedfw.algorithms.contract import Aggregate, Contract, Plan, Reveals, Server, Setting, Up
from fedfw.algorithms.feedback import REMEMBERS, SendsGradients
from fedfw.algorithms.scheduled import Momentum
from fedfw.atoms import Atom


@dataclass(frozen=True)
class FrankWolfe(SendsGradients, Momentum):
    """Frank-Wolfe on F itself: every client sends its whole gradient each round, and the server
    calls the oracle.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    schedule : str, Schedule, callable or None
        Step sizes; see `Scheduled`.
    momentum : float or "auto"
        Averages the gradient of F; see `Momentum`.
    compress : str
        What is done to the gradients: "topk:64", for example; see `fedfw.compression`.
    compress_down : str
        What is done to the model that the server sends: "none", or "topk:64" for its 64 largest
        changes.

    Examples
    --------
    >>> import fedfw
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.FrankWolfe(fedfw.Box(-1.0, 1.0)), rounds=10)
    >>> float(run.x)
    1.0
    """

    name: ClassVar[str] = "frank-wolfe"
    title: ClassVar[str] = "Frank-Wolfe"
    revision: ClassVar[int] = 2
    paces: ClassVar[bool] = True
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        remembers=REMEMBERS,
        reveals=Reveals.GRADIENTS,
        shares="every client's whole gradient in each round",
        weighted=True,
    )

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"momentum": (0.0, 0.8, 0.9, 0.95), "schedule": cls.step_grid(setting)}

    def may_pace(self, setting: Setting) -> bool:
        """Clients tell nothing beside their gradients; but gradients of others would look like
        curvature.
        """
        return super().may_pace(replace(setting, tells=True)) and setting.p == 1

    def without_numbers(self, setting: Setting) -> str | None:
        return None  # who is absent changes the gradient, as noise does

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        vectors, a = server.vectors, aggregate.mean
        g = a
        if self.beta:
            g = torch.lerp(vectors["d"], g, 1 - self.beta) if "d" in vectors else g
            vectors = vectors | {"d": g}
        atom, eta = plan.lmo(g, t), plan.rates(t).eta
        if self.paced:
            return self._paced_step(plan, replace(server, vectors=vectors), a, g, atom, eta)
        return replace(server, xbar=atom.step(server.xbar.clone(), eta), vectors=vectors)

    def _paced_step(
        self, plan: Plan, server: Server, a: Tensor, g: Tensor, atom: Atom, cap: float
    ) -> Server:
        """The step whose size comes from curvature: a (p,) is the gradient, g (p,) its average,
        ``cap`` the longest.
        """
        vectors, x = server.vectors, server.xbar
        known = vectors if "pace" in vectors else _no_pace(x)
        state = {"x": x[None], "move": known["move"][None], "past": known["past"][None]}
        told = pacing.tell(state, a[None], g[None], replace(atom, batched=True), 0.0)[0].double()
        q = pacing.averaged(known["pace"][0], told, self.beta)
        eta = pacing.step_size(q, told, cap, plan.pace, pacing.FIRST_STEP)
        after = atom.step(x.clone(), eta)
        made = {
            name: values[0]
            for name, values in pacing.remember(x[None], after[None], a[None], eta).items()
        }
        return replace(server, xbar=after, vectors=vectors | made | {"pace": torch.stack([q, eta])})

    def eta_taken(self, server: Server) -> float | None:
        return float(server.vectors["pace"][1]) if "pace" in server.vectors else None


def _no_pace(x: Tensor) -> dict[str, Tensor]:
    """What a server at x (p,) that took no step knows: `pacing.begin`, and no curvature and step
    size in ``pace``.
    """
    begun = {name: values[0] for name, values in pacing.begin(x[None]).items()}
    return begun | {"pace": x.new_zeros(2, dtype=torch.float64)}
