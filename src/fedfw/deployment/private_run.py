"""A private client's promise about its own data: what it is, when it ends, and what a step
costs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedfw.algorithms.contract import State
from fedfw.algorithms.optin import has_points
from fedfw.deployment.consent import Consent
from fedfw.deployment.data_checks import describe_fit, keyed_digest
from fedfw.deployment.files import create_private
from fedfw.deployment.ledger import LedgerError, Release, first_name
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
"""Of a private client: no federation has so many clients, and tiny numbers are where floating-point
numbers end.
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
        """Return mechanism and noise; of the data they need their number alone."""
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
            plan.epsilon(plan.most_rounds)  # what cannot be accounted for is refused here, too
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
        """Refuse to take part with data that their owner, who has given them a budget, has not
        checked.
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
        """Return whether the promise has ended, because something of it is not as it was; that is
        for good.

        The ledger has a line of it, which spends nothing.
        """
        ended: list[bool] = []

        def end(so_far: list[Release]) -> Release | None:
            """Return the entry that ends a run whose promise has changed; None where there is
            nothing to write.
            """
            own = _of_run(order, so_far)
            changed = bool(own) and own[-1].promise != self.signature
            ended.append(changed or any(one.ended for one in own))
            if changed and not own[-1].ended:
                return replace(own[-1], run=order.run, ended=True)
            return None

        self._record(end)
        return ended[0]

    def release(self, ordered: OrderedExchange, state: State, received: Received) -> Release | None:
        """Return the release that a step costs, in the ledger before anything is drawn; None where
        no budget is left for it.

        What a server asks for must not make noise small or sums overflow: points lie in the set,
        weights are neither tiny nor above 1, and what is added to gradients is not so large that
        noise is lost in its rounding.
        """
        private = PrivateOracles(self.plan, self.problem.losses)
        order = ordered.order
        with blame_order():
            constraint = self.task.constraint
            own = [state["x"][0]] if has_points(self.task.algorithm) else []
            points = [*own, received.vectors["xbar"]]
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
        return self._record(lambda so_far: self._next_release(order, share, so_far))

    def _record(self, make: Callable[[list[Release]], Release | None]) -> Release | None:
        """Append to the ledger of the data what ``make`` makes of its lines, if anything."""
        ledger = self.consent.ledger(self.number, self.folder)
        try:
            if self.consent.folder is None:
                create_private(ledger.path)
            return ledger.record(make)
        except LedgerError as error:
            raise RefusedError(Refusal.LEDGER, str(error)) from None

    def _next_release(self, order: Order, share: float, so_far: list[Release]) -> Release | None:
        """The next line of the ledger, within the run's promise and within the budget of the
        data.
        """
        plan = self.plan
        own = _of_run(order, so_far)
        earlier = own[-1].release if own else 0
        if not own and self.consent.folder is None:
            # Nothing vouches for the ledger: a disk that was lost may have held a release in each
            # round so far.
            earlier = order.t if order.counted or order.memory else order.t - 1
        if earlier >= plan.most_rounds or any(
            one.ended or one.promise != self.signature for one in own
        ):
            return None
        release = Release(
            run=order.run,
            release=earlier + 1,
            promise=self.signature,
            noise=plan.noise,
            epsilon=plan.epsilon(earlier + 1),
            delta=plan.privacy.delta,
            reserved=plan.epsilon(plan.most_rounds),
            share=max([share, *(one.share for one in own)]),
        )
        return release if self.consent.affords([*so_far, release]) else None


def _of_run(order: Order, releases: list[Release]) -> list[Release]:
    """Return the releases of an order's run, under whatever name it went on."""
    run = first_name(order.run)
    return [release for release in releases if first_name(release.run) == run]
