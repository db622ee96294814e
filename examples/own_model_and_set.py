"""
A model and a constraint set of your own
========================================

A small network is trained whose layers each have a set. One of the sets is written here: the
ellipsoid of all x with ``||x / axes||_2 <= 1``. A class with two methods is enough, the oracle
``lmo(g)`` and the ``diameter``. `check_constraint` tests it against the promises that algorithms
rely on.
"""

import torch
from torch import Tensor, nn

import fedfw
from fedfw.data import load_data, partition
from fedfw.testing import check_constraint


class Ellipsoid:
    """{x: ||x / axes||_2 <= 1}."""

    def __init__(self, axes: Tensor) -> None:
        self.axes = axes

    def lmo(self, g: Tensor) -> Tensor:
        scaled = self.axes * g
        return -self.axes * scaled / scaled.norm()

    def diameter(self, shape: tuple[int, ...]) -> float:
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
