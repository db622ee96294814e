"""``fedfw resume``: continue an interrupted run from its last checkpoint, or a finished one to more
rounds.
"""

import argparse
import sys
from pathlib import Path

from fedfw.cli.arguments import LAST_LINE, adds, argument
from fedfw.cli.closing import CONFIG, run_to_the_end
from fedfw.cli.flags import BALANCE, joined, refuse_code
from fedfw.config import (
    RunConfig,
    build_algorithm,
    build_problem,
    completed,
    load,
    merge,
    read_config,
    run_options,
)
from fedfw.ranks import Ranks
from fedfw.rounds.files import write_atomically
from fedfw.rounds.folders import RunFolder
from fedfw.simulation import Simulation
from fedfw.simulation.callbacks import Progress

add_arguments = adds(
    argument("folder", type=Path, metavar="RUN", help="the run's folder"),
    argument(
        "--rounds", metavar="VALUE", help="go on to so many rounds in all [as many as the run has]"
    ),
    argument(
        "--model",
        metavar="VALUE",
        help="the run's model, where it is your own as in my_module:make",
    ),
    BALANCE,
    LAST_LINE,
)


def execute(options: argparse.Namespace) -> int:
    """Continue the run."""
    folder: Path = options.folder
    if not (folder / CONFIG).exists():
        raise ValueError(
            f"{folder} is no run folder of 'fedfw run': it has no {CONFIG} "
            "(a run from Python continues with simulate(..., resume=True))"
        )
    if not (folder / CONFIG).read_bytes().strip():
        raise ValueError(f"{folder / CONFIG} is empty, expected the options of the run")
    config = stored = read_config(folder / CONFIG)
    refuse_code(str(folder / CONFIG), stored.model, options.model)
    if options.model is not None and options.model != stored.model:
        raise ValueError(f"--model {options.model}, expected the run's own: {stored.model}")
    if options.rounds is not None:
        config = merge(config, {"rounds": options.rounds}, "command line")
    with joined(options, config.device) as ranks:
        return _resume(folder, config, stored, options, ranks)


def _resume(
    folder: Path, config: RunConfig, stored: RunConfig, options: argparse.Namespace, ranks: Ranks
) -> int:
    kept = RunFolder(folder, resume=True) if ranks.first else None
    data = load(config)
    config = completed(config, data)
    problem, algorithm = build_problem(config, data, ranks=ranks), build_algorithm(config)
    del data  # the problem has what it needs of it
    simulation = Simulation(
        problem, algorithm, run_options(config), folder=kept, callbacks=[Progress()]
    )
    if ranks.first:
        if config.rounds != stored.rounds:  # it was not refused
            write_atomically(folder / CONFIG, config.to_toml().encode())
        found = (
            f"going on after round {simulation.t}"
            if simulation.t
            else "there is no checkpoint yet: from the start"
        )
        print(f"{found}, {config.rounds} rounds in all", file=sys.stderr)
    return run_to_the_end(simulation, config, folder, as_json=options.json)
