"""Constraint sets, each with a linear minimization oracle, a projection, a membership test and a
diameter.
"""

from fedfw.sets.base import ConstraintSet, Request, Shape, shapes_of
from fedfw.sets.birkhoff import Birkhoff
from fedfw.sets.containment import enclosing
from fedfw.sets.layers import LayerBalls, LipschitzNet, layer_balls
from fedfw.sets.norm_balls import Box, L1Ball, L2Ball, LinfBall, RowBalls
from fedfw.sets.own import OracleSet
from fedfw.sets.polytopes import Hull, Polytope
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
    "LayerBalls",
    "LinfBall",
    "LipschitzNet",
    "NuclearBall",
    "OracleSet",
    "PartialIsometry",
    "Polytope",
    "Product",
    "Request",
    "RowBalls",
    "Shape",
    "Simplex",
    "Spectrahedron",
    "SpectralBall",
    "enclosing",
    "layer_balls",
    "parse_set",
    "shapes_of",
]
