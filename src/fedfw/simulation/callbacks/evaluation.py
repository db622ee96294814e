"""Evaluation: loss, test data, gap, surrogate and how far apart the clients are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedfw.algorithms.optin import has_points
from fedfw.certificates import frank_wolfe_gap, validate_gap
from fedfw.problems.evaluation import Test
from fedfw.rounds.contradictions import ClientLosses
from fedfw.rounds.robustness import certified
from fedfw.simulation.callbacks.base import Callback

if TYPE_CHECKING:
    from fedfw.simulation.simulator import Simulation


def _tested(test: Test) -> dict[str, Any]:
    """Return what a record has of a test."""
    found = test._asdict()
    return {"test_loss": found.pop("loss"), **found}


class Evaluation(Callback):
    """Fills in what a record says of the model, in the rounds that are evaluated."""

    on_all_ranks = True

    def record(self, simulation: Simulation) -> dict[str, Any]:
        """Return nothing but in rounds that are evaluated."""
        if not simulation.evaluates:
            return {}
        judge = simulation.clock.timed("evaluation", self._judge)
        found: dict[str, Any] = judge(simulation)
        return found

    def _judge(self, simulation: Simulation) -> dict[str, Any]:
        """Return what may be reported: in a private run the test data, which are public, and what
        the atoms say of x_i.
        """
        constraint = simulation.constraint
        xbar = simulation.xbar
        test = simulation.problem.test(simulation.feasible())
        inside = constraint.contains(xbar)
        far = constraint.distance(xbar) if not inside and constraint.has_projection else None
        found = {**_tested(test), "distance": 0.0 if inside else far}
        found |= certified(simulation.problem, simulation.feasible(), simulation.options)
        apart = None
        if has_points(simulation.algorithm):
            apart = simulation.coordinator.memory.spread(simulation.server.xbar)
            found["consensus"] = apart**0.5
        if not simulation.reports_loss:
            return found
        return found | self._of_the_data(simulation, apart, inside)

    def _of_the_data(
        self, simulation: Simulation, apart: float | None, inside: bool
    ) -> dict[str, Any]:
        """Loss, gap and surrogate (from ||X - Xbar||^2), which come from the clients' data.

        They are compared with each other and with what was proven. Where xbar is not ``inside`` of
        the set, F may be less there than the optimum.
        """
        problem = simulation.problem
        xbar = simulation.xbar
        rates = simulation.rates
        t = simulation.t
        check = simulation.contradictions
        found: dict[str, Any] = {}
        own = None
        if apart is not None:
            points = simulation.clients["x"]
            own = points, problem.each_value_at(points.to(xbar.dtype))
            lam = 0.0 if rates is None else rates.lam
            found["surrogate"] = float(problem.ranks.sums(own[1].sum())[0]) + lam / 2 * apart
        values, gradients = problem.each_value_and_gradient(xbar, t)
        loss, gradient = problem.total(values, gradients, t)
        gap = frank_wolfe_gap(simulation.constraint, xbar, gradient)
        validate_gap(simulation.constraint, xbar, gradient, gap, f"round {t}")
        if check is not None:
            self._prove(simulation, loss, gap)
            check.compare_clients(t, ClientLosses(xbar, values, gradients), own)
            check.add_model(t, xbar, loss, gradient, values)
            if inside:
                check.add_loss(t, xbar, loss)
            check.compare(t, simulation.best_bound)
        return found | {"loss": loss, "gap": gap}

    def _prove(self, simulation: Simulation, loss: float, gap: float) -> None:
        """F - gap is a lower bound on the optimum; in a float32 run it is worked out again in
        float64.

        That costs as much as the evaluation itself, so it is done where it would bring the best
        bound nearer to the loss by more than a hundredth of what is between them.
        """
        coordinator = simulation.coordinator
        xbar = simulation.xbar
        if xbar.dtype is not torch.float64:
            best = coordinator.best_bound
            if best is not None and loss - gap <= best + 0.01 * (loss - best):
                return
            loss, gradient = simulation.problem.value_and_gradient(xbar, simulation.t, exact=True)
            gap = frank_wolfe_gap(simulation.constraint, xbar.double(), gradient)
        coordinator.proof.improve(loss - gap)
