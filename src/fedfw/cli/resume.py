"""``fedfw resume``: continue an interrupted run from its last checkpoint, or a finished one to more
rounds.
"""

import argparse
import sys
from pathlib import Path

from fedfw.cli.arguments import LAST_LINE, adds, argument
from fedfw.cli.closing import CONFIG, make_simulation, run_to_the_end
from fedfw.cli.flags import joined, validate_code
from fedfw.config import completed, load, merge, read_config
from fedfw.config.run_config import is_stored
from fedfw.rounds.files import write_atomically
from fedfw.rounds.folders import RunFolder

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
    LAST_LINE,
)


def execute(options: argparse.Namespace) -> int:
    """Continue the run in a folder, with more rounds if they are given; return the exit status."""
    folder: Path = options.folder
    file = folder / CONFIG
    if not file.exists():
        raise ValueError(
            f"{folder} is no run folder of 'fedfw run': it has no {CONFIG} "
            "(a run from Python continues with simulate(..., resume=True))"
        )
    if not is_stored(file):
        raise ValueError(
            f"{file} is damaged: it does not say which version of fedfw wrote it. Expected the "
            "file that 'fedfw run' wrote, with all options of the run"
        )
    stored = read_config(file)
    validate_code(str(file), stored.model, options.model)
    if options.model is not None and options.model != stored.model:
        raise ValueError(f"--model {options.model}, expected the run's own: {stored.model}")
    changes = {} if options.rounds is None else {"rounds": options.rounds}
    config = merge(stored, changes, "command line")
    with joined() as ranks:
        kept = RunFolder(folder, resume=True) if ranks.first else None
        data = load(config)
        config = completed(config, data)
        simulation = make_simulation(config, data, kept, ranks)
        del data  # the problem has what it needs of it
        if ranks.first:
            # Written only now that `make_simulation` has accepted it.
            if config.rounds != stored.rounds:
                write_atomically(file, config.to_toml().encode())
            beginning = "there is no checkpoint yet: from the start"
            if simulation.t:
                beginning = f"going on after round {simulation.t}"
            print(f"{beginning}, {config.rounds} rounds in all", file=sys.stderr)
        return run_to_the_end(simulation, config, folder, as_json=options.json)
