"""Files that a library reads in a process of its own, whose memory the operating system limits.

Packed files can be a thousand times larger than they look, and the libraries that read them have no
limits of their own; some of them crash on damaged files. Arrays come back as .npy files, which hold
no code.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfw.data.limits import MemoryMeter

_PROGRAM = Path(__file__).with_name("_reader.py")
_REFUSED, _TOO_LARGE = 3, 4
"""How `_reader.py` ends where a file is damaged, and where it needs more memory than it may take.
"""


def read_isolated(kind: str, path: Path, *names: str) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a file: "mat", "npz" (those of these names) or "libsvm".

    Returns
    -------
    dict
        Arrays by name, with dots between the names of structs and their fields.

    Raises
    ------
    MemoryLimitError
        Where more memory is needed than `fedfw.data.limits.memory_limit` allows for the file.
    ValueError
        Where the file is damaged.
    """
    meter = MemoryMeter(path)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-P",
            str(_PROGRAM),
            kind,
            str(path),
            folder,
            str(meter.limit),
            *names,
        ]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == _TOO_LARGE:
            meter.check(meter.limit + 1, "its contents")
        if done.returncode:
            said = (
                done.stdout
                if done.returncode == _REFUSED
                else f"its reader ended with status {done.returncode}"
            )
            raise ValueError(f"{path} is damaged: {' '.join(said.split())[:200]}")
        found = json.loads(done.stdout)
        return {
            name: np.load(Path(folder) / f"{i}.npy", allow_pickle=False)
            for i, name in enumerate(found)
        }
