"""Pictures of who holds what."""

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

_CELLS_WITH_NUMBERS = 400


def plot_holdings(counts: Tensor, title: str) -> Figure:
    """Return a heat map for counts (clients, labels), a bar chart of sizes for counts (clients,)."""
    values = counts.numpy()
    if counts.dim() == 1:
        figure = Figure(figsize=(9, 4), layout="constrained")
        axis = figure.subplots()
        axis.bar(range(len(values)), values)
        axis.set(title=title, xlabel="client", ylabel="samples")
    else:
        clients, labels = values.shape
        # Cells are wide enough for their numbers while there are few; many clients share one page.
        size = (min(16.0, 2.5 + 0.55 * max(labels, 6)), min(11.0, 1.5 + 0.35 * max(clients, 6)))
        figure = Figure(figsize=size, layout="constrained")
        axis = figure.subplots()
        _heat_map(figure, axis, values)
        axis.set(title=title, xlabel="label", ylabel="client")
    axis.locator_params(integer=True, nbins=30, steps=[1, 2, 5, 10])
    return figure


def _heat_map(figure: Figure, axis: Axes, values: npt.NDArray[Any]) -> None:
    """Draw counts (clients, labels); a label of which a client holds nothing is white."""
    # The square root keeps small holdings visible beside large ones.
    shades = PowerNorm(0.5, 0, max(1, values.max()))
    held = np.ma.masked_equal(values, 0)
    picture = axis.imshow(held, aspect="auto", cmap="viridis_r", norm=shades)
    for (client, label), count in np.ndenumerate(values):
        if count and values.size <= _CELLS_WITH_NUMBERS:
            ink = "black"
            if shades(count) > 0.55:
                ink = "white"
            axis.text(label, client, str(count), ha="center", va="center", color=ink, fontsize=8)
    figure.colorbar(picture, ax=axis, label="samples")
