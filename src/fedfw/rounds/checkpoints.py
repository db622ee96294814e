"""Checkpoints: tensors and JSON data in one safetensors file, with a checksum. Nothing is ever pickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from fedfw.rounds.files import write_atomically

FORMAT = 3
"""Version of what is in a checkpoint; another one is refused. Formats 1 and 2 were version 0.1's own file format."""
SUFFIX = ".safetensors"


class DamagedCheckpointError(ValueError):
    """A checkpoint whose bytes are not what was written."""


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint in one piece, which nobody but its owner may read.

    Parameters
    ----------
    path : Path
        The file.
    tensors : mapping of str to Tensor
        Of any shapes, on any device.
    meta : mapping
        Anything that JSON can say.
    """
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    head = {"format": str(FORMAT), "meta": json.dumps(dict(meta))}
    write_atomically(path, save(arrays, head | {"sha256": _checksum(arrays, head)}), private=True)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON data of a checkpoint.

    Raises
    ------
    DamagedCheckpointError
        If the bytes are not what was written.
    ValueError
        If another version of fedfw wrote it.
    """
    data = path.read_bytes()
    try:
        arrays = load(data)
        head: dict[str, str] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
        known = {name: head[name] for name in ("format", "meta")}
        whole = head["sha256"] == _checksum(arrays, known)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error!r}") from None
    if not whole:
        raise DamagedCheckpointError(f"{path} is damaged: its checksum does not fit")
    if known["format"] != str(FORMAT):
        raise ValueError(f"{path} has checkpoint format {known['format']}, this version reads {FORMAT}")
    # A copy, because arrays that lie in the file's bytes cannot be written to.
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, json.loads(known["meta"])


def _checksum(arrays: Mapping[str, np.ndarray[Any, Any]], head: Mapping[str, str]) -> str:
    total = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        total.update(arrays[name].tobytes())
    return total.hexdigest()
