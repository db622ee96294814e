"""The server's part of an exchange: its step, from sums over the participants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw.algorithms.contract import Affine, Exchange, Kind, Message, Run, State
from fedfw.checks import Mask, all_finite, beyond_float32, other_bits
from fedfw.errors import NonFiniteError
from fedfw.ranks import ALONE, Ranks
from fedfw.rounds.client_steps import Method
from fedfw.rounds.downlink import Downlink
from fedfw.rounds.sums import Participants, Upload, add_up


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that a server keeps beside its copies of clients: by the method, the downlink, the rule
    for step sizes, and the sums of error feedback's estimates.
    """

    state: State
    down: State
    rule_state: State
    estimates: State

    @property
    def xbar(self) -> Tensor:
        """Return the model, (p,)."""
        return self.state["xbar"]

    @property
    def held(self) -> Tensor:
        """Return the model as clients received it, (p,)."""
        return self.down["held"]


@dataclass(frozen=True, eq=False)
class ServerStep:
    """The result of the server's step of an exchange.

    Parameters
    ----------
    state, down, estimates : dict of str to Tensor
        The new parts of its `ServerState`.
    sums : Participants
        The sums that the step was made from.
    changed : Tensor or array
        (p,) of bool: which coordinates of the held model changed.
    update : Affine or None
        The update of the model, where clients can repeat it.
    support : Tensor, array or None
        (p,) of bool: where the total of that update is not zero.
    wide : Tensor, array or None
        (p,) of bool: where float32 does not hold that total exactly.
    """

    state: State
    down: State
    estimates: State
    sums: Participants
    changed: Tensor | Mask
    update: Affine | None = None
    support: Tensor | Mask | None = None
    wide: Tensor | Mask | None = None


def init_server(method: Method, downlink: Downlink, run: Run, x: Tensor) -> ServerState:
    """Return the server's state when every client begins at x (p,)."""
    state = method.algorithm.init_server(run, x)
    down = downlink.init(method.algorithm.model_to_send(state))
    zero = torch.zeros_like(x, dtype=torch.float64)
    names = method.channels.init(method.algorithm, x[None])
    return ServerState(state, down, method.rule.init(), dict.fromkeys(names, zero))


def step_server(
    method: Method,
    downlink: Downlink,
    run: Run,
    step: Exchange,
    server: ServerState,
    msg: Message,
    uploads: Sequence[Upload],
    count: int,
    columns: Tensor | None = None,
    ranks: Ranks = ALONE,
) -> ServerStep:
    """Return the result of the server's step of an exchange, from the clients' uploads; nothing is
    changed by it.

    Parameters
    ----------
    method, downlink, run, step
        What is run.
    server : ServerState
        After `Exchange.broadcast`.
    msg : Message
        What clients received.
    uploads : sequence of Upload
        What they sent; on several ranks, to this one.
    count : int
        How many clients sent something, to all ranks.
    columns : Tensor, optional
        (w,): the coordinates of shared states; None for all.
    ranks : Ranks
        The processes that share the run.
    """
    estimates = dict(server.estimates)
    for name in method.channels.fed_back(step):
        increase = torch.zeros_like(estimates[name])
        for upload in uploads:
            add_up(upload.sent[name], upload.weights, increase)
        estimates[name] = estimates[name] + ranks.sums(increase)[0]
    fed_back = {name: estimates[name] for name in method.channels.fed_back(step)}
    groups = uploads or [method.no_upload(run, server.xbar)]
    sums = Participants(
        run.n, count, server.xbar, groups, fed_back, columns, ranks, step.uploads.keys()
    )
    validate_finite(step, sums, uploads, msg.t)
    state: State = {}
    update: Affine | None = None
    for name, entry in step.server_step(run, server.state, sums, msg).items():
        if isinstance(entry, Affine):
            state[name] = entry.apply(server.state[name])
            if name == "xbar":
                update = entry
        else:
            state[name] = entry
    model = method.algorithm.model_to_send(state)
    # Clients can repeat the step only if the server sends xbar itself, as it is, and the sum of the
    # atoms is shorter than the model.
    if model is not state["xbar"] or downlink.compressor is not None or not sums.sparse:
        update = None
    down = server.down
    # A model that the step left as it was is held already.
    if model is not server.held and model is not method.algorithm.model_to_send(server.state):
        down = downlink.follow(down, model, update)
    changed = other_bits(server.held, down["held"])
    if update is None:
        return ServerStep(state, down, estimates, sums, changed)
    support = other_bits(update.total)
    wide = beyond_float32(update.total)
    return ServerStep(state, down, estimates, sums, changed, update, support, wide)


def validate_finite(step: Exchange, sums: Participants, uploads: Sequence[Upload], t: int) -> None:
    """Refuse vectors with a NaN or an infinity, which no oracle has checked, unlike atoms; the
    error names the clients.

    A sum is finite only if what was added up is: the vectors themselves are looked at where it is
    not.
    """
    names = [name for name, kind in step.uploads.items() if kind in (Kind.VALUE, Kind.CHANGE)]
    if all(all_finite(sums.total(name)) for name in names):
        return
    for upload in uploads:
        for name in names:
            row_is_finite = upload.decoded[name].sum(1).isfinite()
            if not bool(row_is_finite.all()):
                clients = upload.who[~row_is_finite].tolist()
                raise NonFiniteError(
                    f"round {t}: NaN or infinity in what client {clients[:10]} sends: a smaller "
                    "step may help",
                    clients,
                )
