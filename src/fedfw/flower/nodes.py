"""Which node is which client of a run of the bridge."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from flwr.app import Message, MetricRecord

from fedfw.deployment.messages import Hello
from fedfw.deployment.training import TrainingServer
from fedfw.errors import MessageError
from fedfw.flower.agreement import NODE
from fedfw.flower.replies import content_of, fields_of

_NO_PARTITION = 2**62  # sorts nodes without a partition behind the others


@dataclass(frozen=True)
class Introduction:
    """A node's statement of itself: numbers for "auto", its samples and its part of the data."""

    hello: Hello
    samples: int
    partition: int

    @classmethod
    def of(cls, reply: Message) -> "Introduction":
        """Return the introduction in a reply; raises `MessageError` for any other reply."""
        content = content_of(reply)
        node = content.pop(NODE, None)
        hello = Hello.of(fields_of(content))
        if not isinstance(node, MetricRecord):
            raise MessageError("undecodable: no number of samples")
        samples = node.get("samples")
        partition = node.get("partition")
        if not isinstance(samples, int) or samples < 1:
            raise MessageError("undecodable: no number of samples, expected at least 1")
        return cls(hello, samples, partition if isinstance(partition, int) else _NO_PARTITION)


class Nodes:
    """The nodes that take part, each as a client: 0, 1, ... in the order of their partitions."""

    def __init__(self) -> None:
        self.clients: dict[int, int] = {}  # node -> client
        self.samples: dict[int, int] = {}  # client -> number of samples
        self._partitions: dict[int, int] = {}  # partition -> client
        self._tries: dict[int, int] = {}  # node -> how often it was asked

    def due(self, present: Collection[int], server_round: int) -> list[int]:
        """Return the nodes to be asked for an introduction: those that are no clients, in rounds
        that are multiples of 2^k for a node that was asked k times before.
        """
        due = []
        for node in present:
            tries = self._tries.get(node, 0)
            if node not in self.clients and server_round % 2**tries == 0:
                self._tries[node] = tries + 1
                due.append(node)
        return due

    def forget_absent(self, present: Collection[int]) -> None:
        """Forget which clients the nodes were that are gone."""
        self.clients = {node: client for node, client in self.clients.items() if node in present}

    def admit(self, introductions: Mapping[int, Introduction], server: TrainingServer) -> str:
        """Let nodes take part: each as the client whose partition it has, where that client's node
        is gone, or as a new client; return the last reason why a node could not join, empty if all
        could.
        """
        refused = ""
        for node in sorted_by_partition(introductions):
            introduction = introductions[node]
            client = self._partitions.get(introduction.partition)
            if client is None or client in self.clients.values():
                client = 1 + max(self.samples, default=-1)  # the next number, 0 for the first
            try:
                server.meet(replace(introduction.hello, client=client))
            except MessageError as error:
                refused = str(error)
                continue
            self.clients[node] = client
            self.samples[client] = introduction.samples
            if introduction.partition != _NO_PARTITION:
                # Where several nodes name one partition, it stays with its first client.
                self._partitions.setdefault(introduction.partition, client)
        return refused


def sorted_by_partition(introductions: Mapping[int, Introduction]) -> list[int]:
    """Return nodes in the order of their partitions, in which they become clients 0, 1, ...; nodes
    without a partition come last, in the order of their numbers.
    """
    return sorted(introductions, key=lambda node: (introductions[node].partition, node))
