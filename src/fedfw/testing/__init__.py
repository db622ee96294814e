"""Checks for people who write their own set or algorithm, and small problems with known answers.

Our own tests run these checks on everything that the library ships.
"""

from fedfw.testing.algorithms import check_algorithm
from fedfw.testing.constraints import check_constraint
from fedfw.testing.problems import quadratics, two_quadratics

__all__ = ["check_algorithm", "check_constraint", "quadratics", "two_quadratics"]
