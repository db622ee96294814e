"""Rounds on a GPU without Python between their kernels: all steps of a round, replayed as one CUDA graph.

The steps are the same functions. Numbers that change from round to round are read from the device's memory, and
checks are looked at once, at the end: a round that fails one is taken again step by step, which names the client.

A device is told to take the next round before the host has looked at this one, where nothing but this one's results
goes into it. There are two lanes, each with recordings and places of its own, so that what a round gave is not
overwritten while the host works with it. A round that was begun ahead counts only if it was given what the next round
turns out to be given, and if nobody has changed these tensors or the data since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedfw.algorithms.base import Message, Plan, Rates, Server, State
from fedfw.algorithms.steps import RoundSteps
from fedfw.checks import postponed
from fedfw.graphs import Replayed

Steps = Callable[[Plan, Server, State, Message], RoundSteps]
"""The steps of all clients, stacked, and of the server."""


class _Unknown:
    """Stands for what differs from round to round: a step that looked at it could not be replayed in another one."""

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
    """Which tensors a round takes, and whether its clients send evidence about the optimum."""

    state: tuple[str, ...]
    server: tuple[str, ...]
    message: tuple[str, ...]
    wants_evidence: bool


class _Lane:
    """Recordings of rounds by what they are given, and the numbers that they read from and write to the host."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.rates = torch.zeros(3, dtype=torch.float64, device=device)
        self.rates_on_host = torch.zeros(3, dtype=torch.float64, pin_memory=on_gpu)
        self.seen: dict[int, Tensor] = {}  # on the host, by its length
        self.ways: dict[_Names, Any] = {}
        self.done = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Launched:
    """A round that a device was told to take: what it was given, and what it gives once it is done."""

    t: int
    names: _Names
    rates: tuple[float, ...]
    given: tuple[Tensor, ...]
    versions: tuple[int, ...]
    way: Any
    taken: RoundSteps
    server: Server
    seen: Tensor
    checks: tuple[tuple[torch.dtype, int], ...]
    """The types and the numbers of bytes of the checks, with which ``seen`` begins."""


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
        What the steps read beside what they are given: a round that was begun ahead is taken anew if it was changed.
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
        self._plan, self._steps, self._note, self._data, self._replay = plan, steps, note, tuple(data), replay
        self._lanes = _Lane(device), _Lane(device)
        self._ahead: _Launched | None = None
        self._cannot = False

    def begin(
        self, plan: Plan, server: Server, state: State, message: Message, then: bool | None = None
    ) -> Callable[[], RoundSteps] | None:
        """Sets a round of a plan going; the function waits for it. None where it cannot be replayed.

        What the round gave is overwritten by the one after the next, but for the server's memory, which is for all to
        keep.

        Parameters
        ----------
        plan, server, state, message
            The round's.
        then : bool, optional
            Whether the next round asks for evidence, where it will be given this round's results and nothing else, so
            that it can be begun ahead; None where that is not known.
        """
        begun = time.perf_counter()
        names = _Names(tuple(state), tuple(server.vectors), tuple(message.vectors), message.wants_evidence)
        given = (*state.values(), server.xbar, *server.vectors.values(), *message.vectors.values())
        now, self._ahead = self._ahead, None
        if now is None or not self._is_the_same(now, plan, names, message.t, given):
            now = self._launch(plan, names, message.t, given)
        if now is None:
            return None
        this, other = self._lanes
        self._lanes = other, this
        if then is not None and not message.vectors:
            after, state = now.server, now.taken.states[0]
            names = _Names(tuple(state), tuple(after.vectors), (), then)
            if names in other.ways and other.ways[names].ready:
                given = (*state.values(), after.xbar, *after.vectors.values())
                self._ahead = self._launch(plan, names, message.t + 1, given)
        launched = now

        def finish() -> RoundSteps:
            if this.done is not None:
                this.done.synchronize()
            self._note("steps", begun)
            return self._looked_at(launched, plan)

        return finish

    def _launch(self, plan: Plan, names: _Names, t: int, given: tuple[Tensor, ...]) -> _Launched | None:
        """Tell the device to take a round on the lane whose results nobody needs; None where it cannot be replayed."""
        if self._cannot:
            return None
        lane, rates = self._lanes[0], self._rates(plan, t)
        lane.rates_on_host.numpy()[:] = rates
        if names not in lane.ways:
            lane.ways[names] = self._replay(lambda *tensors: self._live(lane, names, tensors))
        way = lane.ways[names]
        try:
            taken, seen, checks = way(*given)
        except Exception:  # it looks at the round, or at a NaN that no check stopped: step by step that shows
            self._cannot = True
            return None
        self._cannot = way.gave_up
        server = taken.step.server
        kept = Server(server.xbar.clone(), {name: vector.clone() for name, vector in server.vectors.items()})
        if lane.done is not None:
            lane.done.record(torch.cuda.current_stream(server.xbar.device))
        return _Launched(t, names, rates, given, self._versions(given), way, taken, kept, seen, checks)

    def _rates(self, plan: Plan, t: int) -> tuple[float, ...]:
        if plan.schedule is None:
            return 0.0, 0.0, 0.0
        rates = plan.rates(t)
        return rates.eta, rates.lam, rates.rho

    def _versions(self, given: tuple[Tensor, ...]) -> tuple[int, ...]:
        """How often each of the tensors that a round reads was changed so far."""
        return tuple(tensor._version for tensor in (*given, *self._data))

    def _is_the_same(self, ahead: _Launched, plan: Plan, names: _Names, t: int, given: tuple[Tensor, ...]) -> bool:
        """Whether a round that was begun ahead is the one that is to be taken."""
        if (ahead.t, ahead.names, ahead.rates) != (t, names, self._rates(plan, t)):
            return False
        same = all(one is other for one, other in zip(ahead.given, given, strict=True))
        return same and ahead.versions == self._versions(given)

    def _looked_at(self, now: _Launched, plan: Plan) -> RoundSteps:
        """What a round gave, whose checks and marks are on the host by now."""
        widths = [nbytes for _, nbytes in now.checks] + [len(mark) for mark in _marks(now.taken)]
        parts = now.seen.split(widths)
        checks = zip(parts, now.checks, strict=False)
        if not all(_is_well(part.view(dtype)) for part, (dtype, _) in checks):
            self._ahead = None
            return self._steps(plan, *_sorted_out(now.names, now.way.given, now.t))
        changed, support, wide = (*(mark.view(torch.bool) for mark in parts[len(now.checks) :]), None, None)[:3]
        step = replace(now.taken.step, server=now.server, changed=changed, support=support, wide=wide)
        return RoundSteps(now.taken.states, now.taken.uploads, step)

    def _live(
        self, lane: _Lane, names: _Names, tensors: tuple[Tensor, ...]
    ) -> tuple[RoundSteps, Tensor, tuple[tuple[torch.dtype, int], ...]]:
        """The steps with live rates; what they gave, on the host their checks and marks, and what the checks are."""
        static = {f.name: getattr(self._plan, f.name) for f in fields(Plan) if f.name != "watch"}
        now = lane.rates.copy_(lane.rates_on_host, non_blocking=True)
        server, state, message = _sorted_out(names, tensors, _UNKNOWN)
        with postponed() as noted:
            taken = self._steps(_LivePlan(**static, now=now), server, state, message)
        noted.sort(key=lambda check: -check.itemsize)  # a view of bytes as numbers has to begin at a multiple of theirs
        parts = [part.flatten().view(torch.uint8) for part in (*noted, *_marks(taken))]
        seen, checks = torch.cat(parts), tuple((check.dtype, check.nbytes) for check in noted)
        if len(seen) not in lane.seen:
            lane.seen[len(seen)] = torch.zeros(len(seen), dtype=torch.uint8, pin_memory=seen.is_cuda)
        return taken, lane.seen[len(seen)].copy_(seen, non_blocking=True), checks


def _is_well(check: Tensor) -> bool:
    """Whether a condition on the host holds, or whether numbers that are to be finite are."""
    values = check.numpy()
    return bool(values.all() if check.dtype is torch.bool else np.isfinite(values).all())


def _marks(taken: RoundSteps) -> list[Tensor]:
    """What the host must see of a round: which coordinates changed and, for sparse atoms, what their sum is like."""
    step = taken.step
    return [mark for mark in (step.changed, step.support, step.wide) if mark is not None]


def _sorted_out(names: _Names, tensors: tuple[Tensor, ...], t: int) -> tuple[Server, State, Message]:
    rest = iter(tensors)
    state = {name: next(rest) for name in names.state}
    xbar = next(rest)
    server = Server(xbar, {name: next(rest) for name in names.server})
    vectors = {name: next(rest) for name in names.message}
    return server, state, Message(t, xbar, vectors, names.wants_evidence)
