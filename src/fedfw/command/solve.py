"""``fedfw solve``: the central optimum of a configuration, with its proof."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from fedfw.command.build import build_problem, constraint_of, load
from fedfw.command.defaults import resolved
from fedfw.command.run import configure
from fedfw.optimum import solve
from fedfw.simulation.setup import usable_device


def solve_centrally(file: str | None, flags: dict[str, Any], tol: float, max_steps: int, as_json: bool) -> int:
    """Print F*, the bound below it and the accuracy of the optimum itself."""
    config, _ = configure(file, flags)
    data = load(config)
    config = resolved(config, data, algorithm_was_given=True)
    problem = build_problem(config, data)
    begin = shown = time.monotonic()

    def progress(step: int, value: float, bound: float) -> None:
        nonlocal shown
        if time.monotonic() - shown > 2:
            shown = time.monotonic()
            print(f"step {step}  F* between {bound:.6f} and {value:.6f}", file=sys.stderr)

    optimum = solve(problem.to(usable_device(config.device)), constraint_of(config), tol, max_steps, progress)
    test = problem.test(optimum.x.to(problem.start.device))
    told = {
        "value": optimum.value,
        "lower_bound": optimum.lower_bound,
        "start_value": optimum.start_value,
        "uncertainty": optimum.uncertainty,
        "accuracy": test.accuracy,
        "test_loss": test.loss,
        "steps": optimum.steps,
        "method": optimum.method,
        "seconds": time.monotonic() - begin,
    }
    print(
        f"F* is between {optimum.lower_bound:.6g} and {optimum.value:.6g}; F at the start is {optimum.start_value:.6g}"
    )
    print(f"so F* is known to {optimum.uncertainty:.2g} of the way from the start (asked for: {tol:g})")
    if test.accuracy is not None:
        print(f"test accuracy of the optimum: {test.accuracy:.4f}")
    print(f"{optimum.method}, {optimum.steps} steps, {told['seconds']:.1f} s")
    reached = optimum.uncertainty <= tol
    if not reached:
        print(f"fedfw solve: gave up after {optimum.steps} steps; --max-steps allows more", file=sys.stderr)
    if as_json:
        print(json.dumps(told))
    return 0 if reached else 1
