"""Federated Frank-Wolfe: train across clients that keep their data, inside a hard constraint
set.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedfw._version import __version__

if TYPE_CHECKING:
    from fedfw import estimators, optim, testing
    from fedfw.algorithms import (
        Algorithm,
        FedAdam,
        FedAdamW,
        FedAvg,
        FedAvgM,
        FedCM,
        FedDA,
        FedDR,
        FedFW,
        FedFWAnchored,
        FedFWPlus,
        FedFWSto,
        FedLMO,
        FedPGD,
        FrankWolfe,
        NaiveFW,
        PenalisedFW,
        Scaffold,
        ServerLMO,
        contrib,
    )
    from fedfw.algorithms.registry import ALGORITHMS
    from fedfw.atoms import Atom
    from fedfw.data import load_data, partition
    from fedfw.errors import (
        AtomError,
        ContradictionError,
        InfeasibleError,
        NonFiniteError,
        NoProjectionError,
        RankLostError,
    )
    from fedfw.lipschitz import certified_accuracy, lipschitz_bound
    from fedfw.presets import load_problem
    from fedfw.privacy import Privacy
    from fedfw.problems import Problem, batch_norm_to_group_norm, concordance, cox_loss
    from fedfw.ranks import Ranks, join_ranks
    from fedfw.schedules import Schedule
    from fedfw.sets import (
        SETS,
        Birkhoff,
        Box,
        CappedSimplex,
        ConstraintSet,
        GroupBall,
        Hull,
        Hypersimplex,
        KSparse,
        KSupport,
        L1Ball,
        L2Ball,
        LayerBalls,
        LinfBall,
        LipschitzNet,
        NuclearBall,
        OracleSet,
        PartialIsometry,
        Polytope,
        Product,
        RowBalls,
        Simplex,
        Spectrahedron,
        SpectralBall,
        enclosing,
        layer_balls,
        parse_set,
    )
    from fedfw.simulation import (
        Callback,
        History,
        Record,
        Run,
        SavedRun,
        StopRun,
        load_run,
        simulate,
    )
    from fedfw.solving import Optimum, solve
    from fedfw.tuning import Trial, Tuning, tune

__all__ = [
    "ALGORITHMS",
    "SETS",
    "Algorithm",
    "Atom",
    "AtomError",
    "Birkhoff",
    "Box",
    "Callback",
    "CappedSimplex",
    "ConstraintSet",
    "ContradictionError",
    "FedAdam",
    "FedAdamW",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedDA",
    "FedDR",
    "FedFW",
    "FedFWAnchored",
    "FedFWPlus",
    "FedFWSto",
    "FedLMO",
    "FedPGD",
    "FrankWolfe",
    "GroupBall",
    "History",
    "Hull",
    "Hypersimplex",
    "InfeasibleError",
    "KSparse",
    "KSupport",
    "L1Ball",
    "L2Ball",
    "LayerBalls",
    "LinfBall",
    "LipschitzNet",
    "NaiveFW",
    "NoProjectionError",
    "NonFiniteError",
    "NuclearBall",
    "Optimum",
    "OracleSet",
    "PartialIsometry",
    "PenalisedFW",
    "Polytope",
    "Privacy",
    "Problem",
    "Product",
    "RankLostError",
    "Ranks",
    "Record",
    "RowBalls",
    "Run",
    "SavedRun",
    "Scaffold",
    "Schedule",
    "ServerLMO",
    "Simplex",
    "Spectrahedron",
    "SpectralBall",
    "StopRun",
    "Trial",
    "Tuning",
    "__version__",
    "batch_norm_to_group_norm",
    "certified_accuracy",
    "concordance",
    "contrib",
    "cox_loss",
    "enclosing",
    "estimators",
    "join_ranks",
    "layer_balls",
    "lipschitz_bound",
    "load_data",
    "load_problem",
    "load_run",
    "optim",
    "parse_set",
    "partition",
    "simulate",
    "solve",
    "testing",
    "tune",
]

_HOMES = {
    "fedfw.algorithms": (
        "Algorithm",
        "FedAdam",
        "FedAdamW",
        "FedAvg",
        "FedAvgM",
        "FedCM",
        "FedDA",
        "FedDR",
        "FedFW",
        "FedFWAnchored",
        "FedFWPlus",
        "FedFWSto",
        "FedLMO",
        "FedPGD",
        "FrankWolfe",
        "NaiveFW",
        "PenalisedFW",
        "Scaffold",
        "ServerLMO",
    ),
    "fedfw.algorithms.registry": ("ALGORITHMS",),
    "fedfw.atoms": ("Atom",),
    "fedfw.data": (
        "load_data",
        "partition",
    ),
    "fedfw.errors": (
        "AtomError",
        "ContradictionError",
        "InfeasibleError",
        "NoProjectionError",
        "NonFiniteError",
        "RankLostError",
    ),
    "fedfw.lipschitz": (
        "certified_accuracy",
        "lipschitz_bound",
    ),
    "fedfw.presets": ("load_problem",),
    "fedfw.privacy": ("Privacy",),
    "fedfw.problems": (
        "Problem",
        "batch_norm_to_group_norm",
        "concordance",
        "cox_loss",
    ),
    "fedfw.ranks": (
        "Ranks",
        "join_ranks",
    ),
    "fedfw.schedules": ("Schedule",),
    "fedfw.sets": (
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
        "RowBalls",
        "SETS",
        "Simplex",
        "Spectrahedron",
        "SpectralBall",
        "enclosing",
        "layer_balls",
        "parse_set",
    ),
    "fedfw.simulation": (
        "Callback",
        "History",
        "Record",
        "Run",
        "SavedRun",
        "StopRun",
        "load_run",
        "simulate",
    ),
    "fedfw.solving": (
        "Optimum",
        "solve",
    ),
    "fedfw.tuning": (
        "Trial",
        "Tuning",
        "tune",
    ),
}
"""The modules in which the names above are defined; `contrib`, `estimators`, `optim` and
`testing` are modules themselves.
"""
_MODULES = {
    "contrib": "fedfw.algorithms.contrib",
    "estimators": "fedfw.estimators",
    "optim": "fedfw.optim",
    "testing": "fedfw.testing",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``fedfw --help`` does not wait for torch."""
    if name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'fedfw' has no attribute {name!r}")
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return __all__
