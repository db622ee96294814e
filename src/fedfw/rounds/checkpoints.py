"""Checkpoints: tensors and JSON data in one safetensors file, with a checksum. Nothing is ever
pickled.

Tensors that are mostly zero are written by their other entries.
"""

import hashlib
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from fedfw.data.limits import VARIABLE, memory_limit, usual_limit
from fedfw.rounds.files import write_atomically

FORMAT = 4
"""Version of what is in a checkpoint; another one is refused."""
SUFFIX = ".safetensors"
_AT = "\0at"
"""Ends the name of the tensor that says where the entries of another one belong."""
_SMALL = 1024
"""Tensors with fewer entries are written whole."""
_Array = np.ndarray[Any, Any]


class DamagedCheckpointError(ValueError):
    """A checkpoint whose bytes are not what was written."""


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint in one piece, which only its owner may read.

    Parameters
    ----------
    path : Path
        The file.
    tensors : mapping of str to Tensor
        Of any shapes, on any device.
    meta : mapping
        Anything that JSON can say.
    """
    write_atomically(path, packed(tensors, meta), private=True)


def packed(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    """Return the bytes of a checkpoint's file: tensors, the JSON data ``meta`` and a checksum;
    tensors that are mostly zero are written by their non-zero entries.
    """
    arrays: dict[str, _Array] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    whole_arrays = {
        name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()
    }
    for name, array in whole_arrays.items():
        places = _places(array)
        if places is None:
            arrays[name] = array
        else:
            arrays |= {name: array.reshape(-1)[places], name + _AT: places}
            # The positions are a second array, of the same name with _AT behind it.
            shapes[name] = array.shape
    # A reader takes no more memory than a few times the file's size: what would take more is
    # written whole.
    whole_nbytes = sum(array.nbytes for array in whole_arrays.values())
    for name in sorted(shapes, key=lambda name: whole_arrays[name].nbytes, reverse=True):
        # The largest arrays first, until the rest is within a reader's limit.
        if whole_nbytes <= usual_limit(sum(array.nbytes for array in arrays.values())):
            break
        del shapes[name], arrays[name + _AT]
        arrays[name] = whole_arrays[name]
    header = {"format": str(FORMAT), "meta": json.dumps(dict(meta)), "shapes": json.dumps(shapes)}
    return save(arrays, header | {"sha256": _checksum(arrays, header)})


def _places(array: _Array) -> _Array | None:
    """Return the positions (k,) in the flat array of entries whose bits are not all zero; None
    where naming them takes more than half of the array's bytes.
    """
    if array.size < _SMALL:
        return None
    # As unsigned integers of the same width: -0.0 is not zero.
    words = array.reshape(-1).view(f"u{array.itemsize}")
    if 2 * np.count_nonzero(words) * (array.itemsize + 4) > array.nbytes:
        return None
    return np.flatnonzero(words).astype(np.uint32 if array.size < 2**32 else np.int64)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON data of a checkpoint.

    Raises
    ------
    DamagedCheckpointError
        If the bytes are not what was written.
    ValueError
        If another version of fedfw wrote it.
    """
    return unpacked(path.read_bytes(), path)


def unpacked(data: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the JSON data of a checkpoint from its bytes, which were read from
    ``path``; refuse damage and other formats.
    """
    try:
        arrays = load(data)
        # A safetensors file begins with the header's length, 8 bytes, and the header in JSON.
        metadata: dict[str, str] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get(
            "__metadata__", {}
        )
        header = {name: value for name, value in metadata.items() if name != "sha256"}
        is_intact = (
            metadata["sha256"] == _checksum(arrays, header) and {"format", "meta"} <= header.keys()
        )
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error!r}") from None
    if not is_intact:
        raise DamagedCheckpointError(f"{path} is damaged: its checksum does not fit")
    if header["format"] != str(FORMAT):
        raise ValueError(
            f"{path} has checkpoint format {header['format']}, this version reads {FORMAT}"
        )
    try:
        shapes = _checked_shapes(json.loads(header["shapes"]), arrays, len(data))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from None
    tensors = {}
    for name, array in arrays.items():
        # `name` holds the non-zero entries, and the array with _AT behind its name their positions.
        if name in shapes:
            tensor = np.zeros(shapes[name], array.dtype)
            tensor.reshape(-1)[arrays[name + _AT]] = array
            tensors[name] = torch.from_numpy(tensor)
        # Positions are no tensors of their own.
        elif not name.endswith(_AT):
            # Arrays that lie in the file's bytes cannot be written to.
            tensors[name] = torch.from_numpy(array.copy())
    return tensors, json.loads(header["meta"])


def _checked_shapes(
    shapes: dict[str, list[int]], arrays: Mapping[str, _Array], nbytes: int
) -> dict[str, list[int]]:
    """Return the shapes of the tensors that are written by their entries; refuse positions outside
    of them, and tensors that need more than a reader's memory.
    """
    total = sum(array.nbytes for name, array in arrays.items() if name not in shapes)
    for name, shape in shapes.items():
        values = arrays[name]
        places = arrays[name + _AT]
        if not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"{name[:40]!r} has the shape {str(shape)[:80]}")
        outside = len(places) and not 0 <= int(places.min()) <= int(places.max()) < prod(shape)
        if (
            values.shape != places.shape
            or places.ndim != 1
            or places.dtype.kind not in "ui"
            or outside
        ):
            raise ValueError(f"{name[:40]!r} has entries outside of its shape {str(shape)[:80]}")
        total += prod(shape) * values.itemsize
    limit = memory_limit(nbytes)
    if total > limit:
        raise ValueError(
            f"its tensors take {total / 2**30:.1f} GiB of memory, expected at most "
            f"{limit / 2**30:.1f} GiB for "
            f"a file of {nbytes} bytes: where the file is trusted, allow more by {VARIABLE}"
        )
    return shapes


def _checksum(arrays: Mapping[str, _Array], head: Mapping[str, str]) -> str:
    """Return the SHA-256 of the head and of every array's name, type, shape and bytes."""
    total = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        total.update(arrays[name].tobytes())
    return total.hexdigest()


def joined(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return one dictionary with names such as ``server.xbar``; tensors of the part "" keep their
    names.

    Examples
    --------
    >>> import torch
    >>> held = joined({"server": {"xbar": torch.zeros(2)}, "": {"round": torch.tensor(3)}})
    >>> sorted(held)
    ['round', 'server.xbar']
    >>> list(part(held, "server"))
    ['xbar']
    """
    return {
        f"{name}.{key}" if name else key: value
        for name, tensors in parts.items()
        for key, value in tensors.items()
    }


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors of one part, by their own names."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }
