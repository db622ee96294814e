"""Channels: how the payload of clients travels, and what both ends make of it. Compression and
error feedback are here.

A method that compresses sends vectors as C(v - r), where r is what both ends hold or expect of v
(`Algorithm.predicted`). With error feedback (EF21) r is h, the sum of all that was decoded so far:

    client i:  sends C(v_i - h_i);   h_i <- h_i + C(v_i - h_i)
    server:    h <- h + sum over those present of n w_i C(v_i - h_i), the weighted sum of all h_i, present or not

h_i begins at zero and follows v_i: what one message loses is part of the next. The h_i are kept in
float64, so that their sum at the server does not drift from theirs. A client that lost its h_i is
handed the server's. The server's step is made from h / n, the mean of what all clients would send.

Atoms of the set are compressed where they are dense (`Compressor.encode_net`).

Reference: Richtarik, Sokolov and Fatkhullin, "EF21: A new, simpler, theoretically better, and
practically faster error feedback" (2021).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Aggregate,
    Algorithm,
    Message,
    Payload,
    Plan,
    Server,
    State,
    Up,
)
from fedfw.atoms import Atom, Dense, TupleAtom
from fedfw.checks import holds
from fedfw.compression import Compressor, Readers

ESTIMATE = "h"
"""The name of what both ends hold of vectors with error feedback: of each client's vector, and of
their sum.
"""


def compressor_of(algorithm: Algorithm, plan: Plan, *, gathered: bool = False) -> Compressor | None:
    """Return what compresses the vectors of a run's steps, or of its gathered sums; None where they
    travel whole.
    """
    chosen = algorithm.compressor if algorithm.contract.sums is gathered else None
    return None if chosen is None else chosen.bind(plan.constraint, plan.shapes)


def encode(
    algorithm: Algorithm, plan: Plan, state: State, message: Message, payload: Payload
) -> Atom:
    """Return what travels from a stack of clients."""
    compressor = compressor_of(algorithm, plan)
    if compressor is None:
        return pack(payload)
    message, sent = message.to(state["x"].dtype), dict[str, Atom]()
    for name, value in payload.items():
        if isinstance(value, Atom):
            sent[name] = compressor.encode_net(
                value, message.xbar, plan.constraint, tuple(message.xbar.shape)
            )
        else:
            change = value - algorithm.predicted(plan, state, message, name, sent)
            sent[name] = compress(compressor, plan, change.to(value.dtype), message.t)
    return pack(sent)


def compress(compressor: Compressor | None, plan: Plan, x: Tensor, t: int) -> Atom:
    """Return vectors x (m, p) as they travel in round t."""
    if compressor is None or not holds(
        x.sum(1).isfinite()
    ):  # the receiver refuses NaN, and says whose it is
        return dense(x)
    return compressor.encode(x, (x.shape[1],), plan.constraint.pieces((x.shape[1],)), draw=t)


def dense(values: Tensor) -> Dense:
    """Return a stack of vectors (m, p) that travel whole."""
    return Dense(shape=(values.shape[1],), batched=True, precision=values.dtype, values=values)


def pack(payload: Mapping[str, Atom | Tensor]) -> Atom:
    """Return one stack of atoms, or several that stand beside each other.

    Examples
    --------
    >>> import torch, fedfw
    >>> atoms = fedfw.L1Ball(1.0).lmo(torch.eye(3), batch=True)
    >>> pack({"atom": atoms, "m": torch.ones(3, 3)}).kind
    'one-hot + dense'
    """
    parts = tuple(value if isinstance(value, Atom) else dense(value) for value in payload.values())
    if len(parts) == 1:
        return parts[0]
    size = sum(math.prod(part.shape) for part in parts)
    return TupleAtom(shape=(size,), batched=True, precision=parts[0].precision, parts=parts)


def unpack(algorithm: Algorithm, t: int, sent: Atom) -> Mapping[str, Atom]:
    """Return the payload of round t by name, from what travelled."""
    first = "atom" if algorithm.contract.up is Up.ATOM else "vector"
    beside = algorithm.sends(t, 0)
    if not beside:
        return {first: sent}
    assert isinstance(sent, TupleAtom)
    return dict(zip((first, *beside), sent.parts, strict=True))


def readers(algorithm: Algorithm, plan: Plan, message: Message) -> Readers:
    """Return the functions that decode what a client answers to a message."""
    shape, t = tuple(message.xbar.shape), message.t
    first = vector = vector_readers(algorithm, plan, shape[0], t)
    if algorithm.contract.up is Up.ATOM:
        compressor, (_, shares) = compressor_of(algorithm, plan), plan.mixing(t)
        if compressor is None:
            first = plan.constraint.net_readers(shape, shares)
        else:
            first = compressor.net_readers(message.xbar, plan.constraint, shape, shares)
    sizes = algorithm.sends(t, shape[0]).values()
    if not sizes:
        return first
    parts = [first, *(vector if size == shape[0] else _whole(size) for size in sizes)]
    return {TupleAtom: partial(TupleAtom.read, shape=(shape[0] + sum(sizes),), parts=parts)}


def vector_readers(
    algorithm: Algorithm, plan: Plan, p: int, t: int, *, gathered: bool = False
) -> Readers:
    """Return the functions that decode a vector (p,) of round t, of a step or of a gathered sum."""
    compressor = compressor_of(algorithm, plan, gathered=gathered)
    return (
        _whole(p)
        if compressor is None
        else compressor.readers((p,), plan.constraint.pieces((p,)), draw=t)
    )


def _whole(size: int) -> Readers:
    return {Dense: partial(Dense.read, shape=(size,), scale=1.0)}


def apply(
    algorithm: Algorithm, plan: Plan, shared: State, message: Message, payload: Mapping[str, Atom]
) -> State:
    """Return the rebuilt part of the memory after what was sent, and after what error feedback
    makes of it.
    """
    after = algorithm.apply(plan, shared, message, payload)
    if algorithm.compressor is None or ESTIMATE not in after:
        return after
    return after | {ESTIMATE: after[ESTIMATE] + payload["vector"].dense(torch.float64)}


def server_step(
    algorithm: Algorithm, plan: Plan, server: Server, aggregate: Aggregate, t: int
) -> Server:
    """Return the server's new memory; with error feedback its step is made from what is held of all
    clients.
    """
    if algorithm.compressor is None or ESTIMATE not in server.vectors:
        return algorithm.server_step(plan, server, aggregate, t)
    h = server.vectors[ESTIMATE] + aggregate.total
    mean = (h / plan.n).to(server.xbar.dtype)
    after = algorithm.server_step(plan, server, replace(aggregate, total=mean, weight=1.0), t)
    return replace(after, vectors=after.vectors | {ESTIMATE: h})
