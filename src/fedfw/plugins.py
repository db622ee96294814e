"""Tables of algorithms and sets by name, which other installed packages extend by entry points."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

T = TypeVar("T")


class PluginTable(MutableMapping[str, T], Generic[T]):
    """A table by name; what installed packages register is added when the table is first looked at.

    It waits until then because those packages import fedfw, which must be complete by that time.
    What cannot be added is left out with a warning: one broken package must not keep all others
    from running. Capital letters and dashes in names do not matter, and "plus" is "+".

    Parameters
    ----------
    group : str
        The group of entry points, such as ``fedfw.algorithms``.
    own : mapping
        The entries of fedfw itself.
    find_problem : callable
        Maps a name and what was found under it to what is wrong with it, or to None.
    """

    def __init__(
        self, group: str, own: Mapping[str, T], find_problem: Callable[[str, T], str | None]
    ) -> None:
        self.group, self._find_problem = group, find_problem
        self._entries = dict(own)
        self._complete = False

    def _all(self) -> dict[str, T]:
        if not self._complete:
            self._complete = True
            for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
                self._add(point)
        return self._entries

    @property
    def _spellings(self) -> dict[str, str]:
        """The names of the entries by their spelling."""
        return {_spelled(name): name for name in self._all()}

    def _add(self, point: EntryPoint) -> None:
        """Add what an entry point names, or warn."""
        owner = point.dist.name if point.dist else "an installed package"
        try:
            found = point.load()
            problem = self._find_problem(point.name, found)
        except Exception as error:  # whatever a package of others raises when it is imported
            problem = f"{point.value}: {error!r}"
        if point.name in self._entries:
            problem = "there is one of this name already, expected another name"
        if problem:
            warnings.warn(
                f"{point.name} of {owner} ({self.group}) is left out: {problem}", stacklevel=4
            )
        else:
            self._entries[point.name] = found

    def __getitem__(self, name: str) -> T:
        entries = self._all()
        return entries[name] if name in entries else entries[self._spellings[_spelled(name)]]

    def __setitem__(self, name: str, entry: T) -> None:
        self._all()[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def _spelled(name: str) -> str:
    """Return a name without what its spellings differ in: FedFW+ and fedfw-plus are fedfwplus."""
    return name.lower().replace("-", "").replace("_", "").replace("+", "plus")
