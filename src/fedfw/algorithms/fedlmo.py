"""FedLMO: oracle steps from the shared model along a shared momentum, with control variates.

    client i:  x <- xbar,  m_i <- m                                  (before any m: the gradient)
               K times:  m_i <- beta m_i + (1 - beta) (grad f_i(x) - c_i + c)
                         x   <- (1 - eta_t/K) x + (eta_t/K) lmo_D(m_i)
               c_i <- the mean of its K gradients, without corrections
               it sends its net atom s_i, for which x = (1 - a_t) xbar + a_t s_i, m_i, and how
               c_i changes
    server:    xbar <- (1 - a_t) xbar + a_t (mean of the s_i),   m <- mean of the m_i
               c <- mean of the c_i of the clients that ever took part

Every x and every xbar is a convex combination of points of D, whoever takes part. For convex losses
docs/studies/theory.md proves a rate in which neither the clients' differences nor K appear.
``renew_every`` leaves the c_i as they are for some rounds; in between atoms alone travel. A c_i
renewed so seldom is the gradient at xbar alone: it serves for the local points of many rounds.

References: the momentum is that of Muon and Scion (Jordan et al. 2024; Pethick et al., arXiv
2502.07529), shared as in FedCM and Mime (Xu et al. 2021; Karimireddy et al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.algorithms import control_variates as controls
from fedfw.algorithms.averaging import DEFAULT_MOMENTUM, MomentumOption
from fedfw.algorithms.contract import (
    Affine,
    Algorithm,
    Client,
    Exchange,
    Kind,
    Message,
    Oracles,
    Payload,
    Present,
    Reveals,
    Run,
    State,
    Sums,
)
from fedfw.algorithms.local_steps import local_grid, mean_of_ends, take_local_steps
from fedfw.algorithms.optin import Predicts, Tunable
from fedfw.algorithms.rules import StepRule
from fedfw.algorithms.setting import Setting
from fedfw.algorithms.step_sizes import (
    ROUND_SCHEDULE,
    ScheduleOption,
    steps_by_round,
    validate_schedule,
)
from fedfw.compression import CompressOption
from fedfw.options import option

CorrectionOption = Annotated[
    bool, option("control variates, which take out the differences between clients")
]


@dataclass(frozen=True, kw_only=True)
class FedLMO(Algorithm, Predicts, Tunable):
    """Oracle steps from the shared model along a shared momentum, with control variates.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; for whole networks `fedfw.layer_balls` makes one.
    momentum : float or "auto"
        beta, the weight of the past; "auto" is 0.9. With 0 no momentum travels.
    schedule : str, Schedule or callable
        Step sizes eta_t of rounds (not of local steps, which are K times shorter).
    correction : bool
        Whether control variates take out the differences between clients; their changes are one
        more vector up.
    renew_every : int
        After so many rounds the control variates are renewed. Above 1 the momentum stays with the
        client in its round.
    compress : str
        What is done to the momentum and to changes of control variates: "topk:64", for example; see
        `fedfw.compression`. "bits:8", "bits:4" and "bits:2" are for dense net atoms, too.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
    >>> algorithm = fedfw.FedLMO(fedfw.L2Ball(10.0))
    >>> run = fedfw.simulate(problem, algorithm, rounds=50, local_steps=3, participation=3)
    >>> run.history[-1].accuracy > 0.8
    True
    """

    momentum: MomentumOption = DEFAULT_MOMENTUM
    schedule: ScheduleOption = ROUND_SCHEDULE
    correction: CorrectionOption = True
    renew_every: Annotated[
        int, option("rounds between two renewals of the control variates", ge=1)
    ] = 1
    compress: CompressOption = "none"

    name: ClassVar[str] = "fedlmo"
    title: ClassVar[str] = "FedLMO"
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = (
        "every client's averaged gradients (its momentum, and how its control variate changes) in "
        "each round"
    )
    downloads: ClassVar[tuple[str, ...]] = ("m", "c")
    means: ClassVar[Mapping[str, str]] = controls.MEANS
    weighted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_schedule(self.name, self.schedule, curvature=False)

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return local_grid(setting)

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        beta = DEFAULT_MOMENTUM if self.momentum == "auto" else self.momentum
        return replace(self, momentum=beta), steps_by_round(self.schedule, setting)

    @property
    def uploads(self) -> Mapping[str, Kind]:
        entries = {"atom": Kind.POINT}
        if self.correction:
            entries["change"] = Kind.CHANGE
        if self.momentum and self.renew_every == 1:
            entries["m"] = Kind.VALUE
        return entries

    @property
    def all_exchanges(self) -> Sequence[Exchange]:
        return (self, AtomsAlone(self))

    def exchanges(self, run: Run, server: State, t: int) -> Sequence[Exchange]:
        renews = (t - 1) % self.renew_every == 0
        return (self,) if renews else (AtomsAlone(self),)

    def init_client(self, run: Run, x: Tensor) -> Client:
        return Client(shared=controls.init_controls(x), private={})

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.to(torch.float64, copy=True)} | controls.init_mean(x)

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        vectors = {}
        if "m" in server:
            vectors["m"] = server["m"]
        if bool(server["seen"] > 0):
            vectors["c"] = controls.mean_control(server)
        return server, vectors

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        m = _momentum(run, msg)
        gradients: list[Tensor] = []

        def direction(x: Tensor) -> Tensor:
            nonlocal m
            gradients.append(oracles.gradient(x, times="1"))
            g = controls.correct(gradients[-1], client.shared, msg)
            m = g if m is None else torch.lerp(g, m.expand_as(g), float(self.momentum))
            return m

        atom = take_local_steps(run, msg, oracles, direction)
        if self.renew_every > 1:
            del gradients[1:]
        change = torch.stack(gradients).sum(0) / len(gradients) - client.shared["c"]
        payload = {"atom": atom, "change": change.to(run.dtype), "m": m}
        return client.private, {name: payload[name] for name in self.uploads}

    def predict(
        self, run: Run, shared: State, msg: Message, name: str, decoded: Payload
    ) -> Tensor | None:
        """Predict m_i: what it is if all K gradients are their mean, which the change tells."""
        m = _momentum(run, msg)
        if "change" not in decoded:
            return torch.zeros_like(shared["c"]) if m is None else m.expand_as(shared["c"])
        g: Tensor = decoded["change"]
        if "c" in msg.vectors:
            g = g + (shared["seen"] * msg.vectors["c"]).to(g.dtype)
        if m is None:
            return g
        return torch.lerp(g, m.expand_as(g), float(self.momentum) ** len(msg.rates))

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        return controls.apply_change(shared, payload)

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        after = {**server, **controls.mean_after_changes(run, server, sums)}
        if "m" in sums:
            after["m"] = sums.mean("m")
        return after | {"xbar": mean_of_ends(sums, msg)}


def _momentum(run: Run, msg: Message) -> Tensor | None:
    """Return the shared momentum (p,), or None before there is one."""
    m = msg.vectors.get("m")
    return None if m is None else m.to(run.dtype)


@dataclass(frozen=True)
class AtomsAlone(Exchange):
    """A round between two renewals: nothing but atoms travels up."""

    method: FedLMO

    label: ClassVar[str] = "atoms"
    uploads: ClassVar[Mapping[str, Kind]] = {"atom": Kind.POINT}
    downloads: ClassVar[tuple[str, ...]] = FedLMO.downloads

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return self.method.broadcast(run, server, xbar, present)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        private, payload = self.method.local_update(run, client, msg, oracles)
        return private, {"atom": payload["atom"]}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        return self.method.server_step(run, server, sums, msg)
