"""Tasks that ranks share: each takes the next one that nobody has taken, and all learn every result."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

_LOOK_EVERY = 0.1
"""Seconds between two looks at what other ranks have finished."""


class Queue:
    """The tasks 0, 1, ... of a process alone, which takes them all.

    Examples
    --------
    >>> list(Queue().results(3, ready=lambda task: task != 1, compute=lambda task: task**2))
    [(0, 0), (2, 4)]
    """

    def results(
        self, count: int, ready: Callable[[int], bool], compute: Callable[[int], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Tasks with their results, in the order in which they are known here.

        Parameters
        ----------
        count : int
            How many tasks there are.
        ready : callable
            Whether a task can be begun now; it may depend on the results that were handed out so far.
        compute : callable
            task -> its result, in a form that JSON can hold. It is called for tasks that this rank takes.

        Yields
        ------
        tuple of int and result
            Tasks that never become ready are left out.
        """
        left = list(range(count))
        while left:
            if (found := next(((i, theirs) for i in left if (theirs := self._theirs(i)) is not None), None)) is None:
                task = next((i for i in left if ready(i) and self._take(i)), None)
                if task is None and not any(self._taken(i) for i in left):
                    return
                if task is None:
                    self._wait()
                    continue
                found = task, compute(task)
                self._finish(*found)
            left.remove(found[0])
            yield found

    def _take(self, task: int) -> bool:
        """Whether nobody has taken the task yet; this rank has, afterwards."""
        return True

    def _taken(self, task: int) -> bool:
        """Whether another rank is at it."""
        return False

    def _theirs(self, task: int) -> Any:
        """The result of another rank, or None while there is none."""
        return None

    def _finish(self, task: int, result: Any) -> None:
        """Let the others know a result."""

    def _wait(self) -> None:
        """Give the others time."""


class SharedQueue(Queue):
    """The same for several ranks, which meet in the store that brought them together.

    Parameters
    ----------
    store : torch.distributed.Store
        Where tasks are taken and results are left.
    name : str
        Of this queue, the same on all ranks.
    check : callable
        Raises an error if another rank has ended: what it took would be waited for in vain.
    """

    def __init__(self, store: Any, name: str, check: Callable[[], None]) -> None:
        self._store, self._name, self._check = store, name, check

    def _take(self, task: int) -> bool:
        return not self._taken(task) and int(self._store.add(f"{self._name}/taken/{task}", 1)) == 1

    def _taken(self, task: int) -> bool:
        return bool(self._store.check([f"{self._name}/taken/{task}"]))

    def _theirs(self, task: int) -> Any:
        key = f"{self._name}/result/{task}"
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def _finish(self, task: int, result: Any) -> None:
        self._store.set(f"{self._name}/result/{task}", json.dumps(result))

    def _wait(self) -> None:
        self._check()
        time.sleep(_LOOK_EVERY)
