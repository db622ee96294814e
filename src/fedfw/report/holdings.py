"""Pictures of who holds what."""

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

_CELLS_WITH_NUMBERS = 400


def plot_holdings(counts: Tensor, title: str) -> Figure:
    """A heat map for counts (clients, labels), a bar chart of sizes for counts (clients,)."""
    return _heat_map(counts, title) if counts.dim() == 2 else _bars(counts, title)


def _heat_map(counts: Tensor, title: str) -> Figure:
    clients, labels = counts.shape
    # Cells are wide enough for their numbers while there are few; many clients share one page.
    size = (min(16.0, 2.5 + 0.55 * max(labels, 6)), min(11.0, 1.5 + 0.35 * max(clients, 6)))
    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    values = counts.numpy()
    # What nobody holds is white. The colours go from the smallest holding to the largest; the
    # square root keeps small ones visible beside large ones.
    held = values[values > 0]
    lowest, highest = (int(held.min()), int(held.max())) if held.size else (0, 1)
    shades = PowerNorm(0.5, min(lowest, highest - 1), highest)
    picture = axis.imshow(
        np.ma.masked_equal(values, 0),
        aspect="auto",
        interpolation="nearest",
        cmap="viridis_r",
        norm=shades,
    )
    if values.size <= _CELLS_WITH_NUMBERS:
        for (client, label), count in np.ndenumerate(values):
            if count:
                ink = "white" if shades(count) > 0.55 else "black"
                axis.text(
                    label, client, str(count), ha="center", va="center", color=ink, fontsize=8
                )
    figure.colorbar(picture, ax=axis, label="samples")
    axis.set(title=title, xlabel="label", ylabel="client")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(MaxNLocator(30, integer=True, steps=[1, 2, 5, 10]))
    return figure


def _bars(sizes: Tensor, title: str) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    axis = figure.subplots()
    axis.bar(range(len(sizes)), sizes.numpy(), width=0.8 if len(sizes) <= 60 else 1.0)
    axis.set(title=title, xlabel="client", ylabel="samples")
    axis.xaxis.set_major_locator(MaxNLocator(20, integer=True, steps=[1, 2, 5, 10]))
    axis.grid(axis="y", alpha=0.3)
    return figure
