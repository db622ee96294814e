"""One file an algorithm; a new one is a file and a line in the table below."""

from fedfw.algorithms.anchored import FedFWAnchored
from fedfw.algorithms.base import Algorithm, Evidence, Message, Plan, Rates, Server, Setting, Upload
from fedfw.algorithms.central import FrankWolfe
from fedfw.algorithms.fedadam import FedAdam
from fedfw.algorithms.fedadamw import FedAdamW
from fedfw.algorithms.fedadmm import FedADMM
from fedfw.algorithms.fedavg import FedAvg
from fedfw.algorithms.fedavgm import FedAvgM
from fedfw.algorithms.fedcm import FedCM
from fedfw.algorithms.fedda import FedDA
from fedfw.algorithms.feddr import FedDR
from fedfw.algorithms.fedfw import FedFW
from fedfw.algorithms.fedfw_plus import FedFWPlus
from fedfw.algorithms.fedfw_sto import FedFWSto
from fedfw.algorithms.fedlmo import FedLMO
from fedfw.algorithms.fedmuon import FedMuon
from fedfw.algorithms.fedmuon_cv import FedMuonCV
from fedfw.algorithms.fedpgd import FedPGD
from fedfw.algorithms.local_muon import LocalMuon
from fedfw.algorithms.naive import NaiveFW
from fedfw.algorithms.oracle_steps import OracleAlgorithm
from fedfw.algorithms.projected import ProjectedAlgorithm
from fedfw.algorithms.scaffold import Scaffold

ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.name: cls
    for cls in (
        FedFW,
        FedFWPlus,
        FedFWSto,
        FedFWAnchored,
        FedLMO,
        LocalMuon,
        FedMuon,
        FedMuonCV,
        NaiveFW,
        FrankWolfe,
        FedPGD,
        FedAvg,
        FedAvgM,
        FedCM,
        Scaffold,
        FedAdam,
        FedAdamW,
        FedDR,
        FedADMM,
        FedDA,
    )
}
"""Every algorithm by its name on the command line."""

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Evidence",
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
    "FedPGD",
    "FrankWolfe",
    "LocalMuon",
    "Message",
    "NaiveFW",
    "OracleAlgorithm",
    "Plan",
    "ProjectedAlgorithm",
    "Rates",
    "Scaffold",
    "Server",
    "Setting",
    "Upload",
]
