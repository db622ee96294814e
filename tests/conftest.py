"""One thread a test process, fixed seeds, and which tests a worker takes together."""

import gc
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("fixed", deadline=None, derandomize=True)
settings.load_profile("fixed")
gc.disable()  # until a worker has collected its tests: nothing of what that makes is garbage


def pytest_configure(config: pytest.Config) -> None:
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a shell that starts the tests in the background does that
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # and tests that interrupt a process would wait for it
    if config.getoption("dist", "no") != "no":
        gc.enable()
        # workers run the tests: who hands them out would spend seconds on torch before they start
        return
    import torch

    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    # modules and thousands of tests stay until the end: to look through them again and again is no
    # use
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # torch.manual_seed would put a call with the whole stack on a list for devices that never come
        torch.default_generator.manual_seed(0)


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of run folders that are not about plots: drawing them takes longer than such a run."""
    import fedfw.cli.compare
    import fedfw.report.plots

    for module in (fedfw.report.plots, fedfw.cli.compare):  # the second imported both by name
        monkeypatch.setattr(module, "plot_runs", lambda runs, residuals=None: None)
        monkeypatch.setattr(
            module, "save_figure", lambda figure, path, private=False: Path(path).write_bytes(b"")
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker takes all cases of a test, so that what they share is worked out once; groups are
    as they were.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class CasesTogether(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = super()._split_scope(nodeid)
            return group.partition("[")[0] if group == nodeid else group

    return CasesTogether(config, log)
