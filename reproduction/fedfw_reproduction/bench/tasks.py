"""What is timed: synthetic data of a given size, a model, and one full-gradient step of every
client a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw

CLASSES = 10


@dataclass(frozen=True)
class BenchTask:
    """Synthetic data of a given size, and a model on them.

    Parameters
    ----------
    name : str
        On the command line.
    clients, samples, features : int
        Clients, samples of each, and features of a sample (an image's side for the CNN).
    model : str
        softmax, mlp or cnn.
    lr : float
        FedAvg's step size.
    """

    name: str
    clients: int
    samples: int
    features: int
    model: str = "softmax"
    lr: float = 0.1

    @property
    def label(self) -> str:
        """Its size and its model, in words."""
        size = f"{self.features}" if self.model != "cnn" else f"{self.features}x{self.features}"
        return f"{self.clients} x {self.samples} x {size}, {self.model}, {self.parameters:,} parameters"

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.module().parameters())

    def module(self) -> nn.Module:
        """The model at its start, always the same."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if self.model == "softmax":
                layer = nn.Linear(self.features, CLASSES)
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)
                return layer
            if self.model == "mlp":
                return nn.Sequential(
                    nn.Linear(self.features, 64), nn.ReLU(), nn.Linear(64, CLASSES)
                )
            if self.model == "cnn":
                side = self.features // 4
                return nn.Sequential(
                    *(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                    *(nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                    *(nn.Flatten(), nn.Linear(16 * side * side, CLASSES)),
                )
        raise ValueError(f"model {self.model!r}, expected softmax, mlp or cnn")

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs (clients, samples, ...) and classes (clients, samples)."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.features,) if self.model != "cnn" else (1, self.features, self.features)
        inputs = torch.rand(self.clients, self.samples, *shape, generator=generator)
        return inputs, torch.randint(0, CLASSES, (self.clients, self.samples), generator=generator)

    def problem(self) -> fedfw.Problem:
        """For the simulator, and to judge what others found."""
        inputs, targets = self.data()
        return fedfw.Problem(
            self.module(), nnf.cross_entropy, list(zip(inputs, targets, strict=True))
        )


SMALL = BenchTask("small", 100, 50, 60)
TASKS = {
    task.name: task
    for task in (
        SMALL,
        BenchTask("few", 10, 50, 60),
        BenchTask("many", 1000, 50, 60),
        BenchTask("mnist", 10, 6000, 784),
        BenchTask("mnist-100", 100, 600, 784),
        BenchTask("mlp", 100, 50, 60, "mlp"),
        BenchTask("cnn", 10, 50, 28, "cnn"),
    )
}
