"""Methods on which tests of common properties run, each with a set and options of its own."""

from functools import cache

import torch
import torch.nn.functional as nnf
from torch import nn

import fedfw

L1, L2, NUCLEAR = fedfw.L1Ball(5.0), fedfw.L2Ball(5.0), fedfw.NuclearBall(5.0)

METHODS = {
    "FedFW": fedfw.FedFW(L1, penalty=0.01),
    "FedFW+": fedfw.FedFWPlus(NUCLEAR, penalty=0.01),
    "FedFW+ with momentum": fedfw.FedFWPlus(L2, penalty=0.01, momentum=0.9),
    "FedFW-sto": fedfw.FedFWSto(L2, penalty=0.01),
    "anchored": fedfw.FedFWAnchored(L1, penalty=0.01, anchor_every=3, momentum=0.5),
    "anchored, own points": fedfw.FedFWAnchored(L1, penalty=0.0, anchor_every=3, gradient_at="own"),
    "anchored, the 3 largest": fedfw.FedFWAnchored(
        L1, penalty=0.01, anchor_every=2, compress="topk:3"
    ),
    "anchored, 4 bits": fedfw.FedFWAnchored(NUCLEAR, penalty=0.01, momentum=0.5, compress="bits:4"),
    "product": fedfw.FedFW(fedfw.Product({"weight": L1, "*": L2}), penalty=0.01),
    "naive": fedfw.NaiveFW(L1),
    "FedLMO": fedfw.FedLMO(fedfw.Product({"weight": fedfw.SpectralBall(2.0), "*": L2})),
    "FedLMO, lazy": fedfw.FedLMO(L1, renew_every=3, momentum=0.5),
    "FedLMO, plain": fedfw.FedLMO(L2, correction=False),
    "FedLMO, momentum left open": fedfw.FedLMO(L2, momentum="auto"),
    "FedLMO, 4 bits": fedfw.FedLMO(
        fedfw.Product({"weight": fedfw.SpectralBall(2.0), "*": L2}), compress="bits:4"
    ),
    "FedLMO, 8 bits on [W|b]": fedfw.FedLMO(fedfw.SpectralBall(2.0), compress="bits:8"),
    "FedLMO, lazy, 2 bits": fedfw.FedLMO(L1, renew_every=3, momentum=0.5, compress="bits:2"),
    "FedLMO at the server, 4 bits": fedfw.ServerLMO(L2, compress="bits:4"),
    "FedLMO at the server": fedfw.ServerLMO(L2),
    "LocalMuon": fedfw.contrib.LocalMuon(
        fedfw.Product({"weight": fedfw.SpectralBall(2.0), "*": L2})
    ),
    "FedMuon": fedfw.contrib.FedMuon(fedfw.Product({"weight": fedfw.SpectralBall(2.0), "*": L2})),
    "FedMuon on sparse atoms": fedfw.contrib.FedMuon(L1, momentum=0.0),
    "FedMuon with control variates": fedfw.contrib.FedMuonCV(L1),
    "FedAvg": fedfw.FedAvg(L1, lr=0.5),
    "FedAvg, decaying": fedfw.FedAvg(L1, lr=0.5, decay="linear"),
    "FedAvgM": fedfw.FedAvgM(L1, lr=0.5),
    "FedCM": fedfw.FedCM(L2, lr=0.5),
    "SCAFFOLD": fedfw.Scaffold(L1, lr=0.5, decay="linear"),
    "FedAdam": fedfw.FedAdam(L2, lr=0.5, decay="linear"),
    "FedAdamW": fedfw.FedAdamW(L1, lr=0.05),
    "FedDA": fedfw.FedDA(L1, lr=0.5),
    "FedDR": fedfw.FedDR(L1, lr=0.1),
    "FedDR, top 3": fedfw.FedDR(L1, lr=0.1, compress="topk:3"),
    "FedADMM": fedfw.contrib.FedADMM(L2, lr=0.1),
    "FedPAL": fedfw.contrib.FedPAL(L1, lr=0.1),
    "Fast-FedDA": fedfw.contrib.FastFedDA(L1, lr=0.5, strong=0.2),
    "Frank-Wolfe": fedfw.FrankWolfe(L1, momentum=0.5),
    "Frank-Wolfe, an atom": fedfw.FrankWolfe(
        NUCLEAR, momentum=0.5, compress="atoms:1", compress_down="topk:5"
    ),
    "FedAvg, top 3": fedfw.FedAvg(L1, lr=0.5, mu=0.1, compress="topk:3", compress_down="topk:4"),
    "FedPGD": fedfw.FedPGD(L1, lr=0.5),
    "FedPGD, top 3": fedfw.FedPGD(L1, lr=0.5, compress="topk:3"),
    "FedPGD, extrapolated, 4 bits": fedfw.FedPGD(
        L2, lr=0.5, compress="bits:4", extrapolation="nesterov"
    ),
    "FedPGD, rank 1": fedfw.FedPGD(NUCLEAR, lr=0.5, compress="rank:1", compress_down="topk:4"),
    "FedPGD, down": fedfw.FedPGD(L1, lr=0.5, extrapolation="nesterov", compress_down="topk:3"),
    "FedLMO, top 4": fedfw.FedLMO(L2, compress="topk:4"),
    "FedLMO at the server, top 3": fedfw.ServerLMO(L2, compress="topk:3"),
    "FedFW, steps from curvature": fedfw.FedFW(L1, penalty=0.01, schedule="curvature"),
    "FedFW+, steps from curvature": fedfw.FedFWPlus(
        L2, penalty=0.01, momentum=0.9, schedule="curvature"
    ),
    "anchored, steps from curvature": fedfw.FedFWAnchored(
        L1, anchor_every=3, gradient_at="own", penalty=0.0, schedule="curvature"
    ),
    "Frank-Wolfe, steps from curvature": fedfw.FrankWolfe(L2, momentum=0.5, schedule="curvature"),
}


def zero_layer(features: int, classes: int, dtype: torch.dtype = torch.float32) -> nn.Linear:
    """Return a linear layer whose parameters are zero."""
    layer = nn.Linear(features, classes, dtype=dtype)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


@cache
def classes(dtype: torch.dtype) -> fedfw.Problem:
    """Four clients of different sizes and weights, and a model of a matrix and a vector."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for size in (6, 9, 4, 7):
        inputs = torch.randn(size, 4, generator=generator, dtype=dtype)
        clients.append((inputs, torch.randint(3, (size,), generator=generator)))
    weights = (1.0, 3.0, 2.0, 0.5)
    return fedfw.Problem(zero_layer(4, 3, dtype), nnf.cross_entropy, clients, weights=weights)
