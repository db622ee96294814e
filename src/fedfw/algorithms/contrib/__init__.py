"""Published methods that few people run: they keep the contract and pass its tests, and nothing
depends on them.
"""

from fedfw.algorithms.contrib.fast_fedda import FastFedDA
from fedfw.algorithms.contrib.muon import FedMuon, FedMuonCV, LocalMuon
from fedfw.algorithms.contrib.splitting import FedADMM, FedPAL

__all__ = [
    "FastFedDA",
    "FedADMM",
    "FedMuon",
    "FedMuonCV",
    "FedPAL",
    "LocalMuon",
]
