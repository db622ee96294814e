"""``fedfw run``: simulate, show, store."""

import argparse
import re
import time
from itertools import count
from pathlib import Path

from fedfw.cli.arguments import LAST_LINE, adds, argument
from fedfw.cli.closing import CONFIG, run_to_the_end
from fedfw.cli.flags import BALANCE, FILE, configured, flags_of, joined
from fedfw.config import (
    RunConfig,
    build_algorithm,
    build_problem,
    completed,
    load,
    rooted,
    run_options,
)
from fedfw.ranks import Ranks
from fedfw.rounds.files import write_atomically
from fedfw.rounds.folders import RunFolder
from fedfw.simulation import Simulation
from fedfw.simulation.callbacks import Progress

add_arguments = adds(
    FILE,
    *flags_of(),
    argument("--out", type=Path, metavar="FOLDER", help="the run's folder [a new one under runs/]"),
    BALANCE,
    LAST_LINE,
)


def execute(options: argparse.Namespace) -> int:
    """Start a new run."""
    config = configured(options)
    with joined(options, config.device) as ranks:
        return _run(config, options, ranks)


def _run(config: RunConfig, options: argparse.Namespace, ranks: Ranks) -> int:
    data = load(config)
    config = rooted(completed(config, data))
    folder = options.out or Path(ranks.tell(str(_new_folder(config))))
    if ranks.first and (folder / CONFIG).exists():
        raise ValueError(
            f"{folder} already holds a run: give another --out, or continue it: fedfw resume {folder}"
        )
    problem, algorithm = build_problem(config, data, ranks=ranks), build_algorithm(config)
    del data  # the problem has what it needs of it
    kept = RunFolder(folder) if ranks.first else None
    # It refuses what makes no sense, before anything is written.
    simulation = Simulation(
        problem, algorithm, run_options(config), folder=kept, callbacks=[Progress()]
    )
    if kept is not None:
        kept.claim()
        write_atomically(folder / CONFIG, config.to_toml().encode())
    return run_to_the_end(simulation, config, folder, as_json=options.json)


def _new_folder(config: RunConfig) -> Path:
    dataset = re.sub("[^a-z0-9.,-]+", "-", config.dataset.rpartition("/")[2].lower())
    name = (
        f"{time.strftime('%Y%m%d-%H%M%S')}-{str(config.algorithm).replace('+', 'plus')}-{dataset}"
    )
    return next(
        path
        for number in count(1)
        if not (path := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists()
    )
