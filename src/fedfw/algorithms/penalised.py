"""Frank-Wolfe steps of clients that keep points of their own, held together by a penalty.

    g_i = (average of w_i grad f_i(x_i)) + lam_t (x_i - xbar)
    s_i = argmin over s in D of <g_i, s>                 (the oracle; one atom, all that is sent)
    x_i <- (1 - eta_t) x_i + eta_t s_i
    xbar <- mean of all x_i, present or not

`FedFW`, `FedFWSto` and `FedFWPlus` are this with an average and what else is added to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.averaging import Averaging
from fedfw.algorithms.contract import (
    Affine,
    Algorithm,
    Client,
    Kind,
    Message,
    Oracles,
    Payload,
    Run,
    State,
    Sums,
)
from fedfw.algorithms.optin import Certifies, Tunable
from fedfw.algorithms.penalty import PenaltyOption, validate_penalty
from fedfw.algorithms.rules import Rates
from fedfw.algorithms.step_sizes import ScheduleOption, validate_schedule
from fedfw.atoms import Atom
from fedfw.atoms.mixture import mix
from fedfw.linalg.pull import pulled


@dataclass(frozen=True, kw_only=True)
class PenalisedFW(Algorithm, Certifies, Tunable):
    """FedFW's step, for any averaging of gradients and any vector that is added to them.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    penalty : float or str
        lam_0; see `fedfw.algorithms.penalty`.
    schedule : str, Schedule, callable or None
        Step sizes; see `fedfw.schedules`.

    Examples
    --------
    >>> import fedfw
    >>> isinstance(fedfw.FedFWPlus("l1:1"), fedfw.PenalisedFW)
    True
    """

    penalty: PenaltyOption = "auto"
    schedule: ScheduleOption = None

    uploads: ClassVar[Mapping[str, Kind]] = {"atom": Kind.ATOM}
    means: ClassVar[Mapping[str, str]] = {"xbar": "x"}
    has_curvature_steps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_penalty(self.penalty)
        validate_schedule(self.name, self.schedule, self.has_curvature_steps)

    @property
    def averaging(self) -> Averaging:
        """Return how gradients are averaged over rounds."""
        return Averaging()

    @property
    def averages(self) -> bool:
        return self.averaging.averages

    def init_client(self, run: Run, x: Tensor) -> Client:
        return Client(shared={"x": x.double()}, private=self.averaging.init(x))

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.to(torch.float64, copy=True)}

    def direction(self, d: Tensor, shared: State, msg: Message, rates: Rates) -> Tensor:
        """Return d + lam (x - xbar), in the precision of d (m, p)."""
        return pulled(d, shared["x"], msg.xbar, rates.lam)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local Frank-Wolfe steps on f_i with the penalty to xbar, and send the mixture of the
        atoms.
        """
        shared, private = client
        atoms: list[Atom] = []
        for k, rates in enumerate(msg.rates):
            if k:
                x = atoms[-1].stepped(shared["x"], msg.rates[k - 1].eta)
                shared = shared | {"x": x}
            a = oracles.gradient(shared["x"])
            private, d = self.averaging.update(private, a, rates)
            g = self.direction(d, shared, msg, rates)
            atoms.append(oracles.lmo(g.to(a.dtype)))
        return private, {"atom": mix(atoms, msg.shares)}

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        return shared | {"x": payload["atom"].stepped(shared["x"], msg.step)}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        return {**server, "xbar": mean_after_steps(run, sums, msg)}

    def public_direction(self, run: Run, shared: State, msg: Message) -> Tensor:
        return self.direction(torch.zeros_like(shared["x"]), shared, msg, msg.rates[0])


def mean_after_steps(run: Run, sums: Sums, msg: Message) -> Affine:
    """Return the update of the mean of all x_i when the participants step to their atoms."""
    total = sums.total("atom")
    if sums.complete:  # the sum of all x_i is n xbar: the total stays sparse
        return Affine(1 - msg.step, msg.step / run.n, total)
    return Affine(1.0, msg.step / run.n, total - sums.shared("x"))
