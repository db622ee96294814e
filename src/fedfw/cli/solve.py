"""``fedfw solve``: the central optimum of a configuration, with its proof."""

import argparse
import json
import sys
import time
import warnings

from fedfw.cli.arguments import LAST_LINE, adds, argument
from fedfw.cli.flags import FILE, configured, flags_of
from fedfw.config import build_problem, completed, constraint_of, load
from fedfw.rounds.setup import usable_device
from fedfw.solving import solve

_MATTERS = (
    *("dataset", "data_dir", "target", "time", "client_column", "model", "l2", "clients"),
    *("partition", "weights", "constraint", "per_parameter", "seed", "device"),
)
"""The options that the optimum depends on."""


add_arguments = adds(
    FILE,
    *flags_of(_MATTERS),
    argument(
        "--tol",
        type=float,
        default=1e-3,
        help="how well F* must be known, relatively [%(default)s]",
    ),
    argument(
        "--max-steps", type=int, default=5000, help="give up after so many steps [%(default)s]"
    ),
    LAST_LINE,
)


def execute(options: argparse.Namespace) -> int:
    """Print the optimum F*, a lower bound on it, and the test results of the optimal point; return
    the exit status, 1 where the accuracy that was asked for was not reached.
    """
    config = configured(options, _MATTERS)
    data = load(config)
    config = completed(config, data)
    problem = build_problem(config, data).to(usable_device(config.device or "cpu"))
    begin = time.monotonic()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="solve gave up")  # the closing lines say so
        optimum = solve(
            problem,
            constraint_of(config),
            tol=options.tol,
            max_steps=options.max_steps,
            progress=True,
        )
    test = problem.test(optimum.x)
    facts = {
        "value": optimum.value,
        "lower_bound": optimum.lower_bound,
        "start_value": optimum.start_value,
        "uncertainty": optimum.uncertainty,
        "accuracy": test.accuracy,
        "concordance": test.concordance,
        "test_loss": test.loss,
        "steps": optimum.steps,
        "method": optimum.method,
        "seconds": time.monotonic() - begin,
    }
    print(
        f"F* is between {optimum.lower_bound:.6g} and {optimum.value:.6g}; F at the start is "
        f"{optimum.start_value:.6g}\nso F* is known to {optimum.uncertainty:.2g} of the initial "
        f"gap (asked for: {options.tol:g})"
    )
    for name in ("accuracy", "concordance"):
        if facts[name] is not None:
            print(f"test {name} of the optimum: {facts[name]:.4f}")
    print(f"{optimum.method}, {optimum.steps} steps, {facts['seconds']:.1f} s")
    if options.json:
        print(json.dumps(facts))
    if optimum.uncertainty <= options.tol:
        return 0
    print(
        f"fedfw solve: gave up after {optimum.steps} steps; --max-steps allows more",
        file=sys.stderr,
    )
    return 1
