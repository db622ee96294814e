"""What travels: an atom's bytes against the least that information theory allows, and bytes to the same loss as FedAvg.

    python -m fedfw_reproduction.bench.wire

The first table is for 7,850 parameters ([W | b] of 10 x 785 for matrices). An atom that is one of N possible ones needs
log2(N) bits; singular vectors are counted as the floats they are rounded to. One more byte goes in front.

The second: softmax regression on the digits that come with scikit-learn, ten IID clients, all bytes up and down. FedFW+
runs 100 rounds with momentum; projected FedAvg, with the best of some step sizes, runs until
its loss is as low. What FedFW+ reached is given as the residual (F - F*) / (F(0) - F*).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

import fedfw
from fedfw_reproduction.bench.pages import markdown

P, SHAPE = 7850, (10, 785)
STEPS = (0.5, 2.0, 8.0, 32.0)
MOST_ROUNDS = 400


def choose_bits(p: int, k: int) -> float:
    return (math.lgamma(p + 1) - math.lgamma(k + 1) - math.lgamma(p - k + 1)) / math.log(2)


def atoms() -> list[Sequence[str]]:
    g = torch.randn(P, generator=torch.Generator().manual_seed(0))
    k = 79
    cases = {
        "l1": (fedfw.L1Ball(1.0).lmo(g), math.log2(2 * P)),
        f"k-sparse, k = {k}": (fedfw.KSparse(k, 1.0).lmo(g), choose_bits(P, k) + k),
        "sign (linf)": (fedfw.LinfBall(1.0).lmo(g), float(P)),
        "nuclear, float32": (fedfw.NuclearBall(1.0).lmo(g.reshape(SHAPE)), 32.0 * sum(SHAPE)),
        "nuclear, float16": (
            fedfw.NuclearBall(1.0).lmo(g.reshape(SHAPE), precision=torch.float16),
            16.0 * sum(SHAPE),
        ),
        "l2, float32": (fedfw.L2Ball(1.0).lmo(g), 32.0 * P),
    }
    rows = []
    for name, (atom, bits) in cases.items():
        sent, least = len(atom.to_bytes()), bits / 8
        rows.append((name, f"{sent:,}", f"{least:,.1f}", f"{sent / least:.2f}", f"{4 * P / sent:,.1f}"))
    return rows


def to_the_same_loss() -> list[Sequence[str]]:
    rows = []
    for constraint in (fedfw.L1Ball(30.0), fedfw.KSparse(65, 1.0), fedfw.NuclearBall(10.0), fedfw.LinfBall(0.5)):
        problem = fedfw.load_problem("digits", clients=10, partition="iid")
        optimum = fedfw.solve(problem, constraint)
        begun = problem.value(problem.start)
        multiple = "theory:0.001" if constraint.is_polytope else "theory:0.1"
        algorithm = fedfw.FedFWPlus(constraint, penalty=multiple, momentum=0.9)
        run = fedfw.simulate(problem, algorithm, rounds=100, eval_every=1)
        best = min(record.loss for record in run.history if record.loss is not None)
        upto = next(i for i, record in enumerate(run.history) if record.loss == best) + 1
        ours = sum(r.bytes_up + r.bytes_down for r in run.history[:upto])
        theirs, rounds = _fedavg(problem, constraint, best)
        rows.append(
            (
                constraint.name,
                f"{(best - optimum.value) / (begun - optimum.value):.3f}",
                f"{upto}",
                f"{ours / 1e3:,.0f}",
                rounds,
                theirs if not isinstance(theirs, int) else f"{theirs / 1e3:,.0f}",
                "-" if not isinstance(theirs, int) else f"{theirs / ours:.1f}",
            )
        )
    return rows


def _fedavg(problem: fedfw.Problem, constraint: fedfw.ConstraintSet, goal: float) -> tuple[int | str, str]:
    """The bytes and rounds that projected FedAvg needs, with the best of some step sizes."""
    found: tuple[int | str, str] = "never", f"> {MOST_ROUNDS}"
    fewest = MOST_ROUNDS + 1
    for lr in STEPS:
        run = fedfw.simulate(problem, fedfw.FedAvg(constraint, lr=lr), rounds=MOST_ROUNDS)
        there = next((i + 1 for i, r in enumerate(run.history) if r.loss is not None and r.loss <= goal), None)
        if there is not None and there < fewest:
            fewest = there
            found = sum(r.bytes_up + r.bytes_down for r in run.history[:there]), str(there)
    return found


def main() -> None:
    header = ("atom", "bytes", "least", "bytes / least", "dense / bytes")
    print("\n".join(markdown(header, atoms())))
    print()
    header = ("set", "residual", "FedFW+ rounds", "kB", "FedAvg rounds", "kB", "FedAvg / FedFW+")
    print("\n".join(markdown(header, to_the_same_loss())))


if __name__ == "__main__":
    main()
