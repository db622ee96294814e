"""How an oracle answers without telling too much: noise on what it compares, or on the gradient it
is given.

The noise multiplier z means the same for all: a call is 1/(2 z^2)-zero-concentrated differentially
private, when one sample changes a client's gradient by at most ``sensitivity`` in the mechanism's
norm.

- `Vertices`: the exponential mechanism over the vertices of a set, by Gumbel noise on their scores.
  A choice with epsilon_0 has bounded range epsilon_0 and is epsilon_0^2 / 8-concentrated (Cesar and
  Rogers, 2021); k choices one after the other ("peeling", the k largest noisy scores) are k times
  that. So epsilon_0 = 2 / (z sqrt(k)), and the noise's scale is sensitivity z sqrt(k).
- `Corners`: a coin for each coordinate of a box, by logistic noise of scale sensitivity z / 2. A
  coin whose log-odds change by e is e^2 / 8-concentrated; over the coordinates these squares add up
  to the squared l2 norm.
- `GaussianNoise`: on the gradient, before anything else is done with it, rounded to a grid.

Gradients that are yet to be protected, the noise and their sum are in float64; draws have full
relative precision where they are small (`fedfw.privacy.noise`).

What an algorithm adds to the gradient (penalty, duals) comes from atoms that were sent already. It
moves the scores of all data sets alike and costs nothing.
"""

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfw.atoms import Atom, Vertex
from fedfw.privacy.noise import Noise
from fedfw.sets import Box, CappedSimplex, Hull, Hypersimplex, KSparse, L1Ball, LinfBall, Simplex
from fedfw.sets.base import ConstraintSet, Shape
from fedfw.sets.product import BoundProduct

Norm = Literal["linf", "l2"]


class Mechanism(ABC):
    """Turns what the data say into what may be sent. Scales are (m, 1): sensitivity times noise
    multiplier.
    """

    norm: ClassVar[Norm]
    """In which samples' gradients are clipped and sensitivity is measured."""
    choices: int | None = None
    """The number of choices among vertices in a call; None where it is no such choice."""
    summands: int = 1
    """The number of entries of a direction that are added up to one score that noise is added
    to."""

    def gradient(self, a: Tensor, scale: Tensor, noise: Noise, dtype: torch.dtype) -> Tensor:
        """Return the gradient (m, p) that the algorithm is given: in ``dtype`` if it is private by
        then, else as it is.
        """
        return a

    def answer(
        self, constraint: ConstraintSet, g: Tensor, scale: Tensor, noise: Noise, tol: float | None
    ) -> Atom:
        """Return the oracle's private answers, an atom for each direction g (m, p)."""
        return constraint.lmo(self.perturbed(g, scale, noise), batch=True, tol=tol)

    def perturbed(self, g: Tensor, scale: Tensor, noise: Noise) -> Tensor:
        """Return directions (m, p) whose exact answer is the private one."""
        return g


@dataclass(frozen=True)
class GaussianNoise(Mechanism):
    """For every set and every algorithm."""

    norm: ClassVar[Norm] = "l2"

    def gradient(self, a: Tensor, scale: Tensor, noise: Noise, dtype: torch.dtype) -> Tensor:
        """Return the gradient plus Gaussian noise, rounded to a grid, in ``dtype``: it is private
        from here on.
        """
        return rounded(a + scale * noise.gaussian(a.shape[1]), scale).to(dtype)


def rounded(x: Tensor, scale: Tensor) -> Tensor:
    """Return x (m, p) in float64 on a grid of 2^-16 of its noise's scale (m, 1), or somewhat finer.

    Floating-point sums of data and noise do not take all values, and which ones they take depends
    on the data (Mironov, 2012). A cell of the grid holds more than 2^30 of them wherever noise
    falls, so that every cell can be met from all data, with the probability that exact noise would
    give it to nine digits.
    """
    cell = torch.exp2((scale.log2() - 16).floor())
    # Without noise there is nothing to hide.
    return torch.where(cell > 0, (x / cell).round() * cell, x)


@dataclass(frozen=True)
class Corners(Mechanism):
    """For boxes."""

    norm: ClassVar[Norm] = "l2"

    def perturbed(self, g: Tensor, scale: Tensor, noise: Noise) -> Tensor:
        return g.double() + scale / 2 * noise.logistic(g.shape[1])


Perturb = Callable[[Tensor, Tensor, Noise], Tensor]
"""Directions (m, p), the scale (m, 1) of Gumbel noise, noise -> directions (m, p) in float64."""


@dataclass(frozen=True)
class Vertices(Mechanism):
    """For sets whose vertices can be chosen by their coordinates."""

    perturb: Perturb
    choices: int = 1
    norm: ClassVar[Norm] = "linf"

    def perturbed(self, g: Tensor, scale: Tensor, noise: Noise) -> Tensor:
        return self.perturb(g.double(), scale * self.choices**0.5, noise)


@dataclass(frozen=True)
class Points(Mechanism):
    """For the hull of given points: a sample changes the score of v by at most ||v||_1 times its
    largest entry.
    """

    largest: float
    choices: int = 1
    summands: int = 1
    norm: ClassVar[Norm] = "linf"

    def answer(
        self, constraint: ConstraintSet, g: Tensor, scale: Tensor, noise: Noise, tol: float | None
    ) -> Atom:
        """Return a vertex v of the hull for each direction g (m, p), by the exponential mechanism:
        the vertex with the largest -<g, v> + Gumbel noise.
        """
        assert isinstance(constraint, Hull)
        vertices = constraint.vertices.to(g.device)
        scores = -(g.double() @ vertices.T)
        # A sample changes each entry of g by at most its sensitivity, and so <g, v> by at most that
        # times ||v||_1, of which `largest` is the maximum over the vertices.
        index = (scores + scale * self.largest * noise.gumbel(len(vertices))).argmax(1)
        return Vertex(
            shape=tuple(g.shape[1:]),
            batched=True,
            precision=torch.float32,
            index=index,
            vertices=vertices,
        )


def _signed(g: Tensor, scale: Tensor, noise: Noise) -> Tensor:
    """Return a choice among +e_j and -e_j."""
    up, down = (sign * g + scale * noise.gumbel(g.shape[1]) for sign in (-1, 1))
    best = torch.maximum(up, down)
    # The oracle takes the largest magnitudes: the same order, all of them positive.
    magnitude = best - best.amin(1, keepdim=True) + torch.where(scale > 0, scale, 1.0)
    return torch.where(up > down, -magnitude, magnitude)


def _unsigned(g: Tensor, scale: Tensor, noise: Noise) -> Tensor:
    """Return a choice among the e_j."""
    return g - scale * noise.gumbel(g.shape[1])


def _unsigned_or_none(g: Tensor, scale: Tensor, noise: Noise) -> Tensor:
    """Return a choice among the e_j and the origin, whose score is zero."""
    return _unsigned(g, scale, noise) + scale * noise.gumbel(1)


def _selection(constraint: ConstraintSet, shape: Shape) -> Vertices | None:
    """Return the mechanism that selects a set's vertices by noise on coordinates; None for sets
    whose vertices are no such selections.
    """
    match constraint:
        case L1Ball():
            return Vertices(_signed)
        case KSparse():
            return Vertices(_signed, min(constraint.k, prod(shape)))
        case CappedSimplex():
            return Vertices(_unsigned_or_none)
        case Simplex():
            return Vertices(_unsigned)
        case Hypersimplex():
            return Vertices(_unsigned, constraint.k)
        case BoundProduct():
            return _selection_of_each(constraint)
    return None


def _selection_of_each(constraint: BoundProduct) -> Vertices | None:
    """Return the mechanism that selects a vertex of every set of a product, all with the same
    noise; None if any of the sets has no selection by coordinates.
    """
    parts = [
        _selection(part, shape)
        for part, shape in zip(constraint.parts, constraint.shapes, strict=True)
    ]
    selections = [mechanism for mechanism in parts if mechanism is not None]
    if len(selections) < len(parts):
        return None

    def perturb(g: Tensor, scale: Tensor, noise: Noise) -> Tensor:
        pieces = zip(selections, constraint._pieces(g), strict=True)
        return torch.cat([mechanism.perturb(piece, scale, noise) for mechanism, piece in pieces], 1)

    return Vertices(perturb, sum(mechanism.choices for mechanism in selections))


def mechanism_for(constraint: ConstraintSet, shape: Shape) -> Mechanism:
    """Return the mechanism for a set's oracle: noise on coordinates or on the scores of vertices
    where the set allows it, else Gaussian noise on the gradient, which every set allows.
    """
    if isinstance(constraint, Box | LinfBall):
        return Corners()
    if isinstance(constraint, Hull):
        vertices = constraint.vertices
        # |<g, v>| <= max |g_j| ||v||_1: a sample that changes every entry of g by at most one
        # sensitivity changes no score <g, v> by more than the largest l1 norm of a vertex times
        # that. A score has an entry's product for each coordinate, all of which round.
        longest = float(vertices.abs().sum(1).max())
        return Points(largest=longest, summands=vertices.shape[1])
    return _selection(constraint, shape) or GaussianNoise()
