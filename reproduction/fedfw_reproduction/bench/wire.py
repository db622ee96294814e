"""What travels: an atom's bytes against the least that information theory allows.

    python -m fedfw_reproduction.bench.wire

It is for 7,850 parameters ([W | b] of 10 x 785 for matrices). An atom that is one of N possible
ones needs log2(N) bits; singular vectors are counted as the floats they are rounded to. One more
byte goes in front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

import fedfw
from fedfw_reproduction.bench.pages import markdown

P, SHAPE = 7850, (10, 785)


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
        rows.append(
            (name, f"{sent:,}", f"{least:,.1f}", f"{sent / least:.2f}", f"{4 * P / sent:,.1f}")
        )
    return rows


def main() -> None:
    header = ("atom", "bytes", "least", "bytes / least", "dense / bytes")
    print("\n".join(markdown(header, atoms())))


if __name__ == "__main__":
    main()
