"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMAT = 1
_MAGIC = b"fedfw-checkpoint\n"


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target, flush to disk, then replace."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class DamagedCheckpointError(ValueError):
    """A checkpoint whose bytes are not what was written."""


def save_checkpoint(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Tensors and JSON data in one file: a line with version and checksum, then a plain npz (nothing is pickled)."""
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    body = io.BytesIO()
    np.savez(body, **{"meta.json": np.frombuffer(json.dumps(meta).encode(), np.uint8)}, **arrays)  # type: ignore[arg-type]
    content = body.getvalue()
    head = {"format": FORMAT, "sha256": hashlib.sha256(content).hexdigest()}
    write_atomically(path, _MAGIC + json.dumps(head).encode() + b"\n" + content)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `save_checkpoint`; raises `DamagedCheckpointError`."""
    data = path.read_bytes()
    try:
        if not data.startswith(_MAGIC):
            raise DamagedCheckpointError(f"{path} does not start like a checkpoint")
        line, _, content = data[len(_MAGIC) :].partition(b"\n")
        head = json.loads(line)
        if head["format"] != FORMAT:
            raise ValueError(f"{path} has checkpoint format {head['format']}, this version reads {FORMAT}")
        if hashlib.sha256(content).hexdigest() != head["sha256"]:
            raise DamagedCheckpointError(f"{path} is damaged: its checksum does not fit")
    except (KeyError, json.JSONDecodeError, UnicodeDecodeError):
        raise DamagedCheckpointError(f"{path} is damaged: its first lines cannot be read") from None
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        meta = json.loads(arrays["meta.json"].tobytes())
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files if name != "meta.json"}
    return tensors, meta
