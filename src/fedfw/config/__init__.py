"""The one list of options, how a configuration is read, and how names become objects."""

from fedfw.config.app import app_table, read_app_config
from fedfw.config.build import (
    build_algorithm,
    build_problem,
    completed,
    constraint_of,
    grid_points,
    load,
    rooted,
)
from fedfw.config.run_config import RunConfig, all_options, merge, read_config, run_options

__all__ = [
    "RunConfig",
    "all_options",
    "app_table",
    "build_algorithm",
    "build_problem",
    "completed",
    "constraint_of",
    "grid_points",
    "load",
    "merge",
    "read_app_config",
    "read_config",
    "rooted",
    "run_options",
]
