"""An adversary who chooses everything that a server can choose, against two owners whose data
differ in one sample.

Both owners get the same orders. The second one's noise is such that its releases are the first
one's: all else that is observed has to be the same, to the last byte. How much more likely a
release is for one owner than for the other is worked out from the scores and the noise of the real
mechanisms, so that epsilon is found and not estimated. It must stay below what the ledgers say.

``python -m tests.deployment.adversary --minutes 10`` runs it for that long and prints what it
found.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations, product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as nnf
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

import fedfw
from fedfw import Privacy
from fedfw.algorithms.optin import Certifies
from fedfw.atoms import Atom
from fedfw.deployment import Client, Consent, DataBudget, Task
from fedfw.deployment.data_checks import check_data
from fedfw.deployment.ledger import charged, first_name
from fedfw.deployment.messages import Kind, Order, serial_of
from fedfw.deployment.store import ClientStore
from fedfw.errors import MessageError
from fedfw.privacy.mechanisms import Corners, GaussianNoise, Mechanism, Vertices
from fedfw.privacy.noise import Noise
from fedfw.rounds.options import Options
from fedfw.rounds.vectors import encoded
from fedfw.rounds.wire import digest
from fedfw.sets import KSparse, L1Ball, LinfBall, Simplex
from tests.deployment.loopback import OPEN

FEATURES = 3
BUDGET = DataBudget(8.0, 1e-3)
DELTA = 1e-5
FEDFW = fedfw.FedFW("l1:1", penalty=1e-3, momentum=0.9)
PROMISE = Privacy(1.0, DELTA)
GRID = 1e-3
"""Of privacy losses; they are rounded so that the epsilon that is found is none too large."""


LARGEST_DEVIATION = 1e4
"""Relative to the distance of two gradients; what is released with more noise is not counted."""
MEMORY = Path("/dev/shm")
"""Where each file need not wait for a disk."""


class Killed(BaseException):
    """Stands for the end of a process: nothing that it would still have done is done."""


# --- what is released, and how much more likely it is for one owner than for the other ---


@dataclass(frozen=True)
class Call:
    """One use of a mechanism: what it was given, and what came out of it."""

    mechanism: Mechanism
    constraint: Any
    scores: Tensor
    scale: float
    released: Any
    rate: float


def laws(call: Call) -> list[Tensor]:
    """The logarithms of the probabilities of all answers, for each part of an answer that is drawn
    by itself.
    """
    g = call.scores
    match call.constraint:
        case LinfBall():
            scaled = 2 * g / call.scale
            return list(torch.stack([nnf.logsigmoid(scaled), nnf.logsigmoid(-scaled)], 1))
        case L1Ball():
            return [torch.cat([-g, g]).div(call.scale).log_softmax(0)]
        case Simplex():
            return [(-g / call.scale).log_softmax(0)]
        case KSparse(k=k):
            signed = torch.stack([-g, g]) / (call.scale * k**0.5)
            return [torch.stack(list(_one_after_the_other(signed, k)))]
    raise TypeError(f"no law is known for {call.constraint}")


def _one_after_the_other(signed: Tensor, k: int) -> Iterator[Tensor]:
    """The logarithms of the probabilities of k choices among coordinates and signs (2, p), none of
    them twice.
    """
    either = signed.logsumexp(0)
    for chosen in permutations(range(len(either)), k):
        left, order = either.clone(), torch.zeros((), dtype=torch.float64)
        for coordinate in chosen:
            order = order - left.logsumexp(0)
            left[coordinate] = -math.inf
        for signs in product((0, 1), repeat=k):
            yield order + sum(
                signed[sign, coordinate] for sign, coordinate in zip(signs, chosen, strict=True)
            )


@cache
def _gaussian(deviation: float, rate: float) -> Any:
    return pld.from_gaussian_mechanism(
        deviation,
        pessimistic_estimate=False,
        value_discretization_interval=GRID,
        sampling_prob=rate,
        use_connect_dots=False,
    )


def losses(first: Call, second: Call) -> Iterator[Any]:
    """The distribution of the privacy loss of each part of what was released."""
    if isinstance(first.mechanism, GaussianNoise):
        distance = float((first.scores - second.scores).norm())
        if first.scale / LARGEST_DEVIATION < distance:
            # Rounded up to four digits, so that few distributions are worked out, and none has too
            # little noise.
            deviation = first.scale / distance
            digits = 10.0 ** (math.floor(math.log10(deviation)) - 3)
            yield _gaussian(math.ceil(deviation / digits) * digits, first.rate)
        return
    for with_sample, without in zip(laws(first), laws(second), strict=True):
        if first.rate < 1:
            drawn = with_sample + math.log(first.rate)
            with_sample = torch.logaddexp(drawn, without + math.log1p(-first.rate))
        likely = torch.minimum(with_sample, without) > -600
        one, other = (dict(enumerate(part[likely].tolist())) for part in (with_sample, without))
        yield pld.from_two_probability_mass_functions(
            one,
            other,
            pessimistic_estimate=False,
            value_discretization_interval=GRID,
            symmetric=False,
        )


def epsilon_of(calls: list[tuple[Call, Call]], delta: float) -> float:
    """The epsilon of all these releases together."""
    total = None
    for first, second in calls:
        for one in losses(first, second):
            total = one if total is None else total.compose(one)
    return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))


class Observer:
    """Writes down what the first owner's mechanisms do, and has the second one's do the same."""

    def __init__(self) -> None:
        self.script: list[Call] | None = None
        """What the first owner's mechanisms have done, while the second one works."""
        self.calls: list[Call] = []
        self.exact = True
        self._rate = 1.0
        self._coins = 0

    def begin(self, exact: bool, script: list[Call] | None = None) -> None:
        """Watch one owner's work on one order; ``exact`` says that nothing is remembered without
        noise.
        """
        self.script, self.calls, self.exact, self._rate, self._coins = script, [], exact, 1.0, 0

    def note(
        self,
        mechanism: Mechanism,
        constraint: Any,
        scores: Tensor,
        scale: Tensor,
        make: Callable[[], Any],
    ) -> Any:
        """Write down one use of a mechanism, and return what it releases."""
        released = make() if self.script is None else self.script[len(self.calls)].released
        rate = self._rate if self.exact or isinstance(mechanism, GaussianNoise) else 1.0
        [row] = scores.double()
        self.calls.append(Call(mechanism, constraint, row, float(scale), released, rate))
        return released

    def coins(self, noise: Noise, counts: Tensor, expected: Tensor, width: int) -> Tensor:
        """Draw the same samples for both owners, the one in which they differ always."""
        self._coins += 1
        self._rate = float(expected.double() / counts.double())
        drawn = (
            torch.rand(len(counts), width, generator=torch.Generator().manual_seed(self._coins))
            < self._rate
        )
        drawn[:, 0] = True
        return drawn & (torch.arange(width) < counts[:, None])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Stand between the mechanisms and their noise."""
        noise_on_gradients, choose = GaussianNoise.gradient, Mechanism.answer

        def gradient(
            mechanism: Any, a: Tensor, scale: Tensor, noise: Noise, dtype: torch.dtype
        ) -> Tensor:
            made: Tensor = self.note(
                mechanism,
                None,
                a,
                scale,
                lambda: noise_on_gradients(mechanism, a, scale, noise, dtype),
            )
            return made

        def answer(
            mechanism: Any,
            constraint: Any,
            g: Tensor,
            scale: Tensor,
            noise: Noise,
            tol: float | None,
        ) -> Atom:
            if not isinstance(mechanism, Vertices | Corners):
                return choose(mechanism, constraint, g, scale, noise, tol)
            made: Atom = self.note(
                mechanism,
                constraint,
                g,
                scale,
                lambda: choose(mechanism, constraint, g, scale, noise, tol),
            )
            return made

        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(GaussianNoise, "gradient", gradient))
            patches.enter_context(mock.patch.object(Mechanism, "answer", answer))
            patches.enter_context(
                mock.patch.object(Noise, "coins", lambda noise, *rest: self.coins(noise, *rest))
            )
            yield


# --- two owners ---


@dataclass(frozen=True)
class Data:
    """What an owner has: the sample that only one of both has, and the others."""

    value: float = 30.0
    others: tuple[float, ...] = (0.0,) * 7
    removed: bool = False

    def tensors(self, member: bool) -> tuple[Tensor, Tensor]:
        """A sample that is not there counts as one without a gradient."""
        values = [*([] if self.removed else [self.value if member else 0.0]), *self.others]
        inputs = torch.tensor(values).float()[:, None].expand(-1, FEATURES).contiguous()
        targets = torch.zeros(len(values), dtype=torch.long)
        targets[2::3] = 1
        return inputs, targets


@dataclass(frozen=True)
class Chosen:
    """The options of a run."""

    algorithm: fedfw.Algorithm = FEDFW
    privacy: Privacy | None = PROMISE
    rounds: int = 4
    local_steps: int = 1
    batch_size: int | None = None
    clients: int = 1

    def task(self, data: Data, member: bool) -> Task:
        """The task of a bundle: the owner's data are cut into as many parts as the options say."""
        inputs, targets = data.tensors(member)
        count = max(1, len(inputs) // self.clients)
        model = torch.nn.Linear(FEATURES, 2, bias=False)
        torch.nn.init.zeros_(model.weight)
        return Task(
            model,
            nnf.cross_entropy,
            self.algorithm,
            lambda client: (inputs[:count], targets[:count]),
            self.clients,
            options=Options(
                rounds=self.rounds,
                local_steps=self.local_steps,
                batch_size=self.batch_size,
                privacy=self.privacy,
            ),
        )


class Owner:
    """An owner with a budget, and a client that is a new process for each order, as deployed."""

    def __init__(self, folder: Path, member: bool) -> None:
        consent = replace(OPEN, data_set="clinic", privacy=BUDGET, seeded_noise=False)
        self.consent = Consent.read(consent.write(folder))
        self.state, self.member = folder / "state", member

    def check(self, chosen: Chosen, data: Data) -> None:
        """Look at the data, as their owner's own command does."""
        check_data(chosen.task(data, self.member), 0, self.state, self.consent)

    def observe(self, chosen: Chosen, data: Data, order: Order, killed: bool) -> tuple[Any, ...]:
        """What a server sees of the work on an order."""
        with ExitStack() as patches:
            if killed:
                patches.enter_context(mock.patch.object(ClientStore, "save", side_effect=Killed))
            try:
                client = Client(chosen.task(data, self.member), 0, self.state, consent=self.consent)
                return ("answer", client.hello(), client.handle(order))
            except MessageError as error:
                return ("error", str(error))
            except Killed:
                return ("killed",)

    @property
    def releases(self) -> list[Any]:
        """All lines of the ledger."""
        return self.consent.ledger(0, self.state).releases()

    def reopen(self) -> bool:
        """Take orders again after a failure; whether there was one."""
        return self.consent.promise(0, self.state).reopen() is not None


@dataclass
class Found:
    """What was seen in all sequences."""

    sequences: int = 0
    observed: Counter[str] = field(default_factory=Counter)
    worst: tuple[float, float] = (0.0, 1.0)
    """The epsilon that was found and that of the ledger, where their ratio is largest."""


class World:
    """Two owners whose data differ in one sample, and a server that asks both of them the same."""

    def __init__(self, folder: Path, found: Found, data: Data | None = None) -> None:
        self.owners = [
            Owner(folder / name, member) for name, member in (("with", True), ("without", False))
        ]
        self.observer, self.found, self.data = Observer(), found, Data() if data is None else data
        self.calls: dict[str, list[tuple[Call, Call]]] = defaultdict(list)

    def check(self, chosen: Chosen) -> None:
        """Both owners look at their data."""
        for owner in self.owners:
            owner.check(chosen, self.data)

    def reopen(self) -> None:
        """Both owners act after a failure, and both have one or none."""
        first, second = [owner.reopen() for owner in self.owners]
        assert first == second

    def ask(self, chosen: Chosen, order: Order, killed: bool = False) -> Any:
        """Send an order to both, and see that nothing but the releases differs; returns the answer,
        if there is one.
        """
        first, second = self.owners
        exact = not (isinstance(chosen.algorithm, Certifies) and chosen.algorithm.averages)
        with self.observer.watching():
            self.observer.begin(exact)
            seen = first.observe(chosen, self.data, order, killed)
            one = self.observer.calls
            self.observer.begin(exact, one)
            assert second.observe(chosen, self.data, order, killed) == seen
            other = self.observer.calls
        assert [call.scale for call in one] == [call.scale for call in other]
        self._compare_ledgers()
        what = seen[0] if seen[0] != "answer" else seen[2].kind
        self.found.observed[
            f"{what} {seen[2].payload.decode()}" if what == Kind.REFUSED else what
        ] += 1
        if what == "step":
            self.calls[first_name(order.run)] += zip(one, other, strict=True)
        return seen[2] if seen[0] == "answer" else None

    def _compare_ledgers(self) -> None:
        ledgers = []
        for owner in self.owners:
            ledgers.append([replace(one, promise="", before="") for one in owner.releases])
            eps, delta = charged(owner.releases)
            assert eps <= BUDGET.eps * (1 + 1e-9)
            assert delta <= BUDGET.delta * (1 + 1e-9)
        assert ledgers[0] == ledgers[1]

    def audit(self) -> None:
        """The epsilon of each run, and of all, is none larger than the ledger says."""
        last = {first_name(one.run): one for one in self.owners[0].releases}
        for run, calls in self.calls.items():
            self._compare(calls, last[run].epsilon, last[run].delta)
        if self.calls:
            eps, delta = (
                math.fsum(getattr(one, name) for one in last.values())
                for name in ("epsilon", "delta")
            )
            self._compare([call for calls in self.calls.values() for call in calls], eps, delta)

    def _compare(self, calls: list[tuple[Call, Call]], claimed: float, delta: float) -> None:
        epsilon = epsilon_of(calls, delta)
        if epsilon / claimed > self.found.worst[0] / self.found.worst[1]:
            self.found.worst = epsilon, claimed
        assert epsilon <= claimed, (
            f"epsilon is {epsilon:.4f} at least, and the ledger says {claimed:.4f}"
        )


# --- orders ---


PLACES = ("start", "corner", "other corner", "inside", "outside", "nowhere")
"""The last two are no points of the set."""


def place_in(task: Task, place: str) -> Tensor:
    """A point of the set, or one that is none."""
    x = task.start.clone()
    slopes = torch.arange(len(x)).to(x) - 2.5
    match place:
        case "corner":
            return task.constraint.lmo(slopes).dense().to(x)
        case "other corner":
            return task.constraint.lmo(-slopes).dense().to(x)
        case "inside":
            return 0.25 * x + 0.75 * task.constraint.lmo(slopes).dense().to(x)
        case "outside":
            return x + 1e6
        case "nowhere":
            return torch.full_like(x, torch.nan)
    return x


def make_order(
    chosen: Chosen,
    run: str,
    t: int,
    counted: int,
    place: str = "start",
    handed: str = "",
    **changes: Any,
) -> Order:
    """An order of round t for client 0, with a model at a place; ``handed`` is where its own point
    is to be.
    """
    task = chosen.task(Data(), False)
    x = place_in(task, place)
    run_info = task.run(1)
    method = task.method()
    model = x.to(method.algorithm.init_server(run_info, task.start)["xbar"])
    vectors = {"xbar": model}
    for name in method.algorithm.downloads:
        vectors[name] = torch.zeros_like(model)
    own = place_in(task, handed) if handed else x
    state = method.init(run_info, task.start[None]).flat()
    memory = {}
    for name in method.shared_names(run_info, task.start[None]):
        begun = state[name][0]
        memory[name] = own.to(begun) if name == "x" else torch.zeros_like(begun)
    order = Order(
        run=run,
        t=t,
        ask="step",
        client=0,
        n=1,
        weight=1.0,
        counted=serial_of(counted, 0),
        version=t,
        base=0,
        digest=digest(*(vectors[name] for name in sorted(vectors))),
        vectors={name: encoded(vector).write() for name, vector in vectors.items()},
        memory={name: encoded(vector).write() for name, vector in memory.items()} if handed else {},
    )
    return replace(order, **changes)


ALGORITHMS = (
    *(fedfw.FedFW("l1:1", penalty=1e-3, momentum=momentum) for momentum in (0.0, 0.5, 0.9, 0.99)),
    fedfw.FedFW("simplex:1", penalty=1e-3, momentum=0.9),
    fedfw.FedFW("ksparse:k=2,r=1", penalty=1e-3, momentum=0.5),
    fedfw.FedFW("linf:1", penalty=1e-3),
    fedfw.FedFW("l2:1", penalty=1e-3, momentum=0.9),
    fedfw.FedFW("l1:1e6", penalty="auto"),
    fedfw.FedFWPlus("l1:1", penalty=1e-3),
    fedfw.FedFWSto("l1:1", penalty=1e-3),
    fedfw.FedAvg("l2:1", lr=0.5),
)
PROMISES = (
    *(PROMISE,) * 5,
    Privacy(1.0, DELTA, mechanism="gaussian"),
    Privacy(1.0, DELTA, mechanism="gaussian", samples=2),
    Privacy(4.0, DELTA),
    Privacy(2.0, DELTA, noise=5.0),
    Privacy(1.0, DELTA, samples=2),
)
REFUSED = (
    Privacy(1.0, DELTA, clip=0.5),
    Privacy(1.0, DELTA, not_private_seed=1),
    Privacy(1.0, 1e-2),
    Privacy(100.0, DELTA),
    Privacy(math.inf, DELTA, noise=1e-9),
    None,
)
"""What these owners do not allow."""
WHICH = st.sampled_from([-1, -1, -1, -2, 0])
"""Of the runs that were begun; mostly the last one."""
CHOICES = st.builds(
    Chosen,
    algorithm=st.sampled_from(ALGORITHMS),
    privacy=st.sampled_from(PROMISES),
    rounds=st.sampled_from([1, 4, 12]),
    local_steps=st.sampled_from([1, 1, 2]),
    batch_size=st.sampled_from([None, None, 2]),
    clients=st.sampled_from([1, 1, 2, 4]),
)
ROUND = st.fixed_dictionaries(
    {
        "place": st.sampled_from(PLACES[:4]),
        "handed": st.sampled_from(["", "", *PLACES[:4]]),
        "weight": st.sampled_from([1.0, 1.0, 0.5, 1e-3]),
    }
)
"""What may change from round to round in an order that is no nonsense."""
CHANGES: dict[str, Callable[[Data], Data]] = {
    "grow": lambda data: replace(data, others=(*data.others, *(0.0,) * 20)),
    "shrink": lambda data: replace(data, others=data.others[: max(2, len(data.others) // 2)]),
    "another entry": lambda data: replace(data, others=(data.others[0] + 0.5, *data.others[1:])),
    "all entries": lambda data: replace(data, others=tuple(value - 0.5 for value in data.others)),
    "remove": lambda data: replace(
        data, removed=not data.removed, others=tuple(value + 0.37 for value in data.others)
    ),
}
"""What an owner does to all data at once, so that both owners' data change on the same days."""
FOUND = Found()


class Adversary(RuleBasedStateMachine):
    """Any sequence of orders, options, points, weights, repetitions, ends of processes and changes
    of data.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rest = ExitStack()
        self.rounds: Counter[str] = Counter()
        self.runs = ["run-0"]
        self.last: Order | None = None

    @initialize(
        chosen=CHOICES,
        value=st.sampled_from([30.0, 1.0, 1e30]),
        others=st.sampled_from([(0.0,) * 7, (0.0, 1.0, -2.0), (0.5,) * 31]),
    )
    def begin(self, chosen: Chosen, value: float, others: tuple[float, ...]) -> None:
        self.rest.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "the model's parameters lie outside")
        folder = Path(
            self.rest.enter_context(
                tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
            )
        )
        self.world = World(folder, FOUND, Data(value, others))
        self.chosen = chosen
        self.world.check(chosen)

    @rule(chosen=CHOICES)
    def begin_run(self, chosen: Chosen) -> None:
        self.chosen = chosen
        self.runs.append(f"run-{len(self.runs)}")
        self.world.check(chosen)

    @rule(
        batch_size=st.sampled_from([None, 2]),
        clients=st.sampled_from([1, 2, 4]),
        rounds=st.sampled_from([4, 12]),
    )
    def change_options(self, **changes: Any) -> None:
        self.chosen = replace(self.chosen, **changes)
        self.world.check(self.chosen)

    @rule(privacy=st.sampled_from(REFUSED))
    def ask_for_more(self, privacy: Privacy | None) -> None:
        answer = self.world.ask(
            replace(self.chosen, privacy=privacy), make_order(self.chosen, self.runs[-1], 1, 0)
        )
        assert answer.kind in (Kind.REFUSED, Kind.LEAVING)

    @rule(
        which=WHICH,
        place=st.sampled_from(PLACES),
        handed=st.sampled_from(["", "", *PLACES]),
        weight=st.sampled_from([1.0, 1.0, 0.5, 1e-3, 2.0**-30]),
        n=st.sampled_from([1, 10**6]),
        further=st.sampled_from([1, 1, 1, 0, 2]),
        back=st.sampled_from([1, 1, 1, 2, 100]),
        killed=st.sampled_from([False] * 19 + [True]),
    )
    def order(self, which: int, **changes: Any) -> None:
        self.send(self.runs[which % len(self.runs)], **changes)

    @rule(which=WHICH, rounds=st.lists(ROUND, min_size=2, max_size=8))
    def several_rounds(self, which: int, rounds: list[dict[str, Any]]) -> None:
        for chosen in rounds:
            self.send(self.runs[which % len(self.runs)], **chosen)

    @rule(rounds=st.integers(2, 12))
    def same_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            self.send(self.runs[-1])

    @rule(
        changes=st.sampled_from(
            [
                {"ask": "sum"},
                {"report": True},
                {"weight": 2.0**-31},
                {"index": 1},
                {"index": 15},
                {"rate": 0.5},
                {"penalty": 1e-6},
                {"penalty": 1e12},
                {"lr": 1e12},
                {"base": 1, "vectors": {}},
                {"memory": {"d": b"x"}},
                {"digest": b"x"},
                {"vectors": {"xbar": b"\xff"}},
            ]
        )
    )
    def strange_order(self, changes: dict[str, Any]) -> None:
        self.send(self.runs[-1], **changes)

    def send(
        self, run: str, further: int = 1, back: int = 1, killed: bool = False, **changes: Any
    ) -> None:
        """Go on with a run, or with a new one where it has had its rounds; hand the memory over
        where it is lost.
        """
        if self.rounds[run] >= self.chosen.rounds and further > 0:
            run = f"run-{len(self.runs)}"
            self.runs.append(run)
        t = max(1, self.rounds[run] + further)
        self.last = make_order(
            self.chosen, run + ".7" * (t % 3 == 0), t, max(0, t - back), **changes
        )
        answer = self.world.ask(self.chosen, self.last, killed)
        if answer is not None and answer.kind == Kind.LOST:
            self.last = make_order(self.chosen, run, t, t - 1, handed="start")
            answer = self.world.ask(self.chosen, self.last)
        if answer is not None and answer.kind == "step":
            self.rounds[run] = t

    @precondition(lambda self: self.last is not None)
    @rule(weight=st.sampled_from([None, 0.5]))
    def repeat(self, weight: float | None) -> None:
        assert self.last is not None
        self.world.ask(
            self.chosen, self.last if weight is None else replace(self.last, weight=weight)
        )

    @rule(what=st.sampled_from(sorted(CHANGES)), checked=st.sampled_from([True] * 4 + [False]))
    def change_data(self, what: str, checked: bool) -> None:
        self.world.data = CHANGES[what](self.world.data)
        if checked:
            self.world.check(self.chosen)

    @rule()
    def act_as_owner(self) -> None:
        self.world.reopen()
        self.world.check(self.chosen)

    def teardown(self) -> None:
        with self.rest:
            if hasattr(self, "world"):
                FOUND.sequences += 1
                self.world.audit()


def attack(examples: int, shrink: bool = True) -> None:
    """Let the adversary try so many sequences; one that fails is made short, if asked for."""
    run_state_machine_as_test(
        Adversary,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    while time.monotonic() < until:
        attack(examples=20)
    epsilon, claimed = FOUND.worst
    print(
        f"{FOUND.sequences} sequences, {sum(FOUND.observed.values())} orders to each of two owners"
    )
    print(", ".join(f"{count} {what}" for what, count in FOUND.observed.most_common()))
    print(f"no epsilon above the ledger's; nearest to it: {epsilon:.4f} of {claimed:.4f}")


if __name__ == "__main__":
    main()
