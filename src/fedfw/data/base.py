"""A data set: samples for training, samples for testing, and who they came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.linalg.rows import select_rows


@dataclass(frozen=True, eq=False)
class Part:
    """The training or the test samples.

    Parameters
    ----------
    inputs
        (samples, ...): uint8 images (channels, height, width), kept as bytes until they are used;
        float32 images or features, features also in sparse rows (CSR); int64 (row, column) pairs
        for ratings; or int8 characters (length,) of a text.
    targets
        (samples,): int64 classes from 0, or float32 numbers; (samples, length) int8 for sequences:
        the next characters; (samples, 2) float32 for times until an event: whether it was seen, and
        the time.
    owners
        Natural owners by kind, such as ``{"writer": ids}`` with ids (samples,) int64.
    owners_hint
        How to come by the owners, when the data set has some that are not here.
    starts
        (samples,): where in one long text each sample begins, for windows that may overlap.
    """

    inputs: Tensor
    targets: Tensor
    owners: Mapping[str, Tensor] = field(default_factory=dict)
    owners_hint: str = ""
    starts: Tensor | None = None

    def __post_init__(self) -> None:
        """Check that there is a target, and an owner of each kind, for every input."""
        for name, values in {"targets": self.targets, **self.owners}.items():
            # Targets may also be pairs (event, time), or a class for each entry of a sequence.
            pairs = values.is_floating_point() and values.shape == (len(self.inputs), 2)
            several = name == "targets" and (pairs or values.shape == self.inputs.shape[:2])
            if values.shape != (len(self.inputs),) and not several:
                raise ValueError(
                    f"{name} of shape {tuple(values.shape)}, expected one for {len(self.inputs)} "
                    "inputs"
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the chosen (or all) samples, ready for a model.

        Bytes become float32 in [0, 1], characters int64.
        """
        inputs, targets = self.inputs, self.targets
        if rows is not None:
            inputs, targets = select_rows(inputs, rows), targets[rows]
        if inputs.dtype == torch.int8:
            return inputs.long(), targets.long()
        return (inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs), targets


@dataclass(frozen=True, eq=False)
class Data:
    """A data set; ``classes`` is None where targets are numbers, ``sides`` are those of the matrix
    of ratings, ``columns`` the names of a table's inputs.
    """

    name: str
    train: Part
    test: Part
    classes: int | None
    sides: tuple[int, int] | None = None
    columns: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one input, such as (1, 28, 28)."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def sequences(self) -> bool:
        """Return whether a sample's target is a sequence of classes instead of one."""
        return self.train.targets.ndim > 1 and not self.survival

    @property
    def survival(self) -> bool:
        """Return whether a sample's target is a pair (event, time)."""
        return self.train.targets.shape[1:] == (2,) and self.train.targets.is_floating_point()


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a user's own table: what is predicted, the time until it, and
    whose sample it is.

    With ``numbers`` whole numbers are no classes.
    """

    target: str | None = None
    time: str | None = None
    client: str | None = None
    numbers: bool = False

    @property
    def named(self) -> list[str]:
        """Return the columns that are no inputs; a name twice is refused."""
        names = [name for name in (self.target, self.time, self.client) if name is not None]
        if len(set(names)) < len(names):
            raise ValueError(
                f"target, time and client-column are {', '.join(names)}, expected different columns"
            )
        return names


@dataclass(frozen=True)
class Request:
    """The arguments of a loader: ``name`` and ``argument`` are the two sides of the colon,
    ``files`` those it needs.
    """

    name: str
    argument: str
    files: tuple[Path, ...]
    data_dir: Path | None
    clients: int
    seed: int
    columns: Columns = Columns()


def every_fifth(samples: int) -> Tensor:
    """Return (samples,) bool: which ones are for testing, in data sets that come in one piece."""
    return torch.arange(samples) % 5 == 0


def in_fifths(name: str, inputs: Tensor, targets: Tensor, classes: int | None) -> Data:
    """Return data that come in one piece, with every fifth sample for testing."""
    test = every_fifth(len(inputs))
    train, held_out = (Part(inputs[rows], targets[rows]) for rows in (~test, test))
    return Data(name, train, held_out, classes)


def class_numbers(labels: Tensor, classes: int, source: Path) -> Tensor:
    """Return the labels as int64; one outside 0 .. classes - 1 is a ValueError that names the
    file.
    """
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        found = f"{int(labels.min())} .. {int(labels.max())}"
        raise ValueError(f"{source} is damaged: labels {found}, expected 0 .. {classes - 1}")
    return labels.long()


def classes_or_numbers(
    values: npt.NDArray[Any], numbers: bool, name: str
) -> tuple[Tensor, int | None]:
    """Return (samples,) targets, and the number of classes: texts and whole numbers are classes
    from 0 in ascending order unless ``numbers``; others are numbers in float32, and None.
    """
    is_text = values.dtype.kind == "U"
    if not numbers and (is_text or bool((values == np.floor(values)).all())):
        # A class is the place of its value among the different values, ascending.
        classes, places = np.unique(values, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"{name} has one value alone, expected at least 2 classes")
        return torch.from_numpy(places), len(classes)
    return as_numbers(values, name), None


def as_numbers(values: npt.NDArray[Any], name: str) -> Tensor:
    """Return (samples,) float32; refuse texts."""
    if values.dtype.kind == "U":
        raise ValueError(f"{name} has texts such as {values[0][:40]!r}, expected numbers")
    return torch.from_numpy(values.astype(np.float32))
