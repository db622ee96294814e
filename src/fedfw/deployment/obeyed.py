"""Checks that an app's settings reach its task: a setting that is given and changes nothing is
refused.

`make_task` of an app is code of its own. It may read a setting and not pass it on, or not read it
at all. So what a `Task` shows is compared with the settings one by one, and for what no task
shows, such as the data set, it is noted which settings were read.
"""

from collections import UserDict
from collections.abc import Collection, Mapping
from typing import Any

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.deployment.server_options import run_options
from fedfw.deployment.settings import APP_DEFAULTS, Deployment
from fedfw.deployment.task import Task
from fedfw.options import options_of
from fedfw.presets import ProblemOptions
from fedfw.rounds.options import Options
from fedfw.sets import Product, parse_set

_CURE = (
    "expected make_task to take it over (see the federation/task.py of 'fedfw deploy init'), or no "
    "such setting"
)
_EACH = "per-parameter"
_OF_FEDFW = "penalty"
"""The setting of the table that belongs to its algorithm alone: with another one it may stay."""


class NotedSettings(UserDict[str, Any]):
    """The settings of an app, which note the keys that were read.

    Examples
    --------
    >>> settings = NotedSettings({"rounds": 3, "clients": 2})
    >>> settings["rounds"], settings.get("out", "")
    (3, '')
    >>> settings.read
    {'rounds'}
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        self.read.add(key)
        return value

    def __or__(self, other: Any) -> Any:
        """Return a plain dictionary: every value counts as read."""
        return dict(self) | other

    def unread(self, given: Collection[str]) -> list[str]:
        """Return those of the given keys that are options of a run and were never read."""
        return sorted(set(given) & run_options().keys() - self.read)


def validate_settings(
    task: Task, settings: Mapping[str, Any], given: Mapping[str, str]
) -> list[str]:
    """Refuse settings that were given and that the task contradicts.

    Parameters
    ----------
    task : Task
        What make_task returned.
    settings : mapping of str to object
        By the keys of the app's table; an empty text stands for a setting that is not given.
    given : mapping of str to str
        The keys that are refused where the task contradicts them, and where each of them stands.

    Returns
    -------
    list of str
        A sentence for each other setting that the task contradicts: a line of the table as ``fedfw
        deploy init`` wrote it, in whose place the task's own value counts.

    Raises
    ------
    ValueError
        With every setting that was given in vain, its value and the task's.
    """
    sentences = contradictions(task, settings)
    refused = [f"{given[key]}: {sentence}" for key, sentence in sentences.items() if key in given]
    if refused:
        raise ValueError(f"{'; '.join(refused)}: {_CURE}")
    # The table's own penalty is for its own algorithm: with another one it needs no sentence.
    if _OF_FEDFW not in options_of(type(task.algorithm)):
        sentences.pop(_OF_FEDFW, None)
    return list(sentences.values())


def given_in_table(settings: Mapping[str, Any]) -> set[str]:
    """Return the keys whose values are not those of the table that ``fedfw deploy init`` writes."""
    declared = options_of(ProblemOptions) | options_of(Options) | options_of(Deployment)
    defaults = {name: option.default for name, option in declared.items()}
    # Written last: the table's own values take the place of the options' defaults.
    defaults |= {"per_parameter": False} | APP_DEFAULTS
    return {
        key
        for key, value in settings.items()
        if value not in ("", defaults.get(key.replace("-", "_"), ""))
    }


def contradictions(task: Task, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence for each setting that the task contradicts, by its key."""
    sentences: dict[str, str] = {}
    for key, value in settings.items():
        if value == "":  # a setting of the table that is not given
            continue
        stated, actual = _compared(task, settings, key, value)
        if stated != actual:
            sentences[key] = f"{key} = {value!r} changes nothing, because the task has {actual}"
    return sentences


def _compared(task: Task, settings: Mapping[str, Any], key: str, value: Any) -> tuple[Any, Any]:
    """Return a setting's value and the task's in comparable forms; two equal values, None, for a
    setting that no task shows, such as the data set.
    """
    name = key.replace("-", "_")
    algorithm = task.algorithm
    per_parameter = str(settings.get(_EACH, "")).lower() == "true"
    for holder, declared in (
        (task.options, options_of(Options)),
        (algorithm, options_of(type(algorithm))),
        (task, {name: options_of(ProblemOptions)[name] for name in ("clients", "l2")}),
    ):
        if name in declared:
            stated = declared[name].parse(value, "settings")
            actual = getattr(holder, name)
            return _meaning(name, stated, task.clients), _meaning(name, actual, task.clients)
    if key == "algorithm":
        return str(value).lower(), algorithm.name
    if key == "weights":
        names = {True: "equal ones", False: "weights of its own"}  # by whether weights are equal
        return names[value == "equal"], names[task.weights is None]
    if key == "constraint":
        constraint = parse_set(str(value))
        if per_parameter:
            return repr(Product({"*": constraint})), repr(algorithm.constraint)
        return repr(constraint), repr(_of_weights(algorithm.constraint))
    if key == _EACH and per_parameter:
        is_product = isinstance(algorithm.constraint, Product)
        return "a set for each parameter", "a set for each parameter" if is_product else "one set"
    # An option of other algorithms only: the task's own options were compared above.
    if any(name in options_of(other) for other in ALGORITHMS.values()):
        return value, f"the algorithm {algorithm.name}, which has no such option"
    return None, None


def _of_weights(constraint: Any) -> Any:
    """Return the set of a linear model's weights where its bias has a set of its own, else the
    set.
    """
    if isinstance(constraint, Product) and set(constraint.sets) == {"weight", "bias"}:
        return constraint.sets["weight"]
    return constraint


def _meaning(name: str, value: Any, clients: int) -> Any:
    """Return the value of an option in a form in which equal meanings are equal: a promise for its
    text, radii for theirs, and one text for n of n clients and for the probability 1.
    """
    if name == "privacy":
        return Options(privacy=value).promise
    if name == "certify":
        return Options(certify=value).radii
    # 1 is the probability 1, also as a whole number (`Participation`).
    if name == "participation" and value in (1, clients):
        return "all clients"
    return value
