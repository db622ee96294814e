"""Table 2's CNN in float32 beside bfloat16: the same settings, the same seeds.

    python -m fedfw_reproduction.bench.mixed --device cuda     after `fedfw reproduce table2 --mixed --device cuda`
    python -m fedfw_reproduction.bench.mixed                   what is kept in reproduction/results/tables

Settings are those that the runs in bfloat16 chose. Cells that are not kept are computed on a GPU alone.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from fedfw.config import merge
from fedfw_reproduction import table2
from fedfw_reproduction.bench.pages import markdown
from fedfw_reproduction.cells import Cell, accuracies, finals
from fedfw_reproduction.lab import Json, Lab, Site, was_run
from fedfw_reproduction.protocols import FULL

CELLS = (
    ("IID", "l2", "ours: FedFW+ with momentum", "ours"),
    ("IID", "l2", "fedfw+", "matched"),
    ("3 labels", "l2", "ours: FedFW+ with momentum", "ours"),
    ("IID", table2.LAYERS, "ours: FedLMO", "ours"),
    ("3 labels", "l2", "feddr", "matched"),
    ("3 labels", "l2", "fedfw+", "matched"),
)
"""Split, set, algorithm and column of cells on MNIST in which something is learnt."""


def in_float32(cell: Cell, result: Json) -> Cell:
    """The cell with the setting that was chosen in bfloat16, and nothing left to choose."""
    config = merge(cell.config, result["chosen"], "grid")
    return replace(cell, config=replace(config, rounds=result["runs"][0]["rounds"], mixed=None), grid=())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/tables"))
    options = parser.parse_args()
    site = Site(options.data_dir, options.device)
    lab = Lab(options.out, site, jobs=options.jobs, only_kept=options.device == "cpu")
    lines = {(*line.task, line.algorithm): line for line in table2.lines(replace(FULL, mixed=True))}
    wanted = {(*key, column): lines["MNIST", *key].cells[column] for *key, column in CELLS}
    mixed = replace(lab, only_kept=True).run(list(wanted.values()))
    plain = {what: in_float32(cell, mixed[cell]) for what, cell in wanted.items() if was_run(mixed[cell])}
    results = lab.run(list(plain.values()))
    rows = [
        (
            lines["MNIST", *what[:3]].label,
            *what[:2],
            what[3],
            *(accuracies(finals(result, "accuracy")) for result in (results[cell], mixed[wanted[what]])),
        )
        for what, cell in plain.items()
        if was_run(results[cell])
    ]
    print("\n".join(markdown(("algorithm", "split", "set", "column", "float32", "bfloat16"), rows)))


if __name__ == "__main__":
    main()
