"""The server's side of the bridge: a strategy for a ServerApp that exists already."""

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from fedfw.algorithms.contract import Algorithm
from fedfw.deployment.messages import Order
from fedfw.deployment.settings import Deployment
from fedfw.deployment.training import INSIDE, TrainingServer
from fedfw.errors import MessageError, NobodyTrainedError
from fedfw.flower.agreement import AGREEMENT, ARRAYS, METRICS, NODE, RECORD, Agreement
from fedfw.flower.nodes import Introduction, Nodes, sorted_by_partition
from fedfw.flower.replies import WEIGHT, average_metrics, content_of, fields_of
from fedfw.flower.result import FrankWolfeResult, Traffic, message_nbytes
from fedfw.problems.known_losses import LossFunction
from fedfw.problems.modules import with_parameters
from fedfw.rounds.feasibility import final_model
from fedfw.rounds.options import Options
from fedfw.terminal import escape_controls

_LOOK_AGAIN = 0.5  # seconds between two looks for nodes, before the first round
_LATE_SECONDS = 60.0  # that a node which comes later has to introduce itself
_SPARE_LIFE = 60.0  # seconds that a message outlives the round's timeout
_LONGEST_REASON = 500  # characters of what a node gave as its reason


class FrankWolfeStrategy(Strategy):
    """A strategy whose clients send atoms of a constraint set, for a ServerApp of the user's own.

    Nodes that are connected when the first round begins are the clients 0, 1, ..., in the order of
    their ``partition-id`` where they have one. The strategy is for one run.

    Parameters
    ----------
    algorithm : Algorithm
        With its set, such as ``FedFWPlus("l1:10")``. Clients are sent it as text.
    model : torch.nn.Module
        Of the same class as the clients'. `start` takes its parameters from ``initial_arrays``.
    loss : callable
        ``loss(outputs, targets)``, a mean over samples, the same as on the clients: the certificate
        depends on it.
    min_available_nodes : int, default 2
        How many nodes the first round waits for.
    participation : float or int, default 1.0
        The probability that a client takes part in a round, or how many clients do.
    local_steps : int, default 1
        Steps of a client in a round.
    batch_size : int, optional
        Samples of a gradient, drawn with replacement from the seed; all by default, which the
        certificate needs.
    seed : int, default 0
        For participation and batches.
    eval_every : int, default 1
        Rounds between evaluations: of the loss and the certificate's numbers, which clients report,
        and of ``test``.
    weights : {"equal", "samples"}
        Whether clients count alike, or by their samples as in Flower's FedAvg. With ``"samples"``
        no node can join after the first round has begun.
    convex : bool, optional
        Whether the losses are; by default from model and loss.
    l2 : float, default 0.0
        Adds l2/2 ||x||^2 to every client's loss.
    test : pair of tensors or dataset, optional
        Public test data, for the history.
    evaluate_every : int or None, default 0
        Rounds between messages to the app's ``@app.evaluate()``, each of which holds the whole
        model; 0 for one after the last round, None for none.
    leave_after : int, default 3
        Rounds in a row without an answer after which a client is taken to have left.
    action : str, default "fedfw"
        The name under which the app registers the function that calls `frank_wolfe_step`:
        ``@app.train("fedfw")`` stands beside the app's own ``@app.train()``, which an empty text
        stands for.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.flower import FrankWolfeStrategy
    >>> net = torch.nn.Linear(4, 3)
    >>> loss = torch.nn.CrossEntropyLoss()
    >>> strategy = FrankWolfeStrategy(fedfw.FedFWPlus("l1:10", momentum=0.9), net, loss)

    Within ``@app.main()``, ``strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=10)``
    returns a `FrankWolfeResult`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        loss: LossFunction,
        *,
        min_available_nodes: int = 2,
        participation: float | int = 1.0,
        local_steps: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        eval_every: int = 1,
        weights: Literal["equal", "samples"] = "equal",
        convex: bool | None = None,
        l2: float = 0.0,
        test: Any = None,
        evaluate_every: int | None = 0,
        leave_after: int = 3,
        action: str = "fedfw",
    ) -> None:
        """Check the options; the run begins in `start`."""
        if weights not in ("equal", "samples"):
            raise ValueError(f'weights={weights!r}, expected "equal" or "samples"')
        options = Options(
            participation=participation,
            local_steps=local_steps,
            batch_size=batch_size,
            seed=seed,
            eval_every=eval_every,
        )
        self.model = copy.deepcopy(model).cpu()
        self.loss = loss
        self.min_available_nodes = min_available_nodes
        self.weights = weights
        self.test = test
        self.evaluate_every = evaluate_every
        self.traffic = Traffic()
        self._message_type = f"{MessageType.TRAIN}.{action}" if action else MessageType.TRAIN
        self._settings = Deployment(
            tell_loss=True, share_gradients=True, run_name="flower", leave_after=leave_after
        )
        self._agreement = Agreement(algorithm, options, convex=convex, l2=l2)
        self._agreement.to_text()
        self._server: TrainingServer | None = None  # made when the first nodes have been met
        self._arrays = ArrayRecord()  # the initial parameters, in Flower's form
        self._rounds = 0
        self._timeout = 0.0  # seconds that a node has for an answer
        self._nodes = Nodes()

    # --- what Flower calls ---

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FrankWolfeResult:
        """Run all rounds.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            What Flower gives to the ServerApp.
        initial_arrays : flwr.app.ArrayRecord
            The state of the model at the start; a start outside of the set is moved into it.
        num_rounds : int, default 3
            How many rounds there are.
        timeout : float, default 3600
            Seconds that a round waits for answers, and the first one for nodes.
        train_config, evaluate_config : flwr.app.ConfigRecord, optional
            Sent with every message to the app's functions.
        evaluate_fn : callable, optional
            (round, arrays) -> metrics, called on the server after every round.

        Returns
        -------
        FrankWolfeResult
            The model, its certificate, the bytes and the history.

        Raises
        ------
        TimeoutError
            If fewer than ``min_available_nodes`` nodes come within the timeout.
        NobodyTrainedError
            If no answer of a client was counted in any round.
        InfeasibleError
            If the final model lies outside of the set by more than rounding explains.
        """
        if self._rounds:
            raise ValueError("this strategy had a run already, expected a new one for each run")
        self._rounds = num_rounds
        self._timeout = timeout
        options = replace(self._agreement.options, rounds=num_rounds)
        self._agreement = replace(self._agreement, options=options)
        self.model.load_state_dict(initial_arrays.to_torch_state_dict())
        task = self._agreement.task(self.model, self.loss, _no_data)
        self.model = with_parameters(self.model, task.start)
        self._arrays = ArrayRecord(self.model.state_dict())
        result = super().start(
            grid, self._arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )
        return self._finish(result)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Run all exchanges of the round but the last, and return the messages of the last one."""
        self._meet_nodes(grid, server_round)
        server = self._running
        present = set(grid.get_node_ids())
        clients = self._nodes.clients
        orders = server.open({clients[node] for node in clients if node in present})
        while orders and not server.is_last_exchange:
            self._take(self._send(grid, self._orders(orders, config), self._timeout))
            orders = server.next_exchange()
        messages = self._orders(orders, config)
        self.traffic.transport_down += sum(map(message_nbytes, messages))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the server's step; return the model, and the round's numbers with the app's own."""
        received = list(replies)
        self.traffic.transport_up += sum(map(message_nbytes, received))
        metrics = self._take(received)
        record = self._running.close()
        numbers = {
            "participants": record.participants,
            "refused": sum(record.refused.values()),
            "bytes-up": record.bytes_up,
            "bytes-down": record.bytes_down,
            "lower-bound": record.lower_bound,
            "test-loss": record.test_loss,
            "accuracy": record.accuracy,
        }
        metrics.update({name: value for name, value in numbers.items() if value is not None})
        return ArrayRecord(self._running.model.state_dict()), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages with the whole model to all clients, in the rounds that are evaluated."""
        every = self.evaluate_every
        # 0 stands for one evaluation, after the last of all rounds.
        if every is None or server_round % (every or self._rounds):
            return []
        content = RecordDict({ARRAYS: arrays, "config": config})
        return self._messages(dict.fromkeys(self._nodes.clients, content), MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of the app's metrics, weighted by ``num-examples``."""
        records: list[MetricRecord] = []
        for reply in replies:
            if not reply.has_error():
                records += reply.content.metric_records.values()
        return average_metrics(records) if records else None

    def summary(self) -> None:
        """Log the algorithm with its set."""
        algorithm = self._agreement.algorithm
        log(INFO, "\t└──> %s on %r", algorithm.name, algorithm.constraint)

    # --- nodes ---

    @property
    def _running(self) -> TrainingServer:
        assert self._server is not None  # `_meet_nodes` has made it
        return self._server

    def _meet_nodes(self, grid: Grid, server_round: int) -> None:
        """Ask new nodes for their introductions, and admit those that answer as clients; the server
        is made when the first nodes have answered.
        """
        first = self._server is None
        if first:
            self._wait(grid)
        due = self._nodes.due(list(grid.get_node_ids()), server_round)
        if not due:
            return
        question = RecordDict({NODE: ConfigRecord({}), **self._agreed(), ARRAYS: self._arrays})
        seconds = self._timeout if first else min(self._timeout, _LATE_SECONDS)
        asked = self._messages(dict.fromkeys(due, question), self._message_type)
        introductions = {}
        reason = "it is not reachable, or too slow for the timeout"
        for reply in self._send(grid, asked, seconds):
            try:
                introductions[reply.metadata.src_node_id] = Introduction.of(reply)
            except MessageError as error:
                reason = escape_controls(str(error)[:_LONGEST_REASON])
                log(WARNING, "a node did not introduce itself: %s", reason)
        if first and not introductions:
            raise NobodyTrainedError(f"no node answered the first question: {reason}")
        if first:
            self._agreement = replace(self._agreement, clients=len(introductions))
            weights = None
            if self.weights == "samples":
                # In the order in which nodes become clients.
                nodes = sorted_by_partition(introductions)
                weights = [float(introductions[node].samples) for node in nodes]
            task = self._agreement.task(self.model, self.loss, _no_data, weights, self.test)
            self._server = TrainingServer(task, self._settings)
        self._nodes.forget_absent(set(grid.get_node_ids()))
        refused = self._nodes.admit(introductions, self._running)
        if refused:
            log(WARNING, "a node cannot join: %s", refused)

    def _wait(self, grid: Grid) -> None:
        """Wait until enough nodes are connected."""
        until = time.monotonic() + self._timeout
        while len(list(grid.get_node_ids())) < self.min_available_nodes:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"fewer than min_available_nodes={self.min_available_nodes} nodes came within "
                    f"{self._timeout:.0f} s"
                )
            time.sleep(_LOOK_AGAIN)

    # --- messages ---

    def _orders(self, orders: Mapping[int, Order], config: ConfigRecord) -> list[Message]:
        """Return the messages of orders; clients that have nothing yet are sent the agreement."""
        nodes = {client: node for node, client in self._nodes.clients.items()}
        contents = {}
        for client, order in orders.items():
            content = RecordDict({RECORD: ConfigRecord(order.fields())})
            if order.memory or not order.counted:
                content.update(self._agreed())
            if order.memory:
                content[ARRAYS] = self._arrays
            if config:
                content["config"] = config
            contents[nodes[client]] = content
        return self._messages(contents, self._message_type)

    def _agreed(self) -> dict[str, ConfigRecord]:
        return {AGREEMENT: ConfigRecord({"text": self._agreement.to_text()})}

    def _messages(self, contents: Mapping[int, RecordDict], kind: str) -> list[Message]:
        """Return contents as messages to nodes."""
        life = self._timeout + _SPARE_LIFE
        return [
            Message(content, dst_node_id=node, message_type=kind, ttl=life)
            for node, content in contents.items()
        ]

    def _send(self, grid: Grid, messages: list[Message], seconds: float) -> list[Message]:
        """Return the replies to messages, and count the bytes of both."""
        self.traffic.transport_down += sum(map(message_nbytes, messages))
        replies = list(grid.send_and_receive(messages, timeout=seconds))
        self.traffic.transport_up += sum(map(message_nbytes, replies))
        return replies

    def _take(self, replies: Iterable[Message]) -> MetricRecord:
        """Take answers; return the means of the app's metrics in those that were accepted."""
        accepted = []
        for reply in replies:
            client = self._nodes.clients.get(reply.metadata.src_node_id)
            try:
                content = content_of(reply)
                metrics = content.pop(METRICS, None)
                fields = fields_of(content)
            except MessageError as error:
                self._running.refuse(client, str(error))
                continue
            refused = self._running.take(client, fields)
            if refused is None and client is not None and isinstance(metrics, MetricRecord):
                accepted.append(MetricRecord({**metrics, WEIGHT: self._nodes.samples[client]}))
        return average_metrics(accepted)

    # --- the end ---

    def _finish(self, result: Any) -> FrankWolfeResult:
        """Return Flower's result with what was trained and proven."""
        server = self._running
        if not any(record.participants for record in server.history):
            raise NobodyTrainedError(
                f"no answer of a client was counted in {server.t} rounds: nothing was trained"
            )
        x = final_model(server.task.constraint, server.xbar, tol=INSIDE)
        model = with_parameters(self.model, x)
        if server.bound.refuted:
            log(WARNING, "the certificate is withdrawn: %s", server.bound.refuted)
        history = server.history
        self.traffic.payload_up = int(history.total("bytes_up"))
        self.traffic.payload_down = int(history.total("bytes_down"))
        self.traffic.checks_up = int(history.total("evidence_up"))
        self.traffic.checks_down = int(history.total("evidence_down"))
        fields_of_flower = vars(result) | {"arrays": ArrayRecord(model.state_dict())}
        return FrankWolfeResult(
            **fields_of_flower,
            model=model,
            history=history,
            traffic=self.traffic,
            lower_bound=server.coordinator.best_bound,
            refuted=server.bound.refuted,
        )


def _no_data(client: int) -> Any:
    raise AssertionError("the server has no data of clients")
