"""Tasks that ranks share: each takes the next one that is free, and all learn every
result.
"""

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
            Whether a task can be begun now; it may depend on the results that were handed out so
            far.
        compute : callable
            task -> its result, in a form that JSON can hold. It is called for tasks that this rank
            takes.

        Yields
        ------
        tuple of int and result
            Tasks that never become ready are left out.
        """
        left = list(range(count))
        while (task := next((i for i in left if ready(i)), None)) is not None:
            left.remove(task)
            yield task, compute(task)


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
        self._store = store
        self._name = name
        self._check = check

    def results(
        self, count: int, ready: Callable[[int], bool], compute: Callable[[int], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (task, result) once for every task: other ranks' results as they come, and between
        them those of the tasks that this rank takes and computes.
        """
        open_tasks = list(range(count))
        while open_tasks:
            task = next((i for i in open_tasks if self._has("result", i)), None)
            if task is not None:
                open_tasks.remove(task)
                yield task, json.loads(self._store.get(f"{self._name}/result/{task}"))
                continue
            task = next((i for i in open_tasks if ready(i) and self._take(i)), None)
            if task is not None:
                result = compute(task)
                self._store.set(f"{self._name}/result/{task}", json.dumps(result))
                open_tasks.remove(task)
                yield task, result
            # Another rank works on a task, whose result may make others ready.
            elif any(self._has("taken", i) for i in open_tasks):
                self._check()
                time.sleep(_LOOK_EVERY)
            else:
                # No task is ready or under way: the others never become ready.
                return

    def _take(self, task: int) -> bool:
        """Return whether no rank has taken the task yet; this rank has, afterwards."""
        return (
            not self._has("taken", task)
            and int(self._store.add(f"{self._name}/taken/{task}", 1)) == 1
        )

    def _has(self, kind: str, task: int) -> bool:
        """Return whether the store has an entry of this kind on a task: that it is taken, or its
        result.
        """
        return bool(self._store.check([f"{self._name}/{kind}/{task}"]))
