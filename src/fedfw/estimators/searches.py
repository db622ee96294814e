"""Fits inside of scikit-learn's searches and cross-validation."""

from __future__ import annotations

import inspect
import warnings
from typing import Any


def warn_of_search(groups: Any) -> None:
    """Warn where a search or cross-validation was given groups that this fit does not see."""
    if groups is not None:
        return
    for frame in inspect.stack(0):
        module = frame.frame.f_globals.get("__name__", "")
        if not module.startswith("sklearn.model_selection"):
            continue
        if frame.frame.f_locals.get("groups") is not None:
            warnings.warn(
                "groups were given to the splitter alone: in this fit all rows are one "
                "client. Use metadata routing: sklearn.set_config(enable_metadata_routing="
                "True) and set_fit_request(groups=True)",
                UserWarning,
                stacklevel=4,
            )
            return
