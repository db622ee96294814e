"""The algorithms, one file each; `contract` is all that one reads to write one, `registry` lists
them by name, `contrib` has methods that few people run.
"""

from fedfw.algorithms.anchor import Anchor
from fedfw.algorithms.anchored import FedFWAnchored
from fedfw.algorithms.central import FrankWolfe
from fedfw.algorithms.contract import (
    Affine,
    Algorithm,
    Client,
    Exchange,
    Kind,
    Message,
    Oracles,
    Payload,
    Present,
    Reveals,
    Run,
    State,
    Sums,
)
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
from fedfw.algorithms.fedlmo_server import ServerLMO
from fedfw.algorithms.fedpgd import FedPGD
from fedfw.algorithms.learning_rate import GradientMethod
from fedfw.algorithms.naive import NaiveFW
from fedfw.algorithms.optin import (
    Certifies,
    ChoosesSteps,
    GathersGradients,
    Predicts,
    Tunable,
    gathers_gradients,
    has_points,
    sends_atoms_only,
)
from fedfw.algorithms.penalised import PenalisedFW
from fedfw.algorithms.rules import FrankWolfeSteps, GradientSteps, Rates, StepRule
from fedfw.algorithms.scaffold import Scaffold
from fedfw.algorithms.setting import Setting

__all__ = [
    "Affine",
    "Algorithm",
    "Anchor",
    "Certifies",
    "ChoosesSteps",
    "Client",
    "Exchange",
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
    "FrankWolfeSteps",
    "GathersGradients",
    "GradientMethod",
    "GradientSteps",
    "Kind",
    "Message",
    "NaiveFW",
    "Oracles",
    "Payload",
    "PenalisedFW",
    "Predicts",
    "Present",
    "Rates",
    "Reveals",
    "Run",
    "Scaffold",
    "ServerLMO",
    "Setting",
    "State",
    "StepRule",
    "Sums",
    "Tunable",
    "gathers_gradients",
    "has_points",
    "sends_atoms_only",
]
