"""The task of a deployment: stated once, in a file that the server and every client have."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedfw.algorithms.contract import Algorithm, Exchange, Kind, Message, Run
from fedfw.algorithms.optin import gathers_gradients
from fedfw.algorithms.rules import StepRule
from fedfw.algorithms.setting import Setting
from fedfw.algorithms.step_sizes import reports_curvature
from fedfw.atoms import Atom
from fedfw.atoms.base import precisions, read_framed
from fedfw.atoms.bits import Reader
from fedfw.compression import Readers
from fedfw.deployment.messages import MOST_CLIENTS, TOO_LARGE
from fedfw.errors import AtomError
from fedfw.problems.base import normalised_weights
from fedfw.problems.checks import validate_splitting
from fedfw.problems.known_losses import LossFunction, Per
from fedfw.problems.modules import flatten
from fedfw.problems.problem import Problem
from fedfw.problems.structure import declared_convex, softmax_classes
from fedfw.rounds.channels import REPORT, Sent, make_channels
from fedfw.rounds.client_steps import Method
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation
from fedfw.rounds.setup import feasible_start, make_setting
from fedfw.sets.base import ConstraintSet, shapes_of

_OPEN = ("penalty", "lr")
"""Options of algorithms that may be left to be worked out from the clients' data."""


@dataclass(frozen=True)
class Task:
    """The task of a deployment: model, loss, data, algorithm and options.

    Parameters
    ----------
    model : nn.Module
        Its parameters are the start: build it from a fixed seed, so that all have the same.
    loss : callable
        ``loss(outputs, targets)``, a mean over samples, as for `Problem`.
    algorithm : Algorithm
        With its set. Its defaults are filled in as in a simulation; a penalty or a step size of
        "auto" is worked out from one number of each client when the training begins.
    data : callable
        A client's own samples, by its number; called on that client only.
    clients : int
        How many there are at the start; more may join.
    options : Options
        Rounds, participation, local steps, batch size and seed.
    test : pair of tensors or dataset, optional
        Public test data, for the server's records.
    weights : sequence of float, optional
        Of the clients 0, 1, ...; equal by default.
    convex : bool, optional
        Whether the losses are, for the choice of the schedule; by default from the model.
    l2 : float
        Adds l2/2 ||x||^2 to every client's loss.
    per : {"sample", "client"}
        ``"client"`` for a loss of all of a client's samples together, as for `Problem`.
    division : str
        What decides which samples of an owner's data are the client's, such as a partition and its
        seed, in words. It is a part of what a private client promises: a change of it ends the
        promise.
    facts : mapping of str to object
        What the server writes into the run folder beside history and model, as JSON: what the
        parameters mean.

    Examples
    --------
    >>> import fedfw, torch
    >>> from fedfw.deployment import Task
    >>> task = Task(
    ...     model=torch.nn.Linear(4, 3),
    ...     loss=torch.nn.functional.cross_entropy,
    ...     algorithm=fedfw.FedFW(fedfw.L1Ball(10.0), penalty=1e-3),
    ...     data=lambda client: (torch.randn(12, 4), torch.randint(3, (12,))),
    ...     clients=3,
    ... )
    >>> task.start.shape
    torch.Size([15])
    """

    model: nn.Module
    loss: LossFunction
    algorithm: Algorithm
    data: Callable[[int], Any]
    clients: int
    _: KW_ONLY
    options: Options = field(default_factory=Options)
    test: Any = None
    weights: Sequence[float] | None = None
    convex: bool | None = None
    l2: float = 0.0
    per: Per = "sample"
    division: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what a deployment needs beside what a simulation does."""
        if not 1 <= self.clients <= MOST_CLIENTS:
            raise ValueError(
                f"clients={self.clients}, expected at least 1 and at most {MOST_CLIENTS} in a "
                "deployment"
            )
        if self.weights is not None:
            normalised_weights(self.weights, self.clients)  # refuses weights that are not positive
        # Whether the loss weighs samples is checked in `problem`, where data are at hand.
        self._refuse_splitting(self.per, weighs=False)
        if not isinstance(self.options.participation, int | float):
            raise ValueError(
                "participation: a deployment takes a probability or a number of clients"
            )
        if self.options.promise is not None:
            self._refuse_revealing_algorithm()
        for name in ("relax", "tol", "polish"):
            if getattr(self.options, name) is not None:
                raise ValueError(f"{name} is for simulations: a deployment does not have it")
        for name in _OPEN:
            if str(getattr(self.algorithm, name, "")).startswith("theory"):
                raise ValueError(
                    f'{name}="theory" is worked out from all clients\' gradients, which a '
                    'deployment does not have: give a number, or "auto"'
                )

    def _refuse_revealing_algorithm(self) -> None:
        """Refuse an algorithm whose clients send what no private run may reveal."""
        if reports_curvature(self.algorithm):
            raise ValueError(
                'schedule="curvature" reports numbers of the data, which a private run must not '
                'reveal: expected another schedule, or "auto"'
            )
        if gathers_gradients(self.algorithm):
            raise ValueError(
                f"{self.algorithm.name} shares exact sums of gradients: it does not go with privacy"
            )

    @cached_property
    def constraint(self) -> ConstraintSet:
        """The set on the flat vector of parameters."""
        bound: ConstraintSet = self.algorithm.constraint.bind(self.model)
        return bound

    @cached_property
    def start(self) -> Tensor:
        """x^1, (p,)."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return feasible_start(self.constraint, flatten(trained))

    @property
    def is_open(self) -> bool:
        """Return whether a penalty or a step size is still to be worked out from numbers of the
        clients.
        """
        # Without data, it is worked out from the bound on clipped gradients.
        if self.options.promise is not None:
            return False
        return any(isinstance(getattr(self.algorithm, name, None), str) for name in _OPEN)

    def method(self, penalty: float | None = None, lr: float | None = None) -> Method:
        """Return the configured algorithm with what runs it, worked out without data.

        The numbers count where the task's own are still open.
        """
        numbers = (penalty, lr)
        if numbers not in self._methods:
            # One method is kept: a server may send other numbers in every order, and fill memory.
            self._methods.clear()
            self._methods[numbers] = self.method_of(*self._configure(penalty, lr))
        return self._methods[numbers]

    @cached_property
    def _methods(self) -> dict[tuple[float | None, float | None], Method]:
        return {}

    def _configure(self, penalty: float | None, lr: float | None) -> tuple[Algorithm, StepRule]:
        """Return the algorithm and its rule, with these numbers in place of options that are texts
        such as "auto"; an option that is a number already stays as it is.
        """
        given = {}
        for name, value in (("penalty", penalty), ("lr", lr)):
            if value is not None and isinstance(getattr(self.algorithm, name, None), str):
                given[name] = value
        return replace(self.algorithm, **given).configure(self.setting())

    def method_of(self, algorithm: Algorithm, rule: StepRule) -> Method:
        """Return a configured algorithm with what runs it."""
        channels = make_channels(algorithm, self.setting(), rule.reports_curvature)
        return Method(algorithm, rule, channels)

    def run(self, n: int) -> Run:
        """Return what is fixed before the first round, for n clients."""
        return Run(n, self.constraint, self.start.dtype)

    def setting(self, **reported: Callable[[], float | None]) -> Setting:
        """Return the facts about the run from which an algorithm is configured; ``reported`` are
        functions that return numbers of the data, by the names of `make_setting`'s parameters.
        """
        convex = declared_convex(self.model, self.loss) if self.convex is None else self.convex
        options = self.options
        return make_setting(
            self.clients,
            self.constraint,
            self.start,
            Participation(options.participation, self.clients, options.seed).p,
            options,
            convex=convex,
            classes=softmax_classes(self.model, self.loss),
            shapes=tuple(shapes_of(self.model).values()),
            reports_allowed=False,
            **reported,
        )

    def weight(self, client: int, members: Sequence[int]) -> float:
        """Return the weight w_i of a client; the weights of all members add up to 1."""
        if self.weights is None:
            return 1 / len(members)
        return self.weights[client] / math.fsum(self.weights[member] for member in members)

    def problem(self, samples: Any) -> Problem:
        """Return the problem of the model on one client's samples, or on the test data."""
        problem = Problem(
            self.model,
            self.loss,
            [samples],
            samples,
            convex=self.convex,
            l2=self.l2,
            per=self.per,
            separate=True,
        )
        if problem.class_names:
            raise ValueError(
                "targets are texts, which clients of a deployment would number differently: "
                "expected class numbers"
            )
        self._refuse_splitting(problem.losses.per, problem.losses.weighs)
        return problem

    def _refuse_splitting(self, per: Per, weighs: bool) -> None:
        options = self.options
        validate_splitting(
            per, weighs, batch_size=options.batch_size, private=options.promise is not None
        )

    # --- what clients send ---

    def decode(
        self, data: bytes, method: Method, step: Exchange, run: Run, message: Message
    ) -> Sent:
        """Return what one client answered to a message, by name; raises `AtomError` for what is no
        encoding or lies outside the set.
        """
        shape = tuple(self.start.shape)
        channels = method.channels
        sent = channels.unpack(step, self.read(data, channels.readers(step, run, message)))
        shortens = channels.compressor is not None and channels.compressor.keeps_all
        for name, atom in sent.items():
            kind = step.uploads.get(name)
            if name == REPORT or kind in (Kind.VALUE, Kind.CHANGE):
                validate_magnitude(atom.dense())
                continue
            # An atom is an extreme point of the set, but for two kinds of payloads: the weighted
            # mean of several local steps' atoms, and a point that a compressor has shrunk into the
            # set. These, and all of their parts, have to lie in the set.
            extreme = len(message.rates) == 1 and not (shortens and kind is Kind.POINT)
            accepts = self.constraint.accepts if extreme else self.constraint.accepts_net
            if not accepts(atom, shape):
                raise AtomError("the atom is not in the set")
        return sent

    def read(self, data: bytes, allowed: Readers) -> Atom:
        """Return the one atom that the bytes encode, of one of the allowed kinds; raises
        `AtomError` for anything else, and for numbers wider than the model's and than float32.
        """
        reader = Reader(data)
        sent = read_framed(reader, allowed)
        reader.finish()
        widest = torch.promote_types(self.start.dtype, torch.float32).itemsize
        if any(precision.itemsize > widest for precision in precisions(sent)):
            raise AtomError(
                "the atom's numbers are wider than the model's, which they could overflow"
            )
        return sent


def validate_magnitude(vector: Tensor) -> None:
    """Raise `AtomError` for numbers that would overflow a sum."""
    if not bool((vector.abs() < TOO_LARGE).all()):
        raise AtomError("a number is too large")
