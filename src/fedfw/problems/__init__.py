"""Federated problems: models and clients' data as weighted losses with gradients."""

from fedfw.problems.base import ClientLosses, WeightedGradient
from fedfw.problems.completion import MatrixCompletion
from fedfw.problems.model_fixes import batch_norm_to_group_norm
from fedfw.problems.modules import flatten, unflatten
from fedfw.problems.problem import Problem
from fedfw.problems.survival import concordance, cox_loss

__all__ = [
    "ClientLosses",
    "MatrixCompletion",
    "Problem",
    "WeightedGradient",
    "batch_norm_to_group_norm",
    "concordance",
    "cox_loss",
    "flatten",
    "unflatten",
]
