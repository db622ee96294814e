"""From a configuration to a problem and an algorithm."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedfw.algorithms import ALGORITHMS, Algorithm
from fedfw.command.config import RunConfig
from fedfw.command.defaults import ALGORITHM_OPTIONS
from fedfw.data import DATASETS, Data, data_folder, load_data
from fedfw.privacy import Privacy
from fedfw.problems import Problem
from fedfw.sets import ConstraintSet, Product, parse_set
from fedfw.simulation import Options
from fedfw.tasks import make_problem


def load(config: RunConfig) -> Data:
    """The data set of a configuration."""
    data_dir = None if config.data_dir is None else Path(config.data_dir)
    return load_data(config.dataset, data_dir, config.clients, config.seed)


def rooted(config: RunConfig) -> RunConfig:
    """The same with absolute paths, so that a run goes on from any folder."""
    name, _, argument = config.dataset.partition(":")
    if DATASETS[name].reads_path:
        return replace(config, dataset=f"{name}:{Path(argument).expanduser().absolute()}")
    folder = data_folder(None if config.data_dir is None else Path(config.data_dir))
    return replace(config, data_dir=str(folder.absolute())) if DATASETS[name].folder else config


def options_of(config: RunConfig) -> Options:
    """How the run goes, beside problem and algorithm."""
    named = {f.name: getattr(config, f.name) for f in fields(Options) if hasattr(config, f.name)}
    return Options(**named | {"privacy": None if config.privacy is None else Privacy.parse(config.privacy)})


def build_problem(config: RunConfig, data: Data, held_out: float = 0.0) -> Problem:
    """The data divided among the clients, with the model; the configuration must be `resolved`."""
    assert config.model is not None
    assert config.partition is not None
    return make_problem(
        data, config.model, config.clients, config.partition, config.weights, config.l2, config.seed, held_out
    )


def constraint_of(config: RunConfig) -> ConstraintSet | Product:
    """The set, or one like it for each parameter; the configuration must be `resolved`."""
    constraint = parse_set(config.constraint or "")
    return Product({"*": constraint}) if config.per_parameter else constraint


def build_algorithm(config: RunConfig) -> Algorithm:
    """The algorithm with its set; the configuration must be `resolved`."""
    options: dict[str, Any] = {
        name: value for name in ALGORITHM_OPTIONS if (value := getattr(config, name)) is not None
    }
    return ALGORITHMS[config.algorithm](constraint_of(config), **options)
