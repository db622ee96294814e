"""Frank-Wolfe itself, with the data still on the clients: every round each one sends its gradient.

    x <- (1 - eta_t) x + eta_t argmin over s in D of <d, s>,    d = mean of grad f_i(x)

The mean is over those present, with the weights w_i; with all clients it is grad F(x). Momentum
averages it over the rounds. With a compressor it is EF21-FW: gradients travel as compressed
changes of what both ends hold of them.

The central reference, and what FedFW saves: dense gradients instead of atoms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.algorithms import curvature
from fedfw.algorithms.averaging import MomentumOption, choose_momentum
from fedfw.algorithms.contract import (
    Affine,
    Algorithm,
    Client,
    Kind,
    Message,
    Oracles,
    Payload,
    Reveals,
    Run,
    State,
    Sums,
    Weight,
)
from fedfw.algorithms.optin import ChoosesSteps, Tunable
from fedfw.algorithms.penalty import atom_density
from fedfw.algorithms.rules import StepRule
from fedfw.algorithms.setting import Setting, validate_one_step
from fedfw.algorithms.step_sizes import (
    ScheduleOption,
    frank_wolfe_steps,
    step_grid,
    validate_schedule,
)
from fedfw.atoms import Atom
from fedfw.compression import CompressDownOption, CompressOption
from fedfw.schedules import CURVATURE


@dataclass(frozen=True, kw_only=True)
class FrankWolfe(Algorithm, ChoosesSteps, Tunable):
    """Frank-Wolfe on F itself: every client sends its whole gradient each round, and the server
    calls the oracle.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    schedule : str, Schedule, callable or None
        Step sizes; see `fedfw.schedules`.
    momentum : float or "auto"
        Averages the gradient of F; see `fedfw.algorithms.averaging`.
    compress : str
        What is done to the gradients: "topk:64", for example; see `fedfw.compression`.
    compress_down : str
        What is done to the model that the server sends: "none", or "topk:64" for its 64 largest
        changes.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FrankWolfe(fedfw.Box(-1.0, 1.0)), rounds=10)
    >>> float(run.x)
    1.0
    """

    schedule: ScheduleOption = None
    momentum: MomentumOption = "auto"
    compress: CompressOption = "none"
    compress_down: CompressDownOption = "none"

    name: ClassVar[str] = "frank-wolfe"
    title: ClassVar[str] = "Frank-Wolfe"
    revision: ClassVar[int] = 2
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = "every client's whole gradient in each round"
    weighted: ClassVar[bool] = True
    uploads: ClassVar[Mapping[str, Kind]] = {"gradient": Kind.VALUE}

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_schedule(self.name, self.schedule, curvature=True)

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"momentum": (0.0, 0.8, 0.9, 0.95), "schedule": step_grid(setting)}

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        validate_one_step(self.name, setting)
        beta = choose_momentum(self.momentum, setting)
        all_present = setting.p == 1  # gradients of other clients would look like curvature
        schedule, rule = frank_wolfe_steps(self.schedule, setting, 0.0, beta, all_present, True)
        return replace(self, momentum=beta, schedule=schedule), rule

    def init_server(self, run: Run, x: Tensor) -> State:
        """Return the state at x (p,): the model and, for steps from curvature, "pace" (the average
        curvature, the last step size and the factor of step sizes) and the last step, if any.
        """
        if self.schedule != CURVATURE:
            return {"xbar": x.clone()}
        sparse = atom_density(run.constraint, tuple(x.shape)) < curvature.SPARSE
        c = curvature.factor(float(self.momentum), points=False, sparse=sparse)
        pace = x.new_tensor([0.0, 0.0, c], dtype=torch.float64)
        last_step = _first(curvature.init_memory(x[None]))
        return {"xbar": x.clone(), "pace": pace} | last_step

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        x = msg.xbar.expand(oracles.m, -1).clone()
        return client.private, {"gradient": oracles.gradient(x, times=Weight.ONE)}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Take one step to the oracle's answer at the mean gradient a or, with momentum, at
        d <- beta d + (1 - beta) a.
        """
        a = sums.mean("gradient")
        d = a
        after = dict(server)
        if self.momentum:
            d = torch.lerp(server["d"], a, 1 - float(self.momentum)) if "d" in server else a
            after["d"] = d
        atom = run.constraint.lmo(d, tol=msg.oracle_tol)
        if "pace" not in server:  # step sizes come from the schedule
            return after | {"xbar": atom.stepped(server["xbar"], msg.step)}
        return after | self._curvature_step(server, a, d, atom, msg)

    def _curvature_step(
        self, server: State, a: Tensor, d: Tensor, atom: Atom, msg: Message
    ) -> State:
        """Return the entries of the state after a step from x to the atom, whose size comes from
        the average curvature q along earlier steps; a is the gradient at x, and d the direction.
        """
        x = server["xbar"]
        # `curvature` measures stacks of clients; the server is a stack of one, without a penalty.
        memory = {"move": server["move"][None], "past": server["past"][None]}
        stack = replace(atom, batched=True)
        reported = curvature.measure(memory, x[None], a[None], d[None], stack, 0.0)[0].double()
        q = curvature.average_curvature(server["pace"][0], reported, float(self.momentum))
        c = float(server["pace"][2])  # the factor of step sizes
        eta = curvature.step_size(q, reported, msg.step, c, curvature.FIRST_STEP)
        after = atom.stepped(x, eta)
        last_step = _first(curvature.remember(x[None], after[None], a[None], eta))
        pace = torch.stack([q, eta, server["pace"][2]])
        return {"xbar": after, "pace": pace} | last_step

    def step_taken(self, server: State) -> float | None:
        return float(server["pace"][1]) if "pace" in server else None


def _first(stack: State) -> State:
    """Return the first rows of stacks."""
    return {name: values[0] for name, values in stack.items()}
