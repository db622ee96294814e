"""The clients' part of an exchange, and what the runner observes of it.

    receive  ->  local_update  ->  encode  ->  (evidence)  ->  apply

The server's copy of a client goes through `follow`, which is the same without data, so both hold
the same bits. Evidence about the optimum and measured curvature come from a client's first gradient
and its oracle's first answer; methods have no part in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedfw.algorithms import curvature
from fedfw.algorithms.contract import (
    Algorithm,
    Client,
    Exchange,
    Message,
    Payload,
    Run,
    State,
    Weight,
)
from fedfw.algorithms.optin import Certifies, GathersGradients, is_certifying
from fedfw.algorithms.rules import StepRule
from fedfw.atoms import Atom
from fedfw.problems.oracles import Gradient, Lmo
from fedfw.rounds.channels import REPORT, Channels, Sent, dense
from fedfw.rounds.downlink import Downlink
from fedfw.rounds.sums import Evidence, Upload, no_upload

ESTIMATE = "h."
METER = "meter."
"""Prefixes of what the runner keeps of a client: error feedback's estimates, and its last step."""


class ClientState(NamedTuple):
    """All that is kept of m clients."""

    client: Client
    estimates: State
    """The estimates of error feedback, by entry; the server holds them, too."""
    meter: State
    """The memory of the last step, where curvature is measured."""

    def flat(self) -> State:
        """Return one dictionary, as memories and files keep it."""
        found = {**self.client.shared, **self.client.private}
        found |= {ESTIMATE + name: value for name, value in self.estimates.items()}
        return found | {METER + name: value for name, value in self.meter.items()}


@dataclass(frozen=True)
class Method:
    """A configured method with what runs it: the same on the server and on every client.

    Parameters
    ----------
    algorithm : Algorithm
        With numbers in place of "auto".
    rule : StepRule
        Where rates come from.
    channels : Channels
        How payloads travel up.
    """

    algorithm: Algorithm
    rule: StepRule
    channels: Channels

    def init(self, run: Run, x: Tensor) -> ClientState:
        """Return the first state of m clients that begin at x (m, p)."""
        client = self.algorithm.init_client(run, x)
        clashing = client.shared.keys() & client.private.keys()
        if clashing:
            raise ValueError(
                f"{self.algorithm.name}: {sorted(clashing)} are shared and private, expected one"
            )
        meter = curvature.init_memory(x) if self.rule.reports_curvature else {}
        return ClientState(client, self.channels.init(self.algorithm, x), meter)

    def no_upload(self, run: Run, x: Tensor) -> Upload:
        """Return a group of no clients, for a model x (p,)."""
        return no_upload(self.algorithm.init_client(run, x.to(run.dtype)[None]).shared)

    def shared_names(self, run: Run, x: Tensor) -> frozenset[str]:
        """Return the names that the server can compute, of clients at x (1, p)."""
        state = self.init(run, x)
        return frozenset((*state.client.shared, *(ESTIMATE + name for name in state.estimates)))


def split(flat: Mapping[str, Tensor], shared_names: frozenset[str]) -> ClientState:
    """Return a state's parts (shared, private, estimates, meter) from the flat mapping that
    `ClientState.flat` made, by its names and prefixes.
    """
    shared: State = {}
    private: State = {}
    estimates: State = {}
    meter: State = {}
    for name, value in flat.items():
        if name.startswith(ESTIMATE):
            estimates[name.removeprefix(ESTIMATE)] = value
        elif name.startswith(METER):
            meter[name.removeprefix(METER)] = value
        elif name in shared_names:
            shared[name] = value
        else:
            private[name] = value
    return ClientState(Client(shared, private), estimates, meter)


class Sending(NamedTuple):
    """The uploads of m clients, as they travel and as it is decoded."""

    sent: Sent
    decoded: Payload
    evidence: Evidence | None


def take_part(
    method: Method,
    step: Exchange,
    run: Run,
    state: ClientState,
    msg: Message,
    oracles: WatchedOracles,
    certify: bool = False,
) -> tuple[ClientState, Sending]:
    """Return the state of m clients after an exchange, and what they send.

    Parameters
    ----------
    method, step, run
        What is run.
    state : ClientState
        Before the exchange.
    msg : Message
        What they received.
    oracles : WatchedOracles
        Gradients and oracles of these clients.
    certify : bool
        Whether their part of the certificate is wanted.
    """
    shared = step.receive(run, state.client.shared, msg)
    measures = method.channels.has_report(step)
    gathers = isinstance(step, GathersGradients)
    # Only some exchanges carry evidence.
    certify = certify and (gathers or is_certifying(step))
    oracles.watch = certify or measures or gathers
    client = Client(shared, state.client.private)
    private, payload = step.local_update(run, client, msg, oracles)
    sent, decoded, estimates = method.channels.encode(
        step, run, shared, msg, payload, state.estimates
    )
    evidence = None
    if gathers:
        evidence = _gathered_loss(method, run, oracles, certify)
    elif certify and isinstance(step, Certifies):
        evidence = _prove(step, run, shared, msg, oracles)
    after = step.apply(run, shared, msg, decoded)
    meter = state.meter
    if measures:
        _, _, gradients = oracles.first_gradient
        g, atom = oracles.first_answer
        reported = curvature.measure(meter, shared["x"], gradients, g, atom, msg.rates[0].lam)
        sent = {**sent, REPORT: dense(reported)}
        meter = curvature.remember(shared["x"], after["x"], gradients, msg.step)
    elif meter and after.get("x") is not shared.get("x"):
        # This exchange moved the clients without a measurement: the last step says nothing of the
        # curvature on the way to their points now.
        meter = meter | {"past": torch.zeros_like(meter["past"])}
    return ClientState(Client(after, private), estimates, meter), Sending(sent, decoded, evidence)


def follow(
    method: Method, step: Exchange, run: Run, state: ClientState, msg: Message, sent: Sent
) -> tuple[ClientState, Payload]:
    """Return the part of m clients' state that the server has, after what they sent."""
    shared = step.receive(run, state.client.shared, msg)
    decoded, estimates = method.channels.decode(step, run, shared, msg, sent, state.estimates)
    after = step.apply(run, shared, msg, decoded)
    return ClientState(Client(after, {}), estimates, {}), decoded


def public_direction(step: Exchange, run: Run, shared: State, msg: Message) -> Tensor | None:
    """Return the part (m, p) of the first direction that does not come from data, where an exchange
    certifies; ``shared`` is before `Exchange.receive`.
    """
    if not (isinstance(step, Certifies) and is_certifying(step)):
        return None
    return step.public_direction(run, step.receive(run, shared, msg), msg)


class WatchedOracles:
    """The oracles of m clients, which remember their first calls if the runner needs them."""

    def __init__(self, gradient: Gradient, lmo: Lmo, m: int, n: int) -> None:
        """Wrap the oracles of m of n clients; calls are remembered only after ``watch`` is set."""
        self.m = m
        self.watch = False
        self.exact_gradient = gradient
        self.exact_lmo = lmo
        self._n = n  # clients, absent ones included
        # Points (m, p), losses (m,) and gradients (m, p) of the first watched gradient.
        self._first: tuple[Tensor, Tensor, Tensor] | None = None
        # Direction (m, p) and atoms of the first watched call of the LMO.
        self._answer: tuple[Tensor, Atom] | None = None

    def gradient(self, x: Tensor, times: str = Weight.W_I, full: bool = False) -> Tensor:
        """Return (m, p): grad f_i times a `Weight`, by default w_i; full: no minibatch."""
        factor = float(self._n) if times == Weight.N_W_I else 1.0
        loss, a = self.exact_gradient(x, full=full, plain=times == Weight.ONE, times=factor)
        if self.watch and self._first is None:
            self._first = (x, loss, a)
        return a

    def lmo(self, g: Tensor) -> Atom:
        """Return a stack of atoms that minimise <g, s> over the set."""
        atom = self.exact_lmo(g)
        if self.watch and self._answer is None:
            self._answer = (g, atom)
        return atom

    @property
    def first_gradient(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the points (m, p), the losses (m,) and the gradients (m, p) of the first call."""
        assert self._first is not None, "local_update asked for no gradient"
        return self._first

    @property
    def first_answer(self) -> tuple[Tensor, Atom]:
        """Return the first direction (m, p) that the oracle was given, and its answer."""
        assert self._answer is not None, "local_update called no oracle"
        return self._answer


def _prove(
    step: Certifies, run: Run, shared: State, msg: Message, oracles: WatchedOracles
) -> Evidence:
    """Return the evidence w_i f_i(x_i) - <a_i, x_i> + min over u of <a_i + q_i, u> (m,), a lower
    bound on w_i f_i + <q_i, .> over the set, and q_i (m, p), in float64.

    The bound holds for any q_i. In float32 the one is used that the server can compute as well;
    rounding errors of the step itself have no part in it.
    """
    x, loss, a = oracles.first_gradient
    g, atom = oracles.first_answer
    if g.dtype is not torch.float64:
        loss, a = oracles.exact_gradient(x, exact=True)
        g = a + step.public_direction(run, shared, msg)
        atom = oracles.exact_lmo(g)
    least = atom.dot(g) if atom.bound is None else atom.bound
    return Evidence(loss - (a * x).sum(1) + least, g - a)


def _gathered_loss(method: Method, run: Run, oracles: WatchedOracles, certify: bool) -> Evidence:
    """Return w_i f_i(xbar), for a proof lowered by what the rounding of the gradient can hide.

    F(u) >= F(xbar) + <grad F(xbar), u - xbar> proves a bound on the optimum, but the server is
    given gradients that were rounded: the loss is lowered by what that can change in the set.
    """
    x, loss, a = oracles.first_gradient
    if certify and method.channels.compressor is None and a.dtype is not torch.float64:
        loss, exact = oracles.exact_gradient(x, exact=True)
        loss = loss - (exact - a).norm(dim=1) * run.constraint.diameter(tuple(x.shape[1:]))
    return Evidence(loss.double())


def sends_model(method: Method, run: Run, start: Tensor, downlink: Downlink) -> bool:
    """Return whether clients receive the model itself, at which they can report their loss."""
    state = method.algorithm.init_server(run, start)
    return downlink.compressor is None and method.algorithm.model_to_send(state) is state["xbar"]
