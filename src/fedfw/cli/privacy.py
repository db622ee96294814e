"""``fedfw privacy``: what a promise of differential privacy costs, before anything is run."""

import argparse
import math

from fedfw.cli.arguments import adds, argument
from fedfw.cli.flags import flags_of, values_given
from fedfw.cli.sets import SHAPE
from fedfw.config import RunConfig, merge
from fedfw.config.build import FIRST_CHOICE
from fedfw.config.run_config import algorithm_class
from fedfw.privacy import Privacy
from fedfw.privacy.guarantee import MOST_EPS
from fedfw.privacy.steps import PrivacyPlan
from fedfw.report.tables import fitted, wrapped
from fedfw.sets import parse_set

_ROWS = (0.01, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Parts of the rounds after which the table says what is spent."""


add_arguments = adds(
    argument("--eps", type=float, help="the promise: the noise that keeps it is worked out"),
    argument("--noise", type=float, help="a noise multiplier: what it spends is worked out"),
    argument(
        "--delta", type=float, default=1e-5, help="well below 1 / samples of a client [%(default)s]"
    ),
    *flags_of(("rounds", "local_steps", "batch_size"), defaults={"batch_size": "all samples"}),
    argument("--samples", type=int, help="samples of the smallest client, with --batch-size"),
    argument(
        "--constraint", default="l2:1", help="the set, which decides the mechanism [%(default)s]"
    ),
    SHAPE,
    argument("--algorithm", default=FIRST_CHOICE, help="see 'fedfw algorithms' [%(default)s]"),
)


def execute(options: argparse.Namespace) -> int:
    """Print the noise multiplier of a privacy promise and the epsilon spent after some rounds;
    return the exit status.
    """
    if options.eps is None and options.noise is None:
        raise ValueError(
            "neither --eps nor --noise is given, expected one of them, or both to see how many "
            "rounds fit"
        )
    run = merge(RunConfig(), values_given(options), "command line")
    if (run.batch_size is None) != (options.samples is None):
        raise ValueError(
            "--batch-size and --samples, the number of samples of the smallest client, belong "
            "together: expected both or none"
        )
    if options.samples is not None and options.samples < 1:
        raise ValueError(f"--samples {options.samples}, expected a whole number of at least 1")
    promise = Privacy(
        MOST_EPS if options.eps is None else options.eps, options.delta, noise=options.noise
    )
    constraint = parse_set(options.constraint)
    plan = PrivacyPlan.of(
        promise,
        algorithm_class(options.algorithm)(constraint),
        constraint.bind({"weight": options.shape}),
        shape=(math.prod(options.shape),),
        fewest_samples=options.samples or 1,
        rounds=run.rounds,
        local_steps=run.local_steps,
        batch_size=run.batch_size,
    )
    rounds = sorted({max(1, round(part * plan.most_rounds)) for part in _ROWS})
    spent = {t: plan.epsilon(t) for t in rounds}
    print(
        wrapped(
            f"{plan.how} with noise multiplier {plan.noise:.4g}; delta is {promise.delta:g}; "
            f"sampling probability {plan.accountant.rate:.4g}"
        )
    )
    rows = [(str(t), f"{eps:.4g}") for t, eps in spent.items()]
    print(fitted([("rounds", "epsilon spent"), *rows], right=(0, 1)))
    if plan.most_rounds < run.rounds:
        print(f"eps {promise.eps:g} is spent after {plan.most_rounds} of {run.rounds} rounds")
    noise = "" if options.noise is None else f",noise={options.noise:g}"
    eps = spent[plan.most_rounds] if options.eps is None else options.eps
    print(f"Option for a run:  --privacy eps={eps:.6g},delta={promise.delta:g}{noise}")
    return 0
