"""The ``fedfw`` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from fedfw._version import __version__
from fedfw.cli_studies import add_attack, add_bench, add_reproduce
from fedfw.command.config import DEMO_CHOICES, DEMO_DEFAULTS, RunConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.execute(options)
    except (ValueError, OSError) as error:
        print(f"fedfw {options.command}: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedfw", description="Federated Frank-Wolfe: train across clients inside a hard constraint set."
    )
    parser.add_argument("--version", action="version", version=f"fedfw {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run", help="simulate a federated run; without arguments, on the digits that ship with scikit-learn"
    )
    _add_choices(run)
    run.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    run.set_defaults(execute=_run)

    resume = commands.add_parser("resume", help="go on with an interrupted run")
    resume.add_argument("folder", type=Path, help="its run folder")
    resume.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    resume.set_defaults(execute=_resume)

    compare = commands.add_parser("compare", help="several runs in one table and one picture")
    compare.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="run folders")
    compare.add_argument("--out", type=Path, default=Path("compare.png"), help="the picture [%(default)s]")
    compare.set_defaults(execute=_compare)

    _add_tune_and_solve(commands)
    add_reproduce(commands)
    _add_deploy(commands)
    add_attack(commands)
    add_bench(commands)

    _add_data_commands(commands)
    commands.add_parser("algorithms", help="list the algorithms").set_defaults(execute=_algorithms)
    commands.add_parser("models", help="list the models").set_defaults(execute=_models)

    sets = commands.add_parser("sets", help="list the constraint sets, what their oracles cost and their atoms weigh")
    sets.add_argument("--shape", type=_shape, default=(10, 785), help="parameter shape, such as 10x784 [10x785]")
    sets.add_argument("--json", action="store_true", help="print one JSON object")
    sets.set_defaults(execute=_sets)
    return parser


def _add_choices(
    parser: argparse.ArgumentParser, only: Sequence[str] | None = None, without: Sequence[str] = ()
) -> None:
    """A TOML file and a flag for each field of the configuration."""
    parser.add_argument("config", nargs="?", help="TOML file with the same keys as the flags; flags win")
    for option in fields(RunConfig):
        if option.name not in without and (only is None or option.name in only):
            _add_choice(parser, option)


def _add_choice(parser: argparse.ArgumentParser, option: Field[Any], default: Any = None) -> None:
    flag, help_ = "--" + option.name.replace("_", "-"), option.metadata["help"]
    default = option.default if default is None else default
    if default is not None and default is not False:
        help_ += f" [{default}]"
    if option.type == "bool":
        parser.add_argument(flag, action="store_true", default=None, help=help_)
    else:
        parser.add_argument(flag, metavar="VALUE", help=help_)


def _add_tune_and_solve(commands: Any) -> None:
    tune = commands.add_parser(
        "tune", help="search a small grid of choices on held-out training data; writes a file that run reads"
    )
    _add_choices(tune, without=("out", "tol", "eval_every"))
    tune.add_argument("--grid", help='what to try, such as "lr=auto:4,auto:8 eta=10,100" (a grid for each algorithm)')
    tune.add_argument(
        "--budget",
        type=float,
        help="gradients of all its samples a client may compute in a trial (rounds x local steps)",
    )
    tune.add_argument("--by", choices=("loss", "accuracy"), default="loss", help="on the held-out data [%(default)s]")
    tune.add_argument("--out", type=Path, help="the file (tuned-ALGORITHM.toml); the table goes beside it as .csv")
    tune.set_defaults(execute=_tune)

    solve = commands.add_parser("solve", help="the central optimum F* that residuals are measured against, with proof")
    _add_choices(
        solve,
        only=(
            "dataset",
            "data_dir",
            "model",
            "l2",
            "clients",
            "partition",
            "weights",
            "constraint",
            "per_parameter",
            "seed",
            "device",
        ),
    )
    solve.add_argument("--tol", type=float, default=1e-3, help="how well F* must be known, relatively [%(default)s]")
    solve.add_argument("--max-steps", type=int, default=5000, help="give up after so many steps [%(default)s]")
    solve.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    solve.set_defaults(execute=_solve)


def _add_deploy(commands: Any) -> None:
    deploy = commands.add_parser("deploy", help="run on Flower: real processes and encrypted connections")
    verbs = deploy.add_subparsers(dest="verb", required=True, metavar="VERB")
    init = verbs.add_parser("init", help="write a complete Flower app, to put your model, data and set into")
    init.add_argument("folder", type=Path, help="a new folder")
    demo = verbs.add_parser(
        "demo",
        help="a SuperLink and SuperNodes on this machine, with TLS and keys, for one run",
        description="Starts a SuperLink and SuperNodes on 127.0.0.1 with throw-away certificates and node "
        "authentication, runs, prints the table, and ends everything it started.",
    )
    for option in fields(RunConfig):
        if option.name in DEMO_CHOICES:
            _add_choice(demo, option, DEMO_DEFAULTS.get(option.name))
    demo.add_argument("--out", type=Path, help="a new folder (one under runs/)")
    demo.add_argument("--round-timeout", type=float, default=120.0, help="seconds a round waits [%(default)g]")
    demo.add_argument("--tell-loss", action="store_true", help="clients also send their loss at the model")
    demo.add_argument(
        "--share-gradients",
        action="store_true",
        help="lets fedfw-anchored run: gradients then go to the server in the clear",
    )
    demo.add_argument("--compare", action="store_true", help="run FedAvg with projection, too, and compare the bytes")
    demo.add_argument(
        "--simulated", action="store_true", help="let Flower simulate the nodes (pip install 'flwr[simulation]')"
    )
    for verb in (init, demo):
        verb.set_defaults(execute=_deploy)


def _add_data_commands(commands: Any) -> None:
    data = commands.add_parser("data", help="list, get and look at the data sets")
    verbs = data.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="every data set, and whether it is at hand")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    get = verbs.add_parser("get", help="download a data set from its publisher, with its checksum verified")
    get.add_argument("name", help="such as mnist; see 'fedfw data list'")
    show = verbs.add_parser("show", help="who holds what: a table and a picture")
    show.add_argument("name", help="such as mnist; see 'fedfw data list'")
    show.add_argument("--partition", help="who holds what (labels:3, iid, user or client, by the data)")
    show.add_argument("--clients", type=int, default=10, help="number of clients [%(default)s]")
    show.add_argument("--seed", type=int, default=0, help="fixes the split [%(default)s]")
    show.add_argument("--out", type=Path, default=Path("holdings.png"), help="the picture [%(default)s]")
    for verb in (listing, get, show):
        verb.add_argument(
            "--data-dir", type=Path, help="folder of the data sets ($FEDFW_DATA, or a cache in your home)"
        )
        verb.set_defaults(execute=_data)


def _flags(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    values = ((name.replace("_", "-"), getattr(options, name, None)) for name in names)
    return {key: value for key, value in values if value is not None}


_CHOICES = [option.name for option in fields(RunConfig)]


def _run(options: argparse.Namespace) -> int:
    from fedfw.command.run import start_run

    return start_run(options.config, _flags(options, _CHOICES), options.json)


def _tune(options: argparse.Namespace) -> int:
    from fedfw.command.tune import tune

    flags = _flags(options, [name for name in _CHOICES if name != "out"])
    return tune(options.config, flags, options.grid, options.budget, options.by, options.out)


def _solve(options: argparse.Namespace) -> int:
    from fedfw.command.solve import solve_centrally

    flags = _flags(options, [name for name in _CHOICES if name != "tol"])
    return solve_centrally(options.config, flags, options.tol, options.max_steps, options.json)


def _data(options: argparse.Namespace) -> int:
    from fedfw.command.data import get_data, list_data, show_data

    if options.verb == "list":
        return list_data(options.data_dir, options.json)
    if options.verb == "get":
        return get_data(options.name, options.data_dir)
    return show_data(options.name, options.data_dir, options.partition, options.clients, options.seed, options.out)


def _deploy(options: argparse.Namespace) -> int:
    from fedfw.command.deploy import demo, init_app

    if options.verb == "init":
        return init_app(options.folder)
    deployed = {
        "round-timeout": options.round_timeout,
        "tell-loss": options.tell_loss,
        "share-gradients": options.share_gradients,
    }
    return demo(_flags(options, DEMO_CHOICES), options.out, deployed, options.compare, options.simulated)


def _models(options: argparse.Namespace) -> int:
    from fedfw.models import MODELS
    from fedfw.report.tables import aligned

    kinds = {True: "convex, smoothness known", False: "not convex"}
    print(aligned([(name, kinds[kind.convex], kind.summary) for name, kind in MODELS.items()]))
    return 0


def _resume(options: argparse.Namespace) -> int:
    from fedfw.command.run import resume_run

    return resume_run(options.folder, options.json)


def _compare(options: argparse.Namespace) -> int:
    from fedfw.command.compare import compare_runs

    return compare_runs(options.folders, options.out)


def _algorithms(options: argparse.Namespace) -> int:
    from fedfw.algorithms import ALGORITHMS

    for name, cls in ALGORITHMS.items():
        document = sys.modules[cls.__module__].__doc__ or ""
        print(f"{name:15s} {document.splitlines()[0]}")
    return 0


def _sets(options: argparse.Namespace) -> int:
    from fedfw.report.sets_table import describe_sets, format_sets

    rows = describe_sets(options.shape)
    report = {"shape": options.shape, "sets": rows}
    print(json.dumps(report) if options.json else format_sets(options.shape, rows))
    return 0


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(side) for side in text.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected whole numbers joined by x, such as 10x784")
    return shape


if __name__ == "__main__":
    sys.exit(main())
