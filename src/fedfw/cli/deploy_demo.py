"""``fedfw deploy demo``: a whole Flower federation on this machine, for one run, beside its
simulation.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedfw.algorithms.contract import Algorithm
from fedfw.cli.arguments import adds, argument
from fedfw.cli.deploy_init import copy_app
from fedfw.cli.deploy_report import (
    LEGEND,
    TOTALS_HEADER,
    WHY_SO_LONG,
    line_of,
    read_records,
    reasons,
    rounds_table,
    title,
    totals_row,
)
from fedfw.cli.flags import flags_of, values_given
from fedfw.config import RunConfig, all_options, merge, rooted
from fedfw.config.app import app_options
from fedfw.deployment.consent import Consent
from fedfw.deployment.flower import local
from fedfw.deployment.flower.app_folder import PROJECT, AppFolder
from fedfw.deployment.flower.apps import deployment_of
from fedfw.deployment.flower.template.federation.task import make_task
from fedfw.deployment.obeyed import NotedSettings, given_in_table, validate_settings
from fedfw.deployment.records import DeployedRecord
from fedfw.deployment.server import DeployedServer
from fedfw.deployment.settings import APP_DEFAULTS, SIMULATED_ONLY, Deployment
from fedfw.deployment.task import Task
from fedfw.deployment.terms import USUAL_SETS, entry_of, sets_of
from fedfw.options import options_of
from fedfw.problems import Problem
from fedfw.report.tables import fitted
from fedfw.rounds.options import Options
from fedfw.simulation import Run, Simulation
from fedfw.simulation.callbacks import Progress

FIRST_CHOICE = {"algorithm": APP_DEFAULTS["algorithm"]}
"""The algorithm where none is named."""
_SIZE = {key: APP_DEFAULTS[key] for key in ("clients", "rounds", "partition")}
_USUAL_SET = all_options()["constraint"].otherwise.partition("else ")[2]
_DEFAULTS = {
    **_SIZE,
    "algorithm": APP_DEFAULTS["algorithm"],
    "constraint": f"{APP_DEFAULTS['constraint']} for digits, else {_USUAL_SET}",
}
"""The demonstration's own defaults in words."""
_NOT_HERE = (*SIMULATED_ONLY, "eval_every", "weights")
_DEPLOYED = ("round_timeout", "tell_loss", "share_gradients")
_POLL_SECONDS = 0.5


add_demo_arguments = adds(
    argument(
        "--app", type=Path, metavar="FOLDER", help="an app that 'fedfw deploy init' wrote [its own]"
    ),
    *flags_of(without=_NOT_HERE, defaults=_DEFAULTS),
    *flags_of(_DEPLOYED, declared=options_of(Deployment)),
    argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="a new folder for results and logs [a new one under runs/]",
    ),
)


def demo(options: argparse.Namespace) -> int:
    """Simulate a run, then start a SuperLink and SuperNodes on 127.0.0.1 with throw-away
    certificates and keys, run the same there, print both in one table, and end everything that was
    started. With --app it runs an app of yours, as it is; an option that is given then takes the
    place of the setting in the app's pyproject.toml, and the defaults above do not count.
    """
    folder: Path = options.out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-deployed"
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: give another --out")
    given = values_given(options)
    deployed = values_given(options, options_of(Deployment))
    app: Path = options.app
    if app is None:
        demo_run = Demo.of(_configured(given), deployed)
        _validate(make_task(demo_run.settings), demo_run.settings)
        app = folder / "app"
        copy_app(app)
    else:
        demo_run = Demo.of_app(AppFolder.read(app), given | deployed)
    out = folder / demo_run.simulated.algorithm.name.replace("+", "plus")
    # Whatever ends this process must not leave others behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        totals = _start_and_run(folder / "federation", app, out, demo_run)
    except KeyboardInterrupt:
        done = len(read_records(out))
        print(
            f"\ninterrupted; everything that was started has ended; {done} of {demo_run.rounds} "
            f"rounds are done and kept in {folder}",
            file=sys.stderr,
        )
        return 130
    except local.FederationError as error:
        print(
            f"fedfw deploy: {error}\n{folder / 'federation'} has all logs; that of a client has "
            "what its code raised",
            file=sys.stderr,
        )
        return 1
    print(fitted(list(zip(TOTALS_HEADER, totals, strict=True))))
    print(f"\nWhat the words mean:\n{fitted(LEGEND)}")
    print(f"\nResults (history.jsonl, model.pt, plots.png, checkpoints): {out}")
    print(f"Logs of every process: {folder / 'federation'}")
    return 0


def _start_and_run(folder: Path, app: Path, out: Path, demo_run: Demo) -> tuple[str, ...]:
    """Start a federation, deploy one run and end everything; return the row of totals."""
    clients = demo_run.simulated.problem.n
    nodes = f"with TLS, and {clients} SuperNodes with keys"
    print(f"starting a SuperLink on 127.0.0.1, {nodes} ...", file=sys.stderr)
    consent = owners_of(demo_run)
    federation = local.LocalFederation(folder, clients, consent)
    print(allowed_by_name(consent), flush=True)
    with federation:
        print(WHY_SO_LONG, file=sys.stderr)
        totals = _deploy(federation, app, out, demo_run)
        print("stopping everything ...", file=sys.stderr)
    return totals


def _configured(given: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of the demonstration's own app."""
    first = {} if "algorithm" in given else FIRST_CHOICE
    config = rooted(merge(RunConfig.of(**_SIZE, **first), given, "command line"))
    if config.constraint is None and config.dataset == "digits":
        return replace(config, constraint=APP_DEFAULTS["constraint"])
    return config


def _validate(task: Task, settings: Mapping[str, Any]) -> None:
    """Make the app's server here, so that what it refuses is refused before any process starts."""
    DeployedServer(task, deployment_of({**settings, "out": ""}))


def owners_of(demo: Demo) -> Consent:
    """Return what the demonstration's owners allow: beside the usual sets, by name those that it
    trains on.
    """
    used = [entry_of(constraint) for constraint in sets_of(demo.simulated.algorithm)]
    return replace(local.OPEN, sets=tuple(dict.fromkeys((*USUAL_SETS, *used))))


def allowed_by_name(consent: Consent) -> str:
    """Return one line on what the demonstration's owners allow and others do not."""
    named = ", ".join(text for text in consent.sets if text not in USUAL_SETS)
    more = f"the set {named} by name, " if named else ""
    return (
        f"The owners here allow {more}all that clients can share, and gradients of few samples; by "
        f"default an owner allows atoms of {', '.join(USUAL_SETS)}, of {Consent().least_samples} "
        "samples or more."
    )


@dataclass(frozen=True)
class Demo:
    """One run of the demonstration: Flower's run configuration but for the folder, the same run in
    the simulator, and its number of rounds.
    """

    settings: Mapping[str, Any]
    simulated: Run
    rounds: int

    @classmethod
    def of(cls, config: RunConfig, deployed: Mapping[str, Any] | None = None) -> Demo:
        """Simulate a configuration of the app that comes with fedfw.

        A penalty or a step size that is open is the number that the simulation worked out, so that
        no client has to send a number for it.
        """
        given = config.items()
        settings = {option.key: given.get(option.key, "") for option in app_options().values()}
        settings |= deployed or {}
        task = make_task(settings)
        print("simulating ...", file=sys.stderr)
        run = _simulate(_problem_of(task), task.algorithm, task.options)
        for name in ("penalty", "lr"):
            if name in options_of(type(run.algorithm)):
                settings[name] = getattr(run.algorithm, name)
        return cls(settings, run, config.rounds)

    @classmethod
    def of_app(cls, app: AppFolder, changes: Mapping[str, Any]) -> Demo:
        """Simulate a user's app as it is, but for some settings; ``changes`` has them by their
        keys.

        A setting that was given and that the app's code ignores is refused, before anything is
        simulated or deployed.
        """
        settings = app.settings({"out": "", **changes})  # the folder is chosen by the command
        noted = NotedSettings(settings)
        task = app.make_task(noted)
        with app.locate_errors():  # the app's model and data are its own code
            # Setting -> where it was given, for messages; the command line takes precedence.
            sources = dict.fromkeys(given_in_table(settings), PROJECT)
            sources |= dict.fromkeys(changes, "command line")
            for sentence in validate_settings(task, settings, sources):
                print(f"{app.path / PROJECT}: {sentence}", file=sys.stderr)
            _validate(task, settings)
            problem = _problem_of(task)  # loads the data, which may read settings as well
            for key in noted.unread(sources):
                raise ValueError(
                    f"{sources[key]}: {key} = {settings[key]!r} changes nothing: make_task does "
                    "not read it"
                )
            print("simulating ...", file=sys.stderr)
            run = _simulate(problem, task.algorithm, task.options)
        return cls(changes, run, task.options.rounds)


def _problem_of(task: Task) -> Problem:
    """Return the problem of a task, with the data of all of its clients."""
    return Problem(
        task.model,
        task.loss,
        [task.data(client) for client in range(task.clients)],
        task.test,
        weights=task.weights,
        convex=task.convex,
        l2=task.l2,
        per=task.per,
        separate=True,
    )


def _simulate(problem: Problem, algorithm: Algorithm, options: Options) -> Run:
    """Simulate with one thread, as clients have: the order of sums depends on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Simulation(problem, algorithm, options, callbacks=[Progress()]).run()
    finally:
        torch.set_num_threads(threads)


def _deploy(
    federation: local.LocalFederation, app: Path, out: Path, demo_run: Demo
) -> tuple[str, ...]:
    """Deploy one run: print its table, and return its row of the table of totals."""
    print(f"\n{title(demo_run.simulated)}", flush=True)
    process = f"run-{out.name}"
    federation.submit(app, {**demo_run.settings, "out": str(out.absolute())}, process)
    records = _watch(federation, process, out, demo_run)
    done = out / "done.json"
    if not done.exists():
        raise local.FederationError(
            f"the run ended early:\n{federation.log(process)}\n{federation.log('superlink', 5)}"
        )
    if not any(record.participants for record in records):
        raise local.FederationError(f"no answer of a client was ever counted{reasons(records)}")
    print(f"\n{rounds_table(records, demo_run.simulated)}\n")
    return totals_row(records, demo_run.simulated, federation.traffic())


def _watch(
    federation: local.LocalFederation, process: str, out: Path, demo_run: Demo
) -> list[DeployedRecord]:
    """Show the rounds of a run as they are recorded; return all records when it has ended."""
    shown = 0
    while True:
        running = federation.running(process)
        if running and not (out / "done.json").exists():
            federation.require_running()
        records = read_records(out)
        for record in records[shown:]:
            print(f"round {record.round}/{demo_run.rounds}  {line_of(record)}", file=sys.stderr)
        shown = len(records)
        if not running:
            return records
        time.sleep(_POLL_SECONDS)
