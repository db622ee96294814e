"""``fedfw deploy demo``: a whole Flower federation on this machine, for one run, beside its
simulation.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedfw.algorithms.contract import Algorithm
from fedfw.cli.arguments import adds, argument
from fedfw.cli.deploy_init import copy_app
from fedfw.cli.deploy_report import (
    TOTALS_HEADER,
    WHY_SO_LONG,
    legend,
    line_of,
    read_records,
    reasons,
    rounds_table,
    title,
    totals_row,
)
from fedfw.cli.flags import flags_given, flags_of, values_given
from fedfw.config import RunConfig, all_options, merge, rooted
from fedfw.config.app import app_options
from fedfw.deployment.consent import USUAL_SETS, Consent, entry_of, sets_of
from fedfw.deployment.flower import local
from fedfw.deployment.flower.app_folder import PROJECT, AppFolder
from fedfw.deployment.flower.apps import deployment_of
from fedfw.deployment.flower.template.federation.task import make_task
from fedfw.deployment.obeyed import (
    NotedSettings,
    given_in_table,
    refuse_ignored,
    refuse_vain,
    unread,
)
from fedfw.deployment.records import DeployedRecord
from fedfw.deployment.server import DeployedServer
from fedfw.deployment.settings import APP_DEFAULTS, SIMULATED_ONLY, Deployment
from fedfw.deployment.task import Task
from fedfw.options import options_of
from fedfw.presets import refuse_unused_folder
from fedfw.problems import Problem
from fedfw.report.bars import progress_bar
from fedfw.report.tables import fitted
from fedfw.rounds.options import Options
from fedfw.rounds.wire import digest
from fedfw.simulation import Run, Simulation
from fedfw.simulation.callbacks import Progress

FIRST_CHOICE = {key: APP_DEFAULTS[key] for key in ("algorithm", "momentum")}
"""What runs where no algorithm is named."""
_NOT_HERE = (*SIMULATED_ONLY, "eval_every", "weights")
_DEPLOYED = ("round_timeout", "tell_loss", "share_gradients")
_LOOK = 0.5  # seconds between looks at a run


def _defaults() -> dict[str, str]:
    """Return the demonstration's own defaults in words."""
    usual = all_options()["constraint"].otherwise.partition("else ")[2]
    return _size() | {
        "algorithm": f"{APP_DEFAULTS['algorithm']} with momentum {APP_DEFAULTS['momentum']}",
        "constraint": f"{APP_DEFAULTS['constraint']} for digits, else {usual}",
    }


def _size() -> dict[str, Any]:
    return {key: APP_DEFAULTS[key] for key in ("clients", "rounds", "partition")}


add_demo_arguments = adds(
    argument(
        "--app", type=Path, metavar="FOLDER", help="an app that 'fedfw deploy init' wrote [its own]"
    ),
    *flags_of(without=_NOT_HERE, defaults=_defaults()),
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
    one = _own_demo(options) if options.app is None else _demo_of_app(options)
    app: Path = options.app or folder / "app"
    if options.app is None:
        copy_app(app)
    clients = one.simulated.plan.n
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # whoever ends us must not leave processes behind
    try:
        with ExitStack() as everything:
            nodes = f"with TLS, and {clients} SuperNodes with keys"
            print(f"starting a SuperLink on 127.0.0.1, {nodes} ...", file=sys.stderr)
            consent = owners_of(one)
            federation = local.LocalFederation(folder / "federation", clients, consent)
            print(allowed_by_name(consent), flush=True)
            with progress_bar(len(federation.names), "started") as bar:
                federation.tell = lambda name: bar.update()
                everything.enter_context(federation)
            print(WHY_SO_LONG, file=sys.stderr)
            totals = _deploy(federation, folder, app, one)
            print("stopping everything ...", file=sys.stderr)
    except KeyboardInterrupt:
        done = len(read_records(one.out(folder)))
        kept = f"{done} of {one.rounds} rounds are done and kept in {folder}"
        print(f"\ninterrupted; everything that was started has ended; {kept}", file=sys.stderr)
        return 130
    except local.FederationError as error:
        print(f"fedfw deploy: {error}", file=sys.stderr)
        print(
            f"{folder / 'federation'} has all logs; that of a client has what its code raised",
            file=sys.stderr,
        )
        return 1
    print(fitted([TOTALS_HEADER, totals]))
    print(f"\n{legend()}")
    results = one.out(folder)
    print(f"\nResults (history.jsonl, model.pt, plots.png, checkpoints): {results}")
    print(f"Logs of every process: {folder / 'federation'}")
    return 0


def _own_demo(options: argparse.Namespace) -> Demo:
    """The demonstration's own app; what cannot be deployed is refused."""
    config = _configured(flags_given(options))
    print("simulating ...", file=sys.stderr)
    one = Demo.of(config)
    one = replace(one, settings={**one.settings, **values_given(options, options_of(Deployment))})
    refuse_what_cannot_be_deployed(make_task(one.settings), one.settings)
    return one


def _demo_of_app(options: argparse.Namespace) -> Demo:
    given = values_given(options) | values_given(options, options_of(Deployment))
    return Demo.of_app(AppFolder.read(options.app), given)


def _configured(flags: Mapping[str, str]) -> RunConfig:
    first = {} if "algorithm" in flags else FIRST_CHOICE
    config = merge(RunConfig.of(**_size(), **first), flags, "command line")
    refuse_unused_folder(config.dataset, config.data_dir)
    config = rooted(config)
    if config.constraint is None and config.dataset == "digits":
        return replace(config, constraint=APP_DEFAULTS["constraint"])
    return config


def refuse_what_cannot_be_deployed(task: Task, settings: Mapping[str, Any]) -> None:
    """Make the app's server here, so that what it refuses is refused before any process is started."""
    deployment = deployment_of({**settings, "out": ""})
    refuse_vain(task, deployment)
    DeployedServer(task, deployment)


def owners_of(demo: Demo) -> Consent:
    """What the demonstration's owners allow: beside the usual sets, by name those that it trains
    on.
    """
    used = [entry_of(one) for one in sets_of(demo.simulated.algorithm)]
    return replace(local.OPEN, sets=tuple(dict.fromkeys((*USUAL_SETS, *used))))


def allowed_by_name(consent: Consent) -> str:
    """One line on what the demonstration's owners allow and others do not."""
    named = [text for text in consent.sets if text not in USUAL_SETS]
    more = f"the set {', '.join(named)} by name, " if named else ""
    return (
        f"The owners here allow {more}all that clients can share, and gradients of few samples; by default an owner "
        f"allows atoms of {', '.join(USUAL_SETS)}, of {Consent().least_samples} samples or more."
    )


@dataclass(frozen=True)
class Demo:
    """One run of the demonstration: what Flower is told, and what it is as a simulation.

    Parameters
    ----------
    settings : mapping of str to object
        Flower's run configuration but for the folder.
    simulated : Run
        The same run in the simulator.
    rounds : int
        How many there are.
    """

    settings: Mapping[str, Any]
    simulated: Run
    rounds: int

    @classmethod
    def of(cls, config: RunConfig) -> Demo:
        """Simulate a configuration of the app that comes with fedfw.

        A penalty or a step size that is open is the number that the simulation worked out, so that
        no client has to send a number for it.
        """
        given = config.items()
        settings = {one.key: given.get(one.key, "") for one in app_options().values()}
        task = make_task(settings)
        run = _simulate(_problem_of(task), task.algorithm, task.options)
        numbers = {"penalty": run.plan.lam_0, "lr": run.plan.lr}
        own = options_of(type(run.algorithm))
        settings |= {name: value for name, value in numbers.items() if name in own}
        return cls(settings, run, config.rounds)

    @classmethod
    def of_app(cls, app: AppFolder, changes: Mapping[str, Any]) -> Demo:
        """Simulate an app as it is, but for some settings; ``changes`` has them by their keys."""
        settings = NotedSettings(app.settings({"out": "", **changes}))
        task = app.make_task(settings)
        with app.blamed():
            given = dict.fromkeys(given_in_table(settings), PROJECT) | dict.fromkeys(
                changes, "command line"
            )
            for sentence in refuse_ignored(task, settings, given):
                print(f"{app.path / PROJECT}: {sentence}", file=sys.stderr)
            refuse_what_cannot_be_deployed(task, settings)
            problem = _problem_of(task)
            for key in unread(settings, given):
                raise ValueError(
                    f"{given[key]}: {key} = {settings[key]!r} changes nothing: make_task does not read it"
                )
            print("simulating ...", file=sys.stderr)
            return cls(
                changes, _simulate(problem, task.algorithm, task.options), task.options.rounds
            )

    def run_config(self, out: Path, deployed: Mapping[str, Any]) -> dict[str, Any]:
        """For Flower: what is trained, where the results go, and how it is deployed."""
        return {**self.settings, "out": str(out.absolute()), **deployed}

    def out(self, folder: Path) -> Path:
        """Where the server keeps its results."""
        return folder / self.name.replace("+", "plus")

    @property
    def name(self) -> str:
        """Of the algorithm."""
        return self.simulated.algorithm.name

    @property
    def digest(self) -> str:
        """Stands for the bits of the simulated model."""
        return digest(self.simulated.x).hex()


def _problem_of(task: Task) -> Problem:
    """The problem of a task, with the data of all of its clients."""
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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the clients have: the order of sums depends on it
    try:
        return Simulation(problem, algorithm, options, callbacks=[Progress()]).run()
    finally:
        torch.set_num_threads(threads)


def _deploy(
    federation: local.LocalFederation, folder: Path, app: Path, one: Demo
) -> tuple[str, ...]:
    """One run over Flower: prints its table, and returns its row of the table of bytes."""
    out = one.out(folder)
    print(f"\n{title(one.simulated)}", flush=True)
    process = federation.submit(app, one.run_config(out, {}), f"run-{out.name}")
    records = _watch(federation, process, out, one)
    if not (out / "done.json").exists():
        raise local.FederationError(
            f"the run ended early:\n{federation.log(process)}\n{federation.log('superlink', 5)}"
        )
    if not any(record.participants for record in records):
        raise local.FederationError(f"no answer of a client was ever counted{reasons(records)}")
    print(f"\n{rounds_table(records, one.simulated)}\n")
    state = federation.folder / "state" / json.loads((out / "done.json").read_text())["run"]
    return totals_row(
        one.name, records, one.simulated, federation.traffic()[0]["network-traffic"], state
    )


def _watch(
    federation: local.LocalFederation, process: str, out: Path, one: Demo
) -> list[DeployedRecord]:
    """Show the rounds of a run as they are recorded; returns all records when it has ended."""
    with progress_bar(one.rounds, f"{one.name} round") as bar:
        while True:
            running = federation.running(process)
            records = read_records(out)
            for name in federation.names if running and not (out / "done.json").exists() else ():
                if not federation.running(name):
                    what = f"{name} or its executor" if name.startswith("client") else name
                    raise local.FederationError(
                        f"{what} has ended before the run did:\n{federation.log(name)}"
                    )
            if records:
                bar.set_postfix_str(line_of(records[-1]), refresh=False)
                bar.update(len(records) - bar.n)
            if not running:
                return records
            if sys.stderr.isatty():
                bar.refresh()  # the clock goes on between rounds
            time.sleep(_LOOK)
