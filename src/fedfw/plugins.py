"""Tables of algorithms and sets by name, which other installed packages extend by entry points."""

from __future__ import annotations

import warnings
from collections import UserDict
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

T = TypeVar("T")


class PluginTable(UserDict[str, T]):
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
        """Keep the package's own entries; those of plugins are looked up when they are asked
        for.
        """
        self.group = group
        self._own = own
        self._find_problem = find_problem

    @cached_property
    def data(self) -> dict[str, T]:  # type: ignore[override]
        """Return the entries of fedfw and of the packages that are installed."""
        # A package may look into the table while it is imported.
        entries = self.__dict__["data"] = dict(self._own)
        for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
            self._add(entries, point)
        return entries

    def _add(self, entries: dict[str, T], point: EntryPoint) -> None:
        """Add the object that an installed package registers under an entry point, or warn why it
        is left out.
        """
        owner = point.dist.name if point.dist else "an installed package"
        try:
            entry = point.load()
            problem = self._find_problem(point.name, entry)
        except Exception as error:  # whatever a package of others raises when it is imported
            problem = f"{point.value}: {error!r}"
        if point.name in entries:
            problem = "there is one of this name already, expected another name"
        if problem:
            warnings.warn(
                f"{point.name} of {owner} ({self.group}) is left out: {problem}", stacklevel=4
            )
        else:
            entries[point.name] = entry

    def __contains__(self, name: object) -> bool:
        return _spelled(str(name)) in map(_spelled, self.data)

    def __missing__(self, name: str) -> T:
        return self.data[{_spelled(one): one for one in self.data}[_spelled(name)]]


def _spelled(name: str) -> str:
    """Return a name without what its spellings differ in: FedFW+ and fedfw-plus are fedfwplus."""
    return name.lower().replace("-", "").replace("_", "").replace("+", "plus")
