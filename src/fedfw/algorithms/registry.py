"""Every algorithm by its name on the command line; a new one is a file and a line in this table.

Other packages add theirs by an entry point of the group ``fedfw.algorithms``: a name and the class
that has it.
"""

from typing import Any

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
    Scaffold,
    ServerLMO,
)
from fedfw.algorithms.contrib import FastFedDA, FedADMM, FedMuon, FedMuonCV, FedPAL, LocalMuon
from fedfw.plugins import PluginTable

_OWN: dict[str, type[Algorithm]] = {
    cls.name: cls
    for cls in (
        FedFW,
        FedFWPlus,
        FedFWSto,
        FedFWAnchored,
        FedLMO,
        ServerLMO,
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


def _find_problem(name: str, found: Any) -> str | None:
    """Return what is wrong with an entry point's object, or None."""
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        return f"{found!r}, expected a subclass of fedfw.Algorithm"
    if found.name != name:
        return f"the class's name is {found.name!r}, expected that of its entry point"
    return None


ALGORITHMS: PluginTable[type[Algorithm]] = PluginTable("fedfw.algorithms", _OWN, _find_problem)
