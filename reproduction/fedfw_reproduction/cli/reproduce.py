"""``fedfw reproduce``: the paper's tables and figures, and more, by name."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw_reproduction.names import GROUPS, REPRODUCTIONS

_NAMES = ("all", *GROUPS, *REPRODUCTIONS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is computed, how large, where, and the forms of the report."""
    parser.description = (
        "Compute a table or figure by its name, or all, and write one HTML report. Results that the folder "
        "has are not computed again: an interrupted call continues. Under torchrun, processes share the tasks."
    )
    parser.add_argument("name", choices=_NAMES, metavar="NAME", help=", ".join(_NAMES))
    parser.add_argument("--quick", action="store_true", help="small and short, with the same code")
    parser.add_argument("--jobs", type=int, help="processes at a time [1]")
    parser.add_argument("--device", help="cpu or cuda [cpu]")
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="folder of the data sets ($FEDFW_DATA, or a cache in your home)",
    )
    parser.add_argument(
        "--baselines", action="store_true", help="also FedDA, FedADMM and FedAvg in table 1"
    )
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="table 2's CNN in bfloat16 on a GPU: faster, other bits",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reproduced"),
        help="folder for report and results [%(default)s]",
    )
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write Markdown, too, with the plots in a folder beside it",
    )
    parser.add_argument("--kept", action="store_true", help="compute nothing: report what is kept")
    parser.add_argument(
        "--seconds",
        type=float,
        help="begin nothing after so many seconds, and write no report: --kept makes it later",
    )


def execute(options: argparse.Namespace) -> int:
    """Compute what is missing and write the report."""
    from fedfw.ranks import join_ranks
    from fedfw_reproduction.reproduce import reproduce

    with join_ranks() as ranks:
        return reproduce(
            options.name,
            quick=options.quick,
            out=options.out,
            jobs=options.jobs,
            device=options.device,
            data_dir=options.data_dir,
            baselines=options.baselines,
            mixed=options.mixed,
            markdown=options.markdown,
            only_kept=options.kept,
            seconds=options.seconds,
            ranks=ranks,
        )
