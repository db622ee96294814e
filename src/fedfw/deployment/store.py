"""A client's memory on its own disk: Flower keeps none, and a client's process may end at any
time.
"""

import json
import os
import re
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedfw.algorithms.contract import State
from fedfw.deployment.files import make_private_folder, owner_only, wait_for_lock
from fedfw.deployment.messages import SCHEMA, Answer
from fedfw.rounds.checkpoints import (
    SUFFIX,
    DamagedCheckpointError,
    joined,
    load_checkpoint,
    part,
    save_checkpoint,
)
from fedfw.terminal import escape_controls

_RUN = re.compile("[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_BYTES = ("payload", "digest")
"""The fields of an answer that a file has as text."""
FAILURES = "failures.log"
"""In the folder of all clients on a machine: what went wrong, in full."""


def state_folder(wanted: str | Path | None = None) -> Path:
    """Return the folder of clients' memories: as given, else $FEDFW_STATE, else a folder of the
    user's home.
    """
    if wanted:
        return Path(wanted).expanduser()
    # Read directly: the check of all FEDFW_ variables could fail, and failures are written here.
    from_environment = os.environ.get("FEDFW_STATE")
    if from_environment:
        return Path(from_environment)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "fedfw"


def note_failure(folder: Path) -> None:
    """Append the exception that is being handled to the log of failures, which its owner alone can
    read.
    """
    make_private_folder(folder)
    with open(
        folder / FAILURES, "a", encoding="utf-8", errors="backslashreplace", opener=owner_only
    ) as log:
        details = escape_controls(traceback.format_exc(), keep="\n")
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{details}\n")


@dataclass(frozen=True)
class Received:
    """The vectors of one message, by name, (p,) each, and the number of that message; 0 for none
    yet.
    """

    version: int
    vectors: dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """A client's memory after an exchange: its state (a stack of one), and the message of that
    exchange.

    Parameters
    ----------
    serial : int
        Of the exchange (`serial_of`); 0 before the first one.
    state, received
        The state and the message.
    answer : Answer, optional
        What was answered, if this client took the step itself.
    handed : str
        Stands for what the step began from.
    """

    serial: int
    state: State
    received: Received
    answer: Answer | None = None
    handed: str = ""


@dataclass(frozen=True)
class Stored:
    """A client's files: its memory between rounds.

    Parameters
    ----------
    counted : Step
        What it held when its present round began, by the server's account. A server that lost the
        round in a crash goes on from there.
    pending : tuple of Step
        The steps of its present round, which may yet be counted, in the order of the exchanges.
    promise : str
        What a private client had promised when it wrote this; empty for others. What it remembers
        of its data is used under the same promise only.
    """

    counted: Step
    pending: tuple[Step, ...] = ()
    promise: str = ""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return all steps, the newest first."""
        return (*reversed(self.pending), self.counted)

    @property
    def last(self) -> Step:
        """Return the last step that was taken."""
        return self.steps[0]

    def at(self, serial: int) -> Step | None:
        """Return the step after an exchange, if it is here."""
        return next((step for step in self.steps if step.serial == serial), None)

    def message(self, version: int) -> Received | None:
        """Return the message of that number, if it is here; number 0 is an empty one."""
        if not version:
            return Received(0, {})
        messages = (step.received for step in self.steps)
        return next((message for message in messages if message.version == version), None)


@dataclass(frozen=True)
class ClientStore:
    """One client's file in one run, and a log of what happened to it.

    Parameters
    ----------
    folder
        Of all clients on this machine.
    """

    folder: Path
    run: str
    client: int
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.run):
            raise ValueError(f"run={self.run!r}, expected letters a to z, digits, '-', '_' and '.'")
        object.__setattr__(self, "path", self.folder / self.run / f"client-{self.client}{SUFFIX}")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within, no other process works on this client's file: two of them would draw noise for
        one release.
        """
        self._make_folder()
        with open(self.path.with_suffix(".lock"), "w", opener=owner_only) as lock:
            wait_for_lock(lock)
            yield

    def load(self) -> Stored | None:
        """Return the memory that was saved last; None where there is no file, or a damaged one."""
        saved = self._read()
        if saved is None:
            return None
        tensors, meta = saved
        if meta["schema"] != SCHEMA:
            raise ValueError(
                f"{self.path} has schema {meta['schema']}, this version reads {SCHEMA}"
            )

        steps = []
        for k, entry in enumerate(meta["steps"]):
            received = Received(entry["version"], part(tensors, f"{k}.received"))
            state = part(tensors, f"{k}.state")
            answer = None
            if "answer" in entry:
                fields = entry["answer"]
                answer = Answer.of(fields | {name: bytes.fromhex(fields[name]) for name in _BYTES})
            steps.append(Step(entry["serial"], state, received, answer, entry["handed"]))
        # The oldest step is the counted one.
        return Stored(steps[0], tuple(steps[1:]), meta["promise"])

    def save(self, stored: Stored) -> None:
        """Replace what was saved, in one piece: the counted step and the pending ones, oldest
        first.
        """
        entries = []
        parts: dict[str, dict[str, Tensor]] = {}
        for k, step in enumerate(reversed(stored.steps)):
            entry: dict[str, Any] = {
                "serial": step.serial,
                "version": step.received.version,
                "handed": step.handed,
            }
            if step.answer is not None:
                fields = step.answer.fields()
                # JSON has no bytes: they are written as hexadecimal digits.
                entry["answer"] = fields | {name: fields[name].hex() for name in _BYTES}
            entries.append(entry)
            parts |= {f"{k}.state": step.state, f"{k}.received": step.received.vectors}
        meta = {"schema": SCHEMA, "promise": stored.promise, "steps": entries}
        self._write(joined(parts), meta)

    def _read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the tensors and the JSON data of the file; None where there is no whole one."""
        if not self.path.is_file():
            return None
        try:
            return load_checkpoint(self.path)
        except DamagedCheckpointError as error:
            warnings.warn(f"{error}; the server will be asked for it", stacklevel=3)
            return None

    def _write(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Replace the file in one piece."""
        self._make_folder()
        save_checkpoint(self.path, tensors, meta)
        self.path.chmod(0o600)

    def forget(self) -> None:
        """Remove the file; what was released stays in the ledger."""
        self.path.unlink(missing_ok=True)

    def note(self, **event: Any) -> None:
        """Append a line to the client's log."""
        self._make_folder()
        with open(
            self.path.with_suffix(".log.jsonl"), "a", encoding="utf-8", opener=owner_only
        ) as log:
            log.write(json.dumps(event) + "\n")

    def _make_folder(self) -> None:
        make_private_folder(self.folder)
        make_private_folder(self.path.parent)
