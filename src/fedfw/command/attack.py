"""``fedfw attack``: one search for images from what FedFW's clients send, with a table and a picture."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fedfw.data.folder import data_folder
from fedfw.experiments.lab import Site
from fedfw.experiments.leakage import HEADER, Attack, picture_of, row_of
from fedfw.report.document import text_of
from fedfw.report.plots import save_figure
from fedfw.report.tables import aligned
from fedfw.simulation.setup import usable_device


def attack(wanted: Attack, data_dir: Path | None, device: str, out: Path) -> int:
    """Run it, print how well it did, save the images it found beside the true ones."""
    usable_device(device)
    print(f"{wanted.title} ...", file=sys.stderr)
    began = time.monotonic()
    result = wanted.compute(Site(str(data_folder(data_dir)), device))
    print(aligned([HEADER, [text_of(cell) for cell in row_of(wanted, result)]]))
    save_figure(picture_of([wanted], [result]), out)
    print(f"\n{time.monotonic() - began:.0f} s; the images, truth first: {out}")
    return 0
