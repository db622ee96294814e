"""``fedfw deploy demo``: a whole Flower federation on this machine, for one run, beside its
simulation.
"""

from __future__ import annotations

from fedfw.deployment.settings import APP_DEFAULTS

FIRST_CHOICE = {"algorithm": APP_DEFAULTS["algorithm"]}
"""The algorithm where none is named."""
