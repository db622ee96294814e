"""Every algorithm by its name on the command line; a new one is a file and a line in this table."""

from fedfw.algorithms.anchored import FedFWAnchored
from fedfw.algorithms.base import Algorithm
from fedfw.algorithms.central import FrankWolfe
from fedfw.algorithms.contrib import FastFedDA, FedADMM, FedMuon, FedMuonCV, FedPAL, LocalMuon
from fedfw.algorithms.fedadam import FedAdam
from fedfw.algorithms.fedadamw import FedAdamW
from fedfw.algorithms.fedavg import FedAvg
from fedfw.algorithms.fedavgm import FedAvgM
from fedfw.algorithms.fedcm import FedCM
from fedfw.algorithms.fedda import FedDA
from fedfw.algorithms.feddr import FedDR
from fedfw.algorithms.fedfw import FedFW
from fedfw.algorithms.fedfw_plus import FedFWPlus
from fedfw.algorithms.fedfw_sto import FedFWSto
from fedfw.algorithms.fedlmo import FedLMO
from fedfw.algorithms.fedpgd import FedPGD
from fedfw.algorithms.naive import NaiveFW
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
        FedPAL,
        FedDA,
        FastFedDA,
    )
}
