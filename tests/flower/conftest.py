"""What all tests of the bridge need: Flower itself."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("flwr") else ["*.py"]


@pytest.fixture(autouse=True)
def _inside_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages can only be made where it runs an app."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
