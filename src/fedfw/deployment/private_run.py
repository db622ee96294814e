"""A private client's promise about its own data: what it is, when it ends, and what a step
costs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedfw.algorithms.contract import State
from fedfw.algorithms.optin import has_points
from fedfw.deployment.consent import Consent
from fedfw.deployment.data_checks import describe_fit, keyed_digest
from fedfw.deployment.files import create_private
from fedfw.deployment.ledger import Ledger, LedgerError, Release, first_name
from fedfw.deployment.messages import Order, require
from fedfw.deployment.orders import OrderedExchange, blame_order
from fedfw.deployment.refusal import Refusal, RefusedError
from fedfw.deployment.store import Received
from fedfw.deployment.task import Task
from fedfw.errors import MessageError
from fedfw.privacy.guarantee import Privacy
from fedfw.privacy.steps import PrivacyPlan, PrivateOracles
from fedfw.problems.problem import Problem

_LEAST_WEIGHT = 2.0**-30
"""The least weight w_i of a private client: no federation has 2^30 clients, and products with much
smaller weights would underflow.
"""


@dataclass(frozen=True)
class PrivateRun:
    """The promise of one client in a private run, whatever the server asks for.

    Parameters
    ----------
    task : Task
        What is trained.
    privacy : Privacy
        What is promised.
    problem : Problem
        The model on the client's samples.
    number, folder, consent
        Of the client.
    """

    task: Task
    privacy: Privacy
    problem: Problem
    number: int
    folder: Path
    consent: Consent

    @cached_property
    def plan(self) -> PrivacyPlan:
        """Return the mechanism and its noise multiplier; of the data they depend on the number of
        samples alone.
        """
        task = self.task
        options = task.options
        sizes = self.problem.losses.sizes
        if sizes is None:
            raise MessageError("privacy is for clients with samples; these are plain functions")
        try:
            plan = PrivacyPlan.of(
                self.privacy,
                task.method().algorithm,
                task.constraint,
                shape=tuple(task.start.shape),
                fewest_samples=int(sizes.min()),
                rounds=options.rounds,
                local_steps=options.local_steps,
                batch_size=options.batch_size,
            )
            # A plan whose epsilon cannot be computed is refused here, before data are used.
            plan.epsilon(plan.most_rounds)
        except (ValueError, ImportError, ArithmeticError, RuntimeError) as error:
            raise MessageError(f"the options of the run make no promise: {error}") from None
        return plan

    @cached_property
    def signature(self) -> str:
        """Return all that must stay the same for the run to go on, the data among them."""
        cut = f"one of {self.task.clients} clients, {self.task.division or 'no division named'}"
        return f"{self.plan.signature}; {cut}; data {self._data}"

    @cached_property
    def _data(self) -> str:
        """Return the keyed digest of the data, which stays on the client's disk."""
        try:
            secret = self.consent.secret(self.number, self.folder)
        except (OSError, ValueError) as error:
            raise RefusedError(Refusal.LEDGER, f"no secret of the owner: {error}") from None
        return keyed_digest(secret, self.problem.losses.data())

    def validate_data(self) -> None:
        """Refuse data that their owner has given a privacy budget and has not checked for this
        model; data without an owner's file or a budget need no check.
        """
        if self.consent.privacy is None or self.consent.folder is None:
            return
        fit = describe_fit(self.task)
        if not self.consent.checks(self.number, self.folder).hold(self._data, fit):
            raise RefusedError(
                Refusal.UNCHECKED,
                f"the data were changed, or never checked for {fit}: run 'fedfw deploy check-data'",
            )

    def has_ended(self, order: Order) -> bool:
        """Return whether the promise of an order's run has ended, for good: now, because the plan,
        the division or the data have changed since its last release, or earlier.

        The ledger then has a line that says so.
        """
        with self._ledger() as ledger:
            ledger.record(lambda so_far: self._ending_line(order, so_far))
            return any(release.ended for release in _of_run(order, ledger.releases()))

    def _ending_line(self, order: Order, so_far: list[Release]) -> Release | None:
        """Return the line that ends an order's run, given all lines of the ledger; None where the
        promise is unchanged or has ended before.
        """
        earlier = _of_run(order, so_far)
        changed = bool(earlier) and earlier[-1].promise != self.signature
        if not changed or earlier[-1].ended:
            return None
        # With the amounts of the last release: the end itself spends nothing.
        return replace(earlier[-1], run=order.run, ended=True)

    def release(self, ordered: OrderedExchange, state: State, received: Received) -> Release | None:
        """Return the release of an order's step, which is in the ledger before any noise is drawn;
        None where the run has ended or no budget is left.

        What a server asks for must not make noise small or sums overflow: points lie in the set,
        weights are neither tiny nor above 1, and what is added to gradients is not so large that
        noise is lost in its rounding.
        """
        private = PrivateOracles(self.plan, self.problem.losses)
        order = ordered.order
        with blame_order():
            constraint = self.task.constraint
            points = [received.vectors["xbar"]]
            if has_points(self.task.algorithm):
                points.append(state["x"][0])
            # 1e-3 of the set's size: points leave the set by rounding, which stays below that.
            inside = all(constraint.contains(point, 1e-3) for point in points)
            finite = all(bool(value.isfinite().all()) for value in state.values())
            require(
                inside and finite and _LEAST_WEIGHT <= order.weight <= 1,
                "a private client is sent points outside of the set, or a weight outside of (0, 1]",
            )
            shared = ordered.split(state).client.shared
            message = ordered.message(received)
            algorithm = ordered.method.algorithm
            require(
                private.hides(algorithm, ordered.run, shared, message, ordered.cohort),
                "a private client is sent vectors beside which its noise would be lost in rounding",
            )
        share = float(private.shares(ordered.cohort))
        with self._ledger() as ledger:
            return ledger.record(lambda so_far: self._next_release(order, share, so_far))

    @contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        """Yield the ledger of the data, empty where an owner without a file has none yet; a missing
        or damaged one becomes a refusal.
        """
        ledger = self.consent.ledger(self.number, self.folder)
        try:
            if self.consent.folder is None:
                create_private(ledger.path)
            yield ledger
        except LedgerError as error:
            raise RefusedError(Refusal.LEDGER, str(error)) from None

    def _next_release(self, order: Order, share: float, so_far: list[Release]) -> Release | None:
        """Return the ledger's next line, given all lines so far; None where the run has ended, has
        made all of its releases, or does not fit into the budget of the data.
        """
        plan = self.plan
        earlier = _of_run(order, so_far)
        released = earlier[-1].release if earlier else 0
        if not earlier and self.consent.folder is None:
            # Without an owner's folder a lost disk looks like an empty ledger, and may have held a
            # release for each round: of this round as well, if the server has counted an answer or
            # hands the client its memory.
            released = order.t if order.counted or order.memory else order.t - 1
        broken = any(release.ended or release.promise != self.signature for release in earlier)
        if broken or released >= plan.most_rounds:
            return None
        release = Release(
            run=order.run,
            release=released + 1,
            promise=self.signature,
            noise=plan.noise,
            epsilon=plan.epsilon(released + 1),
            delta=plan.privacy.delta,
            reserved=plan.epsilon(plan.most_rounds),
            share=max([share, *(release.share for release in earlier)]),
        )
        return release if self.consent.affords([*so_far, release]) else None


def _of_run(order: Order, releases: list[Release]) -> list[Release]:
    """Return the releases of an order's run, oldest first: a run that goes on after a restore has
    another name with the same beginning.
    """
    run = first_name(order.run)
    return [release for release in releases if first_name(release.run) == run]
