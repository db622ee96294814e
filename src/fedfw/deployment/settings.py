"""How a training is deployed, beside the task: each option declared once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fedfw.options import check_options, option, options_of

APP_DEFAULTS: dict[str, Any] = {
    "rounds": 5,
    "clients": 3,
    "partition": "iid",
    "algorithm": "fedfw",
    "constraint": "ksparse:k=65,r=10",
    "penalty": 1e-4,
}
"""Values of an app's table where it differs from a simulation's default: the digits are learnt in
these few rounds.
"""
SIMULATED_ONLY = ("tol", "polish", "device", "mixed", "separate")
"""Options of simulations that a deployment does not have."""
SMALL_FLEET = 100
"""Clients up to which the usual waiting times are enough."""
SECONDS_A_CLIENT = 1.0
"""Seconds that each further client adds to them. On two cores a quarter of it was measured
(fedfw_reproduction.bench.fleet): Flower's SuperLink answers one call after another, and a client's
round is sixteen of them.
"""


def fleet_allowance(clients: int) -> float:
    """Return the seconds by which a fleet of this size needs longer than a small one.

    Parameters
    ----------
    clients : int
        Clients, or nodes that are connected.

    Examples
    --------
    >>> fleet_allowance(10), fleet_allowance(1000)
    (0.0, 900.0)
    """
    return SECONDS_A_CLIENT * max(0, clients - SMALL_FLEET)


@dataclass(frozen=True)
class Deployment:
    """How a training is deployed, beside the task.

    Examples
    --------
    >>> Deployment().round_seconds(10), Deployment().round_seconds(1000)
    (120.0, 1020.0)
    >>> Deployment(out="/srv/training", resume=True, rebind="0,3").rebound
    [0, 3]
    """

    run_name: Annotated[
        str,
        option(
            "a name for people; clients keep their memory by it and a random suffix",
            expected="letters, digits, '-' and '_'",
            pattern=r"^[A-Za-z0-9_-]+$",
        ),
    ] = "run"
    out: Annotated[
        str | Path | None,
        option("the server's folder for history, model and checkpoints", expected="a path"),
    ] = None
    resume: Annotated[bool, option("go on from the last checkpoint in out")] = False
    round_timeout: Annotated[
        float | None,
        option(
            "seconds a round waits; a client that is late is absent",
            gt=0,
            otherwise="120, and 1 more for each client above 100",
        ),
    ] = None
    start_timeout: Annotated[
        float | None,
        option(
            "seconds to wait for the clients of the start",
            gt=0,
            otherwise="300, and 1 more for each client above 100",
        ),
    ] = None
    leave_after: Annotated[
        int,
        option(
            "rounds in a row that a client is asked in vain until it is taken to have left; 0 for "
            "never",
            ge=0,
        ),
    ] = 3
    rebind: Annotated[
        str,
        option(
            "clients whose numbers may be claimed by other keys than before, at this start: '3', "
            "'0,3' or 'all'",
            expected="clients' numbers with commas between them, or 'all'",
            pattern=r"^(|all|[0-9]{1,7}(,[0-9]{1,7})*)$",
        ),
    ] = ""
    tell_loss: Annotated[
        bool,
        option(
            "clients also send numbers about their data: their loss at the model, one for a bound "
            "on the optimum"
        ),
    ] = False
    share_gradients: Annotated[
        bool, option("allows algorithms whose clients send gradients to the server in the clear")
    ] = False

    def __post_init__(self) -> None:
        """Check the options, and that no option is given that changes nothing."""
        check_options(self)
        if self.resume and self.out is None:
            raise ValueError("resume needs the folder to go on from")
        if self.rebind and not self.resume:
            raise ValueError(
                f"rebind={self.rebind!r} changes nothing in a new run, expected resume=true beside "
                "it"
            )

    def round_seconds(self, clients: int) -> float:
        """Return how long a round of so many clients waits."""
        return (
            120.0 + fleet_allowance(clients) if self.round_timeout is None else self.round_timeout
        )

    def start_seconds(self, clients: int) -> float:
        """Return how long the first round waits for so many clients."""
        return (
            300.0 + fleet_allowance(clients) if self.start_timeout is None else self.start_timeout
        )

    @property
    def rebound(self) -> list[int] | None:
        """Return the clients of ``rebind``; None for all."""
        return (
            None
            if self.rebind == "all"
            else [int(client) for client in self.rebind.split(",") if client]
        )

    @property
    def folder(self) -> Path | None:
        """Return where the server keeps its files."""
        return None if not self.out else Path(self.out).expanduser()


DEPLOYMENT_KEYS = frozenset(declared.key for declared in options_of(Deployment).values())
"""The keys of the options that say how a task is deployed."""
