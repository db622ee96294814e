"""Ways to run the same rounds: this package, a loop over clients, and PyTorch batched by hand for
the task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import fedfw
from fedfw.problems import flatten, unflatten
from fedfw.randomness import minibatch
from fedfw.schedules import stochastic
from fedfw.sets import shapes_of
from fedfw_reproduction.bench.tasks import CLASSES, BenchTask

Mark = Callable[[], Any]
"""Called after every round."""
Contender = Callable[[int, Mark], Tensor]
"""Rounds and a mark -> the server's model (p,)."""
RADIUS, PENALTY, FREE, BATCH = 10.0, 1e-3, 1e6, 64
# In a large curved ball the first steps jump far, and the last bits of a direction show in the
# loss.
RADII = {"l1": RADIUS, "l2": RADIUS / 10, "nuclear": RADIUS / 10}


def ours(task: BenchTask, algorithm: fedfw.Algorithm, batch_size: int | None = None) -> Contender:
    """The simulator; evaluations are left out, everything else is as always."""
    problem = task.problem()

    def run(rounds: int, mark: Mark) -> Tensor:
        def after_round(simulation: Any) -> None:
            mark()

        return fedfw.simulate(
            problem,
            algorithm,
            rounds=rounds,
            batch_size=batch_size,
            eval_every=10**9,
            callbacks=after_round,
        ).x

    return run


def fedavg(task: BenchTask) -> fedfw.Algorithm:
    """One gradient step a client; the ball is so large that it never binds."""
    return fedfw.FedAvg(fedfw.L2Ball(FREE), lr=task.lr)


def frank_wolfe(ball: str = "l1", plus: bool = False) -> fedfw.Algorithm:
    """FedFW or FedFW+ on a ball."""
    kind = fedfw.FedFWPlus if plus else fedfw.FedFW
    return kind(fedfw.parse_set(f"{ball}:{RADII[ball]:g}"), penalty=PENALTY, momentum=0.0)


def loop_fedavg(task: BenchTask) -> Contender:
    """What most people write first: a copy of the model for each client, a step of SGD, the mean of
    the results.
    """
    inputs, targets = task.data()

    def run(rounds: int, mark: Mark) -> Tensor:
        server = task.module()
        for _ in range(rounds):
            total = [torch.zeros_like(p) for p in server.parameters()]
            for x, y in zip(inputs, targets, strict=True):
                client = copy.deepcopy(server)
                optimizer = torch.optim.SGD(client.parameters(), task.lr)
                nnf.cross_entropy(client(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                for sum_, p in zip(total, client.parameters(), strict=True):
                    sum_ += p.detach()
            with torch.no_grad():
                for p, sum_ in zip(server.parameters(), total, strict=True):
                    p.copy_(sum_ / task.clients)
            mark()
        return flatten(list(server.parameters()))

    return run


def hand_fedavg(task: BenchTask) -> Contender:
    """Batched products for softmax regression; torch.func over all clients at once for other
    models.
    """
    inputs, targets = task.data()
    n = len(targets)
    model = task.module()
    if isinstance(model, nn.Linear):
        return _hand_softmax_fedavg(task, inputs, targets)
    shapes = shapes_of(model)

    def loss(x: Tensor, a: Tensor, y: Tensor) -> Tensor:
        return nnf.cross_entropy(functional_call(model, unflatten(x, shapes), (a,)), y)

    each: Callable[..., Tensor] = vmap(grad(loss))

    def run(rounds: int, mark: Mark) -> Tensor:
        xbar = flatten(list(model.parameters()))
        for _ in range(rounds):
            x = xbar.expand(n, -1)
            xbar = (x - task.lr * each(x, inputs, targets)).mean(0)
            mark()
        return xbar

    return run


def _hand_softmax_fedavg(task: BenchTask, A: Tensor, y: Tensor) -> Contender:
    n, m, f = A.shape
    places = y.unsqueeze(2)
    minus = torch.full((1, 1, 1), -1.0).expand_as(places)

    def run(rounds: int, mark: Mark) -> Tensor:
        W, b = torch.zeros(CLASSES, f), torch.zeros(CLASSES)
        for _ in range(rounds):
            X, c = W.expand(n, -1, -1), b.expand(n, -1)
            R = (torch.bmm(A, X.mT) + c.unsqueeze(1)).softmax(2).scatter_add_(2, places, minus) / m
            W = (X - task.lr * torch.bmm(R.mT, A)).mean(0)
            b = (c - task.lr * R.sum(1)).mean(0)
            mark()
        return torch.cat([W.flatten(), b])

    return run


def hand_fedfw(task: BenchTask, ball: str = "l1", plus: bool = False) -> Contender:
    """FedFW and FedFW+ on a ball, written for softmax regression alone."""
    A, y = task.data()
    n, m, f = A.shape
    p, split, move = CLASSES * f + CLASSES, CLASSES * f, _MOVES[ball]
    places = y.unsqueeze(2)
    minus = torch.full((1, 1, 1), -1.0).expand_as(places)

    def run(rounds: int, mark: Mark) -> Tensor:
        x, xbar, duals = torch.zeros(n, p), torch.zeros(p), torch.zeros(n, p)
        for t in range(1, rounds + 1):
            scores = torch.bmm(A, x[:, :split].view(n, CLASSES, f).mT)
            scores += x[:, split:].unsqueeze(1)
            R = scores.softmax(2).scatter_add_(2, places, minus)
            R *= 1 / (m * n)
            g = torch.empty(n, p)
            g[:, :split] = torch.bmm(R.mT, A).flatten(1)
            g[:, split:] = R.sum(1)
            eta, lam = 2 / (t + 1), PENALTY * (t + 1) ** 0.5
            away = x - xbar
            g += lam * away
            if plus:
                duals += PENALTY * away
                g += duals
            x *= 1 - eta
            move(x, g, eta * RADII[ball])
            xbar = x.mean(0)
            mark()
        return xbar

    return run


def _to_a_vertex(x: Tensor, g: Tensor, length: float) -> None:
    j = g.abs().argmax(1, keepdim=True)
    x.scatter_add_(1, j, -length * g.gather(1, j).sign())


def _down_the_gradient(x: Tensor, g: Tensor, length: float) -> None:
    x -= length * g / g.norm(dim=1, keepdim=True)


def _to_rank_one(x: Tensor, g: Tensor, length: float) -> None:
    """The set is on [W | b]: the leading pair of singular vectors from the Gram matrix of its ten
    rows.
    """
    split = x.shape[1] - CLASSES
    W, b = g[:, :split].view(len(g), CLASSES, -1), g[:, split:]
    gram = torch.baddbmm(b.unsqueeze(2) * b.unsqueeze(1), W, W.mT)
    left = torch.linalg.eigh(gram).eigenvectors[:, :, -1:]
    along_w, along_b = torch.bmm(left.mT, W), (left.squeeze(2) * b).sum(1, keepdim=True)
    size = (along_w.square().sum(2) + along_b.square()).sqrt()
    x[:, :split].view_as(W).baddbmm_(left, along_w / size.unsqueeze(2), alpha=-length)
    x[:, split:] -= length * left.squeeze(2) * along_b / size


_MOVES: dict[str, Callable[[Tensor, Tensor, float], None]] = {
    "l1": _to_a_vertex,
    "l2": _down_the_gradient,
    "nuclear": _to_rank_one,
}


def fedfw_sto(task: BenchTask) -> fedfw.Algorithm:
    return fedfw.FedFWSto(fedfw.L2Ball(RADII["l2"]), penalty=PENALTY)


def hand_fedfw_sto(task: BenchTask) -> Contender:
    """FedFW-sto on the l2 ball with the simulator's own minibatches."""
    A, y = task.data()
    n, m, f = A.shape
    sizes, rows, schedule = torch.full((n,), m), torch.arange(n)[:, None], stochastic()

    def run(rounds: int, mark: Mark) -> Tensor:
        x, xbar, d = (torch.zeros(*shape, CLASSES * f + CLASSES) for shape in ((n,), (), (n,)))
        for t in range(1, rounds + 1):
            picks = minibatch(0, t - 1, sizes, BATCH)
            B, places = A[rows, picks], y[rows, picks].unsqueeze(2)
            scores = torch.bmm(B, x[:, : CLASSES * f].view(n, CLASSES, f).mT) + x[
                :, CLASSES * f :
            ].unsqueeze(1)
            R = scores.softmax(2).scatter_add_(
                2, places, torch.full((1, 1, 1), -1.0).expand_as(places)
            ) / (BATCH * n)
            g = torch.cat([torch.bmm(R.mT, B).flatten(1), R.sum(1)], 1)
            d = torch.lerp(d, g, schedule.rho(t)) if t > 1 else g
            g = d + PENALTY * schedule.growth(t) * (x - xbar)
            eta = schedule.eta(t)
            x = (1 - eta) * x - eta * RADII["l2"] * g / g.norm(dim=1, keepdim=True)
            xbar = x.mean(0)
            mark()
        return xbar

    return run


def bare_products(task: BenchTask, batch: int | None = None) -> Contender:
    """The gradient's matrix products and nothing else, on all samples or on a batch: softmax
    regression's floor.
    """
    A = task.data()[0][:, :batch].contiguous()
    n, m, f = A.shape
    W, R = torch.randn(n, CLASSES, f), torch.randn(n, m, CLASSES)

    def run(rounds: int, mark: Mark) -> Tensor:
        for _ in range(rounds):
            torch.bmm(A, W.mT)
            torch.bmm(R.mT, A)
            mark()
        return torch.zeros(0)

    return run
