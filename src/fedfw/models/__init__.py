"""Models by name: a file a family, and the table of them all."""

from fedfw.models.kinds import ModelKind, usual_model
from fedfw.models.own import is_own
from fedfw.models.table import MODELS, kind_of, make_model

__all__ = ["MODELS", "ModelKind", "is_own", "kind_of", "make_model", "usual_model"]
