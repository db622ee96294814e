"""
A model and a constraint set of your own
========================================

A small network is trained whose layers each have a set. One of the sets is written here, in one
class: the ellipsoid of all x with ``||x / axes||_2 <= 1``. `check_constraint` tests it against the
promises that algorithms rely on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import fedfw
from fedfw.atoms import Atom, Dense, ReadAtom
from fedfw.atoms.floats import round_inside
from fedfw.data import load_data, partition
from fedfw.linalg.selection import row_norms, unit_rows
from fedfw.sets.base import ConstraintSet, Request, Shape
from fedfw.testing import check_constraint


@dataclass(frozen=True, eq=False)
class Ellipsoid(ConstraintSet):
    """{x: ||x / axes||_2 <= 1}."""

    axes: Tensor

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        unit, norms = unit_rows(self.axes * g)
        return Dense(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=-norms,
            values=round_inside(-self.axes * unit, request.precision),
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return row_norms(x / self.axes) - 1

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {Dense: partial(Dense.read, shape=shape, scale=1.0)}

    def diameter(self, shape: Shape) -> float:
        return 2 * float(self.axes.max())


axes = torch.linspace(0.5, 2.0, 10)
check_constraint(Ellipsoid(axes), (10,), reference=lambda g: -float((axes * g).norm()))
print("the ellipsoid keeps its promises")

data = load_data("digits")
parts = partition("labels:3", data.train, clients=10, classes=10, seed=0)

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
with torch.no_grad():
    network[3].bias.zero_()  # a set without a projection needs a start inside
problem = fedfw.Problem(
    network,
    nn.functional.cross_entropy,
    [data.train.take(part) for part in parts],
    test=data.test.take(),
)
sets = fedfw.Product(
    {
        "1.weight": fedfw.NuclearBall(10.0),  # low rank
        "3.bias": Ellipsoid(axes),
        "*": fedfw.L2Ball(10.0),
    }
)
algorithm = fedfw.FedFWPlus(sets)  # momentum, step sizes and penalty: what works for networks
run = fedfw.simulate(problem, algorithm, rounds=100, eval_every=25)
for record in run.history:
    if record.loss is not None:
        print(f"round {record.round:3d}  loss {record.loss:.3f}  accuracy {record.accuracy:.3f}")
sent, dense = run.history.total("bytes_up"), run.history.total("bytes_dense") / 2
print(f"sent up: {sent / 1e6:.1f} MB; dense vectors would have been {dense / 1e6:.1f} MB")
