"""The steps of one exchange in a simulation: every client's, stacked, then the server's."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedfw.algorithms.contract import Exchange, Message, Run, State
from fedfw.problems.oracles import Gradient, Lmo
from fedfw.ranks import ALONE, Ranks
from fedfw.rounds.client_steps import Method, WatchedOracles, split, take_part
from fedfw.rounds.downlink import Downlink
from fedfw.rounds.server_steps import ServerState, ServerStep, step_server
from fedfw.rounds.sums import Upload


@dataclass(frozen=True, eq=False)
class ClientBatch:
    """Clients ``who`` (m,) that use the same set: their state, and their gradients and oracles.

    ``weights`` (m,) are their n w_i, which add up to ``weight``; None where these are all 1.
    """

    who: Tensor
    state: State
    gradient: Gradient
    lmo: Lmo
    weights: Tensor | None = None
    weight: float | None = None


@dataclass(frozen=True, eq=False)
class ExchangeSteps:
    """The results of all steps of an exchange: what clients sent, batch by batch, and the
    server's.
    """

    uploads: list[Upload]
    step: ServerStep


@dataclass(frozen=True)
class Steps:
    """The steps of an exchange, taken by this process or by others.

    Parameters
    ----------
    method, run, downlink
        What is run.
    shared_names : frozenset of str
        The names of what the server can compute of clients.
    ranks : Ranks
        The processes that share the run.
    """

    method: Method
    run: Run
    downlink: Downlink
    shared_names: frozenset[str]
    ranks: Ranks = ALONE

    def __call__(
        self,
        step: Exchange,
        server: ServerState,
        msg: Message,
        batches: Sequence[ClientBatch],
        count: int,
        certify: bool = False,
    ) -> ExchangeSteps:
        """Return what an exchange gives.

        Parameters
        ----------
        step : Exchange
            The exchange.
        server : ServerState
            The server's state that the message announces.
        msg : Message
            What clients receive.
        batches : sequence of ClientBatch
            The clients of this process that take part.
        count : int
            How many take part, over all processes.
        certify : bool
            Whether the clients' part of the certificate is wanted.
        """
        uploads = [self._upload(step, msg, batch, certify) for batch in batches]
        made = step_server(
            self.method,
            self.downlink,
            self.run,
            step,
            server,
            msg,
            uploads,
            count,
            ranks=self.ranks,
        )
        return ExchangeSteps(uploads, made)

    def _upload(self, step: Exchange, msg: Message, batch: ClientBatch, certify: bool) -> Upload:
        """Take the clients' part of an exchange, and return what they send."""
        before = split(batch.state, self.shared_names)
        m = batch.who.shape[0]
        oracles = WatchedOracles(batch.gradient, batch.lmo, m, self.run.n)
        after, sending = take_part(self.method, step, self.run, before, msg, oracles, certify)
        weighted = self.method.algorithm.weighted and batch.weights is not None
        return Upload(
            batch.who,
            before.client.shared,
            sending.sent,
            sending.decoded,
            after.flat(),
            sending.evidence,
            batch.weights if weighted else None,
            batch.weight if weighted else float(m),
        )
