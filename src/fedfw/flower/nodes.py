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
    """What a node says of itself: its numbers for "auto", its samples and its part of the data."""

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
        """Return the nodes to be asked for an introduction: new ones, and those without a good
        answer less and less often.
        """
        found = []
        for node in present:
            tries = self._tries.get(node, 0)
            if node not in self.clients and server_round % 2**tries == 0:
                self._tries[node] = tries + 1
                found.append(node)
        return found

    def forget_absent(self, present: Collection[int]) -> None:
        """Forget which clients the nodes were that are gone."""
        self.clients = {node: client for node, client in self.clients.items() if node in present}

    def admit(self, found: Mapping[int, Introduction], server: TrainingServer) -> str:
        """Let nodes take part: each as the client whose partition it has, where that client's node
        is gone, or as a new one; return why one could not join, if one could not.
        """
        refused = ""
        for node in sorted_by_partition(found):
            client = self._partitions.get(found[node].partition)
            if client is None or client in self.clients.values():
                client = 1 + max(self.samples, default=-1)
            try:
                server.meet(replace(found[node].hello, client=client))
            except MessageError as error:
                refused = str(error)
                continue
            self.clients[node] = client
            self.samples[client] = found[node].samples
            if found[node].partition != _NO_PARTITION:
                self._partitions.setdefault(found[node].partition, client)
        return refused


def sorted_by_partition(found: Mapping[int, Introduction]) -> list[int]:
    """Return nodes in the order of their partitions, which is that of their first clients."""
    return sorted(found, key=lambda node: (found[node].partition, node))
