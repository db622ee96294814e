"""One search for images from what FedFW's clients send, with a table and a picture."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fedfw.data import data_folder
from fedfw.report import aligned
from fedfw.report.plots import save_figure
from fedfw_reproduction.document import text_of
from fedfw_reproduction.lab import Site
from fedfw_reproduction.leakage.study import HEADER, Attack, picture_of, row_of


def attack(wanted: Attack, *, data_dir: Path | None = None, device: str = "cpu", out: Path) -> int:
    """Run an attack, print how well it did, and save the images that it found beside the true ones.

    Parameters
    ----------
    wanted : Attack
        What is attacked, and how.
    data_dir : Path, optional
        Folder of the data sets; by default the usual one.
    device : str
        cpu or cuda.
    out : Path
        The picture.

    Returns
    -------
    int
        The exit status of the command.
    """
    site = Site(str(data_folder(data_dir)), device)
    site.check()
    print(f"{wanted.title} ...", file=sys.stderr)
    began = time.monotonic()
    result = wanted.compute(site)
    print(aligned([HEADER, [text_of(cell) for cell in row_of(wanted, result)]]))
    save_figure(picture_of([wanted], [result]), out)
    print(f"\n{time.monotonic() - began:.0f} s; the images, truth first: {out}")
    return 0
