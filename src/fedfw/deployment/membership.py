"""The clients of a training: who they are, and the state that the server holds of them."""

import logging
import re
import secrets
from functools import cached_property

import torch
from torch import Tensor, nn

from fedfw.algorithms.contract import Algorithm, Reveals, State
from fedfw.algorithms.step_sizes import reports_curvature
from fedfw.deployment.bound import ReportedBound
from fedfw.deployment.events import JOIN, LEAVE, Events
from fedfw.deployment.messages import Hello, require
from fedfw.deployment.numbers import Reported
from fedfw.deployment.roster import Roster
from fedfw.deployment.settings import Deployment
from fedfw.deployment.task import Task
from fedfw.deployment.terms import CURVATURE_REPORTS
from fedfw.problems.known_losses import floor_of
from fedfw.problems.modules import with_parameters
from fedfw.rounds.client_steps import Method
from fedfw.rounds.columns import TouchedColumns, treats_coordinates_alone
from fedfw.rounds.coordinator import Coordinator
from fedfw.rounds.downlink import make_downlink
from fedfw.rounds.memory import ClientMemory, EveryRow
from fedfw.rounds.participation import Participation
from fedfw.rounds.records import History
from fedfw.terminal import escape_controls

_log = logging.getLogger("fedfw")
_LONGEST_REASON = 300  # characters of what a client gave as its reason, in the log


class Membership:
    """The clients of one training, as the server sees them.

    Parameters
    ----------
    task : Task
        What is trained.
    settings : Deployment
        How it is deployed.

    Attributes
    ----------
    run : str
        The training's name, by which clients keep their memory.
    roster : Roster
        The clients that there are.
    history : History
        The records so far.
    bound : ReportedBound
        The lower bound on the optimum, until clients refute it.
    """

    def __init__(self, task: Task, settings: Deployment | None = None) -> None:
        """Begin without a round; clients 0, 1, ... of the task are members."""
        self.task = task
        self.settings = settings or Deployment()
        _validate_agreement(task, self.settings)
        self.run = f"{self.settings.run_name}-{secrets.token_hex(4)}"
        self.roster = Roster(task.clients)
        self.history = History()
        self.bound = ReportedBound(task.start.dtype)
        # A penalty and a step size that were worked out before a restart.
        self._numbers: dict[str, float] = {}
        self._reported = Reported(task)
        self._waiting: list[int] = []  # clients that came before the first round
        self._events = Events()
        # Clients that have not been counted since a checkpoint was restored.
        self._may_be_ahead: set[int] = set()

    # --- what is trained ---

    @property
    def t(self) -> int:
        """Return how many rounds are done."""
        return len(self.history)

    @cached_property
    def method(self) -> Method:
        """The configured algorithm with what runs it."""
        if self._numbers or not self.task.is_open:
            return self.task.method(**self._numbers)
        return self.task.method_of(*self._reported.configured())

    @property
    def algorithm(self) -> Algorithm:
        """Return the algorithm with its defaults filled in."""
        return self.method.algorithm

    @property
    def numbers(self) -> dict[str, float]:
        """Return the penalty and the step size, by name, where they were computed from numbers that
        clients reported; an empty mapping where the task states them.
        """
        if not self.task.is_open:
            return {}
        options = vars(self.algorithm)
        return {name: options[name] for name in ("penalty", "lr") if name in options}

    @cached_property
    def coordinator(self) -> Coordinator:
        """Return the server of the rounds, with a copy of every client's shared state; made when
        the first round begins, and one object from then on.
        """
        task = self.task
        n = len(self.roster)
        initial = self._init_client(task.start)
        if treats_coordinates_alone(self.algorithm):
            memory: ClientMemory = TouchedColumns(n, initial)
        else:
            memory = EveryRow({name: values.repeat(n, 1) for name, values in initial.items()}, n)
        return Coordinator(
            self.method,
            task.run(n),
            task.start,
            memory,
            make_downlink(self.algorithm, task.start.dtype),
            convex=task.setting().convex is True,
            floor=floor_of(task.loss) if self.settings.tell_loss else None,
        )

    def _init_client(self, x: Tensor) -> State:
        """Return the part of the state of a client that begins at x (p,) that the server can
        compute, by name, (1, p) each.
        """
        run = self.task.run(len(self.roster))
        names = self.method.shared_names(run, x[None])
        state = self.method.init(run, x[None].clone()).flat()
        return {name: value for name, value in state.items() if name in names}

    @property
    def xbar(self) -> Tensor:
        """Return the model's parameters, (p,)."""
        return self.coordinator.server.xbar.to(self.task.start.dtype)

    @property
    def model(self) -> nn.Module:
        """Return the model at xbar."""
        return with_parameters(self.task.model, self.xbar)

    # --- who is there ---

    def meet(self, hello: Hello, node: str | None = None) -> None:
        """Take note of a client's introduction; one that was not there before, or has left, enters
        at xbar, which stays the mean.

        Parameters
        ----------
        hello : Hello
            The introduction.
        node : str, optional
            What identifies the sender to the transport and no sender can choose, such as the hash
            of its key. The client's number then belongs to it for good.

        Raises
        ------
        MessageError
            If the number belongs to another node, or the node has another number.
        """
        client = hello.client
        require(
            self.task.weights is None or client < self.task.clients,
            f"client {client} has no weight: the task names {self.task.clients}",
        )
        if node is not None:
            self.roster.bind(client, node)
        if client in self.roster.counted:
            self._reported.note(hello)
        elif "coordinator" in self.__dict__:  # the cached property is there after the first round
            self._join(client)
        elif client not in self._waiting:
            # The numbers of "auto" are of the clients that the task names, so others join later.
            self._waiting.append(client)

    def _join(self, client: int) -> None:
        """Add a client, whose state begins at xbar."""
        row = self.roster.row(client)
        newcomer = self._init_client(self.xbar)
        self.roster.add(client)
        self.coordinator.join(row, newcomer, self._weights(self.roster.members))
        self.bound.restart()
        self._events.joined.append(client)
        self._events.moves.append((JOIN, client))

    def release(self, client: int) -> None:
        """Remove a client for good: the mean is over the others."""
        if len(self.roster) == 1:
            self.roster.empty = True
            self._note(f"client {client} has left, too, and it was the last one: no client is left")
            return
        row = self.roster.row(client)
        self.roster.remove(client)
        self.coordinator.leave(row, self._weights(self.roster.members))
        self.bound.restart()
        self._events.left.append(client)
        self._events.moves.append((LEAVE, client))

    def wanted(self) -> list[int]:
        """Return the clients that take part in the next round, drawn by the seed: each with a
        probability (float), or so many of them (int).
        """
        options = self.task.options
        members = self.roster.members
        participation = options.participation
        # 1 is the probability 1, not one client. Any other whole number was checked against the
        # clients of the start, and may exceed the members after some have left.
        if isinstance(participation, int) and (participation >= len(members) or participation == 1):
            return members
        chosen = Participation(participation, len(members), options.seed)(self.t + 1)
        return [members[row] for row in chosen.tolist()]

    def _weights(self, clients: list[int]) -> Tensor | None:
        """Return n w_i of some clients, (m,); None where all clients count the same."""
        if self.task.weights is None:
            return None
        shares = [self.task.weight(client, self.roster.members) for client in clients]
        return torch.tensor(shares, dtype=self.task.start.dtype) * len(self.roster)

    def _begin_anew(self, why: str) -> None:
        """Give the run another name and hand all clients their memory: clients may have done later
        rounds than this server, and refuse to go back within a run.

        The name is new, or a second copy would meet clients of the first one; its digits at the end
        stand for nothing, so clients see that their data are the same, and what they have spent of
        a privacy budget stays spent.
        """
        self._note(why)
        self.run = re.sub(r"([.][0-9]+)+$", "", self.run) + f".{secrets.randbelow(10**9)}"
        self.roster.needs_resync = set(self.roster.members)
        self._may_be_ahead = set()

    def refuse(self, client: int | None, reason: str) -> None:
        """Count a message that is not used in the round's record, and log the reason."""
        # Records count by the first words of a reason, up to the colon.
        self._events.refused[escape_controls(reason.partition(":")[0][:40])] += 1
        # The reason holds what the client sent: repr() lets no control character reach a terminal.
        _log.warning(
            "round %d: refused from client %s: %r", self.t + 1, client, reason[:_LONGEST_REASON]
        )

    def _note(self, sentence: str) -> None:
        """Write a sentence to the log and to the round's record."""
        self._events.notes.append(sentence)
        _log.warning("round %d: %s", self.t + 1, sentence)


def _validate_agreement(task: Task, settings: Deployment) -> None:
    """Refuse a task whose clients send gradients or numbers of their data that the settings do not
    allow.
    """
    algorithm = task.algorithm
    reveals_gradients = algorithm.reveals is Reveals.GRADIENTS
    if reveals_gradients and not settings.share_gradients:
        raise ValueError(
            f"{algorithm.name} shares {algorithm.shares}: deployed, gradients go to the server in "
            "the clear. share-gradients says that this is wanted"
        )
    if settings.tell_loss and task.options.promise is not None:
        raise ValueError(
            "tell-loss changes nothing in a private run, whose clients send no losses and no "
            "numbers: leave it out"
        )
    may_report = settings.tell_loss or reveals_gradients
    if reports_curvature(algorithm) and not may_report:
        raise ValueError(
            f"{algorithm.name} with {CURVATURE_REPORTS}: tell-loss says that clients may "
            "send such numbers; or give another schedule"
        )
