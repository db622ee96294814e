"""The records of a run's rounds, and their history."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

from fedfw.options import nearest
from fedfw.rounds.files import write_atomically

_RECORD_LINES = (
    ("loss", "test_loss", "accuracy", "concordance"),
    ("gap", "lower_bound", "consensus", "epsilon"),
    ("bytes_up", "bytes_down", "evidence_up", "evidence_down"),
    ("eta", "lam", "rho"),
)
"""The columns that a record shows, line by line, behind its first line."""


@dataclass(frozen=True, repr=False)
class Record:
    """The results of one round; values that were not evaluated are None.

    Parameters
    ----------
    round : int
        Its number, from 1.
    loss, test_loss, accuracy : float
        F at xbar after the round; the loss and the accuracy on the test data.
    concordance : float
        For times until an event: the concordance index on all test data.
    concordances : dict of str to float
        The same among the test data of each natural owner, such as a region.
    surrogate : float
        sum w_i f_i(x_i) + lam/2 ||X - Xbar||^2, which the algorithm decreases.
    gap, anchor_gap : float
        The Frank-Wolfe gap at xbar after the round, and the gap that an anchor found before the
        round's step.
    lower_bound : float
        The best proven lower bound on the optimum so far.
    consensus, distance : float
        ||X - Xbar||_F, how far apart the clients are; and how far xbar is from the set.
    participants : int
        How many clients took part.
    eta, lam, rho : float
        Step size, penalty and averaging weight of the round.
    bytes_up, bytes_down : int
        The payload that all clients together sent and were sent: atoms, vectors and models.
    evidence_up, evidence_down : int
        What let the two sides check each other and prove things: digests, losses, the certificate's
        numbers.
    bytes_dense : int
        What dense vectors would have cost, both ways together.
    epsilon : float
        What a private run has spent of its budget, by the client that spent most.
    lipschitz : float
        A proven bound on the Lipschitz constant of the model, in l2, in runs that certify.
    certified : dict of str to float
        The share of test data whose right class is proven to stay within an l2 radius, by radius.
    seconds : dict of str to float
        How long the round took, by its parts.

    Examples
    --------
    >>> Record(round=1, loss=0.5, bytes_up=30, bytes_down=65, participants=10)
    Record of round 1, 10 clients
      loss 0.5
      bytes_up 30, bytes_down 65, evidence_up 0, evidence_down 0
    """

    round: int
    loss: float | None = None
    test_loss: float | None = None
    accuracy: float | None = None
    concordance: float | None = None
    concordances: dict[str, float] | None = None
    surrogate: float | None = None
    gap: float | None = None
    anchor_gap: float | None = None
    lower_bound: float | None = None
    consensus: float | None = None
    distance: float | None = None
    participants: int = 0
    eta: float | None = None
    lam: float | None = None
    rho: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    evidence_up: int = 0
    evidence_down: int = 0
    bytes_dense: int = 0
    epsilon: float | None = None
    lipschitz: float | None = None
    certified: dict[str, float] | None = None
    seconds: dict[str, float] | None = None

    def __repr__(self) -> str:
        """Return a few lines with the values that were evaluated."""
        lines = [f"{type(self).__name__} of round {self.round}, {self.participants} clients"]
        for names in _RECORD_LINES:
            values = [(name, getattr(self, name)) for name in names]
            texts = [f"{name} {_short(value)}" for name, value in values if value is not None]
            if texts:
                lines.append("  " + ", ".join(texts))
        return "\n".join(lines)


class History(Sequence[Record]):
    """The records of a run, in order.

    Parameters
    ----------
    records : sequence of Record
        To begin with.

    Examples
    --------
    >>> history = History([Record(round=1, loss=0.5, bytes_up=3), Record(round=2, bytes_up=4)])
    >>> history["loss"], history.last("loss"), history.total("bytes_up")
    ([0.5, None], 0.5, 7)
    """

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = list(records)
        # Of the first records, as JSON: a checkpoint a round would write them all anew.
        self._lines: list[str] = []

    def __getitem__(self, index: int | slice | str) -> Any:
        """Return the record of a round by its place, several of them as a history, or a column by
        its name.
        """
        if isinstance(index, str):
            return self._column(index)
        return History(self._records[index]) if isinstance(index, slice) else self._records[index]

    def _column(self, name: str) -> list[Any]:
        """Return a column of the records by its name; refuse names that records do not have."""
        known = [f.name for f in fields(self._records[0] if self._records else Record)]
        if name not in known:
            raise KeyError(
                f"no column {name!r}{nearest(name, known)}, expected one of {', '.join(known)}"
            )
        return [getattr(record, name) for record in self._records]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __repr__(self) -> str:
        values = ((name, self.last(name)) for name in ("loss", "accuracy", "gap"))
        shown = "".join(f", {name} {value:.4g}" for name, value in values if value is not None)
        return f"History({len(self)} rounds{shown})"

    def append(self, record: Record) -> None:
        self._records.append(record)

    def amend(self, **values: Any) -> None:
        """Fill in what becomes known of the last round later."""
        self._records[-1] = replace(self._records[-1], **values)
        del self._lines[len(self._records) - 1 :]

    def withdraw_bounds(self) -> None:
        """Leave out all lower bounds: the run refuted what they rest on."""
        self._records = [replace(record, lower_bound=None) for record in self._records]
        self._lines = []

    def last(self, name: str) -> Any:
        """Return the latest value of a column that was evaluated, or None."""
        for record in reversed(self._records):
            value = getattr(record, name)
            if value is not None:
                return value
        return None

    def total(self, name: str) -> int | float:
        """The sum of a column over the rounds in which it is known; whole numbers give a whole
        number.
        """
        known: list[int | float] = [value for value in self._column(name) if value is not None]
        return sum(known)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns by name, of which `pandas.DataFrame` makes a table."""
        return {f.name: [getattr(r, f.name) for r in self._records] for f in fields(Record)}

    def to_csv(self, path: str | Path) -> None:
        """Write a row for each round; the parts of ``seconds``, ``certified`` and ``concordances``
        get columns of their own.
        """
        rows = [_flat(asdict(record)) for record in self._records]
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = StringIO()
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(Path(path), text.getvalue().encode())

    def to_jsonl(self) -> str:
        """Return a line of JSON for each record. Finished records do not change, so that only new
        ones are written; the lines of the others are kept.
        """
        self._lines += [
            json.dumps(asdict(record)) + "\n" for record in self._records[len(self._lines) :]
        ]
        return "".join(self._lines)

    @classmethod
    def from_jsonl(cls, text: str, kind: type[Record] = Record) -> History:
        """Return the history of what `to_jsonl` gave."""
        return cls([kind(**json.loads(line)) for line in text.splitlines()])


def read_history(path: Path, kind: type[Record] = Record) -> History:
    """Return the history in a file; of a deployment's records, what ``kind`` has of them.

    Raises
    ------
    ValueError
        If the file is damaged; the error names it.
    """
    names = {field.name for field in fields(kind)}
    try:
        rows = [dict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        return History([kind(**{name: row[name] for name in row if name in names}) for row in rows])
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged, expected a record of a round in each line: {error}"
        ) from None


def _short(value: Any) -> Any:
    """A value of a record for a table: numbers to four digits, whole numbers as they are."""
    return f"{value:.4g}" if isinstance(value, float) else value


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    parts = {name: row.pop(name) or {} for name in ("seconds", "certified", "concordances")}
    return row | {
        f"{name}_{key}": value for name, part in parts.items() for key, value in part.items()
    }
