"""The losses that clients report, and the lower bound on the optimum that they may refute."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedfw.deployment.messages import Answer
from fedfw.rounds.contradictions import ReportedLosses
from fedfw.rounds.proof import Proof
from fedfw.rounds.round import Gathered

_LOWERED = 1e-3
"""Taken to be the most, relative to the largest loss, by which clients lower losses for rounding.
"""


class ReportedBound:
    """The lower bound of a training, until what clients report refutes it.

    Parameters
    ----------
    dtype : torch.dtype
        The precision of the run.

    Attributes
    ----------
    refuted : str
        What refuted the bound; there is none from then on.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.refuted = ""
        self._losses = ReportedLosses(dtype)
        # In float32 every client lowers its loss by a bound on the effect of rounding, which the
        # server cannot compute; a comparison of losses allows for it. None: by nothing.
        self._lowered = _LOWERED if dtype is torch.float32 else None

    def restart(self) -> None:
        """Forget all losses: the clients have changed, and F with them."""
        self._losses.begin()

    def add_reported(self, t: int, losses: Sequence[float]) -> None:
        """Add the loss F = sum_i w_i f_i of the model after round t from all clients' reports of
        w_i f_i; fsum is exact up to one rounding.
        """
        self._losses.add_loss(t, math.fsum(losses))

    def add_gathered(self, t: int, gathered: Gathered | None) -> None:
        """Take in the loss of the model after round t that came with a sum of all gradients."""
        if gathered is not None and gathered.gradient is not None:
            self._losses.add_loss(t, gathered.loss, self._lowered)

    def withdraw_if_refuted(self, t: int, proof: Proof, answers: Mapping[int, Answer]) -> bool:
        """Withdraw the bound that is held in round t if a loss or a client's answer refutes it;
        return whether that happened.
        """
        error = self._losses.compare(t, proof.best, proof.floor)
        if error is not None:
            self.refuted = str(error)
        # A client that found its loss not convex names the cause, which replaces the error above.
        clients = [client for client, answer in sorted(answers.items()) if answer.convex is False]
        if clients:
            self.refuted = (
                f"round {t}: the losses of clients {clients} are not convex: each lies below a "
                "tangent of it, as the client's own log says with the numbers. So "
                f"{proof.best} is no lower bound on the optimum, and none is reported. Likely "
                "cause: convex=True is stated for a loss that is not convex. State convex=False in "
                "the task: it then goes without a certificate"
            )
        if error is None and not clients:
            return False
        proof.withdraw()
        return True

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {"losses": self._losses.state(), "refuted": self.refuted}

    def load(self, held: Mapping[str, Any], proof: Proof) -> None:
        """Restore what `state` returned; earlier versions wrote nothing."""
        self._losses.load(held.get("losses", {}))
        self.refuted = held.get("refuted", "")
        if self.refuted:
            proof.withdraw()
