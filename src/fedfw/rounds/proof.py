"""The certificate of a run: the largest proven lower bound on the optimum, and what it rests on."""

import torch
from torch import Tensor

from fedfw.algorithms.contract import Run
from fedfw.algorithms.optin import GathersGradients
from fedfw.certificates import LowerBound, frank_wolfe_gap, validate_gap
from fedfw.ranks import Ranks
from fedfw.rounds.client_steps import Method, public_direction
from fedfw.rounds.columns import narrow_message
from fedfw.rounds.round import Gathered, Round
from fedfw.rounds.server_steps import ServerStep


class Proof:
    """The proven bounds on the optimum.

    Parameters
    ----------
    method, run
        What is run.
    p : int
        The length of the model.
    convex : bool
        Whether bounds on the optimum may be drawn from gaps.
    floor : float, optional
        What the loss is never below: the bound that there is before anything was proven.
    ranks : Ranks
        The processes that share the run.
    own : range, optional
        The clients of this rank, where several share a run.
    """

    def __init__(
        self,
        method: Method,
        run: Run,
        p: int,
        convex: bool,
        floor: float | None,
        ranks: Ranks,
        own_clients: range | None,
    ) -> None:
        """Begin without a bound, but for the floor of convex losses."""
        self.convex = convex
        self.floor = floor if convex else None
        self.best: float | None
        self.dense_sums = 0
        """How many sums of gradients the server was given."""
        self._method = method
        self._p = p
        self._ranks = ranks
        self._own = own_clients
        self.restart(run)

    def improve(self, bound: float | None) -> None:
        """Take in a proven lower bound on the optimum."""
        if bound is not None and (self.best is None or bound > self.best):
            self.best = bound

    def withdraw(self) -> None:
        """Hold no bound from now on: the run refuted what bounds rest on."""
        self.convex = False
        self.floor = None
        self.restart(self.run)

    def restart(self, run: Run) -> None:
        """Forget what was proven: another sum of losses has another optimum."""
        self.run = run
        self.bound = LowerBound(run.constraint, run.n, self._p, self._ranks, self._own)
        self.best = self.floor

    def learn(self, this_round: Round, step: ServerStep, columns: Tensor | None) -> None:
        """Take in the evidence that came with the uploads of an exchange.

        ``columns`` are those of the clients' memory.
        """
        if isinstance(this_round.exchange, GathersGradients):
            self._learn_from_gradients(this_round, this_round.exchange, step)
        elif self.convex:
            self._learn_from_answers(this_round, columns)

    def _learn_from_gradients(
        self, this_round: Round, exchange: GathersGradients, step: ServerStep
    ) -> None:
        """Take in F(xbar) and, if all clients sent their gradients exactly, the bound F(xbar) - gap
        of the sum of gradients.
        """
        self.dense_sums += 1
        own_loss = 0.0
        for upload in this_round.uploads:
            if upload.evidence is not None:
                own_loss += float(upload.evidence.number.sum())
        loss = sum(numbers[0] for numbers in self._ranks.numbers(own_loss))
        gradient = None
        if step.sums.complete and self._method.channels.compressor is None:
            gradient = step.sums.total(exchange.gradient_upload)
            xbar = this_round.before.held
            gap = frank_wolfe_gap(self.run.constraint, xbar, gradient)
            validate_gap(self.run.constraint, xbar, gradient, gap, f"round {this_round.t}")
            this_round.anchor_gap = gap
            if self.convex:
                # Convex F lies above its tangent: F(u) >= F(xbar) - gap on the set.
                self.improve(loss - gap)
        this_round.gathered = Gathered(loss, gradient)

    def _learn_from_answers(self, this_round: Round, columns: Tensor | None) -> None:
        """Take in the evidence that came with the clients' atoms, and the lower bound that follows
        from it.
        """
        has_evidence = any(upload.evidence is not None for upload in this_round.uploads)
        if self._ranks.size > 1:
            has_evidence = any(bool(numbers[0]) for numbers in self._ranks.numbers(has_evidence))
        if not has_evidence:
            return
        together = this_round.together if self._ranks.size > 1 else None
        message = narrow_message(this_round.message, columns)
        for upload in this_round.uploads:
            if upload.evidence is None:
                continue
            q = upload.evidence.q
            columns_of_q = None
            if q is None:
                # The client sent no q: the server computes the same from the shared state.
                columns_of_q = columns
                q = public_direction(this_round.exchange, self.run, upload.before, message)
            if q is not None:
                self.bound.report(upload.who, upload.evidence.number, q, columns_of_q, together)
        if (
            together is not None and not this_round.uploads
        ):  # all ranks store reports in the same form
            no_values = this_round.message.xbar.new_zeros(0, dtype=torch.float64)
            no_rows = no_values.reshape(0, self._p)
            self.bound.report(no_values.long(), no_values, no_rows, None, together)
        self.improve(self.bound.value())
