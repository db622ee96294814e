"""A deployed estimator's settings: the keys of its app's table, and the task that they state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import tomlkit
from tomlkit.items import Table

from fedfw.config.app import app_table, read_app_config
from fedfw.config.run_config import algorithm_class, run_options
from fedfw.deployment.node import NODE_COLUMNS, NODE_TABLE
from fedfw.deployment.task import Task
from fedfw.estimators.deployed import ESTIMATORS, INTERCEPT, Regression

_KEYS = {
    "estimator": "the model: linear, logistic, poisson or cox",
    "inputs": "the columns that are inputs, with commas between them: 'age,stage'",
    "scales": "a public mean and scale of every input, 'age:60:15,stage:2:1'; \"\" leaves the "
    "columns as they are",
    "classes": 'the two labels of the target, the one that is predicted second ["" is 0,1] '
    "(logistic)",
    "offset": "the column with the logarithm of a row's exposure (poisson)",
    "ties": "how events at the same time are treated: efron or breslow (cox)",
    "intercept": 'the intercept lies between minus this and this ["" is 5] (not cox)',
    "rows": "the number of rows of each client, '120,300,80', by which clients count; \"\" lets "
    "them count alike",
}
"""The keys of an estimator's app, beside those of every app."""
_DEFAULTS = {
    "dataset": "table:/var/lib/fedfw/data.csv",
    "constraint": "l1:3",
    "algorithm": "fedfw+",
    "penalty": 0.01,
    "rounds": 300,
}
_LEFT_OUT = (
    *("model", "width", "depth", "heads"),
    *("data-dir", "client-column", "partition", "weights"),
)
"""The keys of other apps that have no meaning here."""
_COLUMNS = 100


def estimator_table(name: str) -> Table:
    """Return the table ``[tool.flwr.app.config]`` of an estimator's app.

    Examples
    --------
    >>> table = estimator_table("cox")
    >>> table["estimator"], table["ties"], table["constraint"]
    ('cox', 'efron', 'l1:3')
    """
    if name not in ESTIMATORS:
        raise ValueError(f"estimator={name!r}, expected one of {', '.join(ESTIMATORS)}")
    table = tomlkit.table()
    table.add(tomlkit.comment("--- What is estimated. ---"))
    usual = {"estimator": name, "ties": "efron" if name == "cox" else ""}
    for key, help_text in _KEYS.items():
        for line in wrap(help_text, _COLUMNS, break_on_hyphens=False):
            table.add(tomlkit.comment(line))
        table.add(key, usual.get(key, ""))
    rest = app_table()
    for name_of_option, value in _DEFAULTS.items():
        rest[name_of_option] = value
    comments: list[Any] = []
    for entry, item in rest.value.body:
        if entry is None:
            comments.append(item)
            continue
        if entry.key not in _LEFT_OUT:
            for comment in comments:
                table.add(comment)
            table.add(entry, item)
        comments.clear()
    return table


def estimator_task(config: Mapping[str, Any]) -> Task:
    """Return the task of an estimator's app, from Flower's run configuration.

    Each owner's table is the file of ``table`` in the node's configuration, else that of the app's
    ``dataset``, in which ``{client}`` stands for the client's number.

    Raises
    ------
    ValueError
        For unknown keys, and values that are not allowed.
    """
    own = {key: str(config.get(key, "")) for key in _KEYS}
    rest = {
        key: value for key, value in config.items() if key not in (*_KEYS, NODE_TABLE, NODE_COLUMNS)
    }
    settings = read_app_config(rest)
    if settings.clients is None:
        raise ValueError("clients is empty, expected the number of owners")
    if settings.privacy is None and settings.constraint is None:
        raise ValueError('constraint is empty, expected a set such as "l1:3"')
    regression = regression_of_settings(own, settings.target or "", settings.time or "")
    algorithm = algorithm_class(settings.algorithm or str(_DEFAULTS["algorithm"]))
    constraint = regression.constraint(settings.constraint, _bound(own["intercept"]))
    own_table = str(config.get(NODE_TABLE, ""))
    own_names = _pairs("columns", str(config.get(NODE_COLUMNS, "")), "=")

    def own_data(client: int) -> Any:
        """Return the rows of a client's own table, which is on its own machine."""
        path = own_table or settings.dataset.removeprefix("table:").format(client=client)
        return regression.read(Path(path).expanduser(), own_names)

    return Task(
        model=regression.model(),
        loss=regression.loss,
        algorithm=algorithm(constraint, **dict(settings.own)),
        data=own_data,
        clients=settings.clients,
        options=run_options(settings),
        weights=_rows(own["rows"], settings.clients),
        convex=True,
        l2=settings.l2,
        per="client" if regression.estimator == "cox" else "sample",
        division=f"{settings.dataset}, the client's own table",
        facts={**regression.facts, "constraint": settings.constraint},
    )


def regression_of_settings(own: Mapping[str, str], target: str, time: str) -> Regression:
    """Return the regression that an app's settings state."""
    scales = {}
    for name, numbers in _pairs("scales", own["scales"], ":").items():
        mean, _, scale = numbers.partition(":")
        try:
            scales[name] = (float(mean), float(scale))
        except ValueError:
            raise ValueError(
                f"scales: {name}:{numbers}, expected NAME:MEAN:SCALE such as age:60:15"
            ) from None
    return Regression(
        own["estimator"],
        _listed(own["inputs"]),
        target,
        time,
        own["offset"],
        _listed(own["classes"]),
        own["ties"] or "efron",
        scales,
    )


def _listed(text: str) -> tuple[str, ...]:
    """Return the parts of a text between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _pairs(what: str, text: str, sign: str) -> dict[str, str]:
    """Return the pairs of a text such as ``age=AGE,event=DIED``."""
    found = {}
    for part in _listed(text):
        name, found_sign, value = part.partition(sign)
        if not found_sign or not name or not value:
            raise ValueError(
                f"{what}: {part!r}, expected NAME{sign}VALUE with commas between pairs"
            )
        found[name.strip()] = value.strip()
    return found


def _bound(text: str) -> float:
    """Return half of the width of the intercept's interval."""
    try:
        bound = float(text or INTERCEPT)
    except ValueError:
        bound = 0.0
    if not 0 < bound < float("inf"):
        raise ValueError(f"intercept={text!r}, expected a number above 0")
    return bound


def _rows(text: str, clients: int) -> list[float] | None:
    """Return the clients' weights by their numbers of rows; None for equal ones."""
    if not text:
        return None
    try:
        rows = [float(part) for part in _listed(text)]
    except ValueError:
        rows = []
    if len(rows) != clients or not all(count > 0 for count in rows):
        raise ValueError(f"rows={text!r}, expected a number of rows for each of {clients} clients")
    return rows
