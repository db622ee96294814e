"""What is run: every comparison's problem, methods and grids.

All methods of a comparison see the same images, rounds, local steps, batches and participants. Each
has at most six settings, with step sizes and their decay among them, tried with seed 0 on a fifth
of the training data that the clients lend, at the full number of rounds (steps that decay to zero
make a shorter trial another one). The best is then run with every seed on all training data and
judged on the full test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedfw.config import RunConfig
from fedfw_reproduction.lab import Wanted
from fedfw_reproduction.networks.trainings import Best, Judged, Training
from fedfw_reproduction.protocols import Scale

Setting = dict[str, Any]
LOOKS = 15
"""How often a final run looks at the test data."""
UNCONSTRAINED = "linf:1e6"
"""The set of the gradient methods: so large that they never notice it."""
CERTIFIED_RADII = (0.1, 0.25, 0.5, 1.0)


def settings(**axes: Sequence[Any]) -> list[Setting]:
    """All combinations of the values."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


STEPS = ("linear-decay:0.1", "linear-decay:0.05", "linear-decay:0.2", "linear-decay:0.025")


def _rates(*lrs: float) -> list[Setting]:
    """Step sizes that decay linearly, and the first one without decay."""
    return [*settings(lr=lrs, decay=("linear",)), {"lr": lrs[0], "decay": "none"}]


def _server_rates(lr: float) -> list[Setting]:
    steps = settings(server_lr=(0.01, 0.003, 0.03), lr=(lr,), decay=("linear",))
    return [*steps, {"server_lr": 0.01, "lr": lr, "decay": "none"}]


_LMO = [*settings(schedule=STEPS, correction=(True,)), {"schedule": STEPS[0], "correction": False}]
_MUON = [*settings(schedule=STEPS, momentum=(0.9,)), {"schedule": STEPS[0], "momentum": 0.95}]
_IMAGES: dict[str, tuple[str, list[Setting]]] = {
    "FedAvg": ("fedavg", _rates(0.1, 0.03, 0.3, 1.0)),
    "FedProx": ("fedavg", settings(mu=(0.1, 1.0), lr=(0.1, 0.3, 1.0), decay=("linear",))),
    "SCAFFOLD": ("scaffold", _rates(0.1, 0.03, 0.3, 0.01, 0.003)),
    "FedAvgM": ("fedavgm", _rates(0.03, 0.01, 0.1)),
    "server Adam": ("fedadam", _server_rates(0.1)),
    "local AdamW, shared state": ("fedadamw", _rates(0.001, 0.0003, 0.003, 0.01)),
    "SGD, shared momentum": ("fedcm", _rates(0.1, 0.03, 0.3, 1.0, 3.0)),
}
"""The gradient methods on images: name in the tables, algorithm, and settings, the likeliest first.
"""
_TEXT: dict[str, tuple[str, list[Setting]]] = {
    "local AdamW, shared state": ("fedadamw", _rates(0.003, 0.001, 0.01)),
    "server Adam": ("fedadam", _server_rates(0.3)),
    "SGD, shared momentum": ("fedcm", _rates(0.3, 0.1, 1.0, 3.0, 10.0)),
    "FedAvg": ("fedavg", [*_rates(0.3, 0.1, 1.0), {"lr": 1.0, "decay": "none"}]),
}
"""The same on text, where gradients are smaller."""
_MUONS = {
    "FedMuon (Liu et al.)": "fedmuon",
    "FedMuon (Takezawa et al.)": "fedmuon-cv",
    "LocalMuon": "local-muon",
}


@dataclass(frozen=True)
class Method:
    """One line of a comparison.

    Parameters
    ----------
    label : str
        In tables.
    runs : tuple of Best
        One a seed, all from the same trials.
    """

    label: str
    runs: tuple[Best, ...]


@dataclass(frozen=True)
class Comparison:
    """Methods on one problem.

    Parameters
    ----------
    methods : tuple of Method
        The first is ours.
    by : "accuracy" or "test_loss"
        What trials are chosen by, and what is compared.
    note : str
        Where a method differs from the others.
    """

    methods: tuple[Method, ...]
    by: Judged = "accuracy"
    note: str = ""

    @property
    def config(self) -> RunConfig:
        """What all methods have in common, as the first one has it."""
        return self.methods[0].runs[0].trials[0].config

    @property
    def wanted(self) -> list[Wanted]:
        """All runs, method by method."""
        return [run for method in self.methods for run in method.runs]


def _method(
    label: str,
    problem: RunConfig,
    tried: Sequence[Setting],
    scale: Scale,
    by: Judged = "accuracy",
    **changes: Any,
) -> Method:
    """A method with its trials; a quick one has two."""
    some = list(tried)[:2] if scale.quick else tried
    trials = tuple(Training(problem.having(**setting), held_out=True) for setting in some)
    rounds = changes.get("rounds", problem.rounds)
    best = Best(
        trials, by, seed=0, every=max(1, rounds // LOOKS), changes=tuple(sorted(changes.items()))
    )
    return Method(label, tuple(replace(best, seed=seed) for seed in range(scale.seeds)))


def _clients(scale: Scale, **values: Any) -> RunConfig:
    """A problem of a hundred clients; a quick one of ten with the digits of scikit-learn."""
    usual = {
        "clients": 100,
        "participation": 10,
        "partition": "dirichlet:0.1",
        "local_steps": 5,
        "batch_size": 64,
    }
    quick = {
        "dataset": "digits",
        "clients": 10,
        "participation": 4,
        "local_steps": 2,
        "batch_size": 16,
        "rounds": 6,
    }
    return RunConfig.of(**(usual | values | (quick if scale.quick else {})))


def _cifar(scale: Scale) -> RunConfig:
    return _clients(scale, dataset="cifar10", model="cnn-cifar", rounds=300)


def _ours(problem: RunConfig, constraint: str) -> RunConfig:
    return problem.having(algorithm="fedlmo", constraint=constraint)


def _peers(
    problem: RunConfig, table: dict[str, tuple[str, list[Setting]]], scale: Scale, by: Judged
) -> list[Method]:
    return [
        _method(label, problem.having(algorithm=name, constraint=UNCONSTRAINED), tried, scale, by)
        for label, (name, tried) in table.items()
    ]


def cifar(scale: Scale) -> Comparison:
    """CIFAR-10: FedLMO, at the full and at half the horizon, beside the gradient methods."""
    problem = _cifar(scale)
    ours = _ours(problem, "layers:4")
    methods = [
        _method("FedLMO", ours, _LMO, scale),
        *_peers(problem, _IMAGES, scale, "accuracy"),
        _method("FedLMO, half the rounds", ours, _LMO, scale, rounds=problem.rounds // 2),
    ]
    note = "Half the rounds: FedLMO's setting in a run whose steps decay to zero in half as many rounds."
    return Comparison(tuple(methods), note=note)


def certified(scale: Scale) -> Comparison:
    """MNIST with Lipschitz constant 1: a hundred clients, and all data at one with the same steps
    and samples.
    """
    radii = ",".join(f"{radius:g}" for radius in CERTIFIED_RADII)
    problem = _clients(scale, dataset="mnist", model="maxmin-mlp", rounds=200)
    if scale.quick:
        problem = problem.having(local_steps=1, rounds=4)  # its layers are large for a CPU
    problem = _ours(problem, "lipschitz:1").having(certify=radii)
    at_once = (
        64 if scale.quick else 640
    )  # what the participants of a round compute together in a step
    one = problem.having(
        clients=1, participation=1.0, partition="iid", batch_size=at_once, correction=False
    )
    methods = (
        _method("FedLMO", problem, _LMO, scale, "test_loss"),
        _method(
            "central", one, settings(schedule=(*STEPS, "linear-decay:0.4")), scale, "test_loss"
        ),
    )
    note = "Central: one client with all data, as many steps, and in each the samples of all participants together."
    return Comparison(methods, "test_loss", note)


def shakespeare(scale: Scale) -> Comparison:
    """Next characters of Shakespeare, 82 speakers."""
    problem = RunConfig.of(
        dataset="shakespeare",
        model="transformer",
        clients=82,
        partition="speaker",
        participation=10,
        local_steps=10,
        batch_size=16,
        rounds=200,
    )
    if scale.quick:
        problem = problem.having(
            dataset="shakespeare:24",
            width=16,
            depth=1,
            heads=2,
            participation=3,
            local_steps=2,
            batch_size=4,
            rounds=4,
        )
    methods = [
        _method("FedLMO", _ours(problem, "layers:3"), _LMO, scale, "test_loss"),
        *_peers(problem, _TEXT, scale, "test_loss"),
        _method(
            "LocalMuon",
            problem.having(algorithm="local-muon", constraint="layers:3"),
            _MUON,
            scale,
            "test_loss",
        ),
    ]
    return Comparison(tuple(methods), "test_loss")


def mnist(scale: Scale) -> Comparison:
    """MNIST with the CNN of table 2."""
    problem = _clients(scale, dataset="mnist", model="cnn", rounds=150)
    if scale.quick:
        problem = problem.having(model="mlp")  # the CNN asks for larger images
    few = {
        label: _IMAGES[label]
        for label in ("FedAvg", "SGD, shared momentum", "local AdamW, shared state")
    }
    methods = [
        _method("FedLMO", _ours(problem, "layers:4"), _LMO, scale),
        *_peers(problem, few, scale, "accuracy"),
        *_muons(problem, scale),
    ]
    return Comparison(tuple(methods))


def _muons(problem: RunConfig, scale: Scale) -> list[Method]:
    return [
        _method(label, problem.having(algorithm=name, constraint="layers:4"), _MUON, scale)
        for label, name in _MUONS.items()
    ]


def oracles(scale: Scale) -> Comparison:
    """CIFAR-10: FedLMO beside other methods with oracle steps on the same set."""
    problem = _cifar(scale)
    at_server = problem.having(algorithm="fedlmo-server", constraint="layers:4")
    methods = [
        _method("FedLMO", _ours(problem, "layers:4"), _LMO, scale),
        *_muons(problem, scale),
        _method("FedLMO, oracle at the server", at_server, _LMO, scale),
    ]
    return Comparison(tuple(methods))


def payloads(scale: Scale) -> Comparison:
    """CIFAR-10: FedLMO with fewer bits a number, in the setting of the uncompressed run."""
    ours = _ours(_cifar(scale), "layers:4")
    methods = [
        _method("FedLMO", ours, _LMO, scale),
        *(
            _method(f"FedLMO, {bits} bits", ours, _LMO, scale, compress=f"bits:{bits}")
            for bits in (8, 4)
        ),
    ]
    return Comparison(
        tuple(methods), note="Fewer bits: in the setting that was chosen for the uncompressed run."
    )
