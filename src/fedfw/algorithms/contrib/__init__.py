"""Published methods that few people run: they keep the contract and pass its tests, and nothing
depends on them.
"""

from fedfw.algorithms.contrib.fast_fedda import FastFedDA
from fedfw.algorithms.contrib.fedadmm import FedADMM
from fedfw.algorithms.contrib.fedmuon import FedMuon
from fedfw.algorithms.contrib.fedmuon_cv import FedMuonCV
from fedfw.algorithms.contrib.fedpal import FedPAL
from fedfw.algorithms.contrib.local_muon import LocalMuon

__all__ = ["FastFedDA", "FedADMM", "FedMuon", "FedMuonCV", "FedPAL", "LocalMuon"]
