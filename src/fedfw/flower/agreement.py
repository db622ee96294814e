"""The agreement that the server sends: the algorithm with its set and options, as JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedfw.algorithms.contract import Algorithm
from fedfw.algorithms.registry import ALGORITHMS
from fedfw.deployment.task import Task
from fedfw.errors import MessageError
from fedfw.options import options_of
from fedfw.problems.known_losses import LossFunction
from fedfw.rounds.options import Options
from fedfw.sets import SETS, ConstraintSet, Product, parse_set
from fedfw.sets.base import parameters_of

RECORD = "fedfw"
"""The record of every order and answer."""
AGREEMENT = "fedfw.agreement"
"""The record with the agreement's text, which is also its name in a client's state."""
ARRAYS = "arrays"
"""The record with the model at the start."""
METRICS = "metrics"
"""The record with the user's own metrics."""
NODE = "fedfw.node"
"""The record in which a node introduces itself."""
_SENT = ("rounds", "participation", "local_steps", "batch_size", "seed", "eval_every")
"""Options of a run that clients must have, too."""


@dataclass(frozen=True)
class Agreement:
    """Settings in which the server and the clients must agree, beside model and loss.

    Parameters
    ----------
    algorithm : Algorithm
        With its set.
    options : Options
        Rounds, participation, local steps, batch size and seed.
    clients : int
        How many there are at the start.
    convex : bool, optional
        Whether the losses are; by default from model and loss.
    l2 : float
        Adds l2/2 ||x||^2 to every client's loss.
    """

    algorithm: Algorithm
    options: Options
    clients: int = 1
    convex: bool | None = None
    l2: float = 0.0

    def to_text(self) -> str:
        """Return the agreement as JSON; raises ValueError for an algorithm or options from which
        clients could not read the same agreement.
        """
        algorithm = self.algorithm
        try:
            if ALGORITHMS.get(algorithm.name) is not type(algorithm):
                raise ValueError("it is not in the table of algorithms")
            text = self._write()
            same = read_agreement(text)._write() == text
        except (TypeError, ValueError) as error:
            raise ValueError(f"{algorithm!r} cannot be sent to clients as text: {error}") from None
        if not same:
            raise ValueError(
                f"{algorithm!r} cannot be sent to clients as text, expected options that a "
                "configuration file can hold"
            )
        return text

    def _write(self) -> str:
        """Return the agreement as JSON."""
        algorithm = self.algorithm
        agreed = {
            "algorithm": algorithm.name,
            "constraint": write_set(algorithm.constraint),
            "own": {name: getattr(algorithm, name) for name in options_of(type(algorithm))},
            "options": {name: getattr(self.options, name) for name in _SENT},
            "clients": self.clients,
            "convex": self.convex,
            "l2": self.l2,
        }
        return json.dumps(agreed, allow_nan=False)

    def task(
        self,
        model: nn.Module,
        loss: LossFunction,
        data: Callable[[int], Any],
        weights: Sequence[float] | None = None,
        test: Any = None,
    ) -> Task:
        """Return the task of model, loss and data; parameters as for `Task`."""
        return Task(
            model=model,
            loss=loss,
            algorithm=self.algorithm,
            data=data,
            clients=self.clients,
            options=self.options,
            test=test,
            weights=weights,
            convex=self.convex,
            l2=self.l2,
        )


def read_agreement(text: str) -> Agreement:
    """Return the agreement of a text; raises `MessageError` for any other text."""
    try:
        agreed = json.loads(text)
        algorithm = ALGORITHMS[agreed["algorithm"]]
        return Agreement(
            algorithm(read_set(agreed["constraint"]), **agreed["own"]),
            Options(**agreed["options"]),
            agreed["clients"],
            agreed["convex"],
            agreed["l2"],
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise MessageError(f"an agreement that cannot be read: {error}") from None


def write_set(constraint: ConstraintSet | Product) -> Any:
    """Return a set as `parse_set` reads it, or a table of such texts by parameter.

    Examples
    --------
    >>> import fedfw
    >>> write_set(fedfw.KSparse(k=65, r=0.1))
    'ksparse:k=65,r=0.1'
    >>> write_set(fedfw.Product({"*": fedfw.L2Ball(1.0)}))
    {'*': 'l2:r=1.0'}
    """
    if isinstance(constraint, Product):
        return {pattern: write_set(part) for pattern, part in constraint.sets.items()}
    if constraint.name not in SETS or SETS[constraint.name].cls is not type(constraint):
        raise ValueError(f"{constraint!r} is not in the table of sets")
    values = {name: getattr(constraint, name) for name in parameters_of(type(constraint))}
    for name, value in values.items():
        if value is not None and not isinstance(value, str | int | float):
            raise ValueError(
                f"the set has {name}={str(value)[:40]}, expected a set of numbers and texts, such "
                "as l1:10"
            )
    parameters = [f"{name}={value}" for name, value in values.items() if value is not None]
    return constraint.name + (":" + ",".join(parameters) if parameters else "")


def read_set(written: Any) -> ConstraintSet | Product:
    """Return the inverse of `write_set`."""
    if isinstance(written, dict):
        return Product({pattern: read_set(part) for pattern, part in written.items()})
    return parse_set(written)
