"""A live line on stderr."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from fedfw.simulation.engine import Simulation


class ProgressLine:
    """Called after each round; a terminal sees one line that changes, a file a line every two seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._shown = time.monotonic()

    def __call__(self, simulation: Simulation) -> None:
        last = simulation.t == simulation.options.rounds
        if not last and time.monotonic() - self._shown < (0.1 if self._live else 2.0):
            return
        self._shown = time.monotonic()
        latest = simulation.history.last
        parts = [f"round {simulation.t}/{simulation.options.rounds}"]
        for label, value, form in (
            ("loss", latest("loss"), ".4f"),
            ("accuracy", latest("accuracy"), ".3f"),
            ("gap", latest("gap"), ".2e"),
            ("optimum >=", simulation.best_bound, ".4f"),
            ("epsilon", latest("epsilon"), ".3f"),
        ):
            if value is not None:
                parts.append(f"{label} {value:{form}}")
        parts.append(f"{human_bytes(simulation.history.total('bytes_up'))} up")
        line = "  ".join(parts)
        self._stream.write(f"\r{line:<110}" if self._live else line + "\n")
        if last and self._live:
            self._stream.write("\n")
        self._stream.flush()


def human_bytes(count: float) -> str:
    """1234 -> 1.2 kB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
