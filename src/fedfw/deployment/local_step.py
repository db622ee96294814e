"""A client's step of one exchange, and what it may report beside it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw.algorithms.contract import State
from fedfw.algorithms.optin import GathersGradients, is_certifying
from fedfw.deployment.messages import Answer
from fedfw.deployment.orders import OrderedExchange
from fedfw.deployment.store import Received
from fedfw.errors import ContradictionError
from fedfw.privacy.steps import PrivateOracles
from fedfw.problems.oracles import Gradient, Lmo, PlainOracles
from fedfw.problems.problem import Problem
from fedfw.rounds.channels import pack
from fedfw.rounds.client_steps import WatchedOracles, sends_model, take_part
from fedfw.rounds.convexity import ClientTangents, refuse_if_not_convex
from fedfw.rounds.downlink import make_downlink
from fedfw.rounds.wire import state_digest


@dataclass(frozen=True)
class LocalStep:
    """The step that an order asks for, on the client's data.

    Parameters
    ----------
    ordered : OrderedExchange
        What is asked for.
    problem : Problem
        The model on the client's samples.
    private : PrivateOracles, optional
        The oracles of a private run.
    may_report : bool
        Whether the server asks for losses, and the owner allows them.
    """

    ordered: OrderedExchange
    problem: Problem
    private: PrivateOracles | None
    may_report: bool

    def take(
        self, flat: State, received: Received
    ) -> tuple[State, Answer, ContradictionError | None]:
        """Return the state after the step from a state (a stack of one) and a message, the answer,
        and what refutes that the loss is convex.
        """
        ordered = self.ordered
        order = ordered.order
        step = ordered.step
        message = ordered.message(received)
        gradient, lmo = self._oracles(
            message.oracle_tol if ordered.method.rule.uses_oracles else None
        )
        certify = self._certifies()
        # They evaluate losses and gradients, and keep them to check that the loss is convex.
        tangents = ClientTangents(gradient) if certify and is_certifying(step) else None
        watched = WatchedOracles(gradient if tangents is None else tangents, lmo, 1, order.n)
        if isinstance(step, GathersGradients) and self._is_convex:
            certify = True  # the loss is sent with the gathered gradient whatever is reported
            if not self.problem.works_in_float64():
                raise ValueError(
                    "the losses cannot be worked out in float64, as proofs must be: state "
                    "convex=False in the task"
                )
        after, sending = take_part(
            ordered.method, step, ordered.run, ordered.split(flat), message, watched, certify
        )
        evidence = sending.evidence
        # For a run in float32 the loss in float64 is an extra evaluation, which is made only where
        # the loss is compared with a bound.
        exact = evidence is not None or ordered.task.start.dtype is torch.float64
        loss = self._loss(message.xbar, tangents if exact else None)
        refuted = None if tangents is None else self._refuted(tangents)
        number = None if evidence is None or refuted is not None else float(evidence.number)
        answer = Answer(
            run=order.run,
            t=order.t,
            client=order.client,
            kind=order.ask,
            payload=pack(sending.sent)[0].to_bytes(),
            digest=state_digest(ordered.shared(flat)),
            loss=loss,
            number=number,
            convex=None if refuted is None else False,
        )
        return after.flat(), answer, refuted

    @property
    def _is_convex(self) -> bool:
        return self.ordered.task.setting().convex is True

    def _certifies(self) -> bool:
        """Return whether the client reports its part of the certificate: where the server asks and
        the owner allows it, for gradients of all samples of a convex loss in float64.
        """
        all_samples = self.ordered.task.options.batch_size is None
        return (
            self.may_report and all_samples and self._is_convex and self.problem.works_in_float64()
        )

    def _refuted(self, seen: ClientTangents) -> ContradictionError | None:
        """Return an error with two points at which the loss is below one of its tangents, so that
        it is not convex; None where the evaluated points show no such pair.
        """
        pair = seen.suspicious_pair()
        if pair is None:
            return None

        def evaluate(x: Tensor) -> tuple[float, Tensor]:
            """Return the client's loss and its gradient (p,) at x (p,), in float64."""
            value, gradient = self.problem.losses.exactly(x[None], torch.tensor([0]))
            return float(value[0]), gradient[0]

        order = self.ordered.order
        what = f"the loss of client {order.client}"
        try:
            refuse_if_not_convex(evaluate, *pair, what, f"round {order.t}")
        except ContradictionError as error:
            return error
        return None

    def _loss(self, xbar: Tensor, tangents: ClientTangents | None) -> float | None:
        """Return w_i f_i(xbar), in float64 with ``tangents``; None where it may not be reported,
        and where clients do not receive xbar exactly.
        """
        if not self.may_report:
            return None
        method = self.ordered.method
        start = self.ordered.task.start
        downlink = make_downlink(method.algorithm, start.dtype)
        if not sends_model(method, self.ordered.run, start, downlink):
            return None
        if tangents is not None:
            return float(tangents(xbar[None], exact=True)[0])
        gradient, _ = self._oracles(None)
        return float(gradient(xbar[None], full=True)[0])

    def _oracles(self, tol: float | None) -> tuple[Gradient, Lmo]:
        """Return the gradient and the LMO of the order's round, with the draws of a simulation;
        ``tol`` is the relative accuracy of an LMO that iterates, None for no LMO.
        """
        order = self.ordered.order
        if self.private is not None:
            return self.private.pair(self.ordered.cohort, order.t, tol)
        losses = self.problem.losses
        options = self.ordered.task.options
        # Minibatches are drawn for all clients at once, as in a simulation, and this client's row
        # is used: rows for n clients, or up to its own number where clients have left.
        rows = max(order.n, order.client + 1)
        sizes = None if losses.sizes is None else losses.sizes.expand(rows)
        plain = PlainOracles(losses, options.local_steps, options.batch_size, options.seed, sizes)
        return plain.pair(self.ordered.cohort, order.t, tol)
