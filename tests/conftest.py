"""One thread a test process and fixed seeds."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # torch.manual_seed would put a call with the whole stack on a list for devices that never come
        torch.default_generator.manual_seed(0)


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of run folders that are not about plots: drawing them takes longer than such a run."""
    for module in ("fedfw.report.plots", "fedfw.cli.compare"):  # which has them by name
        monkeypatch.setattr(f"{module}.plot_runs", lambda runs, residuals=None: None)
        monkeypatch.setattr(f"{module}.save_figure", lambda figure, path: Path(path).write_bytes(b""))
