"""Evaluation: loss, test data, gap, surrogate and how far apart the clients are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedfw.certificates import frank_wolfe_gap
from fedfw.problems.base import Test
from fedfw.rounds.robustness import certified
from fedfw.simulation.callbacks.base import Callback

if TYPE_CHECKING:
    from fedfw.simulation.simulator import Simulation


def _tested(test: Test) -> dict[str, Any]:
    """What a record has of a test."""
    found = test._asdict()
    return {"test_loss": found.pop("loss"), **found}


class Evaluation(Callback):
    """Fills in what a record says of the model, in the rounds that are evaluated."""

    def record(self, simulation: Simulation) -> dict[str, Any]:
        if simulation.ended_at_gather:
            return self._after_gather(simulation)
        if not simulation.evaluates:
            return {}
        judge = simulation.clock.timed("evaluation", self._judge)
        found: dict[str, Any] = judge(simulation)
        return found

    def _judge(self, simulation: Simulation) -> dict[str, Any]:
        """What may be reported: in a private run the test data, which are public, and what the atoms say of x_i."""
        constraint, xbar = simulation.constraint, simulation.xbar
        test = simulation.problem.test(simulation.feasible())
        inside = constraint.contains(xbar)
        far = constraint.distance(xbar) if not inside and constraint.has_projection else None
        found = {**_tested(test), "distance": 0.0 if inside else far}
        found |= certified(simulation.problem, simulation.feasible(), simulation.options)
        apart = None
        if simulation.algorithm.contract.points:
            apart = simulation.coordinator.memory.spread(simulation.server.xbar)
            found["consensus"] = apart**0.5
        return found | self._of_the_data(simulation, apart) if simulation.reports_loss else found

    def _of_the_data(self, simulation: Simulation, apart: float | None) -> dict[str, Any]:
        """Loss, gap and surrogate (from ||X - Xbar||^2), which come from the clients' data."""
        problem, xbar, rates = simulation.problem, simulation.xbar, simulation.rates
        loss, gradient = problem.value_and_gradient(xbar, simulation.t)
        gap = frank_wolfe_gap(simulation.constraint, xbar, gradient)
        if simulation.certificate.proves:
            self._prove(simulation, loss, gap)
        found = {"loss": loss, "gap": gap}
        if apart is not None:
            lam = 0.0 if rates is None else rates.lam
            found["surrogate"] = problem.value_at(simulation.clients["x"].to(xbar.dtype)) + lam / 2 * apart
        return found

    def _prove(self, simulation: Simulation, loss: float, gap: float) -> None:
        """F - gap is a lower bound on the optimum; in a float32 run it is worked out again in float64.

        That costs as much as the evaluation itself, so it is done where it would bring the best bound nearer to the
        loss by more than a hundredth of what is between them.
        """
        coordinator, xbar = simulation.coordinator, simulation.xbar
        if xbar.dtype is not torch.float64:
            best = coordinator.best_bound
            if best is not None and loss - gap <= best + 0.01 * (loss - best):
                return
            loss, gradient = simulation.problem.value_and_gradient(xbar, simulation.t, exact=True)
            gap = frank_wolfe_gap(simulation.constraint, xbar.double(), gradient)
        coordinator.improve(loss - gap)

    def _after_gather(self, simulation: Simulation) -> dict[str, Any]:
        """A round that ended with its gathered sum: xbar is good enough and nobody took another step."""
        now = simulation.now
        assert now.gathered is not None
        test = simulation.problem.test(simulation.xbar)
        return {
            "loss": None if now.gathered.gradient is None else now.gathered.loss,  # a sum over some clients is not F
            "gap": now.anchor_gap,
            **_tested(test),
            "distance": 0.0,
            **certified(simulation.problem, simulation.xbar, simulation.options),
        }
