"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMAT = 2
_MAGIC = b"fedfw-checkpoint"


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
    """Tensors and JSON data in one file: a line with version and checksum, one of JSON, the tensors' bytes one by one.

    Nothing is pickled.
    """
    arrays = {name: np.ascontiguousarray(tensor.cpu().numpy()) for name, tensor in tensors.items()}
    layout = [[name, array.dtype.str, tensors[name].shape] for name, array in arrays.items()]
    head = json.dumps({"meta": meta, "tensors": layout}).encode()
    content = b"".join([head, b"\n", *(array.tobytes() for array in arrays.values())])
    write_atomically(path, _MAGIC + f" {FORMAT} {_checksum(FORMAT, content)}\n".encode() + content)


def _checksum(version: int, content: bytes) -> str:
    return hashlib.sha256(f"{version}\n".encode() + content).hexdigest()


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `save_checkpoint`; raises `DamagedCheckpointError`."""
    first, _, content = path.read_bytes().partition(b"\n")
    words = first.split()
    if len(words) != 3 or words[0] != _MAGIC or not words[1].isdigit():
        raise DamagedCheckpointError(f"{path} does not start like a checkpoint")
    version = int(words[1])
    if words[2] != _checksum(version, content).encode():
        raise DamagedCheckpointError(f"{path} is damaged: its checksum does not fit")
    if version != FORMAT:
        raise ValueError(f"{path} has checkpoint format {version}, this version reads {FORMAT}")
    head, _, body = content.partition(b"\n")
    told = json.loads(head)
    tensors, start = {}, 0
    for name, kind, shape in told["tensors"]:
        dtype = np.dtype(kind)
        end = start + math.prod(shape) * dtype.itemsize
        tensors[name] = torch.from_numpy(np.frombuffer(body[start:end], dtype).reshape(shape).copy())
        start = end
    return tensors, told["meta"]
