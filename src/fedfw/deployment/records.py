"""The record of a deployed round."""

from dataclasses import dataclass, field

import torch

from fedfw.algorithms.optin import has_points
from fedfw.algorithms.rules import Rates
from fedfw.deployment.events import Events
from fedfw.problems.problem import Problem
from fedfw.rounds.columns import on_columns
from fedfw.rounds.coordinator import Coordinator
from fedfw.rounds.options import Options
from fedfw.rounds.records import Record
from fedfw.rounds.robustness import certified
from fedfw.rounds.round import Round
from fedfw.rounds.wire import digest


@dataclass(frozen=True, repr=False)
class DeployedRecord(Record):
    """A round of a deployment, beside what every `Record` has.

    ``loss`` is known one round later and only where clients report it; ``gap`` stays unknown.

    Parameters
    ----------
    invited : int
        How many clients were asked.
    refused : dict of str to int
        Answers that were not accepted, by reason.
    joined, left, restored : list of int
        Clients that came, went, and were handed their memory.
    drift : float
        The largest difference between xbar and the mean of the x_i that the server rebuilt.
    digest : str
        Stands for xbar's bits.
    notes : list of str
        Sentences on what a person should know of the round, such as that it was refused as a whole.
    """

    invited: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    drift: float = 0.0
    digest: str = ""
    notes: list[str] = field(default_factory=list)


def record_round(
    t: int,
    coordinator: Coordinator,
    judge: Problem | None,
    options: Options,
    now: Round | None,
    rates: Rates | None,
    events: Events,
    invited: int,
) -> DeployedRecord:
    """Return the record of round t, after clients have joined and left.

    Parameters
    ----------
    coordinator : Coordinator
        The server after the round.
    judge : Problem, optional
        The test data, where the round is evaluated.
    options : Options
        Of the run.
    now, rates
        The round and its rates, where there are any.
    events : Events
        What happened in the round.
    invited : int
        How many clients had an order in the last exchange.
    """
    run = coordinator.run
    xbar = coordinator.server.xbar
    model = xbar.to(run.dtype)
    test = None if judge is None else judge.test(model)
    drift = 0.0
    consensus = 0.0
    if has_points(coordinator.method.algorithm):
        mean = on_columns(xbar, coordinator.memory.columns)  # (w,)
        points = coordinator.memory.view(torch.arange(run.n))["x"]  # (n, w)
        differences = (points.double().mean(0) - mean).abs()
        drift = float(differences.max()) if len(differences) else 0.0
        # The root of the sum of ||x_i - xbar||^2.
        consensus = coordinator.memory.spread(xbar) ** 0.5
    return DeployedRecord(
        round=t,
        test_loss=None if test is None else test.loss,
        accuracy=None if test is None else test.accuracy,
        concordance=None if test is None else test.concordance,
        **({} if judge is None else certified(judge, model, options)),
        anchor_gap=None if now is None else now.anchor_gap,
        lower_bound=coordinator.best_bound,
        consensus=consensus,
        distance=0.0 if run.constraint.contains(model) else None,
        participants=len(events.counted),
        eta=None if rates is None else rates.eta,
        lam=None if rates is None else rates.lam,
        rho=None if rates is None else rates.rho,
        **({} if now is None else vars(now.traffic)),
        # Of the same round with dense vectors: one down to and one up from each invited client.
        bytes_dense=2 * invited * coordinator.wire.dense_nbytes,
        invited=invited,
        refused=dict(events.refused),
        joined=list(events.joined),
        left=list(events.left),
        # Exchanges note restored clients; those of a round that was refused afterwards are not.
        restored=sorted(events.restored & set(events.counted)),
        drift=drift,
        digest=digest(model).hex(),
        notes=list(events.notes),
    )
