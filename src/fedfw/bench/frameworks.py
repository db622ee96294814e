"""Other frameworks, in an environment of their own: a script computes FedAvg's rounds and tells how long they took."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from fedfw.bench.tasks import BenchTask
from fedfw.bench.timing import Timing

SCRIPTS = {"pfl": "pfl_rounds.py", "Flower simulation": "flower_rounds.py"}


def framework_timing(name: str, task: BenchTask, rounds: int, python: Path, scripts: Path) -> Timing | str:
    """What the framework needs for FedAvg on the task, or why that is not known."""
    if not python.exists():
        return "not installed: bash benchmarks/frameworks/setup.sh"
    inputs, targets = task.data()
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "data.npz", Path(folder) / "out.json"
        np.savez(data, inputs=inputs.numpy(), targets=targets.numpy())
        spec = {"model": task.model, "features": task.features, "lr": task.lr, "rounds": rounds}
        command = [str(python), str(scripts / SCRIPTS[name]), str(data), json.dumps(spec), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if done.returncode or not out.exists():
            return f"failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
        told = json.loads(out.read_text())
    loss = task.problem().value(torch.tensor(told["x"]))
    return Timing(told["round_ms"], told["first_ms"], told["cpu_ms"], told["peak_mb"], loss)
