"""Models by name: a file a family, and the table of them all."""

from fedfw.models.kinds import ModelKind
from fedfw.models.table import MODELS, make_model

__all__ = ["MODELS", "ModelKind", "make_model"]
