"""One file an algorithm; a new one is a file and a line in the table below."""

from fedfw.algorithms.anchored import FedFWAnchored
from fedfw.algorithms.base import Algorithm, Evidence, Message, Plan, Rates, Server, Upload
from fedfw.algorithms.central import FrankWolfe
from fedfw.algorithms.fedfw import FedFW
from fedfw.algorithms.fedfw_plus import FedFWPlus
from fedfw.algorithms.fedfw_sto import FedFWSto
from fedfw.algorithms.naive import NaiveFW

ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.name: cls for cls in (FedFW, FedFWPlus, FedFWSto, FedFWAnchored, NaiveFW, FrankWolfe)
}
"""Every algorithm by its name on the command line."""

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Evidence",
    "FedFW",
    "FedFWAnchored",
    "FedFWPlus",
    "FedFWSto",
    "FrankWolfe",
    "Message",
    "NaiveFW",
    "Plan",
    "Rates",
    "Server",
    "Upload",
]
