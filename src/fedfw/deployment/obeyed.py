"""Whether an app's settings reach its task: a setting that is given and changes nothing is refused.

`make_task` of an app is code of its own. It may read a setting and not pass it on, or not read it
at all. What a `Task` shows is compared with the settings one by one; for the rest it is noted which
settings were read.
"""

from collections import UserDict
from collections.abc import Collection, Mapping
from typing import Any

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.deployment.settings import APP_DEFAULTS, DEPLOYMENT_KEYS, Deployment
from fedfw.deployment.task import Task
from fedfw.options import Option, options_of
from fedfw.presets import ProblemOptions
from fedfw.rounds.options import Options
from fedfw.sets import Product, parse_set

_CURE = "expected make_task to take it over (see the federation/task.py of 'fedfw deploy init'), or no such setting"
_CONSTRAINT, _EACH = "constraint", "per-parameter"


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

    def copy(self) -> Any:
        """Return a plain dictionary: every value counts as read."""
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return self.copy() | other


def validate_taken_over(
    task: Task, settings: Mapping[str, Any], given: Mapping[str, str]
) -> list[str]:
    """Refuse settings that were given and that the task does not have.

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
        A sentence for each other setting that the task contradicts: lines of the table as ``fedfw
        deploy init`` wrote it. The task's own value counts.

    Raises
    ------
    ValueError
        With every setting that was given in vain, its value and the task's.
    """
    wrong = contradictions(task, settings)
    refused = [f"{given[key]}: {sentence}" for key, sentence in wrong.items() if key in given]
    if refused:
        raise ValueError(f"{'; '.join(refused)}: {_CURE}")
    # The table's penalty and momentum are for the table's algorithm: another one is chosen by one
    # line.
    foreign = set(wrong) - {option.key for option in options_of(type(task.algorithm)).values()}
    foreign &= {"penalty", "momentum"}
    return [sentence for key, sentence in wrong.items() if key not in given and key not in foreign]


def validate_deployment(task: Task, settings: Deployment) -> None:
    """Refuse what is asked of a deployment and changes nothing for its task."""
    if settings.tell_loss and task.options.promise is not None:
        raise ValueError(
            "tell-loss changes nothing in a private run, whose clients send no losses and no numbers: leave it out"
        )


def given_in_table(settings: Mapping[str, Any]) -> set[str]:
    """Return the keys whose values are not those of the table that ``fedfw deploy init`` writes."""
    usual = {option.key: option.default for option in _problem_and_run().values()}
    usual |= {option.key: option.default for option in options_of(Deployment).values()}
    usual |= {key.replace("_", "-"): value for key, value in APP_DEFAULTS.items()}
    usual[_EACH] = False
    return {key for key, value in settings.items() if value != "" and value != usual.get(key)}


def find_unread(settings: NotedSettings, given: Collection[str]) -> list[str]:
    """Return those of the given keys that are options of a run and that make_task never looked at."""
    known = {option.key for option in _problem_and_run().values()} | {
        "algorithm",
        _CONSTRAINT,
        _EACH,
    }
    for algorithm in ALGORITHMS.values():
        known |= {option.key for option in options_of(algorithm).values()}
    return sorted((set(given) & known) - settings.read - DEPLOYMENT_KEYS)


def contradictions(task: Task, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence for each setting that the task contradicts, by its key."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if value == "":
            continue
        pair = _stated_and_found(task, settings, key, value)
        if pair is not None and pair[0] != pair[1]:
            found[key] = (
                f"{key} = {value!r} changes nothing, because the task has {_shown(key, pair[1])}"
            )
    return found


def _stated_and_found(
    task: Task, settings: Mapping[str, Any], key: str, value: Any
) -> tuple[Any, Any] | None:
    """Return what a setting states and what the task has instead; None for a setting that no task
    shows.
    """
    name = key.replace("-", "_")
    of_run, algorithm = options_of(Options), task.algorithm
    own = options_of(type(algorithm))
    if name in of_run:
        stated = of_run[name].parse(value, "settings")
        if name == "participation" and stated == 1:
            stated = 1.0  # as a setting, 1 is the share of clients that take part
        found = getattr(task.options, name)
        return _meaning(name, stated, task.clients), _meaning(name, found, task.clients)
    if key == "algorithm":
        return str(value).lower(), algorithm.name
    if key in ("clients", "l2"):
        return options_of(ProblemOptions)[name].parse(value, "settings"), getattr(task, name)
    if key == "weights":
        return value == "equal", task.weights is None
    if key == _CONSTRAINT:
        one = parse_set(str(value))
        stated = Product({"*": one}) if _is_true(settings.get(_EACH)) else one
        return repr(stated), repr(algorithm.constraint)
    if key == _EACH and _is_true(value):
        several = isinstance(algorithm.constraint, Product)
        return "a set for each parameter", "a set for each parameter" if several else "one set"
    if name in own:
        return own[name].parse(value, "settings"), getattr(algorithm, name)
    if any(name in options_of(other) for other in ALGORITHMS.values()):
        return value, f"the algorithm {algorithm.name}, which has no such option"
    return None


def _shown(key: str, found: Any) -> Any:
    if key == "weights":
        return "equal ones" if found else "weights of its own"
    return found


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"


def _meaning(name: str, value: Any, clients: int) -> Any:
    """Return an option of a run in one form: a promise and its text, or everyone and all clients,
    are the same.
    """
    if name == "privacy":
        return Options(privacy=value).promise
    if name == "certify":
        return Options(certify=value).radii
    if name == "participation":
        # The whole number 1 is one client.
        everyone = value == clients if isinstance(value, int) else value == 1
        return "everyone" if everyone else repr(value)
    return value


def _problem_and_run() -> dict[str, Option]:
    return options_of(ProblemOptions) | options_of(Options)
