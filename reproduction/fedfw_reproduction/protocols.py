"""How the tables are run: the stated protocol, a matched amount of local work, and ours; each with
a grid of six.

*Stated* is what the paper says: 10 clients, 100 rounds, one full-gradient step a round, one joint
set of radius 10. *Matched* gives every algorithm one local epoch a round in batches of 600 and one
set for each parameter, as behind the published numbers. *Ours* is the stated protocol with FedFW+
and momentum on smooth sets, anchored FedFW on polytopes; networks get one set for each parameter
and steps that decay to zero. *FedLMO* is the stated protocol with FedLMO, which sends two dense
vectors beside each atom.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedfw import ALGORITHMS
from fedfw.algorithms import PenalisedFW
from fedfw.config import RunConfig
from fedfw.models import MODELS
from fedfw.options import options_of
from fedfw.sets import parse_set
from fedfw_reproduction.cells import Cell, Grid

_CLASSES = {"mnist": 10, "cifar10": 10, "synthetic:published-10": 10, "synthetic:published-3": 3}
_CLASSES |= {"emnist-digits": 10, "emnist-byclass": 62, "emnist-small": 47}
_ON_SMOOTH = tuple(f"theory:{multiple}" for multiple in (0.03, 0.1, 0.3, 1, 3, 10))
_ON_SMOOTH_WITH_MOMENTUM = tuple(f"theory:{multiple}" for multiple in (0.01, 0.03, 0.1, 0.3, 1, 3))
_ON_POLYTOPES = tuple(f"theory:{multiple}" for multiple in (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1))
_FOR_NETWORKS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Initial penalties; "theory" is the unit zeta / (2 n diameter), and 1 / L' for step sizes."""
LMO_SIX: Grid = (
    ("schedule", ("convex", "linear-decay:0.2", "linear-decay:0.1")),
    ("momentum", (0.9, 0.97)),
)
"""FedLMO's six settings on convex problems, whatever the set."""


@dataclass(frozen=True)
class Scale:
    """How much is run; the quick one is for seeing that everything works.

    Parameters
    ----------
    quick : bool
        Whether grids are thinned out, too.
    seeds : int
        Runs of everything.
    rounds, long_rounds, network_rounds : int
        Of most studies, of those that need more, and of networks.
    samples, network_samples : int or None
        For training, at most; None for all.
    some : int
        For figures that need no more than some samples.
    mixed : bool
        Whether the CNN of table 2 multiplies in bfloat16 on a GPU; other networks are too small to
        gain by it.
    """

    quick: bool = False
    seeds: int = 3
    rounds: int = 100
    long_rounds: int = 300
    samples: int | None = None
    network_rounds: int = 100
    network_samples: int | None = None
    some: int = 6000
    mixed: bool = False

    def of(self, model: str) -> tuple[int, int | None]:
        """Rounds and samples for a model."""
        return (
            (self.rounds, self.samples)
            if MODELS[model].convex
            else (self.network_rounds, self.network_samples)
        )

    def kind(self, met: bool | None) -> str:
        """How a cell is shown that meets what was asked for, or does not; one that was run small
        proves neither.
        """
        return "plain" if self.quick or met is None else "good" if met else "bad"

    def thinned(self, grid: Grid) -> Grid:
        """The grid, or a few of its points."""
        return tuple((key, values[1::3] or values) for key, values in grid) if self.quick else grid


FULL = Scale()
QUICK = Scale(
    quick=True,
    seeds=2,
    rounds=20,
    long_rounds=30,
    samples=1000,
    network_rounds=5,
    network_samples=200,
    some=1000,
)


def six(algorithm: str, constraint: str, model: str, dataset: str, momentum: bool = False) -> Grid:
    """Six points for each algorithm: penalties, or step sizes and a proximal parameter."""
    network = not MODELS[model].convex
    if algorithm == "fedlmo":
        return LMO_SIX
    if issubclass(ALGORITHMS[algorithm], PenalisedFW):
        if algorithm == "fedfw-anchored":
            return (("anchor-every", (5, 10, 20)), ("momentum", (0.0, 0.9)))
        if network:
            return (("penalty", _FOR_NETWORKS),)
        smooth = _ON_SMOOTH_WITH_MOMENTUM if momentum else _ON_SMOOTH
        return (("penalty", _ON_POLYTOPES if parse_set(constraint).is_polytope else smooth),)
    multiples = (
        (0.8, 1.6, 3.2) if algorithm in ("feddr", "fedadmm") else (0.2, 0.4, 0.8, 1.6, 3.2, 4.8)
    )
    lrs: tuple[Any, ...] = tuple(
        f"theory:{multiple * _CLASSES[dataset]:g}" for multiple in multiples
    )
    if network:
        lrs = (0.01, 0.03, 0.1) if len(multiples) == 3 else (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    return (("lr", lrs), ("eta", (3.0, 10.0))) if len(multiples) == 3 else (("lr", lrs),)


def stated(
    dataset: str, partition: str, constraint: str, algorithm: str, model: str, scale: Scale
) -> Cell:
    """What the paper says."""
    rounds, samples = scale.of(model)
    own, network = options_of(ALGORITHMS[algorithm]), not MODELS[model].convex
    config = RunConfig.of(
        dataset=dataset,
        model=model,
        clients=10,
        partition=partition,
        constraint=constraint,
        algorithm=algorithm,
        rounds=rounds,
        momentum=0.0 if "momentum" in own else None,
        schedule="nonconvex" if "schedule" in own and network else None,
        mixed=True if scale.mixed and model == "cnn" else None,
    )
    return Cell(
        config,
        grid=scale.thinned(six(algorithm, constraint, model, dataset)),
        seeds=scale.seeds,
        samples=samples,
        tune_share=0.1 if network and not scale.quick else 1.0,
    )


def matched(
    dataset: str, partition: str, constraint: str, algorithm: str, model: str, scale: Scale
) -> Cell:
    """One local epoch a round, one set for each parameter."""
    cell = stated(dataset, partition, constraint, algorithm, model, scale)
    config = replace(cell.config, batch_size=matched_batch(cell.samples), per_parameter=True)
    return replace(cell, config=config, epoch=True)


def matched_batch(samples: int | None) -> int:
    """Samples in a batch of a matched epoch: 600 of all of MNIST, as many batches of fewer samples."""
    return 600 if samples is None else max(1, samples // 30)


def ours(dataset: str, partition: str, constraint: str, model: str, scale: Scale) -> Cell:
    """The stated protocol with what we would use: steps from curvature with FedFW+, small steps
    with networks.
    """
    network = not MODELS[model].convex
    algorithm = "fedfw-anchored" if parse_set(constraint).is_polytope else "fedfw+"
    cell = stated(dataset, partition, constraint, algorithm, model, scale)
    config = cell.config.having(
        momentum=None if algorithm == "fedfw-anchored" else 0.9,
        per_parameter=network,
        schedule="linear-decay:0.05" if network else "auto" if algorithm == "fedfw+" else None,
    )
    return replace(
        cell,
        config=config,
        grid=scale.thinned(six(algorithm, constraint, model, dataset, momentum=True)),
    )
