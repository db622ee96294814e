"""The steps of one round: every client's, then the server's."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedfw.algorithms import channels
from fedfw.algorithms.contract import (
    Aggregate,
    Algorithm,
    Evidence,
    Gradient,
    Lmo,
    Message,
    Plan,
    Server,
    State,
    Upload,
)
from fedfw.algorithms.taking_part import take_part
from fedfw.atoms import Atom, Dense, Moved, Quantised, TupleAtom
from fedfw.checks import Mask, all_finite, beyond_float32, other_bits
from fedfw.errors import NonFiniteError

_VECTORS = (Dense, Moved, Quantised)
"""Atoms that have not been through an oracle."""


@dataclass(frozen=True, eq=False)
class Party:
    """Clients ``who`` (m,) that use the same set: what they remember, and what they ask for
    gradients and atoms.

    ``weights`` (m,) are their n w_i, which add up to ``weight``; None where these are all 1.
    """

    who: Tensor
    state: State
    gradient: Gradient
    lmo: Lmo
    weights: Tensor | None = None
    weight: float | None = None


@dataclass(frozen=True, eq=False)
class ServerStep:
    """What the server's step of a round gave.

    Parameters
    ----------
    server : Server
        Its new memory.
    aggregate : Aggregate
        The sum that the step was made from.
    changed : Tensor or array
        (p,) of bool: which coordinates of xbar changed.
    support : Tensor, array or None
        (p,) of bool: where the sum of all clients' atoms is not zero; None where clients were
        absent or atoms are not sparse.
    wide : Tensor, array or None
        (p,) of bool, where there is a support: where float32 does not hold that sum exactly.
    """

    server: Server
    aggregate: Aggregate
    changed: Tensor | Mask
    support: Tensor | Mask | None = None
    wide: Tensor | Mask | None = None


@dataclass(frozen=True, eq=False)
class RoundSteps:
    """What all steps of a round gave: the clients' memories and what they sent, party by party, and
    the server's.
    """

    states: list[State]
    uploads: list[Upload]
    step: ServerStep


def take_steps(
    algorithm: Algorithm,
    plan: Plan,
    server: Server,
    message: Message,
    parties: Sequence[Party],
    count: int | None = None,
) -> RoundSteps:
    """One round of all parties; ``count`` says how many clients there are in those of all ranks."""
    states, uploads = [], []
    for party in parties:
        state, atoms, evidence = take_part(
            algorithm, plan, party.state, message, party.gradient, party.lmo
        )
        states.append(state)
        uploads.append(
            upload_of(
                algorithm,
                party.who,
                atoms,
                party.state,
                evidence,
                party.weights,
                weight=party.weight,
            )
        )
    aggregate = _add_up(algorithm, plan, server, uploads, message.t, count)
    _refuse_non_finite(aggregate, uploads, message.t)
    return RoundSteps(states, uploads, _step_from(algorithm, plan, server, aggregate, message.t))


def upload_of(
    algorithm: Algorithm,
    who: Tensor,
    atoms: Atom,
    known: State,
    evidence: Evidence | None = None,
    weights: Tensor | None = None,
    columns: Tensor | None = None,
    weight: float | None = None,
) -> Upload:
    """What the clients ``who`` (m,) sent, with what the server knows of them: their memory before
    the round.
    """
    if not algorithm.contract.weighted:
        weights = None
    if weights is None:
        weight = float(who.shape[0])
    elif weight is None:
        weight = float(weights.sum())
    return Upload(who, atoms, known["x"], evidence, columns, weights, known.get("visited"), weight)


def step_server(
    algorithm: Algorithm,
    plan: Plan,
    server: Server,
    uploads: Sequence[Upload],
    t: int,
    count: int | None = None,
) -> ServerStep:
    """The server's step from the uploads of round t, and from those to other ranks; ``count``
    clients sent them.
    """
    return _step_from(
        algorithm, plan, server, _add_up(algorithm, plan, server, uploads, t, count), t
    )


def _add_up(
    algorithm: Algorithm,
    plan: Plan,
    server: Server,
    uploads: Sequence[Upload],
    t: int,
    count: int | None,
) -> Aggregate:
    beside = algorithm.sends(t, server.xbar.shape[0])
    return Aggregate.of(uploads, plan.n, server.xbar, algorithm.contract.points, beside, count)


def _step_from(
    algorithm: Algorithm, plan: Plan, server: Server, aggregate: Aggregate, t: int
) -> ServerStep:
    aggregate = aggregate.over(plan.ranks)
    after = channels.server_step(algorithm, plan, server, aggregate, t)
    changed = other_bits(server.xbar, after.xbar)
    if not aggregate.sparse:
        return ServerStep(after, aggregate, changed)
    total = aggregate.total
    return ServerStep(after, aggregate, changed, other_bits(total), beyond_float32(total))


def _refuse_non_finite(aggregate: Aggregate, uploads: Sequence[Upload], t: int) -> None:
    """Refuse vectors with a NaN: unlike atoms, they have not been through an oracle, which checks
    its input.

    A sum is finite only if what was added up is: the vectors themselves are looked at where it is
    not.
    """
    vectors = [
        (upload.who, part)
        for upload in uploads
        for part in _parts(upload.atoms)
        if isinstance(part, _VECTORS)
    ]
    if not vectors or all(map(all_finite, (aggregate.total, *aggregate.beside.values()))):
        return
    for who, part in vectors:
        fine = (part.scales if isinstance(part, Quantised) else part.values).sum(1).isfinite()
        if not bool(fine.all()):
            clients = who[~fine].tolist()
            raise NonFiniteError(
                f"round {t}: NaN or infinity in what client {clients[:10]} sends: a smaller step may help",
                clients,
            )


def _parts(sent: Atom) -> Sequence[Atom]:
    return sent.parts if isinstance(sent, TupleAtom) else (sent,)
