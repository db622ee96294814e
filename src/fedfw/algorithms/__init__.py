"""One file an algorithm; a new one is a file and a line in the table below."""

from fedfw.algorithms.anchored import FedFWAnchored
from fedfw.algorithms.base import Algorithm, Evidence, Message, Plan, Rates, Server, Setting, Upload
from fedfw.algorithms.central import FrankWolfe
from fedfw.algorithms.fedadmm import FedADMM
from fedfw.algorithms.fedavg import FedAvg
from fedfw.algorithms.fedda import FedDA
from fedfw.algorithms.feddr import FedDR
from fedfw.algorithms.fedfw import FedFW
from fedfw.algorithms.fedfw_plus import FedFWPlus
from fedfw.algorithms.fedfw_sto import FedFWSto
from fedfw.algorithms.fedlmo import FedLMO
from fedfw.algorithms.naive import NaiveFW
from fedfw.algorithms.oracle_steps import OracleAlgorithm
from fedfw.algorithms.projected import ProjectedAlgorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.name: cls
    for cls in (FedFW, FedFWPlus, FedFWSto, FedFWAnchored, FedLMO, NaiveFW, FrankWolfe, FedAvg, FedDR, FedADMM, FedDA)
}
"""Every algorithm by its name on the command line."""

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Evidence",
    "FedADMM",
    "FedAvg",
    "FedDA",
    "FedDR",
    "FedFW",
    "FedFWAnchored",
    "FedFWPlus",
    "FedFWSto",
    "FedLMO",
    "FrankWolfe",
    "Message",
    "NaiveFW",
    "OracleAlgorithm",
    "Plan",
    "ProjectedAlgorithm",
    "Rates",
    "Server",
    "Setting",
    "Upload",
]
