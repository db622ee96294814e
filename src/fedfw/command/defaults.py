"""What a configuration leaves open, filled in by data, model, set and algorithm; contradictions are refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from fedfw.algorithms import ALGORITHMS, FedFWSto, ProjectedAlgorithm
from fedfw.command.config import RunConfig
from fedfw.data import Data
from fedfw.models import MODELS
from fedfw.sets import parse_set
from fedfw.tasks import usual_model, usual_rule

ALGORITHM_OPTIONS = tuple(
    dict.fromkeys(f.name for cls in ALGORITHMS.values() for f in fields(cls) if f.name != "constraint")
)
"""The options of any algorithm, each a key of the configuration."""

TUNED_STEPS = {"fedavg": 1.6, "feddr": 0.8, "fedadmm": 0.8, "fedda": 1.6}
"""Step sizes for softmax regression in units of classes / L', see docs/algorithms.md.

The bound L' takes the loss's curvature to be 1/2; near the uniform scores where training begins it is 1 / classes.
"""
NETWORK_LR = 0.1
"""Step size of gradient steps where no smoothness constant is known."""


def resolved(config: RunConfig, data: Data, algorithm_was_given: bool) -> RunConfig:
    """The configuration with its open defaults filled in, as it is stored in the run folder."""
    if config.algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {config.algorithm!r}, expected one of {', '.join(ALGORITHMS)}")
    _refuse_foreign_options(config)
    model, rule = config.model or usual_model(data), config.partition or usual_rule(data)
    config = replace(config, model=model, partition=rule)
    config = _with_own_defaults(config)
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}, expected one of {', '.join(MODELS)}")
    network = not MODELS[model].convex
    if config.constraint is None:
        usual = "nuclear:500" if data.sides else "l2:10" if network else "l1:30"
        config = replace(config, constraint=usual, per_parameter=config.per_parameter or network)
    if issubclass(ALGORITHMS[config.algorithm], ProjectedAlgorithm):
        tuned = f"auto:{TUNED_STEPS.get(config.algorithm, 1.0) * (data.classes or 0):g}" if model == "mclr" else "auto"
        lr = config.lr if config.lr is not None else NETWORK_LR if network else tuned
        return replace(config, lr=lr)
    return _resolved_oracle_steps(config, network, algorithm_was_given)


def _with_own_defaults(config: RunConfig) -> RunConfig:
    """The algorithm's own plain defaults spelled out (those that depend on the task are filled in elsewhere)."""
    later = ("constraint", "lr", "penalty", "momentum", "schedule")
    own: dict[str, Any] = {f.name: f.default for f in fields(ALGORITHMS[config.algorithm]) if f.name not in later}
    return replace(config, **{name: value for name, value in own.items() if getattr(config, name) is None})


def _resolved_oracle_steps(config: RunConfig, network: bool, algorithm_was_given: bool) -> RunConfig:
    averages = config.algorithm in ("fedfw", "fedfw+", "fedfw-anchored")
    if config.momentum is None:
        wanted = averages and (network or not algorithm_was_given)
        config = replace(config, momentum=0.9 if wanted else 0.0)
    if config.penalty is None and config.algorithm in ("fedfw", "fedfw+", "fedfw-sto"):
        config = replace(config, penalty=_usual_penalty(config, network))
    if config.schedule is None and network and averages:
        config = replace(config, schedule="linear-decay:0.05")
    if config.batch_size is None and config.algorithm == FedFWSto.name:
        config = replace(config, batch_size=64)
    return config


def _usual_penalty(config: RunConfig, network: bool) -> str:
    """What `fedfw tune` chose for softmax regression, see docs/algorithms.md; the theory's scale for networks."""
    if parse_set(config.constraint or "").is_polytope:
        # With sparse atoms a strong pull makes clients chase agreement one coordinate at a time.
        return "auto:0.001"
    if network:
        return "auto"
    if config.model == "completion":
        return "auto:1"  # by held-out ratings of ml-100k, with five local steps: benchmarks/completion.py
    if config.algorithm == "fedfw-sto":
        return "auto:0.3"
    return "auto:0.1" if config.momentum else {"fedfw": "auto:3"}.get(config.algorithm, "auto")


def _refuse_foreign_options(config: RunConfig) -> None:
    own = {f.name for f in fields(ALGORITHMS[config.algorithm])}
    for name in ALGORITHM_OPTIONS:
        if name not in own and getattr(config, name) is not None:
            owners = [key for key, cls in ALGORITHMS.items() if name in {f.name for f in fields(cls)}]
            raise ValueError(f"{name.replace('_', '-')} goes with {', '.join(owners)}, not with {config.algorithm}")
