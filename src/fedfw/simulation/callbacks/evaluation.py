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
        """Return the fields of a record on the model; in a private run only those from test data,
        which are public, and from the atoms, which were sent.
        """
        constraint = simulation.constraint
        xbar = simulation.xbar
        test = simulation.problem.test(simulation.feasible())
        inside = constraint.contains(xbar)
        distance = constraint.distance(xbar) if not inside and constraint.has_projection else None
        results = {**_tested(test), "distance": 0.0 if inside else distance}
        results |= certified(simulation.problem, simulation.feasible(), simulation.options)
        squared_distances = None
        if has_points(simulation.algorithm):
            # The sum over all clients of ||x_i - xbar||^2.
            squared_distances = simulation.coordinator.memory.spread(simulation.server.xbar)
            results["consensus"] = squared_distances**0.5
        if not simulation.reports_loss:
            return results
        return results | self._of_the_data(simulation, squared_distances, inside)

    def _of_the_data(
        self, simulation: Simulation, squared_distances: float | None, inside: bool
    ) -> dict[str, Any]:
        """Return loss, gap and surrogate, which come from the clients' data; ``squared_distances``
        is the sum of ||x_i - xbar||^2, None for methods without points.

        They are compared with each other and with what was proven. Where xbar is not ``inside`` of
        the set, F may be less there than the optimum.
        """
        problem = simulation.problem
        xbar = simulation.xbar
        rates = simulation.rates
        t = simulation.t
        check = simulation.contradictions
        results: dict[str, Any] = {}
        at_own_points = None
        if squared_distances is not None:
            points = simulation.clients["x"]
            losses = problem.each_value_at(points.to(xbar.dtype))
            at_own_points = points, losses
            lam = 0.0 if rates is None else rates.lam
            total = float(problem.ranks.sums(losses.sum())[0])
            # The loss that the clients minimise together: sum w_i f_i(x_i) + lam/2 ||X - Xbar||^2.
            results["surrogate"] = total + lam / 2 * squared_distances
        values, gradients = problem.each_value_and_gradient(xbar, t)
        loss, gradient = problem.total(values, gradients, t)
        gap = frank_wolfe_gap(simulation.constraint, xbar, gradient)
        validate_gap(simulation.constraint, xbar, gradient, gap, f"round {t}")
        if check is not None:
            self._prove(simulation, loss, gap)
            check.compare_clients(t, ClientLosses(xbar, values, gradients), at_own_points)
            check.add_model(t, xbar, loss, gradient, values)
            if inside:
                check.add_loss(t, xbar, loss)
            check.compare(t, simulation.best_bound)
        return results | {"loss": loss, "gap": gap}

    def _prove(self, simulation: Simulation, loss: float, gap: float) -> None:
        """Take in the lower bound F - gap on the optimum; in a float32 run it is worked out again
        in float64.

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
