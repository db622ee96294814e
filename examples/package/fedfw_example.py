"""An algorithm and a set that other packages can install; their entry points are in pyproject.toml."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

import fedfw
from fedfw.algorithms import Client, Message, Rates, Run, State
from fedfw.atoms import Atom, Dense, ReadAtom
from fedfw.atoms.floats import round_inside
from fedfw.linalg.selection import row_norms, unit_rows
from fedfw.options import option
from fedfw.sets.base import ConstraintSet, Request, Shape
from fedfw.sets.registry import Entry


@dataclass(frozen=True, kw_only=True)
class SlowFW(fedfw.FedFW):
    """g_i = w_i grad f_i(x_i) + lam_t (x_i - z_i),  z_i <- slowness z_i + (1 - slowness) xbar once a round."""

    slowness: Annotated[float, option("how much of its old centre a client keeps", ge=0, lt=1)] = (
        0.5
    )

    name: ClassVar[str] = "slow"
    title: ClassVar[str] = "SlowFW"
    proves_bounds: ClassVar[bool] = False

    def init_client(self, run: Run, x: Tensor) -> Client:
        shared, private = super().init_client(run, x)
        return Client(shared | {"z": shared["x"].clone()}, private)

    def receive(self, run: Run, shared: State, msg: Message) -> State:
        return shared | {"z": torch.lerp(msg.xbar.double(), shared["z"], self.slowness)}

    def direction(self, d: Tensor, shared: State, msg: Message, rates: Rates) -> Tensor:
        return d + rates.lam * (shared["x"] - shared["z"])


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
