"""A user's own model by name: ``my_module:make`` is the function ``make`` in ``my_module.py`` of
the current folder.

This runs the user's code, so the name has to come from the user: from Python or typed on a command
line. Names in files and in a deployment's settings are refused where those are read.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.nn.functional as nnf
from torch import nn

from fedfw.data import Data
from fedfw.models.kinds import ModelKind, targets_of
from fedfw.problems import cox_loss
from fedfw.problems.known_losses import LossFunction


def is_own(name: str) -> bool:
    """Return whether a model's name stands for a user's own code.

    Examples
    --------
    >>> is_own("my_module:make"), is_own("mclr")
    (True, False)
    """
    return ":" in name


def own_kind(name: str, data: Data) -> ModelKind:
    """Return the model kind for a user's own function: ``name`` is ``my_module:make``, and ``make``
    is imported from the current folder.

    ``make(data)`` is given the `Data` and returns an `nn.Module`; its further keywords are sizes.
    Inputs come as they are, and the loss goes by the targets: cross-entropy for classes, squared
    for numbers, whose outputs are (samples, 1), and Cox's for times until an event.
    """
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ValueError(
            f"model={name!r}, expected my_module:make, a module of the current folder and a "
            "function in it"
        )
    with _blamed(name):
        make = getattr(_imported(module), function, None)
    if not callable(make):
        raise ValueError(
            f"model={name!r}, but {module} has no function {function!r}, expected one that makes a "
            "model"
        )

    @wraps(make)
    def build(data: Data, **sizes: Any) -> nn.Module:
        """Return the model that the user's function makes for these data."""
        with _blamed(name):
            model = make(data, **sizes)
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"model={name!r} made a {type(model).__name__}, expected a torch.nn.Module"
            )
        return model

    loss: LossFunction = nnf.mse_loss if data.classes is None else nnf.cross_entropy
    if data.survival:
        loss = cox_loss
    return ModelKind(
        "your own",
        build,
        loss,
        convex=False,
        flat=False,
        column=targets_of(data) == "numbers",
        per="client" if data.survival else "sample",
    )


def _imported(name: str) -> ModuleType:
    """Import a module whose file lies in the current folder; refuse a name that another module
    already has.
    """
    path_without_suffix = Path.cwd().joinpath(*name.split("."))
    files = [path_without_suffix.with_suffix(".py"), path_without_suffix / "__init__.py"]
    if not any(file.is_file() for file in files):
        raise ValueError(f"no file {files[0].name} in {files[0].parent}, expected your own module")
    if str(Path.cwd()) not in sys.path:
        # At the end: a file of this folder hides no installed module.
        sys.path.append(str(Path.cwd()))
    module = import_module(name)
    if module.__spec__ is None or str(module.__spec__.origin) not in map(str, files):
        raise ValueError(
            f"{name} is the name of another module, too, expected a name that no other module has"
        )
    return module


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """Turn every error within into a ValueError of one sentence, with the file and line of the
    user's code where it was raised.
    """
    try:
        yield
    except Exception as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).parent == Path.cwd()
        ]
        place = ""
        if frames:
            place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
        # A ValueError's text explains itself; other errors need their type.
        text = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"model={name!r}: {' '.join(text.split())}{place}") from None
