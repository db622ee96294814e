"""
A sparse Cox model across hospitals
===================================

Six regions' hospitals find together what a patient's risk depends on, and nobody's patients leave
their region. The data are not part of fedfw: ``fedfw data get tcga-brca`` downloads 140 kB and
shows the terms of use. The radius 8 is what cross-validation on the training data chose
(docs/studies/hospitals.md).
"""

import fedfw
from fedfw.data import MissingDataError

try:
    problem = fedfw.load_problem("tcga-brca", "cox", clients=6, weights="samples")
except MissingDataError as missing:
    raise SystemExit(str(missing)) from None

ball = fedfw.L1Ball(8.0)
optimum = fedfw.solve(problem, ball)
print(
    f"all data in one place: loss {optimum.value:.4f}, concordance {problem.test(optimum.x).concordance:.3f}"
)

for algorithm in (fedfw.FedFWPlus(ball, momentum=0.9), fedfw.FedFWAnchored(ball, momentum=0.9)):
    run = fedfw.simulate(problem, algorithm, rounds=300, eval_every=300)
    last, sent = run.history[-1], run.history.total("bytes_up")
    variables = int((run.x.abs() >= 0.01 * run.x.abs().max()).sum())
    print(
        f"{algorithm.name}: {optimum.residual(last.loss):.1%} from the optimum, concordance {last.concordance:.3f}, "
        f"{variables} of {run.x.numel()} variables, {sent / 1e3:.1f} kB up"
    )
