"""Channels: how payloads travel up. Compression and error feedback live here, for every method.

A lossy channel sends C(v - r), and both ends decode r + C(v - r):

    CHANGE   r = 0: the method adds what was decoded to a shared vector
    VALUE    r = `Predicts.predict`, if the method has a prediction;
             else r = h, the last decoded value (EF21), which both ends keep in float64

h begins at zero and follows v: what one message loses is part of the next. The server also keeps
the weighted sum of all h, present or not; a client that lost its h is handed the server's. Points
of the set are compressed where they are dense (`Compressor.encode_net`).

Reference: Richtarik, Sokolov and Fatkhullin, "EF21: A new, simpler, theoretically better, and
practically faster error feedback" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Algorithm,
    Exchange,
    Kind,
    Message,
    Payload,
    Run,
    State,
)
from fedfw.algorithms.curvature import REPORTED
from fedfw.algorithms.optin import Certifies, Predicts
from fedfw.algorithms.setting import Setting
from fedfw.atoms import Atom, Dense, TupleAtom
from fedfw.checks import holds
from fedfw.compression import Compressor, Readers, compress_option, make_compressor, validate_useful
from fedfw.errors import AtomError

Sent = Mapping[str, Atom]
"""An upload as it travels, by name: stacks of atoms, or of vectors as atoms."""
REPORT = "report"
"""The entry with measured curvature, which the runner adds."""


def dense(values: Tensor) -> Dense:
    """Return a stack of vectors (m, p) as atoms that travel whole."""
    return Dense(shape=(values.shape[1],), batched=True, precision=values.dtype, values=values)


def dense_readers(size: int) -> Readers:
    """Return the functions that decode a vector (size,) that travels whole."""
    return {Dense: partial(Dense.read, shape=(size,), scale=1.0)}


def make_channels(algorithm: Algorithm, setting: Setting, reports: bool = False) -> Channels:
    """Return the channels of a run; a compressor that is useless for its set is refused.

    Parameters
    ----------
    algorithm : Algorithm
        The method; its option ``compress`` counts.
    setting : Setting
        Of the run.
    reports : bool
        Whether clients report measured curvature.
    """
    text = compress_option(algorithm)
    validate_useful(text, setting.constraint, setting.shape, setting.shapes)
    compressor = make_compressor(text)
    if compressor is None:
        return Channels(None, reports)
    points = any(Kind.POINT in exchange.uploads.values() for exchange in algorithm.all_exchanges)
    if points and compressor.keeps_all and not setting.constraint.has_projection:
        raise ValueError(
            f"compress={text!r}, expected none with {setting.constraint!r}: what was decoded may "
            "lie outside of the set, and without a projection there is no way back into it"
        )
    return Channels(compressor.bind(setting.constraint, setting.shapes), reports)


@dataclass(frozen=True)
class Channels:
    """The upload channels of a run.

    Parameters
    ----------
    compressor : Compressor or None
        What shortens vectors, for this run's set.
    reports : bool
        Whether clients that call oracles report measured curvature.
    """

    compressor: Compressor | None = None
    reports: bool = False

    def has_report(self, step: Exchange) -> bool:
        """Return whether payloads of an exchange carry measured curvature."""
        return self.reports and isinstance(step, Certifies)

    def fed_back(self, step: Exchange) -> list[str]:
        """Return the entries that travel with error feedback."""
        if self.compressor is None or isinstance(step, Predicts):
            return []
        return [name for name, kind in step.uploads.items() if kind is Kind.VALUE]

    def init(self, algorithm: Algorithm, x: Tensor) -> State:
        """Return the first estimates h of m clients at x (m, p)."""
        names = [name for exchange in algorithm.all_exchanges for name in self.fed_back(exchange)]
        return {name: torch.zeros_like(x, dtype=torch.float64) for name in names}

    # --- encoding and decoding ---

    def encode(
        self, step: Exchange, run: Run, shared: State, msg: Message, payload: Payload, h: State
    ) -> tuple[Sent, Payload, State]:
        """Return the payload as it is sent, the payload as the server decodes it, and the new
        estimates h of error feedback; ``shared`` is the clients' shared state.
        """
        missing = step.uploads.keys() ^ payload.keys()
        if missing:
            raise ValueError(
                f"{type(step).__name__}: local_update returned {sorted(payload)}, expected the "
                f"entries of uploads, {sorted(step.uploads)}"
            )
        sent: dict[str, Atom] = {}
        decoded: Payload = {}
        for name, kind in step.uploads.items():
            value = payload[name]
            if kind in (Kind.ATOM, Kind.POINT):
                sent[name] = self._encode_point(run, msg, value, kind)
            elif self.compressor is None:
                sent[name] = dense(value)
            else:
                reference = self._reference(step, run, shared, msg, name, decoded, h)
                sent[name] = self._compress(run, msg, (value - reference).to(value.dtype))
            # The client decodes what it sends, so that both ends hold the same estimates.
            h = self._decode_one(step, run, shared, msg, name, sent[name], decoded, h)
        return sent, decoded, h

    def decode(
        self, step: Exchange, run: Run, shared: State, msg: Message, sent: Sent, h: State
    ) -> tuple[Payload, State]:
        """Return the decoded payload and the new estimates; the server calls this."""
        decoded: Payload = {}
        for name in step.uploads:
            h = self._decode_one(step, run, shared, msg, name, sent[name], decoded, h)
        return decoded, h

    def _decode_one(
        self,
        step: Exchange,
        run: Run,
        shared: State,
        msg: Message,
        name: str,
        atom: Atom,
        decoded: Payload,
        h: State,
    ) -> State:
        """Write the entry ``name``, as decoded from its atom, into ``decoded``, and return the new
        estimates h.
        """
        if step.uploads[name] in (Kind.ATOM, Kind.POINT):
            decoded[name] = atom
            return h
        if self.compressor is None:
            decoded[name] = atom.dense()
            return h
        # Changes, and entries that the exchange predicts, have no estimate.
        if name not in h or step.uploads[name] is Kind.CHANGE:
            reference = self._reference(step, run, shared, msg, name, decoded, h)
            decoded[name] = reference + atom.dense(run.dtype)
            return h
        decoded[name] = h[name] + atom.dense(torch.float64)
        return h | {name: decoded[name]}

    def _reference(
        self,
        step: Exchange,
        run: Run,
        shared: State,
        msg: Message,
        name: str,
        decoded: Payload,
        h: State,
    ) -> Tensor | float:
        """Return what both ends expect the vector ``name`` (m, p) to be, of which only the
        difference is sent: its prediction, its estimate in h, or 0.
        """
        if step.uploads[name] is Kind.CHANGE:
            return 0.0
        if isinstance(step, Predicts):
            predicted = step.predict(run, shared, msg, name, decoded)
            if predicted is not None:
                return predicted.to(run.dtype)
        return h.get(name, 0.0)

    def _compress(self, run: Run, msg: Message, x: Tensor) -> Atom:
        """Compress a stack of vectors; one with NaN or infinity travels as it is."""
        assert self.compressor is not None
        if not holds(x.sum(1).isfinite()):  # the receiver refuses NaN, and names the client
            return dense(x)
        shape = (x.shape[1],)
        return self.compressor.encode(x, shape, run.constraint.pieces(shape))

    def _encode_point(self, run: Run, msg: Message, atom: Atom, kind: Kind) -> Atom:
        if self.compressor is None or kind is Kind.ATOM:
            return atom
        base = msg.xbar.to(run.dtype)
        return self.compressor.encode_net(atom, base, run.constraint, tuple(base.shape))

    # --- bytes ---

    def readers(self, step: Exchange, run: Run, msg: Message) -> Readers:
        """Return the functions that decode what a client sends in answer to a message, by the type
        of the atom.
        """
        shape = tuple(msg.xbar.shape)
        readers_of_entries = [
            self._readers(run, msg, kind, shape) for kind in step.uploads.values()
        ]
        size = shape[0] * len(readers_of_entries)
        if self.has_report(step):
            readers_of_entries.append(dense_readers(REPORTED))
            size += REPORTED
        if len(readers_of_entries) == 1:
            return readers_of_entries[0]
        return {TupleAtom: partial(TupleAtom.read, shape=(size,), parts=readers_of_entries)}

    def _readers(self, run: Run, msg: Message, kind: Kind, shape: tuple[int, ...]) -> Readers:
        """Return the functions that decode one entry of this kind, by the type of its atom."""
        if kind is Kind.ATOM or (kind is Kind.POINT and self.compressor is None):
            return run.constraint.net_readers(shape, msg.shares)
        if self.compressor is None:
            return dense_readers(shape[0])
        if kind is Kind.POINT:
            base = msg.xbar.to(run.dtype)
            return self.compressor.net_readers(base, run.constraint, shape, msg.shares)
        return self.compressor.readers(shape, run.constraint.pieces(shape))

    def unpack(self, step: Exchange, atom: Atom) -> Sent:
        """Return the atoms by the names of the exchange's entries, from one atom, or a stack, that
        `pack` made.
        """
        names = list(step.uploads)
        if self.has_report(step):
            names.append(REPORT)
        if len(names) == 1:
            return {names[0]: atom}
        if not isinstance(atom, TupleAtom) or len(atom.parts) != len(names):
            raise AtomError(f"expected {' and '.join(names)}")
        return dict(zip(names, atom.parts, strict=True))


def pack(sent: Sent) -> Atom:
    """Return one stack of atoms, or several that stand beside each other.

    Examples
    --------
    >>> import torch, fedfw
    >>> atoms = fedfw.L1Ball(1.0).lmo(torch.eye(3), batch=True)
    >>> pack({"atom": atoms, "m": dense(torch.ones(3, 3))}).kind
    'one-hot + dense'
    """
    parts = tuple(sent.values())
    if len(parts) == 1:
        return parts[0]
    size = sum(math.prod(part.shape) for part in parts)
    return TupleAtom(shape=(size,), batched=True, precision=parts[0].precision, parts=parts)
