"""The commands that study rather than train: reproduce, attack, bench."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

REPRODUCTIONS = (
    *("table1", "table1-cifar", "table2", "table3", "participation", "penalty", "traffic", "anchors"),
    *("certificate", "momentum", "one-for-both", "counterexample", "split", "local-steps", "oracle-errors", "theory"),
    *("privacy", "dp"),
)
"""The names of `fedfw.experiments.catalogue`, here so that help comes without importing them."""


def add_reproduce(commands: Any) -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="the paper's tables and figures, and more, in one report",
        description="Compute a table or figure by its name, or all, and write one HTML report. What is in the cache "
        "of the folder is not computed again: an interrupted call goes on where it stopped.",
    )
    reproduce.add_argument(
        "name", choices=("all", *REPRODUCTIONS), metavar="NAME", help=f"all, {', '.join(REPRODUCTIONS)}"
    )
    reproduce.add_argument("--quick", action="store_true", help="small and short, the same code")
    reproduce.add_argument("--jobs", type=int, default=1, help="processes at a time [%(default)s]")
    reproduce.add_argument("--device", default="cpu", help="cpu or cuda [%(default)s]")
    reproduce.add_argument(
        "--data-dir", type=Path, help="folder of the data sets ($FEDFW_DATA, or a cache in your home)"
    )
    reproduce.add_argument("--baselines", action="store_true", help="FedDA, FedADMM and FedAvg in table 1, too")
    reproduce.add_argument(
        "--out", type=Path, default=Path("reproduction"), help="folder for report and cache [%(default)s]"
    )
    reproduce.add_argument(
        "--markdown", type=Path, metavar="FILE", help="also as Markdown, plots in a folder beside it"
    )
    reproduce.add_argument("--kept", action="store_true", help="compute nothing: a report of what is in the cache")
    reproduce.set_defaults(execute=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    from fedfw.command.reproduce import reproduce

    return reproduce(
        options.name,
        options.quick,
        options.out,
        options.jobs,
        options.device,
        options.data_dir,
        options.baselines,
        options.markdown,
        options.kept,
    )


def add_attack(commands: Any) -> None:
    attack = commands.add_parser(
        "attack",
        help="what the server can find out: a search for images from what clients send",
        description="A search for CIFAR-100 images from what clients of FedFW send, by an attacker who knows the "
        "protocol. 'fedfw reproduce privacy' is the whole study.",
    )
    attack.add_argument(
        "--sends",
        default="l2",
        help="gradient, or a set's atoms: l2, linf, ksparse:100, l1, group, nuclear [%(default)s]",
    )
    attack.add_argument("--per-parameter", action="store_true", help="one set for each parameter tensor")
    attack.add_argument(
        "--way", choices=("through", "explain", "soft"), default="explain", help="what is minimised [%(default)s]"
    )
    attack.add_argument("--images", type=int, default=4, help="clients, one batch each [%(default)s]")
    attack.add_argument("--batch", type=int, default=1, help="images of a client [%(default)s]")
    attack.add_argument("--rounds", type=int, default=1, help="rounds of atoms put together [%(default)s]")
    attack.add_argument("--steps", type=int, default=300, help="of the search [%(default)s]")
    attack.add_argument("--optimizer", choices=("lbfgs", "adam"), default="lbfgs", help="[%(default)s]")
    attack.add_argument("--restarts", type=int, default=1, help="starts of the search [%(default)s]")
    attack.add_argument("--unknown-labels", action="store_true", help="labels are searched for, too")
    attack.add_argument("--trained", action="store_true", help="a model that was trained on public images")
    attack.add_argument("--from-noise", action="store_true", help="begin at noise, not at the mean of public images")
    attack.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    attack.add_argument("--device", default="cpu", help="cpu or cuda [%(default)s]")
    attack.add_argument("--data-dir", type=Path, help="folder of the data sets ($FEDFW_DATA, or a cache in your home)")
    attack.add_argument("--out", type=Path, default=Path("attack.png"), help="the picture [%(default)s]")
    attack.set_defaults(execute=_attack)


def _attack(options: argparse.Namespace) -> int:
    from fedfw.command.attack import attack
    from fedfw.experiments.leakage import Attack

    wanted = Attack(
        options.sends,
        "gradient" if options.sends == "gradient" else options.way,
        options.per_parameter,
        options.images,
        options.batch,
        options.steps,
        options.optimizer,
        options.restarts,
        not options.unknown_labels,
        options.trained,
        options.rounds,
        not options.from_noise,
        seed=options.seed,
    )
    return attack(wanted, options.data_dir, options.device, options.out)


def add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="time rounds beside a loop over clients, hand-batched PyTorch and other frameworks",
        description="Interleaved repeats in one run; final losses must agree before a time is printed.",
    )
    bench.add_argument(
        "tasks", nargs="*", default=["small", "mnist"], help="small, few, many, mnist, mnist-100, mlp, cnn"
    )
    bench.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    bench.add_argument("--rounds", type=int, help="a repeat (about a second's worth)")
    bench.add_argument("--repeats", type=int, default=5, help="[%(default)s]")
    bench.add_argument(
        "--frameworks",
        choices=("none", "small", "all"),
        default="small",
        help="on which tasks pfl and Flower run, where benchmarks/frameworks/setup.sh has installed them [%(default)s]",
    )
    bench.add_argument("--out", type=Path, help="keep the numbers as JSON")
    bench.set_defaults(execute=_bench)


def _bench(options: argparse.Namespace) -> int:
    from fedfw.command.bench import bench

    return bench(options.tasks, options.threads, options.rounds, options.repeats, options.frameworks, options.out)
