"""What a run remembers of each round."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, overload

from fedfw.simulation.files import write_atomically


@dataclass(frozen=True)
class Record:
    """One round. Values that were not evaluated are None.

    loss, test_loss, accuracy, surrogate, gap, consensus and distance describe the state after the round: F at xbar,
    the test data, sum w_i f_i(x_i) + lam/2 ||X - Xbar||^2, the Frank-Wolfe gap at xbar, ||X - Xbar||_F and xbar's
    distance from D. ``anchor_gap`` is the gap that an anchor found at xbar before the round's step. ``lower_bound``
    is the best proven lower bound on the optimum so far. ``bytes_dense`` is what dense vectors would have cost, both
    ways together. ``epsilon`` is what a private run has spent of its budget, by the client that spent most.
    """

    round: int
    loss: float | None = None
    test_loss: float | None = None
    accuracy: float | None = None
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
    bytes_dense: int = 0
    epsilon: float | None = None
    seconds: dict[str, float] | None = None


class History(Sequence[Record]):
    """The records of a run, in order."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = list(records)
        self._lines: list[str] = []  # of the first records, as JSON: a checkpoint a round would write them all anew

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    def __getitem__(self, index: int | slice) -> Record | History:
        return History(self._records[index]) if isinstance(index, slice) else self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __repr__(self) -> str:
        return f"History({len(self)} rounds)"

    def append(self, record: Record) -> None:
        self._records.append(record)

    def amend(self, **values: Any) -> None:
        """Fill in what becomes known of the last round later."""
        self._records[-1] = replace(self._records[-1], **values)
        del self._lines[len(self._records) - 1 :]

    def last(self, name: str) -> Any:
        """The latest value of a column that was evaluated, or None."""
        return next((value for r in reversed(self._records) if (value := getattr(r, name)) is not None), None)

    def total(self, name: str) -> float:
        """The sum of a column."""
        return float(sum(getattr(r, name) for r in self._records))

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns by name."""
        return {f.name: [getattr(r, f.name) for r in self._records] for f in fields(Record)}

    def to_csv(self, path: str | Path) -> None:
        """One row a round; the parts of ``seconds`` get columns of their own."""
        rows = [_flat(asdict(record)) for record in self._records]
        names = list(dict.fromkeys(name for row in rows for name in row))
        from io import StringIO

        text = StringIO()
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(Path(path), text.getvalue().encode())

    def to_jsonl(self) -> str:
        """One JSON object a line."""
        self._lines += [json.dumps(asdict(record)) + "\n" for record in self._records[len(self._lines) :]]
        return "".join(self._lines)

    @classmethod
    def from_jsonl(cls, text: str, kind: type[Record] = Record) -> History:
        """The inverse of `to_jsonl`."""
        return cls([kind(**json.loads(line)) for line in text.splitlines()])


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    seconds = row.pop("seconds") or {}
    return row | {f"seconds_{name}": value for name, value in seconds.items()}
