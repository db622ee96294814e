"""Progress of what takes longer than two seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    Bar = tqdm[Any]

_PATIENCE = 2.0
"""Seconds before anything is shown, and between two lines in a file."""


def progress_bar(total: int, unit: str) -> Bar:
    """Return a bar: one changing line on a terminal, a line every two seconds in a file, both on
    the standard error stream.
    """
    live = sys.stderr.isatty()
    return tqdm(
        total=total,
        file=sys.stderr,
        delay=_PATIENCE,
        mininterval=0.1 if live else _PATIENCE,
        dynamic_ncols=live,
        bar_format=f"{unit} {{n_fmt}}/{{total_fmt}} [{{elapsed}}]{{postfix}}"
        + ("" if live else "\n"),
    )


@contextmanager
def shown(
    progress: bool | Callable[..., Any] | None, total: int, unit: str, describe: Callable[..., str]
) -> Iterator[Callable[..., None]]:
    """Yield a function that reports progress by a bar, by a call of the user's function, or not at
    all, as the argument ``progress`` of a public function says.

    Parameters
    ----------
    progress : bool or callable
        True for a bar; a function is called with the facts; False and None for nothing.
    total : int
        How many units of work there are.
    unit : str
        What they are called.
    describe : callable
        The facts as a text, for the bar.

    Yields
    ------
    callable
        (units that are done, *facts).
    """
    validate_progress(progress)
    with progress_bar(total, unit) if progress is True else nullcontext() as bar:

        def report(done: int, *facts: Any) -> None:
            """Move the bar on, or call the user's function."""
            if bar is not None:
                bar.set_postfix_str(describe(*facts), refresh=False)
                bar.update(done - bar.n)  # tqdm takes the increase
            elif callable(progress):
                progress(*facts)

        yield report


def validate_progress(progress: Any) -> None:
    """Raise TypeError for a ``progress`` that is neither a truth value nor a function."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(f"progress={progress!r}, expected True, False or a function")
