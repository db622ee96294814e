"""Federated Frank-Wolfe: train across clients that keep their data, inside a hard constraint set."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedfw._version import __version__

if TYPE_CHECKING:
    from fedfw import optim, testing
    from fedfw.algorithms import (
        ALGORITHMS,
        Algorithm,
        DeFW,
        FastFedDA,
        FedAdam,
        FedAdamW,
        FedADMM,
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
        FedMuon,
        FedMuonCV,
        FedPAL,
        FedPGD,
        FrankWolfe,
        LocalMuon,
        NaiveFW,
        OracleAlgorithm,
        ProjectedAlgorithm,
        Scaffold,
    )
    from fedfw.atoms import Atom
    from fedfw.data import load_data, partition
    from fedfw.errors import (
        AtomError,
        ContradictionError,
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
        CSVLogger,
        History,
        MLflowLogger,
        Record,
        Run,
        StopRun,
        TensorBoardLogger,
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
    "CSVLogger",
    "Callback",
    "CappedSimplex",
    "ConstraintSet",
    "ContradictionError",
    "DeFW",
    "FastFedDA",
    "FedADMM",
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
    "FedMuon",
    "FedMuonCV",
    "FedPAL",
    "FedPGD",
    "FrankWolfe",
    "GroupBall",
    "History",
    "Hull",
    "Hypersimplex",
    "KSparse",
    "KSupport",
    "L1Ball",
    "L2Ball",
    "LayerBalls",
    "LinfBall",
    "LipschitzNet",
    "LocalMuon",
    "MLflowLogger",
    "NaiveFW",
    "NoProjectionError",
    "NonFiniteError",
    "NuclearBall",
    "Optimum",
    "OracleAlgorithm",
    "PartialIsometry",
    "Polytope",
    "Privacy",
    "Problem",
    "Product",
    "ProjectedAlgorithm",
    "RankLostError",
    "Ranks",
    "Record",
    "RowBalls",
    "Run",
    "Scaffold",
    "Schedule",
    "Simplex",
    "Spectrahedron",
    "SpectralBall",
    "StopRun",
    "TensorBoardLogger",
    "Trial",
    "Tuning",
    "__version__",
    "batch_norm_to_group_norm",
    "certified_accuracy",
    "concordance",
    "cox_loss",
    "enclosing",
    "join_ranks",
    "layer_balls",
    "lipschitz_bound",
    "load_data",
    "load_problem",
    "optim",
    "parse_set",
    "partition",
    "simulate",
    "solve",
    "testing",
    "tune",
]

_HOMES = (
    "fedfw.algorithms",
    "fedfw.atoms",
    "fedfw.data",
    "fedfw.errors",
    "fedfw.lipschitz",
    "fedfw.privacy",
    "fedfw.problems",
    "fedfw.schedules",
    "fedfw.sets",
    "fedfw.simulation",
    "fedfw.solving",
    "fedfw.presets",
    "fedfw.ranks",
    "fedfw.tuning",
)
"""Where the names above live, but for `optim` and `testing`, which are modules."""


def __getattr__(name: str) -> Any:
    """What is asked for is imported then: a command line that only shows its help does not wait for torch."""
    if name in __all__:
        if name in ("optim", "testing"):
            return import_module(f"fedfw.{name}")
        for home in map(import_module, _HOMES):
            if hasattr(home, name):
                globals()[name] = getattr(home, name)
                return globals()[name]
    raise AttributeError(f"module 'fedfw' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
