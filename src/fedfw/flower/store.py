"""A client's memory on its own disk: Flower keeps none, and a client's process may end at any time."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedfw.algorithms.base import State
from fedfw.flower.messages import SCHEMA, Answer
from fedfw.simulation.files import DamagedCheckpointError, load_checkpoint, save_checkpoint, write_atomically

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]


def state_folder(wanted: str | Path | None = None) -> Path:
    """Where clients keep their memory: as asked for, $FEDFW_STATE, or a folder in the user's home."""
    if wanted:
        return Path(wanted).expanduser()
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(os.environ.get("FEDFW_STATE") or Path(home) / "fedfw")


@dataclass(frozen=True)
class Step:
    """What a client holds after round t: its memory (a stack of one), and the xbar it was sent in that round."""

    t: int
    state: State
    xbar: Tensor


@dataclass(frozen=True)
class Memory:
    """The last step that was counted, and one that may yet be, with the answer that was given for it."""

    counted: Step
    pending: Step | None = None
    answer: Answer | None = None
    handed: str = ""
    """Stands for the memory that the pending step's order handed over."""

    def at(self, t: int) -> Step | None:
        """The step after round t, if it is one of the two."""
        return next((step for step in (self.pending, self.counted) if step is not None and step.t == t), None)


@dataclass(frozen=True)
class Budget:
    """What a private client has released: in how many rounds, under which promise, at which largest weight."""

    released: int
    promise: str
    weight: float


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
        if not self.run or any(not (c.isalnum() or c in "-_.") for c in self.run) or self.run.startswith("."):
            raise ValueError(f"run={self.run!r}, expected letters, digits, '-', '_' and '.'")
        object.__setattr__(self, "path", self.folder / self.run / f"client-{self.client}.bin")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within, no other process works on this client's file: two of them would draw noise for one release."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self._budget_path().with_suffix(".lock"), "w") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed, or the process ends
            yield

    def load(self) -> Memory | None:
        """What was saved last; None where there is nothing, or nothing that is whole."""
        if not self.path.is_file():
            return None
        try:
            tensors, meta = load_checkpoint(self.path)
        except DamagedCheckpointError as error:
            warnings.warn(f"{error}; the server will be asked for it", stacklevel=2)
            return None
        if meta["schema"] != SCHEMA:
            raise ValueError(f"{self.path} has schema {meta['schema']}, this version reads {SCHEMA}")

        def step(name: str) -> Step:
            held = {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(name + ".")}
            return Step(meta[name], {key: v for key, v in held.items() if key != "xbar"}, held["xbar"])

        if meta["answer"] is None:
            return Memory(step("counted"))
        payloads = {key: bytes.fromhex(meta["answer"][key]) for key in ("payload", "digest")}
        return Memory(step("counted"), step("pending"), Answer.of(meta["answer"] | payloads), meta["handed"])

    def save(self, memory: Memory) -> None:
        """Replace the file in one piece."""
        meta: dict[str, Any] = {"schema": SCHEMA, "counted": memory.counted.t, "answer": None}
        tensors = _named("counted", memory.counted)
        if memory.pending is not None and memory.answer is not None:
            tensors |= _named("pending", memory.pending)
            answer = memory.answer.fields()
            meta |= {
                "pending": memory.pending.t,
                "handed": memory.handed,
                "answer": {key: v.hex() if isinstance(v, bytes) else v for key, v in answer.items()},
            }
        save_checkpoint(self.path, tensors, meta)

    def budget(self) -> Budget | None:
        """What a private client has spent in this run; None where nothing is known of it."""
        path = self._budget_path()
        return Budget(**json.loads(path.read_text())) if path.is_file() else None

    def spend(self, budget: Budget) -> None:
        """Write it down, before anything is drawn."""
        write_atomically(self._budget_path(), json.dumps(asdict(budget)).encode())

    def _budget_path(self) -> Path:
        # A server that went back to an older checkpoint calls the run by another name: the data are the same.
        return self.folder / f"{re.sub(r'([.][0-9]+)+$', '', self.run)}-client-{self.client}.budget.json"

    def forget(self) -> None:
        """Remove the file; what was spent stays spent."""
        self.path.unlink(missing_ok=True)

    def note(self, **event: Any) -> None:
        """Append a line to the client's log."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.with_suffix(".log.jsonl"), "a", encoding="utf-8") as log:
            log.write(json.dumps(event) + "\n")


def _named(name: str, step: Step) -> dict[str, Tensor]:
    return {f"{name}.{key}": value for key, value in (step.state | {"xbar": step.xbar}).items()}
