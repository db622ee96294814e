"""A client's memory on its own disk: Flower keeps none, and a client's process may end at any time."""

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
_STEPS = ("counted", "pending")
"""What a client's file has, by the names of `Stored`'s first and second step."""
FAILURES = "failures.log"
"""In the folder of all clients on a machine: what went wrong, in full."""


def state_folder(wanted: str | Path | None = None) -> Path:
    """Where clients keep their memory: as asked for, $FEDFW_STATE, or a folder in the user's home."""
    if wanted:
        return Path(wanted).expanduser()
    chosen = os.environ.get(
        "FEDFW_STATE"
    )  # unknown variables are refused elsewhere: failures are written here, too
    if chosen:
        return Path(chosen)
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
    """What a client holds after an exchange: its state (a stack of one), and the message of that
    exchange.
    """

    serial: int
    state: State
    received: Received


@dataclass(frozen=True)
class Stored:
    """What a client keeps on its disk.

    Parameters
    ----------
    counted : Step
        The last step that was counted.
    pending : Step, optional
        A step that may yet be counted, with the answer that was given for it.
    answer : Answer, optional
        That answer.
    handed : str
        Stands for what the pending step began from.
    promise : str
        What a private client had promised when it wrote this; empty for others. What it remembers
        of its data is used under the same promise only.
    """

    counted: Step
    pending: Step | None = None
    answer: Answer | None = None
    handed: str = ""
    promise: str = ""

    def at(self, serial: int) -> Step | None:
        """Return the step after an exchange, if it is one of the two."""
        for step in (self.pending, self.counted):
            if step is not None and step.serial == serial:
                return step
        return None

    def message(self, version: int) -> Received | None:
        """Return the message of that number, if it is here; number 0 is an empty one."""
        if not version:
            return Received(0, {})
        for step in (self.pending, self.counted):
            if step is not None and step.received.version == version:
                return step.received
        return None


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
        """What was saved last; None where there is nothing, or nothing that is whole."""
        if not self.path.is_file():
            return None
        try:
            tensors, meta = load_checkpoint(self.path)
        except DamagedCheckpointError as error:
            warnings.warn(f"{error}; the server will be asked for it", stacklevel=2)
            return None
        if meta["schema"] != SCHEMA:
            raise ValueError(
                f"{self.path} has schema {meta['schema']}, this version reads {SCHEMA}"
            )

        steps: dict[str, Step] = {}
        for name in _STEPS:
            if name in meta:
                received = Received(meta[name]["version"], part(tensors, f"{name}.received"))
                steps[name] = Step(meta[name]["serial"], part(tensors, f"{name}.state"), received)
        answer = None
        if "answer" in meta:
            payloads = {key: bytes.fromhex(meta["answer"][key]) for key in ("payload", "digest")}
            answer = Answer.of(meta["answer"] | payloads)
        return Stored(
            counted=steps["counted"],
            pending=steps.get("pending"),
            answer=answer,
            handed=meta.get("handed", ""),
            promise=meta.get("promise", ""),
        )

    def save(self, stored: Stored) -> None:
        """Replace the file in one piece."""
        meta: dict[str, Any] = {"schema": SCHEMA, "promise": stored.promise}
        parts: dict[str, dict[str, Tensor]] = {}
        for name, kept in zip(_STEPS, (stored.counted, stored.pending), strict=True):
            if kept is not None:
                meta[name] = {"serial": kept.serial, "version": kept.received.version}
                parts |= {f"{name}.state": kept.state, f"{name}.received": kept.received.vectors}
        if stored.answer is not None:
            answer = stored.answer.fields()
            meta["handed"] = stored.handed
            meta["answer"] = {
                key: v.hex() if isinstance(v, bytes) else v for key, v in answer.items()
            }
        self._make_folder()
        save_checkpoint(self.path, joined(parts), meta)
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
