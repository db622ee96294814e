"""Rounds on a GPU without Python between their kernels: all steps of a round, replayed as one CUDA graph.

The steps are the same functions. Numbers that change from round to round are read from the device's memory, and
checks are looked at once, at the end: a round that fails one is taken again step by step, which names the client.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

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
    replay : callable
        Makes a function of tensors one that replays its kernels.
    """

    def __init__(
        self,
        plan: Plan,
        steps: Steps,
        note: Callable[[str, float], None],
        device: torch.device,
        replay: Callable[..., Any] = Replayed,
    ) -> None:
        self._plan, self._steps, self._note, self._replay = plan, steps, note, replay
        self._stream: torch.cuda.Stream | None = None
        self._rates = torch.zeros(3, dtype=torch.float64, device=device)
        self._on_host = torch.zeros(3, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._seen: dict[int, Tensor] = {}  # on the host, by its length
        self._ways: dict[_Names, Any] = {}
        self._cannot = False

    def begin(self, plan: Plan, server: Server, state: State, message: Message) -> Callable[[], RoundSteps] | None:
        """Sets a round of a plan going; the function waits for it. None where it cannot be replayed.

        What the round gave is overwritten by the next one, but for the server's memory, which is for all to keep.
        """
        if self._cannot:
            return None
        begun = time.perf_counter()
        if self._stream is None and self._rates.is_cuda:
            self._stream = torch.cuda.current_stream(self._rates.device)
        if plan.schedule is not None:
            rates = plan.rates(message.t)
            self._on_host.numpy()[:] = rates.eta, rates.lam, rates.rho
        names = _Names(tuple(state), tuple(server.vectors), tuple(message.vectors), message.wants_evidence)
        if names not in self._ways:
            self._ways[names] = self._replay(lambda *tensors: self._live(names, tensors))
        way = self._ways[names]
        try:
            taken, seen = way(*state.values(), server.xbar, *server.vectors.values(), *message.vectors.values())
        except Exception:  # it looks at the round, or at a NaN that no check stopped: step by step that shows
            self._cannot = True
            return None
        self._cannot = way.gave_up

        def finish() -> RoundSteps:
            if self._stream is not None:
                self._stream.synchronize()
            self._note("steps", begun)
            well, *marks = seen.split([1] + [len(mark) for mark in _marks(taken)])
            if not well:
                return self._steps(plan, *_sorted_out(names, way.given, message.t))
            server = taken.step.server
            after = Server(server.xbar.clone(), {name: vector.clone() for name, vector in server.vectors.items()})
            changed, support, wide = (*marks, None, None)[:3]
            step = replace(taken.step, server=after, changed=changed, support=support, wide=wide)
            return RoundSteps(taken.states, taken.uploads, step)

        return finish

    def _live(self, names: _Names, tensors: tuple[Tensor, ...]) -> tuple[RoundSteps, Tensor]:
        """The steps with live rates; what they gave, and on the host whether all is well followed by their marks."""
        static = {f.name: getattr(self._plan, f.name) for f in fields(Plan) if f.name != "watch"}
        now = self._rates.copy_(self._on_host, non_blocking=True)
        server, state, message = _sorted_out(names, tensors, _UNKNOWN)
        with postponed() as checks:
            taken = self._steps(_LivePlan(**static, now=now), server, state, message)
        taken = replace(taken, states=[_apart(new, names, tensors) for new in taken.states])
        well = torch.cat([check.flatten() for check in checks]).all().view(1)
        seen = torch.cat([well, *_marks(taken)])
        if len(seen) not in self._seen:
            self._seen[len(seen)] = torch.zeros(len(seen), dtype=torch.bool, pin_memory=seen.is_cuda)
        return taken, self._seen[len(seen)].copy_(seen, non_blocking=True)


def _marks(taken: RoundSteps) -> list[Tensor]:
    """What the host must see of a round: which coordinates changed and, for sparse atoms, what their sum is like."""
    step = taken.step
    return [mark for mark in (step.changed, step.support, step.wide) if mark is not None]


def _apart(state: State, names: _Names, tensors: tuple[Tensor, ...]) -> State:
    """A state with copies of what lies in the place of another input: the next round's is put there."""
    homes = {tensor.untyped_storage().data_ptr(): number for number, tensor in enumerate(tensors)}
    own = {name: number for number, name in enumerate(names.state)}
    return {
        name: value if homes.get(value.untyped_storage().data_ptr(), own.get(name)) == own.get(name) else value.clone()
        for name, value in state.items()
    }


def _sorted_out(names: _Names, tensors: tuple[Tensor, ...], t: int) -> tuple[Server, State, Message]:
    rest = iter(tensors)
    state = {name: next(rest) for name in names.state}
    xbar = next(rest)
    server = Server(xbar, {name: next(rest) for name in names.server})
    vectors = {name: next(rest) for name in names.message}
    return server, state, Message(t, xbar, vectors, names.wants_evidence)
