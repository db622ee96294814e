"""An algorithm and a set that other packages can install; their entry points are in pyproject.toml."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

from torch import Tensor

import fedfw
from fedfw.algorithms import Contract, Kept, Message, Plan, Rates, State
from fedfw.atoms import Atom, Dense, ReadAtom
from fedfw.atoms.floats import round_inside
from fedfw.linalg.selection import row_norms, unit_rows
from fedfw.options import option
from fedfw.sets.base import ConstraintSet, Request, Shape
from fedfw.sets.registry import Entry


@dataclass(frozen=True)
class SlowFW(fedfw.OracleAlgorithm):
    """g_i = w_i grad f_i(x_i) + lam_t (x_i - z_i),  z_i <- slowness z_i + (1 - slowness) xbar once a round."""

    slowness: Annotated[float, option("how much of its old centre a client keeps", ge=0, lt=1)] = (
        0.5
    )

    name: ClassVar[str] = "slow"
    title: ClassVar[str] = "SlowFW"
    contract: ClassVar[Contract] = replace(
        fedfw.OracleAlgorithm.contract,
        remembers={"x": Kept.REBUILT, "z": Kept.REBUILT},
        proves=False,
    )

    def start_clients(self, x: Tensor) -> State:
        return super().start_clients(x) | {"z": x.clone()}

    def receive(self, plan: Plan, shared: State, message: Message) -> State:
        return shared | {"z": self.slowness * shared["z"] + (1 - self.slowness) * message.xbar}

    def direction(
        self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates
    ) -> tuple[State, Tensor]:
        return state, a + rates.lam * (state["x"] - state["z"])


@dataclass(frozen=True)
class Squashed(ConstraintSet):
    """{x: ||x|| <= r, in units of twice the length along the first half of the axes}."""

    r: float

    name: ClassVar[str] = "ellipsoid"

    def _axes(self, g: Tensor) -> Tensor:
        """The half-axes (p,): 2 r for the first half of the entries, r for the others."""
        axes = g.new_full((g.shape[-1],), float(self.r))
        axes[: g.shape[-1] // 2] *= 2
        return axes

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        axes = self._axes(g)
        unit, norms = unit_rows(axes * g)
        values = round_inside(-axes * unit, request.precision)
        return Dense(
            shape=shape, batched=True, precision=request.precision, bound=-norms, values=values
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return row_norms(x / self._axes(x)) - 1

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {Dense: partial(Dense.read, shape=shape, scale=1.0)}

    def diameter(self, shape: Shape) -> float:
        return 4 * float(self.r)


ENTRY = Entry(Squashed, lambda shape: Squashed(2.0))
