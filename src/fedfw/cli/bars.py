"""Progress of what takes longer than two seconds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    Bar = tqdm[Any]

_PATIENCE = 2.0
"""Seconds before anything is shown, and between two lines in a file."""


def progress_bar(total: int, unit: str) -> Bar:
    """One changing line on a terminal, a line every two seconds in a file, both on the standard error stream."""
    live = sys.stderr.isatty()
    return tqdm(
        total=total,
        file=sys.stderr,
        delay=_PATIENCE,
        mininterval=0.1 if live else _PATIENCE,
        dynamic_ncols=live,
        bar_format=f"{unit} {{n_fmt}}/{{total_fmt}} [{{elapsed}}]{{postfix}}" + ("" if live else "\n"),
    )
