"""The oracle of the spectral ball at a tolerance of 1e-3 against `torch.linalg.svd`, measured in
one run.

    python -m fedfw_reproduction.bench.spectral                   on the CPU
    python -m fedfw_reproduction.bench.spectral --device cuda     on a GPU

Stacks of ten float32 matrices with Gaussian entries. The two sides are interleaved and medians are
compared, after as many calls as a GPU takes to record the oracle, which a training run does once
for a shape. The value is <g, s> over the nuclear norm, and the largest singular value is that of s,
for the worst matrix of a stack; both are checked in float64 by an SVD of what the oracle returned,
as is the proven error, which is never below the true one.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import fedfw
from fedfw_reproduction.bench.oracles import interleaved
from fedfw_reproduction.bench.pages import machine, markdown

SHAPES = ((512, 512), (128, 3136), (128, 128), (512, 128))
COUNT = 10
TOL = 1e-3
WARM_UP = 6  # the oracle is recorded in the fourth call with a shape
REPEATS = 9


def row(shape: tuple[int, int], device: str) -> list[str]:
    """One line of the table."""
    ball = fedfw.SpectralBall(1.0)
    G = torch.randn(COUNT, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    times = interleaved(
        lambda: torch.linalg.svd(G, full_matrices=False),
        lambda: ball.lmo(G, batch=True, tol=TOL),
        repeats=REPEATS,
        warm_up=WARM_UP,
        wait=torch.cuda.synchronize if device == "cuda" else lambda: None,
    )
    svd, oracle = (1e3 * seconds for seconds in times)
    atoms = ball.lmo(G, batch=True, tol=TOL)
    assert atoms.bound is not None
    s, g = atoms.dense(torch.float64).cpu(), G.double().cpu()
    nuclear: Tensor = torch.linalg.svdvals(g).sum(1)
    values, largest = -(g * s).sum((1, 2)) / nuclear, torch.linalg.svdvals(s)[:, 0]
    proven = 1 + (g * s).sum((1, 2)) / -atoms.bound.cpu()
    return [
        f"{COUNT} x {shape[0]} x {shape[1]}",
        f"{svd:.2f}",
        f"{oracle:.2f}",
        f"{svd / oracle:.1f}",
        f"{float(values.min()):.7f}",
        f"{float(proven.max()):.1e}",
        f"{float(largest.max()):.7f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where it runs")
    device = parser.parse_args().device
    header = (
        "matrices",
        "SVD ms",
        "oracle ms",
        "SVD / oracle",
        "value",
        "proven error",
        "largest singular value",
    )
    print(
        machine(device), "\n", *markdown(header, [row(shape, device) for shape in SHAPES]), sep="\n"
    )


if __name__ == "__main__":
    main()
