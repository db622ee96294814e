"""From names to objects: what a configuration leaves open is filled in, then problem and algorithm
are made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedfw.algorithms.contract import Algorithm
from fedfw.config.run_config import (
    RunConfig,
    algorithm_class,
    algorithm_options,
    merge,
    owners,
    run_options,
)
from fedfw.data import Data, data_folder
from fedfw.data.datasets import find_dataset
from fedfw.models import is_own, kind_of, usual_model
from fedfw.options import options_of
from fedfw.presets import load_chosen, make_problem, usual_division
from fedfw.problems import Problem
from fedfw.ranks import ALONE, Ranks
from fedfw.sets import ConstraintSet, Product, parse_set
from fedfw.sets.layers import NetworkSet
from fedfw.tuning import Trial, points_of

FIRST_CHOICE = "fedfw+"
"""The algorithm where none is named: it is the best on smooth sets, and shares nothing but
atoms on all of them.
"""
FIRST_SET = "ksparse:k=65,r=1"
"""The set of a linear model on the digits where none is named: an atom has a tenth of the model's
650 parameters, and clients with three labels each end near the optimum in 100 rounds, which their
gradients prove.
"""


def load(config: RunConfig) -> Data:
    """Return the data set of a configuration."""
    return load_chosen(config, config.seed)


def rooted(config: RunConfig) -> RunConfig:
    """Return the configuration with an absolute path of its data, so that a stored run can be
    continued from any working folder.
    """
    entry, argument = find_dataset(config.dataset)
    if entry.reads_path:
        return replace(config, dataset=f"{entry.name}:{Path(argument).expanduser().absolute()}")
    folder = data_folder(None if config.data_dir is None else Path(config.data_dir))
    return replace(config, data_dir=str(folder.absolute())) if entry.folder else config


def completed(config: RunConfig, data: Data) -> RunConfig:
    """Return the configuration with the names filled in that it leaves open, as it is stored in the
    run folder.

    Numbers such as the penalty are left to the algorithm, which works them out when the run begins,
    from Python, the command line and in a deployment alike.
    """
    algorithm = algorithm_class(config.algorithm or FIRST_CHOICE)
    for name, _ in config.own:
        if name not in options_of(algorithm):
            key = algorithm_options()[name].key
            raise ValueError(
                f"{key} goes with {', '.join(owners(name))}, not with {algorithm.name}"
            )
    model = config.model or usual_model(data)
    model = model if is_own(model) else model.lower()
    partition, clients = usual_division(data, config.partition, config.clients)
    batch = algorithm.default_batch_size if config.batch_size is None else config.batch_size
    config = replace(
        config,
        algorithm=algorithm.name,
        model=model,
        partition=partition,
        clients=clients,
        batch_size=batch,
    )
    if config.constraint is not None:
        return config
    network = not kind_of(model, data).convex
    # The default set by the problem: `AlgorithmChoice.constraint` lists these in its help.
    constraint = "l1:30"
    if data.sides:
        constraint = "nuclear:500"
    elif network:
        constraint = "l2:10"
    elif data.name == "digits" and not config.per_parameter:
        constraint = FIRST_SET
    return replace(config, constraint=constraint, per_parameter=config.per_parameter or network)


def build_problem(
    config: RunConfig, data: Data, held_out: float = 0.0, ranks: Ranks = ALONE
) -> Problem:
    """Return the data divided among the clients, with the model, and the clients among ranks."""
    return make_problem(data, config, seed=config.seed, held_out=held_out, ranks=ranks)


def constraint_of(config: RunConfig) -> ConstraintSet | Product:
    """Return the set, or one like it for each parameter, of a `completed` configuration."""
    constraint = parse_set(config.constraint or "")
    if config.per_parameter and isinstance(constraint, NetworkSet):
        raise ValueError(
            f"per-parameter does not go with {config.constraint}, which has a set for each already"
        )
    return Product({"*": constraint}) if config.per_parameter else constraint


def build_algorithm(config: RunConfig) -> Algorithm:
    """Return the algorithm of a `completed` configuration, with its set."""
    return algorithm_class(config.algorithm or FIRST_CHOICE)(
        constraint_of(config), **dict(config.own)
    )


def grid_points(
    config: RunConfig, data: Data, grid: Mapping[str, Sequence[Any]]
) -> list[tuple[RunConfig, Trial]]:
    """Return the configuration and the trial of every point of a grid, for `fedfw.tuning.search`.

    What the configuration leaves open is filled in for each point anew: it may depend on what the
    grid chooses.
    """
    points = []
    for choice in points_of(grid):
        chosen = completed(merge(config, choice, "grid"), data)
        points.append((chosen, Trial(choice, build_algorithm(chosen), run_options(chosen))))
    return points
