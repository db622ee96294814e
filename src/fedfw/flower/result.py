"""The result of a run of the bridge."""

from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp.strategy import Result
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch import nn

from fedfw.rounds.records import History


def message_nbytes(message: Message) -> int:
    """Return the bytes of all objects that Flower makes of a message, as they travel."""
    return sum(len(record.deflate()) for record in get_all_nested_objects(message).values())


@dataclass
class Traffic:
    """The bytes of a run, each kind up (to the server) and down.

    Parameters
    ----------
    payload_up, payload_down : int
        Atoms, vectors and models.
    checks_up, checks_down : int
        Digests, losses, and the certificate's numbers.
    transport_up, transport_down : int
        Everything that Flower carries for training, the payload and the checks included: the
        objects of all messages. What HTTP and polling add is not in it.

    Examples
    --------
    >>> print(Traffic(payload_up=60, checks_up=48, transport_up=1500))
    bytes up: payload 60, checks 48, transport 1500
    bytes down: payload 0, checks 0, transport 0
    """

    payload_up: int = 0
    payload_down: int = 0
    checks_up: int = 0
    checks_down: int = 0
    transport_up: int = 0
    transport_down: int = 0

    def __str__(self) -> str:
        """Return a line a direction."""
        return (
            f"bytes up: payload {self.payload_up}, checks {self.checks_up}, "
            f"transport {self.transport_up}\n"
            f"bytes down: payload {self.payload_down}, checks {self.checks_down}, "
            f"transport {self.transport_down}"
        )


@dataclass(repr=False)
class FrankWolfeResult(Result):
    """Flower's result, with the certificate, the bytes and the history.

    Parameters
    ----------
    model : torch.nn.Module
        The final model, which lies in the set; ``arrays`` is its state.
    history : History
        A record a round.
    traffic : Traffic
        The bytes of all rounds.
    lower_bound : float or None
        A proven lower bound on the optimum; None where the losses are not convex, or a method or
        its options prove none.
    refuted : str
        What refuted the bound, if anything did; there is none then.

    Examples
    --------
    >>> import torch
    >>> from fedfw.rounds.records import Record
    >>> history = History([Record(round=1, loss=0.5), Record(round=2)])
    >>> result = FrankWolfeResult(model=torch.nn.Linear(2, 1), history=history, lower_bound=0.25)
    >>> result.loss, result.gap
    (0.5, 0.25)
    """

    model: nn.Module = field(kw_only=True)
    history: History = field(kw_only=True)
    traffic: Traffic = field(kw_only=True, default_factory=Traffic)
    lower_bound: float | None = field(kw_only=True, default=None)
    refuted: str = field(kw_only=True, default="")

    @property
    def loss(self) -> float | None:
        """Return the last training loss that all clients reported: that of the model before the
        last round.
        """
        loss: float | None = self.history.last("loss")
        return loss

    @property
    def gap(self) -> float | None:
        """Return how far at most `loss` is above the optimum."""
        if self.loss is None or self.lower_bound is None:
            return None
        return self.loss - self.lower_bound

    @property
    def certificate(self) -> str:
        """Return what was proven, in a sentence."""
        if self.refuted:
            return f"none: {self.refuted}"
        if self.gap is None:
            return "none"
        return (
            f"the loss {self.loss:.6g} before the last round is at most {self.gap:.3g} above the "
            f"optimum, which is at least {self.lower_bound:.6g}"
        )

    def __repr__(self) -> str:
        return f"{super().__repr__()}\nCertificate: {self.certificate}\n{self.traffic}\n"
