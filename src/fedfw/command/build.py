"""From a configuration to a problem and an algorithm; contradictions are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.nn.functional as nnf

from fedfw.algorithms import ALGORITHMS, Algorithm, FedFWAnchored, FedFWSto
from fedfw.command.config import RunConfig
from fedfw.data import load_data, partition
from fedfw.models import make_model
from fedfw.problems import Problem
from fedfw.sets import Product, parse_set


def build_problem(config: RunConfig) -> Problem:
    """The data set divided among the clients, with the model and cross-entropy."""
    data = load_data(config.dataset, None if config.data_dir is None else Path(config.data_dir))
    inputs, labels = data.train
    parts = partition(config.partition, labels, config.clients, data.classes, config.seed)
    model = make_model(config.model, data.features, data.classes, config.seed)
    return Problem(model, nnf.cross_entropy, [(inputs[part], labels[part]) for part in parts], test=data.test)


def build_algorithm(config: RunConfig) -> Algorithm:
    """The algorithm with its set; the configuration must be `resolved`."""
    constraint: Any = parse_set(config.constraint or "")
    if config.per_parameter:
        constraint = Product({"*": constraint})
    options: dict[str, Any] = {"schedule": config.schedule, "momentum": config.momentum}
    if config.algorithm == FedFWAnchored.name:
        options["anchor_every"] = config.anchor_every
    if config.penalty is not None:
        options["penalty"] = config.penalty
    return ALGORITHMS[config.algorithm](constraint, **options)


def resolved(config: RunConfig, algorithm_was_given: bool) -> RunConfig:
    """The configuration with its open defaults filled in, as it is stored in the run folder."""
    if config.algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {config.algorithm!r}, expected one of {', '.join(ALGORITHMS)}")
    network = config.model != "mclr"
    if config.constraint is None:
        config = replace(config, constraint="l2:10" if network else "l1:30", per_parameter=network)
    averages = config.algorithm in ("fedfw", "fedfw+", "fedfw-anchored")
    if config.momentum is None:
        wanted = averages and (network or not algorithm_was_given)
        config = replace(config, momentum=0.9 if wanted else 0.0)
    if config.penalty is None and config.algorithm in ("fedfw", "fedfw+", "fedfw-sto"):
        # With sparse atoms a penalty at the theory's scale makes clients chase agreement one coordinate at a time.
        smooth = "auto:0.1" if config.momentum and not network else "auto"
        config = replace(config, penalty="auto:0.01" if parse_set(config.constraint or "").is_polytope else smooth)
    if config.schedule is None and network and averages:
        config = replace(config, schedule="linear-decay:0.05")
    if config.algorithm == FedFWAnchored.name:
        config = replace(config, anchor_every=20 if config.anchor_every is None else config.anchor_every)
    elif config.anchor_every is not None:
        raise ValueError(f"anchor-every goes with fedfw-anchored, not with {config.algorithm}")
    if config.batch_size is None and config.algorithm == FedFWSto.name:
        config = replace(config, batch_size=64)
    return config
