"""The algorithms, one file each; `registry` lists them by name, `contrib` has methods that few
people run.
"""

from fedfw.algorithms.aggregate import Aggregate, Evidence, Upload
from fedfw.algorithms.anchored import FedFWAnchored
from fedfw.algorithms.central import FrankWolfe
from fedfw.algorithms.contract import (
    Algorithm,
    Contract,
    Gradient,
    Kept,
    Lmo,
    Message,
    Payload,
    Reveals,
    Server,
    State,
    Up,
)
from fedfw.algorithms.fedadam import FedAdam, FedAdamW
from fedfw.algorithms.fedavg import FedAvg
from fedfw.algorithms.fedavgm import FedAvgM
from fedfw.algorithms.fedcm import FedCM
from fedfw.algorithms.fedda import FedDA
from fedfw.algorithms.feddr import FedDR
from fedfw.algorithms.fedfw import FedFW, FedFWSto
from fedfw.algorithms.fedfw_plus import FedFWPlus
from fedfw.algorithms.fedlmo import FedLMO
from fedfw.algorithms.fedpgd import FedPGD
from fedfw.algorithms.gathering import Contributed, Gathered, GathersSums
from fedfw.algorithms.naive import NaiveFW
from fedfw.algorithms.oracle_steps import OracleAlgorithm
from fedfw.algorithms.plan import Plan, Rates
from fedfw.algorithms.projected import ProjectedAlgorithm
from fedfw.algorithms.scaffold import Scaffold
from fedfw.algorithms.setting import Setting

__all__ = [
    "Aggregate",
    "Algorithm",
    "Contract",
    "Contributed",
    "Evidence",
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
    "Gathered",
    "GathersSums",
    "Gradient",
    "Kept",
    "Lmo",
    "Message",
    "NaiveFW",
    "OracleAlgorithm",
    "Payload",
    "Plan",
    "ProjectedAlgorithm",
    "Rates",
    "Reveals",
    "Scaffold",
    "Server",
    "Setting",
    "State",
    "Up",
    "Upload",
]
