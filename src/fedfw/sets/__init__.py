"""Constraint sets, each with a linear minimization oracle, a projection, a membership test and a diameter."""

from fedfw.sets.base import ConstraintSet, Request, Shape
from fedfw.sets.enclosing import enclosing
from fedfw.sets.norm_balls import Box, L1Ball, L2Ball, LinfBall
from fedfw.sets.polytopes import Birkhoff, Hull, Polytope
from fedfw.sets.product import Product
from fedfw.sets.registry import SETS, parse_set
from fedfw.sets.simplices import CappedSimplex, Hypersimplex, Simplex
from fedfw.sets.sparse_balls import GroupBall, KSparse, KSupport
from fedfw.sets.spectral import NuclearBall, PartialIsometry, Spectrahedron, SpectralBall

__all__ = [
    "SETS",
    "Birkhoff",
    "Box",
    "CappedSimplex",
    "ConstraintSet",
    "GroupBall",
    "Hull",
    "Hypersimplex",
    "KSparse",
    "KSupport",
    "L1Ball",
    "L2Ball",
    "LinfBall",
    "NuclearBall",
    "PartialIsometry",
    "Polytope",
    "Product",
    "Request",
    "Shape",
    "Simplex",
    "Spectrahedron",
    "SpectralBall",
    "enclosing",
    "parse_set",
]
