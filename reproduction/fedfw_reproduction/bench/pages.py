"""What the benchmark pages share."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).parents[3]
REPORTS = ROOT / "reproduction" / "reports"


def machine(device: str = "cpu") -> str:
    """Where and when the numbers were taken."""
    on_cpu = (
        f"{(n := torch.get_num_threads())} thread{'s' * (n > 1)} of a machine with {_processor()}"
    )
    where = on_cpu if device == "cpu" else f"an {torch.cuda.get_device_name()}"
    date = time.strftime("%Y-%m-%d")
    return f"One run on {where}, torch {torch.__version__}, {date}. Timings are noisy: read the ratios."


def _processor() -> str:
    """What the system calls its processors: ratios of tiny rounds depend on it."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0]} processors ({platform.machine()})"
        if names
        else f"{platform.machine()} processors"
    )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first column is words and whose others are numbers."""
    line = "|" + "|".join(["---", *["---:"] * (len(header) - 1)]) + "|"
    return [f"| {' | '.join(header)} |", line, *(f"| {' | '.join(row)} |" for row in rows)]


def publish(lines: Sequence[str], page: str | None) -> None:
    """Print a page and, unless ``page`` is None, write it into the folder of reports."""
    text = "\n".join([*lines, ""])
    print(text)
    if page is not None:
        (REPORTS / page).write_text(text)
