"""What the baselines share: gradient steps on each client, dense vectors up and down, a projection.

Those that average local models or gradients take local steps on h_i = f_i, and their means have the
weights w_i. Those that split F = (1/n) sum h_i into the clients' terms take them on h_i = n w_i
f_i, and their means are plain (docs/algorithms.md, "Weights of clients"). A local step minimises
the linearised loss near x, pulled to a centre:

    x <- argmin over u of <grad h_i(x), u> + ||u - x||^2 / (2 lr) + weight ||u - centre||^2 / 2
       = x - (grad h_i(x) + weight (x - centre)) / (1/lr + weight)
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Aggregate,
    Algorithm,
    Contract,
    Gradient,
    Kept,
    Lmo,
    Message,
    Payload,
    Plan,
    Reveals,
    Server,
    Setting,
    State,
    Up,
    scaled,
)
from fedfw.errors import NonFiniteError
from fedfw.options import option

NETWORK_LR = 0.1
"""Step size of gradient steps where no smoothness constant is known."""
_LARGEST = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float64)}
_NETWORK_GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class ProjectedAlgorithm(Algorithm):
    """Clients take gradient steps and send dense vectors; the server projects.

    Parameters
    ----------
    lr : float or str
        Step size. "theory" is 1 / L', where the problem knows its smoothness: L' is max L_i for
        methods whose means have the weights w_i, and n max w_i L_i for the others. "auto" is what
        works: for softmax regression a tuned multiple of that, for networks 0.1; "auto:2" is twice
        that.
    decay : {"none", "linear"}
        Whether the step size stays as it is, or falls linearly: lr_t = lr (1 - (t - 1) / T) in
        round t of T.
    constraint : ConstraintSet or Product
        The set D; it must have a projection.

    Examples
    --------
    >>> import fedfw
    >>> issubclass(fedfw.FedAvg, fedfw.ProjectedAlgorithm), fedfw.FedAvg(fedfw.L2Ball(1.0)).lr
    (True, 'auto')
    """

    _: KW_ONLY
    lr: Annotated[
        float | str,
        option(
            "step size of the projected methods: a number, auto (what works), theory (1/smoothness), or a multiple",
            expected='a positive number, "auto", "theory", or a multiple of these such as "auto:2"',
        ),
    ] = "auto"
    decay: Annotated[
        Literal["none", "linear"],
        option("whether lr stays as it is, or falls linearly to zero over the run's rounds"),
    ] = "none"

    contract: ClassVar[Contract] = Contract(up=Up.VECTOR)
    tuned_step: ClassVar[float] = 1.0
    """Step size for softmax regression in units of classes / L', see docs/algorithms.md.

    The bound L' takes the loss's curvature to be 1/2; near the uniform scores where training begins
    it is 1 / classes.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        lr = scaled("lr", self.lr, {"auto": lambda: 1.0, "theory": lambda: 1.0})
        if lr == 0:
            raise ValueError(f"lr={self.lr!r}, expected a positive number")

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"lr": cls.steps(setting, (0.05, 0.1, 0.2, 0.4, 0.8, 1, 1.4, 2, 3, 4, 6, 8))}

    @staticmethod
    def steps(setting: Setting, multiples: Sequence[float]) -> tuple[Any, ...]:
        """Multiples of the default step size; plain step sizes where the problem does not know its
        smoothness.
        """
        if (
            setting.network or setting.smoothness() is None
        ):  # which is known where local_smoothness is
            return _NETWORK_GRID[: max(2, len(multiples))]
        return tuple(f"auto:{m:g}" for m in multiples)

    def plan(self, setting: Setting) -> Plan:
        units = {"auto": lambda: self.usual_lr(setting), "theory": lambda: self._theory(setting)}
        lr = scaled("lr", self.lr, units)
        horizon = setting.rounds if self.decay == "linear" else 0
        return Plan(
            setting.n,
            setting.constraint,
            setting.local_steps,
            lr=lr,
            horizon=horizon,
            shapes=setting.shapes,
        )

    def usual_lr(self, setting: Setting) -> float | None:
        """What "auto" stands for; None where nothing is known that it could be worked out from."""
        if setting.network:
            return NETWORK_LR
        step = self._theory(setting)
        return (
            step
            if step is None or setting.classes is None
            else self.tuned_step * setting.classes * step
        )

    def _theory(self, setting: Setting) -> float | None:
        """Return 1 / L', where the problem knows its smoothness."""
        smoothness = setting.smoothness
        if self.contract.weighted and setting.local_smoothness is not None:
            smoothness = setting.local_smoothness
        largest = smoothness()
        return None if largest is None else 1 / largest


@dataclass(frozen=True)
class SplittingAlgorithm(ProjectedAlgorithm):
    """Each client has a vector that it last sent; xtilde is the mean of all of them, and xbar =
    P(xtilde).

    Absent clients count with the vector they sent last. Clients send how their vector changed. The
    projected point never enters xtilde.

    Parameters
    ----------
    eta : float
        Parameter of the proximal step.
    """

    eta: Annotated[float, option("parameter of the proximal step", gt=0)] = 3.0

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"xtilde": x.clone()})

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        xtilde = server.vectors["xtilde"] + aggregate.total / plan.n
        return Server(plan.project(xtilde), {"xtilde": xtilde})


@dataclass(frozen=True)
class LocalChanges(ProjectedAlgorithm):
    """Clients begin every round at xbar and send how far they came; means have the weights w_i."""

    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        reveals=Reveals.MODELS,
        shares="how every client's local model changes in each round",
        weighted=True,
    )

    @classmethod
    def few_steps(cls, setting: Setting, for_networks: tuple[float, ...]) -> tuple[Any, ...]:
        """Step sizes of a grid that has another option, too: these, or multiples of the default."""
        if setting.network or setting.smoothness() is None:
            return for_networks
        return cls.steps(setting, (0.2, 0.5, 1, 2))

    def start_clients(self, x: Tensor) -> State:
        return {"x": x[:, :0]}

    def slope(self, message: Message, g: Tensor) -> Tensor:
        """The direction (m, p) of a local step, from the gradients g (m, p)."""
        return g

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        x, lr = message.xbar.expand(len(state["x"]), -1), plan.lr_at(message.t)
        for _ in range(plan.local_steps):
            _, g = gradient(x, plain=True)
            x = x - lr * self.slope(message, g)
        return {}, {"vector": x - message.xbar}


def vital(*names: str) -> dict[str, Kept]:
    """Parts of a memory that come from the client's data and that the server's sum relies on."""
    return dict.fromkeys(names, Kept.VITAL)


def descend(
    plan: Plan,
    t: int,
    gradient: Gradient,
    x: Tensor,
    centre: Tensor,
    weight: float,
    *,
    plain: bool = False,
) -> Tensor:
    """The local steps above in round t, from x (m, p), with the pull to ``centre`` (m, p) or (p,).

    They are on f_i where ``plain``, else on n w_i f_i.
    """
    step = 1 / (1 / plan.lr_at(t) + weight)
    if step > _LARGEST[x.dtype]:
        raise NonFiniteError(
            f"round {t}: a step size of {step:g} is infinite in {x.dtype}, expected a smaller lr"
        )
    for _ in range(plan.local_steps):
        _, slope = gradient(x, plain=True) if plain else gradient(x, times=plan.n)  # grad h_i
        if weight:
            slope = slope.add_(x - centre, alpha=weight)
        x = torch.add(x, slope, alpha=-step, out=slope if slope.dtype is x.dtype else None)
    return x
