"""A user's statement about the coefficients of a model, by the columns' names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

Bounds = Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True)
class Statement:
    """A user's statement about the coefficients, by the columns' names.

    Parameters
    ----------
    constraint : set, str or None
        The set of the penalised coefficients.
    bounds : mapping from str to (low, high)
        Bounds of single coefficients; None is no bound. Beside a ball, only the signs
        ``(0, None)`` and ``(None, 0)``.
    factors : mapping from str to sequence of str
        The dummy variables of each factor, which enter together.
    unpenalised : sequence of str
        Columns whose coefficients are free.
    monotone : mapping from str to sequence of str
        The dummy variables of an ordered factor's levels, from the lowest; the reference level,
        whose coefficient is 0, comes before them.
    """

    constraint: Any = None
    bounds: Bounds = field(default_factory=dict)
    factors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unpenalised: Sequence[str] = ()
    monotone: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is said: then the fit is maximum likelihood."""
        return self.constraint is None and not (self.bounds or self.factors or self.monotone)

    def validate_names(self, names: Sequence[str]) -> None:
        """Refuse names that are no columns, and columns that two statements claim."""
        claims: dict[str, str] = {}
        self._validate_lists()
        for kind, mentioned in self._mentions():
            for name in mentioned:
                if mentioned.count(name) > 1:
                    raise ValueError(f"{kind} names {name!r} twice, expected each column once")
                if name not in names:
                    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
                    raise ValueError(f"{kind} names {name!r}, expected one of the columns {shown}")
                other = claims.setdefault(name, kind)
                if other != kind:
                    raise ValueError(
                        f"column {name!r} stands in {other} and in {kind}, expected one of them: "
                        "a factor's levels have no bounds of their own"
                    )

    def _validate_lists(self) -> None:
        """Refuse a text in place of a list of columns, and bounds that are no pairs of numbers."""
        lists = [("unpenalised", self.unpenalised)]
        lists += [(f"factors[{key!r}]", levels) for key, levels in self.factors.items()]
        lists += [(f"monotone[{key!r}]", levels) for key, levels in self.monotone.items()]
        for what, columns in lists:
            if isinstance(columns, str):
                raise ValueError(f"{what}={columns!r}, expected a list of columns: [{columns!r}]")
        for name, pair in self.bounds.items():
            if not _is_pair_of_bounds(pair):
                raise ValueError(
                    f"bounds[{name!r}] = {pair!r}, expected (low, high), two numbers or None for "
                    "no bound"
                )

    def _mentions(self) -> list[tuple[str, list[str]]]:
        """Return the columns that each part of the statement names."""
        return [
            ("bounds", list(self.bounds)),
            ("factors", [name for levels in self.factors.values() for name in levels]),
            ("unpenalised", list(self.unpenalised)),
            ("monotone", [name for levels in self.monotone.values() for name in levels]),
        ]


def _is_pair_of_bounds(pair: Any) -> bool:
    """Return whether bounds are two numbers, or None in the place of one."""
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        return False
    return all(
        bound is None or (isinstance(bound, Real) and not math.isnan(bound)) for bound in pair
    )
