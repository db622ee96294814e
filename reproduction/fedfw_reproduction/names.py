"""The names of the sections that can be reproduced, apart from their code: a help text then imports
nothing heavy.
"""

from __future__ import annotations

REPRODUCTIONS = (
    *(
        "table1",
        "table1-cifar",
        "table2",
        "table3",
        "participation",
        "penalty",
        "traffic",
        "anchors",
    ),
    *(
        "certificate",
        "momentum",
        "one-for-both",
        "counterexample",
        "split",
        "local-steps",
        "oracle-errors",
        "theory",
    ),
    *("steps", "privacy", "dp", "hospitals", "heart", "ovarian"),
    *("estimators-cost", "estimators-coverage"),
    *("networks-cifar10", "networks-certified", "networks-shakespeare", "networks-mnist"),
    *("networks-oracles", "networks-payloads", "networks-convex"),
    "frontier",
)
"""The names of `fedfw_reproduction.catalogue.sections`, in the order of the report."""
GROUPS = ("networks", "estimators")
"""Names that stand for all sections whose names begin with them and a hyphen."""
