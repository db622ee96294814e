"""``fedfw attack``: one search for images in what FedFW's clients send."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is attacked, how, and where the picture goes."""
    parser.description = (
        "Search for CIFAR-100 images in what clients of FedFW send, as an attacker who knows the protocol would. "
        "'fedfw reproduce privacy' is the whole study."
    )
    parser.add_argument(
        "--sends",
        default="l2",
        help="gradient, or a set's atoms: l2, linf, ksparse:100, l1, group, nuclear [%(default)s]",
    )
    parser.add_argument(
        "--per-parameter", action="store_true", help="one set for each parameter tensor"
    )
    parser.add_argument(
        "--way",
        choices=("through", "explain", "soft"),
        help="what is minimised, for atoms of a set [explain]",
    )
    parser.add_argument(
        "--images", type=int, default=4, help="clients, one batch each [%(default)s]"
    )
    parser.add_argument("--batch", type=int, default=1, help="images of a client [%(default)s]")
    parser.add_argument(
        "--rounds", type=int, default=1, help="rounds of atoms that are put together [%(default)s]"
    )
    parser.add_argument("--steps", type=int, default=300, help="steps of the search [%(default)s]")
    parser.add_argument(
        "--optimizer",
        choices=("lbfgs", "adam"),
        default="lbfgs",
        help="of the search [%(default)s]",
    )
    parser.add_argument(
        "--restarts", type=int, default=1, help="starts of the search [%(default)s]"
    )
    parser.add_argument("--unknown-labels", action="store_true", help="search for the labels, too")
    parser.add_argument(
        "--trained", action="store_true", help="use a model that was trained on public images"
    )
    parser.add_argument(
        "--from-noise", action="store_true", help="begin at noise, not at the mean of public images"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="fixes clients, model and search [%(default)s]"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda [%(default)s]")
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="folder of the data sets ($FEDFW_DATA, or a cache in your home)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("attack.png"), help="the picture [%(default)s]"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the search."""
    from fedfw_reproduction.leakage.attack import attack
    from fedfw_reproduction.leakage.study import Attack

    usual_way = "gradient" if options.sends == "gradient" else "explain"
    wanted = Attack(
        sends=options.sends,
        way=usual_way if options.way is None else options.way,
        per_parameter=options.per_parameter,
        images=options.images,
        batch=options.batch,
        steps=options.steps,
        optimizer=options.optimizer,
        restarts=options.restarts,
        known_labels=not options.unknown_labels,
        trained=options.trained,
        rounds=options.rounds,
        informed=not options.from_noise,
        seed=options.seed,
    )
    return attack(wanted, data_dir=options.data_dir, device=options.device, out=options.out)
