"""``fedfw run``: simulate, show, store."""

import argparse
import re
import time
from pathlib import Path

from fedfw.cli.arguments import LAST_LINE, adds, argument
from fedfw.cli.closing import CONFIG, make_simulation, run_to_the_end
from fedfw.cli.flags import FILE, configured, flags_of, joined
from fedfw.config import RunConfig, completed, load, rooted
from fedfw.rounds.files import write_atomically
from fedfw.rounds.folders import RunFolder

add_arguments = adds(
    FILE,
    *flags_of(),
    argument("--out", type=Path, metavar="FOLDER", help="the run's folder [a new one under runs/]"),
    LAST_LINE,
)


def execute(options: argparse.Namespace) -> int:
    """Run the simulation of a configuration in a new folder; return the exit status."""
    config = configured(options)
    with joined() as ranks:
        data = load(config)
        config = rooted(completed(config, data))
        # All processes use the first one's name, which has its time.
        folder = options.out or Path(ranks.broadcast_object(str(_new_folder(config))))
        if ranks.first and (folder / CONFIG).exists():
            raise ValueError(
                f"{folder} already holds a run: give another --out, or continue it: fedfw resume "
                f"{folder}"
            )
        kept = RunFolder(folder) if ranks.first else None
        simulation = make_simulation(config, data, kept, ranks)
        del data  # the problem has what it needs of it
        if kept is not None:
            kept.claim()
            write_atomically(folder / CONFIG, config.to_toml().encode())
        return run_to_the_end(simulation, config, folder, as_json=options.json)


def _new_folder(config: RunConfig) -> Path:
    """Return a folder that is not there yet, named by the time, the algorithm and the data."""
    dataset = re.sub("[^a-z0-9.,-]+", "-", config.dataset.rpartition("/")[2].lower())
    algorithm = str(config.algorithm).replace("+", "plus")
    path = first = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{algorithm}-{dataset}"
    suffix = 1
    while path.exists():
        suffix += 1
        path = first.with_name(f"{first.name}-{suffix}")
    return path
