"""A client's memory in Flower's ``context.state``: arrays and one text, never anything pickled."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedfw.deployment.client import Client
from fedfw.deployment.consent import Consent
from fedfw.deployment.messages import Order
from fedfw.deployment.store import ClientStore
from fedfw.deployment.terms import ALL_SETS, SHARES

STATE = "fedfw.state"
"""The client's vectors, by the names of `ClientStore`."""
ABOUT = "fedfw.about"
"""The record beside a client's tensors, as JSON, and the run that it is of."""
OPEN = Consent(
    share=SHARES,
    sets=(ALL_SETS,),
    least_samples=1,
    most_local_steps=100_000,
    most_rounds=1_000_000_000,
)
"""A bridge has no owner's file: its app decides what is computed."""


@dataclass(frozen=True)
class ContextStore(ClientStore):
    """A client's memory, kept where Flower keeps a node's state.

    Parameters
    ----------
    state : RecordDict
        Of Flower's context.
    """

    state: RecordDict = field(kw_only=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Do nothing: Flower gives a node one message at a time."""
        yield

    def _read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the state that was saved for this run; None where there is none."""
        about = self.state.get(ABOUT)
        arrays = self.state.get(STATE)
        if not isinstance(about, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            return None
        if about["run"] != self.run:
            return None
        return dict(arrays.to_torch_state_dict()), json.loads(str(about["meta"]))

    def _write(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self.state[STATE] = ArrayRecord(tensors)
        self.state[ABOUT] = ConfigRecord({"run": self.run, "meta": json.dumps(meta)})

    def forget(self) -> None:
        """Remove what was saved."""
        self.state.pop(STATE, None)
        self.state.pop(ABOUT, None)

    def note(self, **event: Any) -> None:
        """Do nothing: Flower has a log."""


@dataclass(frozen=True)
class BridgedClient(Client):
    """A client of an app of the user's own, whose memory is Flower's.

    Parameters
    ----------
    state : RecordDict
        Of Flower's context.
    """

    folder: Path = Path()
    consent: Consent = OPEN
    state: RecordDict = field(kw_only=True)

    @property
    def samples(self) -> int:
        """Return how many samples the client has."""
        sizes = self._problem.losses.sizes
        return 0 if sizes is None else int(sizes.sum())

    def _store(self, order: Order) -> ClientStore:
        return ContextStore(self.folder, order.run, self.number, state=self.state)

    def _admit(self) -> None:
        """Do nothing: there is no owner's file to count answers by."""
