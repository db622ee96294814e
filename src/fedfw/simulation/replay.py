"""Exchanges on a GPU without Python between their kernels: all steps, replayed as one CUDA graph.

The steps are those of `fedfw.simulation.executor`. Numbers that change from round to round are read
from the device's memory, and checks are looked at once, at the end: an exchange that fails one is
taken again step by step, which names the client.

A device is told to take the next round before the host has looked at this one, where nothing but
this one's results goes into it. There are two lanes, each with recordings and places of its own, so
that what a round gave is not overwritten while the host works with it. A round that was begun ahead
counts only if it was given what the next round turns out to be given, and if no callback has
changed these tensors or the data since.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.algorithms.contract import Affine, Exchange, Message, State
from fedfw.algorithms.rules import Rates
from fedfw.checks import postponed
from fedfw.graphs import Replayed
from fedfw.rounds.server_steps import ServerState, ServerStep
from fedfw.rounds.sums import Upload


class ExchangeSteps(NamedTuple):
    """The results of all steps of an exchange: what clients sent, cohort by cohort, and the
    server's.
    """

    uploads: list[Upload]
    step: ServerStep


Steps = Callable[[Exchange, ServerState, State, Message, bool], ExchangeSteps]
"""The steps of all clients, stacked, and of the server."""
_MOST_RECORDINGS = 8
"""Recordings of a lane; more are needed only if numbers differ that a recording does not read."""


class _Unknown:
    """Stands for what differs from round to round: a step that looked at it could not be replayed
    in another one.
    """

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("a recorded step depends on its round through its rates alone")

    def __bool__(self) -> NoReturn:
        raise TypeError("a recorded step depends on its round through its rates alone")


_UNKNOWN: Any = _Unknown()
Following = tuple[tuple[Rates, ...], bool]
"""The rates of the next round, and whether it asks for evidence."""
Layout = tuple[tuple[torch.dtype, torch.Size], ...]


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a recording: which tensors it takes, and what it does not read from them.

    The server's vectors lie one behind the other in one tensor of bytes, so that one copy is enough
    for all of them.
    """

    label: str
    certify: bool
    state: tuple[str, ...]
    server: tuple[str, ...]
    down: tuple[str, ...]
    layout: Layout
    """The types and shapes of the server's vectors."""
    message: tuple[str, ...]
    """The vectors that go down beside the model."""
    rates: tuple[Rates, ...] | None
    """The rates, where they stay as they are; None for those that are read."""

    def server_in(self, data: Tensor, like: ServerState) -> ServerState:
        """Return the server's state in bytes of `_packed`: views of them."""
        vectors = _unpacked(data, self.layout)
        state = dict(zip(self.server, vectors, strict=False))
        down = dict(zip(self.down, vectors[len(self.server) :], strict=True))
        return replace(like, state=state, down=down)


def _vectors_of(server: ServerState) -> tuple[Tensor, ...]:
    return (*server.state.values(), *server.down.values())


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of tensors one behind the other, in the order of `_by_size`."""
    order = _by_size([tensor.dtype for tensor in tensors])
    return torch.cat([tensors[i].reshape(-1).view(torch.uint8) for i in order])


def _unpacked(data: Tensor, layout: Sequence[tuple[torch.dtype, torch.Size]]) -> list[Tensor]:
    """Return the tensors of these types and shapes from the bytes that `_packed` made of them, as
    views.
    """
    views: dict[int, Tensor] = {}
    begin = 0
    # In the order of `_packed`: the widest numbers first, so that each lies at a multiple of its
    # size.
    for i in _by_size([dtype for dtype, _ in layout]):
        dtype, shape = layout[i]
        end = begin + shape.numel() * dtype.itemsize
        views[i] = data[begin:end].view(dtype).view(shape)
        begin = end
    return [views[i] for i in range(len(layout))]


def _by_size(types: Sequence[torch.dtype]) -> list[int]:
    """Return the order in which numbers of these types lie behind each other: each begins at a
    multiple of its size then.
    """
    return sorted(range(len(types)), key=lambda i: -types[i].itemsize)


class _Lane:
    """Recordings by what they are given, and the numbers that they exchange with the host."""

    def __init__(self, device: torch.device) -> None:
        """Make the places where rates are written for the device; pinned memory on the host, so
        that copies need not wait.
        """
        on_gpu = device.type == "cuda"
        # Step size, penalty and averaging weight: the first three of `Rates`.
        self.rates = torch.zeros(3, dtype=torch.float64, device=device)
        self.rates_on_host = torch.zeros(3, dtype=torch.float64, pin_memory=on_gpu)
        self.next_rates = self.rates_on_host.numpy()
        self.seen: dict[int, Tensor] = {}  # on the host, by its length
        self.recordings: dict[_Inputs, Any] = {}
        # Marks the end of the exchange that was launched last.
        self.done = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _RoundOutput:
    """The results of an exchange, all of which the next one on the same lane overwrites."""

    steps: ExchangeSteps
    following: _Inputs
    """Of what the next round takes, where that is what this one gives."""
    server: Tensor
    """The server's state, in bytes."""
    checks: list[npt.NDArray[Any]]
    """On the host, when the exchange is done: conditions, and numbers that are to be finite."""
    marks: list[Tensor]
    """On the host, when the exchange is done: `_marks`."""


@dataclass(frozen=True)
class _PendingRound:
    """An exchange that a device was told to take: what it was given, and what it gives."""

    t: int
    exchange: Exchange
    inputs: _Inputs
    rates: tuple[Rates, ...]
    given: tuple[Tensor, ...]
    versions: tuple[int, ...]
    recording: Any
    output: _RoundOutput
    server: ServerState
    server_bytes: Tensor
    """The server's state for all to keep, and the bytes that it lies in."""


class ReplayedRounds:
    """Takes exchanges in which all clients of one set take part with all of their samples.

    Parameters
    ----------
    steps : callable
        The steps of all clients, stacked, and of the server.
    note : callable
        (name of a part, when it began) is called when the steps are done, for the timing.
    device : torch.device
        Where the tensors are.
    data : sequence of Tensor
        What the steps read beside what they are given: a round that was begun ahead is taken anew
        if it was changed.
    replay : callable
        Makes a function of tensors one that replays its kernels.
    """

    def __init__(
        self,
        steps: Steps,
        note: Callable[[str, float], None],
        device: torch.device,
        data: Sequence[Tensor] = (),
        replay: Callable[..., Any] = Replayed,
    ) -> None:
        """Begin without recordings, on two lanes: one is read while the other is at work."""
        self._steps = steps
        self._note = note
        self._data = tuple(data)
        self._replay = replay
        self._lanes = (_Lane(device), _Lane(device))
        self._ahead: _PendingRound | None = None
        self._last: _PendingRound | None = None
        self._cannot = False

    def begin(
        self,
        exchange: Exchange,
        server: ServerState,
        state: State,
        message: Message,
        certify: bool,
        following: Following | None = None,
    ) -> Callable[[], ExchangeSteps] | None:
        """Begin an exchange, and return a function that waits for its result; None where it cannot
        be replayed.

        What it gave is overwritten by the one after the next, but for the server's state, which is
        for all to keep.

        Parameters
        ----------
        exchange, server, state, message
            What is to be taken.
        certify : bool
            Whether clients send evidence about the optimum.
        following : tuple, optional
            The rates of the next round and whether it asks for evidence, where it will be given
            this round's results and nothing else, so that it can be begun ahead.
        """
        began = time.perf_counter()
        inputs = _inputs_of(exchange, server, state, message, certify)
        other_vectors = [vector for name, vector in message.vectors.items() if name != "xbar"]
        given = (*state.values(), *_vectors_of(server), *other_vectors)
        pending = self._ahead
        self._ahead = None
        if pending is None or not self._is_the_same(pending, exchange, inputs, message, given):
            pending = self._launch(exchange, inputs, message.t, message.rates, given, server)
        if pending is None:
            return None
        lane, other_lane = self._lanes
        # The next exchange is launched on the other lane, while this one's results are read.
        self._lanes = (other_lane, lane)
        self._last = pending
        if following is not None:
            self._begin_ahead(pending, *following)

        def finish() -> ExchangeSteps:
            """Wait for the device, and return the result of the exchange."""
            if lane.done is not None:
                lane.done.synchronize()
            self._note("steps", began)
            return self._read_back(pending, message)

        return finish

    def _begin_ahead(self, pending: _PendingRound, rates: tuple[Rates, ...], certify: bool) -> None:
        """Launch the round after ``pending`` with its results, if there is a recording of it."""
        inputs = replace(pending.output.following, certify=certify)
        recording = self._lanes[0].recordings.get(inputs)
        after = pending.output.steps.uploads[0].after
        if recording is None or not recording.ready or after is None:
            return
        given = (*after.values(), *_vectors_of(pending.server))
        self._ahead = self._launch(
            pending.exchange, inputs, pending.t + 1, rates, given, pending.server
        )

    def _launch(
        self,
        exchange: Exchange,
        inputs: _Inputs,
        t: int,
        rates: tuple[Rates, ...],
        given: tuple[Tensor, ...],
        server: ServerState,
    ) -> _PendingRound | None:
        """Launch an exchange on the lane whose results are no longer needed; None where it cannot
        be recorded.
        """
        lane = self._lanes[0]
        if inputs not in lane.recordings and len(lane.recordings) == _MOST_RECORDINGS:
            self._cannot = True
        if self._cannot:
            return None
        # Written where the recording reads its rates.
        lane.next_rates[:] = rates[0][:3]
        if inputs not in lane.recordings:
            lane.recordings[inputs] = self._replay(
                lambda *tensors: self._record(lane, exchange, inputs, server, tensors)
            )
        recording = lane.recordings[inputs]
        state_count = len(inputs.state)
        vectors = given[state_count : state_count + len(inputs.layout)]
        try:
            output: _RoundOutput = recording(
                *given[:state_count], self._bytes_of(vectors), *given[state_count + len(vectors) :]
            )
        except Exception:
            # A step depends on its round, or on a NaN that no check stopped. Taken step by step,
            # the exchange raises the error that explains it.
            self._cannot = True
            return None
        self._cannot = recording.gave_up
        # The next launch on this lane overwrites the output: the server's state is copied.
        server_bytes = output.server.clone()
        if lane.done is not None:
            lane.done.record(torch.cuda.current_stream(server_bytes.device))
        after = output.following.server_in(server_bytes, server)
        versions = self._versions(given)
        return _PendingRound(
            t, exchange, inputs, rates, given, versions, recording, output, after, server_bytes
        )

    def _bytes_of(self, vectors: tuple[Tensor, ...]) -> Tensor:
        """Return the bytes of the server's vectors; the last round's lie together already."""
        last = self._last
        if last is not None and _same(_vectors_of(last.server), vectors):
            return last.server_bytes
        return _packed(vectors)

    def _versions(self, given: tuple[Tensor, ...]) -> tuple[int, ...]:
        """Return how often each of the tensors that an exchange reads was changed so far."""
        return tuple([tensor._version for tensor in (*given, *self._data)])

    def _is_the_same(
        self,
        ahead: _PendingRound,
        exchange: Exchange,
        inputs: _Inputs,
        message: Message,
        given: tuple[Tensor, ...],
    ) -> bool:
        """Return whether an exchange that was begun ahead is the one that is to be taken."""
        named = (message.t, message.rates, inputs) == (ahead.t, ahead.rates, ahead.inputs)
        same = named and exchange is ahead.exchange and _same(ahead.given, given)
        return same and ahead.versions == self._versions(given)

    def _read_back(self, pending: _PendingRound, message: Message) -> ExchangeSteps:
        """Return the result of an exchange whose checks and marks are on the host by now; one that
        fails a check is taken again step by step, which raises the error.
        """
        steps = pending.output.steps
        if not all(map(_is_well, pending.output.checks)):
            self._ahead = None
            state, server, vectors = _unpack(
                pending.inputs, pending.recording.given, pending.server
            )
            message = replace(message, vectors=vectors)
            return self._steps(pending.exchange, server, state, message, pending.inputs.certify)
        # In the order of `_marks`.
        changed, *marks = pending.output.marks
        server = pending.server
        step = replace(steps.step, state=server.state, down=server.down, changed=changed)
        if step.update is not None:
            support, wide, keep, scale = marks
            update = Affine(float(keep), float(scale), step.update.total)
            step = replace(step, update=update, support=support, wide=wide)
        return ExchangeSteps(steps.uploads, step)

    def _record(
        self,
        lane: _Lane,
        exchange: Exchange,
        inputs: _Inputs,
        like: ServerState,
        tensors: tuple[Tensor, ...],
    ) -> _RoundOutput:
        """Take the steps with rates that are read from the device, and copy checks and marks to the
        host.
        """
        device_rates = lane.rates.copy_(lane.rates_on_host, non_blocking=True)
        state, server, vectors = _unpack(inputs, tensors, like)
        rates = (Rates(*device_rates),) if inputs.rates is None else inputs.rates
        # Nothing in a recording may depend on the round's number or tolerance.
        message = Message(_UNKNOWN, vectors, rates, rates[0].eta, [1.0], _UNKNOWN)
        with postponed() as checks:
            steps = self._steps(exchange, server, state, message, inputs.certify)
        numbers = [*checks, *_marks(steps)]
        packed_numbers = _packed(numbers)
        if len(packed_numbers) not in lane.seen:
            lane.seen[len(packed_numbers)] = torch.zeros(
                len(packed_numbers), dtype=torch.uint8, pin_memory=packed_numbers.is_cuda
            )
        on_host = lane.seen[len(packed_numbers)].copy_(packed_numbers, non_blocking=True)
        views = _unpacked(on_host, [(tensor.dtype, tensor.shape) for tensor in numbers])
        seen_checks = [check.numpy() for check in views[: len(checks)]]
        after = replace(server, state=steps.step.state, down=steps.step.down)
        next_state = steps.uploads[0].after
        assert next_state is not None
        following = _inputs_of(exchange, after, next_state, message, inputs.certify)
        following = replace(following, rates=inputs.rates, message=())
        packed = _packed(_vectors_of(after))
        return _RoundOutput(steps, following, packed, seen_checks, views[len(checks) :])


def _inputs_of(
    exchange: Exchange, server: ServerState, state: State, message: Message, certify: bool
) -> _Inputs:
    """Return what distinguishes the recording for an exchange with these inputs."""
    layout = tuple((vector.dtype, vector.shape) for vector in _vectors_of(server))
    other_names = tuple(name for name in message.vectors if name != "xbar")
    # One Frank-Wolfe step reads its rates; those of gradient steps seldom change.
    reads_rates = len(message.rates) == 1 and "atom" in exchange.uploads
    rates = None if reads_rates else message.rates
    return _Inputs(
        exchange.label,
        certify,
        tuple(state),
        tuple(server.state),
        tuple(server.down),
        layout,
        other_names,
        rates,
    )


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether these are the very same tensors."""
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _is_well(check: npt.NDArray[Any]) -> bool:
    """Return whether a condition on the host holds, or numbers that are to be finite are."""
    return bool(check.all() if check.dtype == np.bool_ else np.isfinite(check).all())


def _marks(exchange_steps: ExchangeSteps) -> list[Tensor]:
    """Return the tensors that the host reads after an exchange: which coordinates changed and, for
    an update that clients can repeat, where its total is not zero, where float32 does not hold it,
    and its two numbers.
    """
    step = exchange_steps.step
    marks = [torch.as_tensor(step.changed)]
    if step.update is not None:
        assert step.support is not None
        assert step.wide is not None
        marks += [torch.as_tensor(step.support), torch.as_tensor(step.wide)]
        for number in (step.update.keep, step.update.scale):
            marks.append(torch.as_tensor(number, dtype=torch.float64, device=marks[0].device))
    return marks


def _unpack(
    inputs: _Inputs, tensors: tuple[Tensor, ...], like: ServerState
) -> tuple[State, ServerState, State]:
    """Return the clients' state, the server's, and the message's vectors."""
    rest = iter(tensors)
    state = {name: next(rest) for name in inputs.state}
    server = inputs.server_in(next(rest), like)
    vectors = {"xbar": server.held} | {name: next(rest) for name in inputs.message}
    return state, server, vectors
