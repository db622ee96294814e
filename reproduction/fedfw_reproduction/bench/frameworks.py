"""Other frameworks, in an environment of their own: a script computes FedAvg's rounds and reports
their times.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from fedfw.environment import read_variable
from fedfw_reproduction.bench.tasks import BenchTask
from fedfw_reproduction.bench.timing import Timing

SCRIPTS = {"pfl": "pfl_rounds.py", "Flower simulation": "flower_rounds.py"}
PYTHON = Path(".venv") / "bin" / "python"
"""The environment's interpreter, in the folder of the scripts: its setup.sh puts it there."""
FOLDER_VARIABLE = "FEDFW_FRAMEWORKS"


def framework_timing(name: str, task: BenchTask, *, rounds: int) -> Timing | str:
    """Return what the framework needs for FedAvg on the task, or why that is not known."""
    named = read_variable(FOLDER_VARIABLE)
    folder = Path(named).absolute()
    if not named or not (folder / PYTHON).exists():
        return f"not installed: bash reproduction/frameworks/setup.sh, then {FOLDER_VARIABLE}=reproduction/frameworks"
    inputs, targets = task.data()
    with tempfile.TemporaryDirectory() as temporary:
        data, out = Path(temporary) / "data.npz", Path(temporary) / "out.json"
        np.savez(data, inputs=inputs.numpy(), targets=targets.numpy())
        spec = {"model": task.model, "features": task.features, "lr": task.lr, "rounds": rounds}
        command = [
            str(folder / PYTHON),
            str(folder / SCRIPTS[name]),
            str(data),
            json.dumps(spec),
            str(out),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if done.returncode or not out.exists():
            return f"failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
        numbers = json.loads(out.read_text())
    loss = task.problem().value(torch.tensor(numbers.pop("x")))
    return Timing(**numbers, loss=loss)
