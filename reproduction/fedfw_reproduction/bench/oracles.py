"""Time of each set's oracle against its projection, as ratios measured in one run.

    python -m fedfw_reproduction.bench.oracles                    print the table
    python -m fedfw_reproduction.bench.oracles --write            and put it into reproduction/reports/oracles.md

Repeats of the two sides are interleaved, so that a busy machine slows both; medians are compared.
Float32 input, a direction drawn once from a Gaussian; iterating oracles at 1e-3 relative accuracy.
For the nuclear ball there are also directions of real runs, every other round of a client, each
with the oracle's answer to the one before as a start.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

import fedfw
from fedfw.atoms import Atom
from fedfw.linalg import singular
from fedfw.problems import MatrixCompletion
from fedfw.sets import ConstraintSet, Request, Shape
from fedfw_reproduction.bench.pages import machine, publish

TOL = 1e-3
SIDE = 1000  # of the matrices for which the nuclear ball's oracle is compared in detail
SLOW = 20.0  # seconds: a projection slower than this is timed once


def interleaved(
    *sides: Callable[[], object],
    repeats: int = 7,
    warm_up: int = 1,
    wait: Callable[[], object] = lambda: None,
) -> list[float]:
    """Median seconds of each side after its first calls; ``wait`` returns when a GPU is done."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats + warm_up):
        for side, kept in zip(sides, times, strict=True):
            wait()
            start = time.perf_counter()
            side()
            wait()
            kept.append(time.perf_counter() - start)
        if sum(map(sum, times)) > SLOW:
            break
    return [median(kept[warm_up:] or kept) for kept in times]


def cases() -> list[tuple[str, ConstraintSet, Shape]]:
    found: list[tuple[str, ConstraintSet, Shape]] = []
    for p in (10**4, 10**6):
        k = p // 100
        vectors: list[ConstraintSet] = [
            fedfw.L1Ball(10.0),
            fedfw.L2Ball(10.0),
            fedfw.LinfBall(0.1),
            fedfw.Box(-0.1, 0.2),
            fedfw.KSparse(k, 0.5),
            fedfw.KSupport(k, 10.0),
            fedfw.GroupBall(10.0, torch.arange(p) // 10),
            fedfw.Simplex(10.0),
            fedfw.CappedSimplex(10.0),
            fedfw.Hypersimplex(k),
        ]
        found += [(f"p = {p:,}", D, (p,)) for D in vectors]
    found.append(
        (
            "p = 10,000",
            fedfw.Hull(torch.randn(50, 10**4, generator=torch.Generator().manual_seed(1))),
            (10**4,),
        )
    )
    found.append(("p = 100", fedfw.SETS["polytope"].example((100,)), (100,)))
    for m in (100, 500, 1000):
        matrices: list[ConstraintSet] = [
            fedfw.NuclearBall(10.0),
            fedfw.SpectralBall(1.0),
            fedfw.PartialIsometry(5, 1.0),
            fedfw.Spectrahedron(10.0),
        ]
        if m == 100:
            matrices.append(fedfw.Birkhoff())
        found += [(f"{m} x {m}", D, (m, m)) for D in matrices]
    return found


def name_of(D: ConstraintSet) -> str:
    return "GroupBall, groups of 10" if isinstance(D, fedfw.GroupBall) else repr(D)


def table() -> list[str]:
    lines = [
        "| size | set | oracle ms | projection ms | projection / oracle |",
        "|---|---|---:|---:|---:|",
    ]
    for size, D, shape in cases():
        g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        print(f"  {size}: {name_of(D)}", file=sys.stderr, flush=True)
        oracle, projection = interleaved(
            lambda D=D, g=g: D.lmo(g, tol=TOL), lambda D=D, g=g: D.project(g)
        )
        ratio = projection / oracle
        lines.append(
            f"| {size} | {name_of(D)} | {oracle * 1e3:.3g} | {projection * 1e3:.3g} | {ratio:.1f} |"
        )
    return lines


def claims() -> list[str]:
    """The figures the project promises, each from its own interleaved run."""
    vector = torch.randn(10**6, generator=torch.Generator().manual_seed(0))
    l1 = fedfw.L1Ball(10.0)
    oracle, projection, bare = interleaved(
        lambda: l1.lmo(vector),
        lambda: l1.project(vector),
        lambda: vector.abs().argmax(),
        repeats=15,
    )
    gaussian = [
        torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(seed)) for seed in range(6)
    ]
    return [
        f"- l1, p = 1,000,000: projection / oracle = {projection / oracle:.1f}; "
        f"oracle / bare `abs().argmax()` = {oracle / bare:.2f}.",
        nuclear_claim("independent Gaussian matrices", gaussian),
        nuclear_claim(
            "what FedFW asks in rounds 2 to 12 of matrix completion", directions(*completion())
        ),
    ]


def nuclear_claim(what: str, matrices: list[Tensor]) -> str:
    """The nuclear ball's oracle against the projection and an SVD."""
    D = fedfw.NuclearBall(10.0)
    steps, errors, by_projection, by_svd = [], [], [], []
    for g in matrices[1:]:
        pair = singular.top_singular(g[None], TOL)
        steps.append(int(pair.steps))
        errors.append(1 - float(pair.value[0] / torch.linalg.matrix_norm(g.double(), 2)))
        lanczos, projection, svd = interleaved(
            lambda g=g: D.lmo(g, tol=TOL),
            lambda g=g: D.project(g),
            lambda g=g: torch.linalg.svd(g, full_matrices=False),
            repeats=3,
        )
        by_projection.append(projection / lanczos)
        by_svd.append(svd / lanczos)
    return (
        f"- nuclear, {SIDE} x {SIDE}, tolerance {TOL:g}, {what}, medians of {len(steps)}: {median(steps):g} Lanczos "
        f"steps ({min(steps)} to {max(steps)}), relative error at most {max(max(errors), 1e-7):.0e}; projection / "
        f"oracle = {median(by_projection):.0f}; a bare float32 SVD / oracle = {median(by_svd):.0f}."
    )


def completion() -> tuple[fedfw.Problem, float]:
    """Two clients with 100,000 noisy entries each of a matrix of rank 5, and half of that matrix's
    nuclear norm.
    """
    random = torch.Generator().manual_seed(0)
    low_rank = torch.randn(SIDE, 5, generator=random) @ torch.randn(5, SIDE, generator=random)
    clients = []
    for _ in range(2):
        places = torch.randint(0, SIDE, (100_000, 2), generator=random)
        values = low_rank[places[:, 0], places[:, 1]]
        clients.append((places, values + 0.3 * torch.randn(len(values), generator=random)))
    problem = fedfw.Problem(MatrixCompletion(SIDE, SIDE), mse_loss, clients)
    return problem, 0.5 * float(torch.linalg.matrix_norm(low_rank, "nuc"))


def directions(problem: fedfw.Problem, radius: float, rounds: int = 12) -> list[Tensor]:
    """Return the directions of the first client's oracle in every other round of a run of FedFW."""
    asked: list[Tensor] = []

    class Recorded(fedfw.NuclearBall):
        def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
            if (
                len(g) == 2 and g.dtype is torch.float32
            ):  # both clients: not what the server asks, nor a proof's float64
                asked.append(g[0].reshape(shape).clone())
            return super()._lmo(g, shape, request)

    fedfw.simulate(problem, fedfw.FedFW(Recorded(radius), momentum=0.0), rounds=rounds)
    return asked[1::2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write reproduction/reports/oracles.md"
    )
    options = parser.parse_args()
    lines = [
        "# Oracle against projection",
        "",
        "Made by `python -m fedfw_reproduction.bench.oracles --write`; how it measures stands at the top of that file.",
        machine(),
        "",
        *claims(),
        "- spectral: docs/studies/spectral.md explains the oracle and its proofs;",
        "  `python -m fedfw_reproduction.bench.spectral` compares it with an SVD.",
        "",
        *table(),
    ]
    publish(lines, "oracles.md" if options.write else None)


if __name__ == "__main__":
    main()
