"""Rounds on a GPU without Python between their kernels: all steps of a round, replayed as one CUDA
graph.

The steps are the same functions. Numbers that change from round to round are read from the device's
memory, and checks are looked at once, at the end: a round that fails one is taken again step by
step, which names the client.

A device is told to take the next round before the host has looked at this one, where nothing but
this one's results goes into it. There are two lanes, each with recordings and places of its own, so
that what a round gave is not overwritten while the host works with it. A round that was begun ahead
counts only if it was given what the next round turns out to be given, and if nobody has changed
these tensors or the data since.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.algorithms.contract import Message, Plan, Rates, Server, State
from fedfw.algorithms.steps import RoundSteps, ServerStep
from fedfw.checks import postponed
from fedfw.graphs import Replayed

Steps = Callable[[Plan, Server, State, Message], RoundSteps]
"""The steps of all clients, stacked, and of the server."""


class _Unknown:
    """Stands for what differs from round to round: a step that looked at it could not be replayed
    in another one.
    """

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("a recorded step depends on its round through plan.rates alone")

    def __bool__(self) -> NoReturn:
        raise TypeError("a recorded step depends on its round through plan.rates alone")


_UNKNOWN: Any = _Unknown()


@dataclass(frozen=True)
class _LivePlan(Plan):
    """The plan with the present round's rates (3,) in the device's memory."""

    now: Any = None

    def rates(self, t: int, k: int = 0) -> Rates:
        return Rates(*self.now)

    def oracle_tol(self, t: int) -> float:
        tol: float = _UNKNOWN  # oracles that iterate cannot be replayed
        return tol


@dataclass(frozen=True)
class _Names:
    """Which tensors a round takes, and whether its clients send evidence about the optimum.

    The server's, which are xbar and its vectors, lie one behind the other in one tensor of bytes,
    so that one copy is enough for all of them.
    """

    state: tuple[str, ...]
    server: tuple[str, ...]
    layout: tuple[tuple[torch.dtype, torch.Size], ...]
    """The types and shapes of xbar and of these vectors."""
    message: tuple[str, ...]
    wants_evidence: bool

    @classmethod
    def of(cls, state: State, server: Server, message: Message) -> _Names:
        layout = tuple((vector.dtype, vector.shape) for vector in _of_server(server))
        return cls(
            tuple(state),
            tuple(server.vectors),
            layout,
            tuple(message.vectors),
            message.wants_evidence,
        )

    def server_in(self, held: Tensor) -> Server:
        """The server's memory in bytes of `_packed`: views of them."""
        xbar, *vectors = _unpacked(held, self.layout)
        return Server(xbar, dict(zip(self.server, vectors, strict=True)))


def _of_server(server: Server) -> tuple[Tensor, ...]:
    return server.xbar, *server.vectors.values()


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of tensors one behind the other, in the order of `_by_size`."""
    order = _by_size([tensor.dtype for tensor in tensors])
    return torch.cat([tensors[i].flatten().view(torch.uint8) for i in order])


def _unpacked(held: Tensor, layout: Sequence[tuple[torch.dtype, torch.Size]]) -> list[Tensor]:
    """The tensors of these types and shapes that bytes were made from: views of them."""
    found, begin = {}, 0
    for i in _by_size([dtype for dtype, _ in layout]):
        dtype, shape = layout[i]
        end = begin + shape.numel() * dtype.itemsize
        part = held[begin:end].view(dtype)
        found[i], begin = part if len(shape) == 1 else part.view(shape), end
    return [found[i] for i in range(len(layout))]


def _by_size(types: Sequence[torch.dtype]) -> list[int]:
    """The order in which numbers of these types lie behind each other: each begins at a multiple of
    its size then.
    """
    return sorted(range(len(types)), key=lambda i: -types[i].itemsize)


class _Lane:
    """Recordings of rounds by what they are given, and the numbers that they read from and write to
    the host.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.rates = torch.zeros(3, dtype=torch.float64, device=device)
        self.rates_on_host = torch.zeros(3, dtype=torch.float64, pin_memory=on_gpu)
        self.next_rates = self.rates_on_host.numpy()
        self.seen: dict[int, Tensor] = {}  # on the host, by its length
        self.ways: dict[_Names, Any] = {}
        self.done = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Taken:
    """What a round gives, all of which the next one on the same lane overwrites."""

    steps: RoundSteps
    names: _Names
    """Of what the next round takes, where that is what this one gives."""
    server: Tensor
    """The server's memory, in bytes."""
    checks: list[npt.NDArray[Any]]
    """On the host, when the round is done: conditions, and numbers that are to be finite."""
    marks: list[Tensor]
    """On the host, when the round is done: `_marks`."""


@dataclass(frozen=True)
class _Launched:
    """A round that a device was told to take: what it was given, and what it gives once it is done."""

    t: int
    plan: Plan
    names: _Names
    given: tuple[Tensor, ...]
    versions: tuple[int, ...]
    way: Any
    taken: _Taken
    server: Server
    held: Tensor
    """The server's memory for all to keep, and the bytes that it lies in."""


class ReplayedRounds:
    """Takes rounds in which all clients of one set take part with all of their samples.

    Parameters
    ----------
    plan : Plan
        Of the run.
    steps : callable
        The steps of all clients, stacked, and of the server.
    note : callable
        (name of a part, when it began) is called when a round's steps are done, for the timing.
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
        plan: Plan,
        steps: Steps,
        note: Callable[[str, float], None],
        device: torch.device,
        data: Sequence[Tensor] = (),
        replay: Callable[..., Any] = Replayed,
    ) -> None:
        self._plan, self._steps, self._note, self._data, self._replay = (
            plan,
            steps,
            note,
            tuple(data),
            replay,
        )
        self._lanes = _Lane(device), _Lane(device)
        self._ahead: _Launched | None = None
        self._last: _Launched | None = None
        self._cannot = False

    def begin(
        self, plan: Plan, server: Server, state: State, message: Message, then: bool | None = None
    ) -> Callable[[], RoundSteps] | None:
        """Sets a round of a plan going; the function waits for it. None where it cannot be
        replayed.

        What the round gave is overwritten by the one after the next, but for the server's memory,
        which is for all to keep.

        Parameters
        ----------
        plan, server, state, message
            The round's.
        then : bool, optional
            Whether the next round asks for evidence, where it will be given this round's results
            and nothing else, so that it can be begun ahead; None where that is not known.
        """
        begun = time.perf_counter()
        given = (*state.values(), *_of_server(server), *message.vectors.values())
        now, self._ahead = self._ahead, None
        if now is None or not self._is_the_same(now, plan, state, message, given):
            now = self._launch(plan, _Names.of(state, server, message), message.t, given)
        if now is None:
            return None
        this, other = self._lanes
        self._lanes, self._last = (other, this), now
        if then is not None:
            state, names = now.taken.steps.states[0], now.taken.names
            names = names if names.wants_evidence is then else replace(names, wants_evidence=then)
            if names in other.ways and other.ways[names].ready:
                self._ahead = self._launch(
                    plan, names, message.t + 1, (*state.values(), *_of_server(now.server))
                )

        def finish() -> RoundSteps:
            if this.done is not None:
                this.done.synchronize()
            self._note("steps", begun)
            return self._looked_at(now, plan)

        return finish

    def _launch(
        self, plan: Plan, names: _Names, t: int, given: tuple[Tensor, ...]
    ) -> _Launched | None:
        """Tell the device to take a round on the lane whose results nobody needs; None where it
        cannot be replayed.
        """
        if self._cannot:
            return None
        lane = self._lanes[0]
        if plan.schedule is not None:
            rates = plan.rates(t)
            lane.next_rates[:] = rates.eta, rates.lam, rates.rho
        if names not in lane.ways:
            lane.ways[names] = self._replay(lambda *tensors: self._live(lane, names, tensors))
        way, own = lane.ways[names], len(names.state)
        shared = given[own : own + len(names.layout)]
        try:
            taken: _Taken = way(*given[:own], self._bytes_of(shared), *given[own + len(shared) :])
        except (
            Exception
        ):  # it looks at the round, or at a NaN that no check stopped: step by step that shows
            self._cannot = True
            return None
        self._cannot = way.gave_up
        held = taken.server.clone()
        if lane.done is not None:
            lane.done.record(torch.cuda.current_stream(held.device))
        server = taken.names.server_in(held)
        return _Launched(t, plan, names, given, self._versions(given), way, taken, server, held)

    def _bytes_of(self, server: tuple[Tensor, ...]) -> Tensor:
        """The bytes of the server's tensors: those that the last round gave lie together already."""
        last = self._last
        if last is not None and _same(_of_server(last.server), server):
            return last.held
        return _packed(server)

    def _versions(self, given: tuple[Tensor, ...]) -> tuple[int, ...]:
        """How often each of the tensors that a round reads was changed so far."""
        return tuple([tensor._version for tensor in (*given, *self._data)])

    def _is_the_same(
        self,
        ahead: _Launched,
        plan: Plan,
        state: State,
        message: Message,
        given: tuple[Tensor, ...],
    ) -> bool:
        """Whether a round that was begun ahead is the one that is to be taken."""
        named = (message.t, message.wants_evidence, *state) == (
            ahead.t,
            ahead.names.wants_evidence,
            *ahead.names.state,
        )
        same = named and plan is ahead.plan and _same(ahead.given, given)
        return same and ahead.versions == self._versions(given)

    def _looked_at(self, now: _Launched, plan: Plan) -> RoundSteps:
        """What a round gave, whose checks and marks are on the host by now."""
        steps = now.taken.steps
        if not all(map(_is_well, now.taken.checks)):
            self._ahead = None
            return self._steps(plan, *_sorted_out(now.names, now.way.given, now.t))
        step = ServerStep(now.server, steps.step.aggregate, *now.taken.marks)
        return RoundSteps(steps.states, steps.uploads, step)

    def _live(self, lane: _Lane, names: _Names, tensors: tuple[Tensor, ...]) -> _Taken:
        """The steps with live rates, and copies to the host of what it looks at."""
        static = {f.name: getattr(self._plan, f.name) for f in fields(Plan) if f.name != "watch"}
        now = lane.rates.copy_(lane.rates_on_host, non_blocking=True)
        server, state, message = _sorted_out(names, tensors, _UNKNOWN)
        with postponed() as checks:
            steps = self._steps(_LivePlan(**static, now=now), server, state, message)
        looked_at = [*checks, *_marks(steps)]
        seen = _packed(looked_at)
        if len(seen) not in lane.seen:
            lane.seen[len(seen)] = torch.zeros(
                len(seen), dtype=torch.uint8, pin_memory=seen.is_cuda
            )
        on_host = lane.seen[len(seen)].copy_(seen, non_blocking=True)
        views = _unpacked(on_host, [(tensor.dtype, tensor.shape) for tensor in looked_at])
        after, marks = steps.step.server, views[len(checks) :]
        seen_checks = [check.numpy() for check in views[: len(checks)]]
        following = _Names.of(steps.states[0], after, message)
        return _Taken(steps, following, _packed(_of_server(after)), seen_checks, marks)


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether these are the very same tensors."""
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _is_well(check: npt.NDArray[Any]) -> bool:
    """Whether a condition on the host holds, or whether numbers that are to be finite are."""
    return bool(check.all() if check.dtype == np.bool_ else np.isfinite(check).all())


def _marks(taken: RoundSteps) -> list[Tensor]:
    """What the host must see of a round: which coordinates changed and, for sparse atoms, what
    their sum is like.
    """
    step = taken.step
    return [
        torch.as_tensor(mark)
        for mark in (step.changed, step.support, step.wide)
        if mark is not None
    ]


def _sorted_out(
    names: _Names, tensors: tuple[Tensor, ...], t: int
) -> tuple[Server, State, Message]:
    rest = iter(tensors)
    state = {name: next(rest) for name in names.state}
    server = names.server_in(next(rest))
    vectors = {name: next(rest) for name in names.message}
    return server, state, Message(t, server.xbar, vectors, names.wants_evidence)
