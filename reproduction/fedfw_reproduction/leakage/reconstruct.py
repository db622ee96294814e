"""Attacks by search: find samples whose gradient would explain what was sent.

Four ways to compare what a guess would send with what was sent:

- ``gradient``: the squared distance of gradients, as in the original attack; for clients that send
  gradients.
- ``through``: the squared distance of atoms, differentiated through the oracle: the paper's attack.
  On polytopes the oracle's derivative is zero, so the search never moves: it says nothing about
  what the atom reveals.
- ``explain``: how far the sent atom s is from being the best one for the guess's direction g: <g,
  s> - min over u of <g, u>, over ||g||. It is zero exactly if the guess explains the atom. Its
  gradient is the one that straight-through differentiation of the distance of atoms has.
- ``soft``: the cross-entropy of the sent vertex under a softmax of -g / temperature over the
  vertices of an l1 ball.

An observation may be a whole sequence: the atoms of several rounds with the x_i of each, which the
server rebuilds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedfw.sets import ConstraintSet, Request
from fedfw_reproduction.leakage.metrics import matched, psnr, ssim
from fedfw_reproduction.leakage.minimise import Objective, Optimizer, minimise
from fedfw_reproduction.leakage.victims import Observation, Victims

Way = Literal["gradient", "through", "explain", "soft"]
_NEAR = 0.02
"""How far from a guess the search begins."""
_TEMPERATURE = 0.1
"""Of the way ``soft``, relative to the length of the direction."""
_LOOKS = 20
"""Points of a curve."""


@dataclass(frozen=True)
class Reconstruction:
    """What an attack found.

    Parameters
    ----------
    images : Tensor
        (k, b, c, h, w), matched to the truth within each batch.
    psnr, ssim : Tensor
        (k,): means over each batch.
    labels : Tensor
        (k,): the share of labels found.
    misfit : Tensor
        (k,): how badly the best guess explains what was sent.
    curve : list of pairs
        (step, PSNR of each client).
    """

    images: Tensor
    psnr: Tensor
    ssim: Tensor
    labels: Tensor
    misfit: Tensor
    curve: list[tuple[int, list[float]]]


def reconstruct(
    victims: Victims,
    observations: Sequence[Observation],
    way: Way,
    *,
    steps: int = 300,
    optimizer: Optimizer = "lbfgs",
    restarts: int = 1,
    known_labels: bool = True,
    guess: Tensor | None = None,
    seed: int = 0,
) -> Reconstruction:
    """Search for the samples from random starts; the start whose misfit is least counts (the truth
    is not looked at).

    Parameters
    ----------
    victims : Victims
        The clients; their images and labels are looked at to score what was found, and known labels
        to search.
    observations : sequence of Observation
        What the server saw of them, round by round.
    way : str
        See the top of the file.
    steps, optimizer, restarts
        Of the search.
    known_labels : bool
        Whether the attacker knows the labels.
    guess : Tensor, optional
        An image (c, h, w) to start near, such as the mean of public ones; None for noise, as in the
        original attack.
    seed : int
        From which the starts are drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    shape, classes = victims.images.shape, victims.classes
    k, batch = shape[:2]
    pixels = shape[1:].numel()

    def unpack(z: Tensor) -> tuple[Tensor, Tensor]:
        images = z[:, :pixels].reshape(shape)
        if known_labels:
            return images, victims.targets
        return images, z[:, pixels:].reshape(k, batch, classes).softmax(2)

    objective = _objective(victims, observations, way, unpack)
    best_z, best = torch.zeros(0), torch.full((k,), torch.inf, device=victims.images.device)
    curve: list[tuple[int, list[float]]] = []
    for restart in range(restarts):
        length = pixels + (0 if known_labels else batch * classes)
        z = torch.rand(k, length, generator=generator).to(victims.images)
        if guess is not None:
            z[:, :pixels] = guess.expand(shape).reshape(k, -1) + _NEAR * (z[:, :pixels] - 0.5)
        for found in minimise(objective, z, steps, optimizer, _LOOKS):
            if restart == 0:
                curve.append((found.step, _score(victims, unpack(found.z)[0])[1].tolist()))
        better = found.best < best
        best_z = torch.where(better[:, None], found.best_z, best_z) if restart else found.best_z
        best = torch.where(better, found.best, best)
    images, targets = unpack(best_z)
    ordered, scores = _score(victims, images.detach())
    return Reconstruction(
        images=ordered,
        psnr=scores,
        ssim=ssim(ordered, victims.images).mean(1),
        labels=_labels_found(victims, targets),
        misfit=best,
        curve=curve,
    )


def _objective(
    victims: Victims,
    observations: Sequence[Observation],
    way: Way,
    unpack: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> Objective:
    def objective(z: Tensor) -> Tensor:
        images, targets = unpack(z)
        total = images.new_zeros(len(images))
        for seen in observations:
            g = seen.direction(victims.gradients(images, targets, seen.x))
            total = total + _misfit(way, g, seen)
        return total / len(observations)

    return objective


def _misfit(way: Way, g: Tensor, seen: Observation) -> Tensor:
    """(k,) from the guesses' directions (k, p)."""
    if way == "gradient" or seen.constraint is None:
        return _squares(g - seen.sent)
    if way == "through":
        return _squares(differentiable_lmo(seen.constraint, g) - seen.sent)
    size = g.norm(dim=1).clamp(min=1e-12)
    if way == "explain":
        best = _answer(seen.constraint, g)
        gap: Tensor = (g * (seen.sent - best)).sum(1)
        relative: Tensor = gap / size
        return relative
    # The vertices of an l1 ball are the signed coordinates.
    scores = torch.cat([-g, g], 1) / (_TEMPERATURE * size[:, None])
    vertices = torch.cat([seen.sent.clamp(min=0), (-seen.sent).clamp(min=0)], 1)
    likelihood: Tensor = (scores.log_softmax(1) * vertices / vertices.sum(1, keepdim=True)).sum(1)
    return -likelihood


def _squares(difference: Tensor) -> Tensor:
    squares: Tensor = difference.square().sum(1)
    return squares


def differentiable_lmo(constraint: ConstraintSet, g: Tensor) -> Tensor:
    """The oracle's answer (k, p) with its true derivative: that of -r g / ||g|| on l2 balls, zero
    on polytopes.
    """
    atoms = _answer(constraint, g)
    if constraint.is_polytope:
        return atoms + 0 * g
    # Where the oracle is a normalisation, block by block, the blocks' norms say by how much.
    pieces = []
    for piece, atom in zip(_blocks(constraint, g), _blocks(constraint, atoms), strict=True):
        radius = atom.norm(dim=1, keepdim=True)
        pieces.append(-radius * piece / piece.norm(dim=1, keepdim=True).clamp(min=1e-12))
    return torch.cat(pieces, 1)


def _answer(constraint: ConstraintSet, g: Tensor) -> Tensor:
    """The oracle's answers (k, p). Unlike `lmo` it asks nothing of the numbers: a search rejects
    what is not finite.
    """
    return constraint._lmo(g.detach(), tuple(g.shape[1:]), Request()).dense(g.dtype)


def _blocks(constraint: ConstraintSet, g: Tensor) -> Sequence[Tensor]:
    shapes = getattr(constraint, "shapes", None)
    if shapes is None:
        return [g]
    return torch.split(g, [torch.Size(shape).numel() for shape in shapes], dim=1)


def _score(victims: Victims, images: Tensor) -> tuple[Tensor, Tensor]:
    """Images in the order of the truth, and their PSNR (k,)."""
    images = images.detach().clamp(0, 1)
    ordered = torch.stack(
        [matched(own, truth) for own, truth in zip(images, victims.images, strict=True)]
    )
    return ordered, psnr(ordered, victims.images).mean(1)


def _labels_found(victims: Victims, targets: Tensor) -> Tensor:
    """The share (k,) of true labels among the guessed ones, whatever their order."""
    pairs = zip(targets.argmax(2).tolist(), victims.labels.tolist(), strict=True)
    return torch.tensor(
        [(Counter(own) & Counter(truth)).total() / len(truth) for own, truth in pairs]
    )
