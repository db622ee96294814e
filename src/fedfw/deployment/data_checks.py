"""Checks of data by their owner before a node joins, and keyed digests by which a client
recognises them.

A private client works on data that their owner has checked and on no others. That they are fit for
a model is found by the owner's own command, whatever a server asks; all that a server can see is on
which days an owner changed the data.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedfw.deployment.files import make_private_folder, require_private
from fedfw.errors import NonFiniteError
from fedfw.problems.digest import describe_model
from fedfw.rounds.files import write_atomically

if TYPE_CHECKING:
    from fedfw.deployment.consent import Consent
    from fedfw.deployment.task import Task
    from fedfw.problems.problem import Problem

_SECRET_NBYTES = 32
_SHOWN = 5
"""So many faulty samples are named."""
_PURPOSE = b"fedfw: the data of one client, version 1\n"


class InvalidDataError(ValueError):
    """Data that must not join; the text names samples, and is for their owner alone."""


@dataclass(frozen=True)
class DataCheck:
    """Data that an owner has found to be fit for a model.

    Parameters
    ----------
    data : str
        Their keyed digest.
    fit : str
        The model and the loss, as `describe_fit` says them.
    samples : int
        How many there are.
    checked : str
        The date and time.
    """

    data: str
    fit: str
    samples: int
    checked: str


_CHECKS = TypeAdapter(list[DataCheck])


@dataclass(frozen=True)
class DataChecks:
    """The checks that an owner has made.

    Parameters
    ----------
    path : Path
        The file, JSON of mode 0600.

    Examples
    --------
    >>> import tempfile
    >>> checks = DataChecks(Path(tempfile.mkdtemp()) / "clinic.checks.json")
    >>> checks.add(DataCheck("0123", "a model", 40, "2026-01-01 12:00:00"))
    >>> checks.hold("0123", "a model"), checks.hold("4567", "a model")
    (True, False)
    """

    path: Path

    def made(self) -> list[DataCheck]:
        """Return all checks, oldest first; none where there is no file, or one that cannot be
        read.
        """
        try:
            return _CHECKS.validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return []

    def add(self, check: DataCheck) -> None:
        """Append a check, in place of an earlier one of the same data and model."""
        others = [made for made in self.made() if (made.data, made.fit) != (check.data, check.fit)]
        make_private_folder(self.path.parent)
        write_atomically(self.path, _CHECKS.dump_json([*others, check], indent=1), private=True)

    def hold(self, data: str, fit: str) -> bool:
        """Return whether these data were found to be fit for this model."""
        return any((made.data, made.fit) == (data, fit) for made in self.made())


def owner_secret(path: Path) -> bytes:
    """Return the owner's secret, which never leaves the owner's folder; made at random where there
    is none.

    Raises
    ------
    ValueError
        If others can read it, or if it is not what was written.
    """
    if not path.exists():
        make_private_folder(path.parent)
        # A link is made whole or not at all, and never replaces a file: of several processes that
        # make a secret at the same time, all read that of the first.
        draft = path.with_name(f".{path.name}.{secrets.randbits(64)}.tmp")
        write_atomically(draft, f"{secrets.token_hex(_SECRET_NBYTES)}\n".encode(), private=True)
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    require_private(path, path.stat().st_mode)
    secret = bytes.fromhex(path.read_text(encoding="ascii"))
    if len(secret) != _SECRET_NBYTES:
        raise ValueError(
            f"{path} has {len(secret)} bytes, expected {_SECRET_NBYTES}: remove it, and check the "
            "data anew"
        )
    return secret


def keyed_digest(secret: bytes, tensors: Iterable[Tensor]) -> str:
    """Return the HMAC-SHA256 of tensors, 64 digits that change with any type, shape or entry and
    with their order.

    Without the secret it says nothing of the data: no guess can be tested.

    Examples
    --------
    >>> import torch
    >>> one = keyed_digest(b"secret", [torch.zeros(2)])
    >>> (
    ...     len(one),
    ...     one == keyed_digest(b"secret", [torch.zeros(2)]),
    ...     one == keyed_digest(b"other", [torch.zeros(2)]),
    ... )
    (64, True, False)
    """
    total = hmac.new(secret, _PURPOSE, "sha256")
    for tensor in tensors:
        array = tensor.detach().cpu().contiguous().numpy()
        total.update(f"{array.dtype.str} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def describe_fit(task: Task) -> str:
    """Return the model and the loss that data must fit, as a text that is the same in every
    process.
    """
    described = describe_model(task.model, task.loss, 0.0, None)
    return f"{described['model']}, {described['loss']}, per {task.per}"


def check_data(task: Task, number: int, state: Path, consent: Consent) -> DataCheck:
    """Check a client's data as their owner, and note that they may join.

    Parameters
    ----------
    task : Task
        What is to be trained; its data are read.
    number : int
        The client's number.
    state : Path
        The client's folder.
    consent : Consent
        The owner's file.

    Returns
    -------
    DataCheck
        What was noted.

    Raises
    ------
    InvalidDataError
        If the data cannot be read, do not fit the model, or have a sample with a NaN or an infinity
        in its input, its target, its loss or its gradient at the start. Nothing is noted then.
    """
    try:
        problem = task.problem(task.data(number))
    except Exception as error:
        raise InvalidDataError(f"the data of client {number} cannot be used: {error!r}") from error
    faults = find_faults(problem)
    if faults:
        raise InvalidDataError("\n".join([f"the data of client {number} cannot be used:", *faults]))
    assert problem.losses.sizes is not None  # `find_faults` reports clients without samples
    check = DataCheck(
        data=keyed_digest(consent.secret(number, state), problem.losses.data()),
        fit=describe_fit(task),
        samples=int(problem.losses.sizes.sum()),
        checked=time.strftime("%Y-%m-%d %H:%M:%S"),
    )
    consent.checks(number, state).add(check)
    return check


def find_faults(problem: Problem) -> list[str]:
    """Return a line for the first kind of fault in one client's data: samples with a NaN or an
    infinity in input, target, loss or gradient; an empty list for sound data.
    """
    for what, tensor in zip(("input", "target"), problem.losses.data(), strict=True):
        finite = tensor.reshape(len(tensor), -1).isfinite().all(1)
        if not finite.all():
            bad = (~finite).nonzero().flatten().tolist()
            return _named(f"a NaN or an infinity in the {what}", bad)
    sizes = problem.losses.sizes
    if sizes is None:
        return ["the clients are plain functions, expected samples"]
    try:
        problem.value_and_gradient(problem.start)
    except NonFiniteError:
        bad = _overflowing(problem, int(sizes[0]))
        return _named("a loss or a gradient that is not finite at the start", bad)
    return []


def _overflowing(problem: Problem, count: int) -> list[int]:
    """Return the first samples, out of ``count``, whose own loss or gradient at the start is not
    finite: one more than are named; none where only a sum over samples overflows.
    """

    def overflows(sample: int) -> bool:
        """Return whether the loss or the gradient of one sample is not finite."""
        computed = problem.losses.value_and_gradient(
            problem.start[None], torch.tensor([0]), torch.tensor([[sample]])
        )
        return not all(bool(tensor.isfinite().all()) for tensor in computed)

    return list(islice(filter(overflows, range(count)), _SHOWN + 1))


def _named(what: str, samples: list[int]) -> list[str]:
    """Return a line that names the first of some samples, if there are any."""
    if not samples:
        return []
    more = " and others" if len(samples) > _SHOWN else ""
    return [f"{what} of sample {', '.join(map(str, samples[:_SHOWN]))}{more}"]
