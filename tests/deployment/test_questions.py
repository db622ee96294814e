"""Questions of a hostile server to a private client: neither failures nor changes under way tell of
the data.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import scipy.stats
import torch
import torch.nn.functional as nnf
from torch import Tensor

import fedfw
from fedfw import Privacy
from fedfw.algorithms import Message
from fedfw.algorithms.penalised import PenalisedFW
from fedfw.deployment import Client, Consent, DataBudget, DeployedServer, Task
from fedfw.deployment.client import answer_order
from fedfw.deployment.data_checks import check_data
from fedfw.deployment.ledger import spent
from fedfw.deployment.messages import Answer, Kind, Order
from fedfw.deployment.refusal import Refusal
from fedfw.deployment.store import ClientStore
from fedfw.errors import MessageError
from fedfw.problems.digest import digest_of
from fedfw.rounds.options import Options
from fedfw.rounds.vectors import encoded, whole
from fedfw.rounds.wire import digest
from tests.deployment.loopback import OPEN, Loopback, problem_of, small_task
from tests.table import zero_layer

pytest.importorskip("dp_accounting")

SAMPLES, FEATURES = 40, 6
PROMISE = Privacy(1.0, 1e-5)
BUDGET = DataBudget(4.0, 1e-3)
FEDFW = fedfw.FedFW("l1:1", penalty=1e-3, momentum=0.9)
GAUSSIAN = fedfw.FedAvg("l2:1", lr=0.5)
BOTH = pytest.mark.parametrize("algorithm", [FEDFW, GAUSSIAN], ids=lambda one: one.name)


def samples(value: float = 1.0, count: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """``value`` is the first entry of the first sample."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(SAMPLES, FEATURES, generator=generator)
    targets = torch.randint(2, (SAMPLES,), generator=generator)
    inputs[0, 0] = value
    return inputs[:count], targets[:count]


def make_task(
    algorithm: fedfw.Algorithm = FEDFW, data: Any = None, clients: int = 3, **options: Any
) -> Task:
    torch.manual_seed(1)
    model = torch.nn.Linear(FEATURES, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    given = samples() if data is None else data
    chosen = Options(**({"rounds": 4, "privacy": PROMISE} | options))
    return Task(model, nnf.cross_entropy, algorithm, lambda client: given, clients, options=chosen)


def first_order(task: Task, **changes: Any) -> Order:
    return replace(DeployedServer(task).open({0})[0], **changes)


def next_order(order: Order, x: Tensor | None = None, **changes: Any) -> Order:
    """One more round of the same run, from the point x that the server hands over and calls the
    model as well.
    """
    t = order.t + 1
    point = torch.zeros(2 * FEATURES) if x is None else x
    handed = {
        "vectors": {"xbar": encoded(point.double()).write()},
        "memory": {"x": encoded(point).write()},
        "digest": digest(point.double()),
        "version": t,
        "base": 0,
    }
    return replace(order, t=t, counted=order.serial, **(handed | changes))


class Clinic:
    """An owner with a budget and a client, a new one for each order, as deployed."""

    def __init__(
        self, folder: Path, *checked: Task, budget: DataBudget = BUDGET, name: str = "clinic"
    ) -> None:
        consent = replace(
            OPEN, data_set=name, share=("atoms", "models"), privacy=budget, seeded_noise=False
        )
        self.consent = Consent.read(consent.write(folder / "owner"))
        self.state = folder / "owner" / "state"
        for task in checked:
            self.check(task)

    def check(self, task: Task) -> None:
        check_data(task, 0, self.state, self.consent)

    def ask(self, task: Task, order: Order) -> Answer:
        """Answer an order; the owner's file names the bound on gradients that the task has."""
        budget, promise = self.consent.privacy, task.options.promise
        assert budget is not None
        consent = self.consent
        if promise is not None:
            consent = replace(consent, privacy=replace(budget, clip=promise.clip))
        return Client(task, 0, self.state, consent=consent).handle(order)

    def promise(self) -> Any:
        return self.consent.promise(0, self.state)

    def releases(self) -> Any:
        return self.consent.ledger(0, self.state).releases()

    def log(self, order: Order) -> list[str]:
        path = ClientStore(self.state, order.run, 0).path.with_suffix(".log.jsonl")
        return [json.loads(line)["event"] for line in path.read_text().splitlines()]


# --- failures ---


@pytest.mark.parametrize(
    "clip", [0.0, 1e-300, 1e-40, 9e-13, 2e12, 1e40, float("inf"), float("nan"), -1.0]
)
def test_a_bound_at_which_floating_point_numbers_end_is_refused(clip: float) -> None:
    """With 1e-40 a client failed where a sample had no gradient, and answered 64 of 64 questions
    that way.
    """
    with pytest.raises(ValueError, match="expected a number from 1e-12 to 1e"):
        Privacy(1.0, 1e-5, clip=clip)
    assert Privacy(1.0, 1e-5, clip=1e-12).clip == 1e-12
    assert Privacy.parse("eps=1,delta=1e-5,clip=1e12").clip == 1e12


@BOTH
@pytest.mark.parametrize("clip", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sample_cannot_make_a_client_fail(
    algorithm: fedfw.Algorithm, clip: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    """With a gradient of exactly zero, with one that overflows, and with one that is neither."""
    promise = replace(PROMISE, clip=clip)
    huge = 3e38 if dtype is torch.float32 else 1e308
    kinds = []
    for number, value in enumerate((0.0, 1.0, huge)):
        inputs, targets = samples()
        inputs = inputs.to(dtype)
        inputs[0, 0] = value
        task = make_task(
            replace(algorithm, constraint=fedfw.parse_set("l2:1e9")), (inputs, targets)
        )
        task = replace(
            task, model=task.model.to(dtype), options=replace(task.options, privacy=promise)
        )
        if algorithm is FEDFW:
            task = replace(
                task, algorithm=replace(FEDFW, constraint=fedfw.parse_set("l1:1e9"), penalty=0.0)
            )
        clinic = Clinic(tmp_path / f"{number}", task)
        order = first_order(task)
        x = torch.zeros(2, FEATURES, dtype=dtype)
        x[1] = (
            # all samples are surely of the second class, which makes gradients exactly zero; or
            # infinite
            1e7
        )
        memory = {} if algorithm is GAUSSIAN else {"memory": {"x": encoded(x.flatten()).write()}}
        model = x.flatten() if algorithm is GAUSSIAN else x.flatten().double()
        vectors = {"xbar": encoded(model).write()}
        order = replace(order, vectors=vectors, digest=digest(model), **memory)
        kinds.append(clinic.ask(task, order).kind)
        assert len(clinic.releases()) == 1
    assert kinds == ["step"] * 3


GRADIENT = "fedfw.problems.linear.LinearLosses.clipped_gradient"
STRIKES: dict[str, tuple[str, type[Exception], str]] = {
    "reading": ("fedfw.deployment.task.Problem", ArithmeticError, "ArithmeticError: a value"),
    "digest": (
        "fedfw.deployment.private_run.keyed_digest",
        ArithmeticError,
        "ArithmeticError: a value",
    ),
    "gradient": (GRADIENT, ArithmeticError, "ArithmeticError: a value"),
    # A `MessageError` leaves the promise open, so that none may come from work on data.
    "message": (GRADIENT, MessageError, "RuntimeError: "),
    "clipping": ("fedfw.problems.linear.clip_factors", ArithmeticError, "ArithmeticError: a value"),
    "oracle": ("fedfw.privacy.mechanisms.Mechanism.answer", ValueError, "ValueError: a value"),
    "noise": ("fedfw.privacy.noise.Noise.uniform", OSError, "OSError: a value"),
    "encoding": ("fedfw.atoms.base.Atom.to_bytes", RuntimeError, "RuntimeError: a value"),
    "saving": ("fedfw.deployment.store.ClientStore.save", OSError, "OSError: a value"),
    "limit": (
        "fedfw.deployment.private_run.PrivateRun.release",
        MemoryError,
        "fedfw.deployment.limits.LimitError: the job needed more memory than",
    ),
}
"""Where an error strikes, which, and how the owner's note of it begins."""


@pytest.mark.parametrize("name", STRIKES)
def test_wherever_an_error_strikes_the_answer_is_that_of_a_spent_budget(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes the promise: a second failure, in whatever run, would be a second bit."""
    place, error, reason = STRIKES[name]
    task = make_task()
    clinic = Clinic(tmp_path, task)
    order = first_order(task, run="trial")

    def fail(*arguments: Any, **options: Any) -> Any:
        raise error("a value of the data")

    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        assert clinic.ask(task, order) == Answer("trial", 1, 0, Kind.LEAVING)
    spent_then = spent(clinic.releases())
    for run in ("trial", "another", "trial.5"):
        again = first_order(task, run=run)
        assert clinic.ask(task, again) == Answer(run, 1, 0, Kind.LEAVING)
        assert clinic.log(again)[-1].startswith("closed, see ")
    assert spent(clinic.releases()) == spent_then
    assert "a value of the data" in (clinic.state / "failures.log").read_text()
    closing = clinic.promise().reopen()
    assert closing.order == "run trial, round 1"
    assert closing.reason.startswith(reason)
    assert clinic.ask(task, first_order(task, run="after")).kind == "step"


def test_a_disk_on_which_no_reason_can_be_written_closes_the_promise_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task()
    clinic = Clinic(tmp_path, task)

    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedfw.deployment.promise.write_atomically", full)
        patch.setattr(GRADIENT, full)
        for run in ("trial", "trial", "another"):
            assert clinic.ask(task, first_order(task, run=run)) == Answer(run, 1, 0, Kind.LEAVING)
    assert len(clinic.releases()) == 1
    assert clinic.ask(task, first_order(task, run="later")).kind == Kind.LEAVING
    assert clinic.promise().reopen().order == "run trial, round 1"
    assert clinic.ask(task, first_order(task, run="later")).kind == "step"


def test_a_budget_that_is_spent_gives_the_same_answer_as_a_closed_promise(tmp_path: Path) -> None:
    task = make_task()
    poor = Clinic(tmp_path, task, budget=DataBudget(1.0, 1e-5))
    assert poor.ask(task, first_order(task, run="first")).kind == "step"
    spent_answer = poor.ask(task, first_order(task, run="second"))
    poor.promise().close("an order", "a reason")
    assert (
        spent_answer
        == poor.ask(task, first_order(task, run="second"))
        == Answer("second", 1, 0, Kind.LEAVING)
    )


def test_orders_that_make_no_sense_close_nothing(tmp_path: Path) -> None:
    task = make_task()
    clinic = Clinic(tmp_path, task)
    good = first_order(task)
    x = torch.zeros(2 * FEATURES)
    strange = [
        replace(good, client=1),
        replace(good, t=99),
        replace(good, weight=1e-30),
        replace(good, vectors={"xbar": b"?"}),
        replace(good, vectors={"xbar": b""}),
        replace(good, vectors={"nonsense": b""}),
        replace(good, memory={"x": b"\x00" * 3}),
        replace(good, memory={"d": encoded(x).write()}),
        replace(good, ask="sum"),
        replace(good, run="../x"),
        next_order(good, torch.full((2 * FEATURES,), 5.0)),
        next_order(good, torch.full((2 * FEATURES,), torch.nan)),
    ]
    for order in strange:
        with pytest.raises((MessageError, ValueError)):
            clinic.ask(task, order)
        assert clinic.promise().settle() is None, order
    assert clinic.releases() == []
    assert clinic.ask(task, good).kind == "step"


def test_options_that_make_no_promise_close_nothing(tmp_path: Path) -> None:
    """One round with so little noise would spend more than the promise: an operator's mistake."""
    task = make_task()
    clinic = Clinic(tmp_path, task)
    little = make_task(privacy=Privacy(1.0, 1e-5, noise=0.1))
    with pytest.raises(MessageError, match="one round would spend eps"):
        clinic.ask(little, first_order(task))
    assert clinic.promise().settle() is None


def test_an_owner_who_allows_other_runs_takes_none_while_the_promise_is_closed(
    tmp_path: Path,
) -> None:
    task = make_task()
    plain = replace(task, options=replace(task.options, privacy=None))
    clinic = Clinic(tmp_path, task, budget=replace(BUDGET, required=False))
    assert clinic.ask(plain, first_order(plain, run="plain")).kind == "step"
    clinic.promise().close("an order", "a reason")
    assert clinic.ask(plain, first_order(plain, run="more")).kind == Kind.LEAVING


def test_making_the_client_is_inside_of_the_promise(tmp_path: Path) -> None:
    """An app reads its data when it makes its task."""
    task = make_task()
    clinic = Clinic(tmp_path, task)
    given = {"number": 0, "folder": clinic.state, "consent": clinic.consent}

    def unreadable() -> Client:
        raise ValueError("could not convert string to float: 'John Smith'")

    assert answer_order(first_order(task, run="r"), unreadable, **given) == Answer(
        "r", 1, 0, Kind.LEAVING
    )
    assert "John Smith" in (clinic.state / "failures.log").read_text()
    assert clinic.ask(task, first_order(task)).kind == Kind.LEAVING


# --- invalid data never join ---


def test_data_that_their_owner_has_not_checked_do_not_join(tmp_path: Path) -> None:
    task = make_task()
    clinic = Clinic(tmp_path)
    answers = []
    for value in (1.0, 2.0, torch.nan):  # whatever the data are
        other = make_task(data=samples(value))
        answers.append(clinic.ask(other, first_order(task, run="r")))
    assert {answer.kind for answer in answers} == {Kind.REFUSED}
    assert {answer.payload for answer in answers} == {Refusal.UNCHECKED.encode()}
    assert clinic.releases() == []
    clinic.check(task)
    assert clinic.ask(task, first_order(task)).kind == "step"
    wider = replace(
        task, model=torch.nn.Linear(FEATURES, 3, bias=False)
    )  # which they were not checked for
    assert clinic.ask(wider, first_order(wider)).payload == Refusal.UNCHECKED.encode()


def test_an_owner_without_a_budget_has_nothing_to_check(tmp_path: Path) -> None:
    task = make_task()
    consent = Consent.read(Consent("clinic").write(tmp_path / "owner"))
    assert (
        Client(task, 0, tmp_path / "state", consent=consent).handle(first_order(task)).kind
        == "step"
    )


# --- what changes under way ---


CHANGES: dict[str, Callable[[], Task]] = {
    "momentum": lambda: make_task(replace(FEDFW, momentum=0.5)),
    "no momentum": lambda: make_task(replace(FEDFW, momentum=0.0)),
    "method": lambda: make_task(fedfw.FedFWSto("l1:1", penalty=1e-3)),
    "set": lambda: make_task(replace(FEDFW, constraint=fedfw.L1Ball(2.0))),
    "batch": lambda: make_task(batch_size=10),
    "clip": lambda: make_task(privacy=replace(PROMISE, clip=0.5)),
    "local steps": lambda: make_task(local_steps=2),
    "rounds": lambda: make_task(rounds=40),
    "eps": lambda: make_task(privacy=replace(PROMISE, eps=0.5)),
    "delta": lambda: make_task(privacy=replace(PROMISE, delta=1e-6)),
    "mechanism": lambda: make_task(privacy=replace(PROMISE, mechanism="gaussian")),
    "samples": lambda: make_task(privacy=replace(PROMISE, samples=5)),
    "clients": lambda: make_task(clients=4),
    "division": lambda: replace(make_task(), division="labels:3"),
    "data shrink": lambda: make_task(data=samples(count=10)),
    "data grow": lambda: make_task(data=tuple(torch.cat([part, part]) for part in samples())),
    "an entry": lambda: make_task(data=samples(1.5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_ends_the_promise_and_drops_the_memory(
    change: str, tmp_path: Path
) -> None:
    """Momentum remembers gradients without noise: with other samples, or another bound, a later
    answer showed them.
    """
    task, changed = make_task(), CHANGES[change]()
    clinic = Clinic(tmp_path, task, changed)
    order = first_order(task, run="trial")
    assert clinic.ask(task, order).kind == "step"
    store = ClientStore(clinic.state, "trial", 0)
    assert store.path.exists()
    spent_then = spent(clinic.releases())
    order = next_order(order)
    assert clinic.ask(changed, order) == Answer("trial", 2, 0, Kind.LEAVING)
    assert not store.path.exists()
    for _ in range(2):  # it stays ended, even where all is as it was
        order = next_order(order)
        assert clinic.ask(task, order) == Answer("trial", order.t, 0, Kind.LEAVING)
        assert clinic.ask(task, replace(order, run="trial.7")).kind == Kind.LEAVING
    assert spent(clinic.releases()) == spent_then
    assert [one.ended for one in clinic.releases()] == [False, True]
    assert clinic.promise().settle() is None
    assert clinic.ask(changed, first_order(changed, run="new")).kind == "step"
    assert spent(clinic.releases())[0] > spent_then[0]


def test_a_run_without_privacy_leaves_no_memory_to_a_private_one(tmp_path: Path) -> None:
    """Of the same name: its momentum would be gradients without a bound."""
    task = make_task()
    plain = replace(task, options=replace(task.options, privacy=None))
    clinic = Clinic(tmp_path, task, budget=replace(BUDGET, required=False))
    order = first_order(task, run="trial")
    assert clinic.ask(plain, order).kind == "step"
    kept = ClientStore(clinic.state, "trial", 0).load()
    assert bool(kept.last.state["seen"])
    seen: list[bool] = []
    original = PenalisedFW.local_update

    def watch(self: Any, run: Any, client: Any, *rest: Any) -> Any:
        seen.append(bool(client.private["seen"]))
        return original(self, run, client, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PenalisedFW, "local_update", watch)
        assert clinic.ask(task, next_order(order)).kind == "step"
    assert seen
    assert not any(seen)


def test_a_new_ledger_has_no_use_for_the_memory_of_an_older_one(tmp_path: Path) -> None:
    """Its lines do not say how large the shares were that are remembered."""
    task = make_task()
    clinic = Clinic(tmp_path / "a", task)
    order = first_order(task, run="trial")
    assert clinic.ask(task, order).kind == "step"
    renamed = Clinic(tmp_path / "b", name="ward")
    renamed.state = clinic.state
    renamed.check(task)
    assert renamed.ask(task, replace(next_order(order), memory={})).kind == Kind.LOST


# --- the files ---


def test_a_ledger_of_an_older_version_counts_and_its_runs_have_ended(tmp_path: Path) -> None:
    task = make_task()
    clinic = Clinic(tmp_path, task)
    path = clinic.consent.ledger(0, clinic.state).path
    old = {
        "run": "trial",
        "release": 1,
        "promise": "as it was",
        "noise": 5.0,
        "epsilon": 0.5,
        "delta": 1e-6,
    }
    old |= {"weight": 0.25, "data": "0123456789abcdef", "before": hashlib.sha256(b"").hexdigest()}
    path.write_bytes(json.dumps(old).encode() + b"\n")
    assert spent(clinic.releases()) == (0.5, 1e-6)
    assert clinic.ask(task, first_order(task, run="trial")).kind == Kind.LEAVING
    assert clinic.ask(task, first_order(task, run="new")).kind == "step"
    assert [one.run for one in clinic.releases()] == ["trial", "trial", "new"]


def test_no_file_of_a_private_client_holds_a_digest_of_data_without_a_key(tmp_path: Path) -> None:
    task = make_task()
    clinic = Clinic(tmp_path, task)
    order = first_order(task)
    clinic.ask(task, order)
    clinic.ask(task, next_order(order))
    data = list(task.problem(task.data(0)).losses.data())
    digests = {digest_of(part) for part in ([data[0]], [data[1]], data)}
    secret = clinic.consent.secret(0, clinic.state).hex()
    for path in (tmp_path / "owner").rglob("*"):
        if path.is_file():
            for found in digests:
                assert found.encode() not in path.read_bytes()
            assert path.name == "clinic.secret" or secret.encode() not in path.read_bytes()


# --- A hostile server that tries to remove a client's noise by rounding ---

ROUNDING_ATTACKS_SAMPLES, ROUNDING_ATTACKS_FEATURES, DELTA = 200, 30, 1e-5


def task_with(k: int, algorithm: fedfw.Algorithm) -> Task:
    """k samples have a gradient in one coordinate, the others none: the attacker wants to know k."""
    x, y = (
        torch.zeros(ROUNDING_ATTACKS_SAMPLES, ROUNDING_ATTACKS_FEATURES),
        torch.arange(ROUNDING_ATTACKS_SAMPLES) % 2,
    )
    x[:k, 0], y[:k] = 1000.0, 0
    model = zero_layer(ROUNDING_ATTACKS_FEATURES, 2)
    options = Options(rounds=10, privacy=Privacy(1.0, DELTA))
    return Task(model, nnf.cross_entropy, algorithm, lambda client: (x, y), 3, options=options)


def order_of(task: Task, large: float | None = None, **changes: object) -> Order:
    """The first order of a server, with duals of its choosing handed over, which cancel."""
    order = replace(DeployedServer(task).open({0, 1, 2})[0], **changes)  # type: ignore[arg-type]
    if large is None:
        return order
    y, xbar = torch.full((len(task.start),), large, dtype=torch.float64), task.start.double()
    vectors = {"xbar": whole(xbar).write(), "ybar": whole(y).write()}
    memory = {"x": whole(xbar).write(), "y": whole(y).write()}
    return replace(order, vectors=vectors, memory=memory, digest=digest(xbar, y), base=0)


def chosen(task: Task, order: Order, folder: Path) -> bool:
    """Whether the client's atom is at the coordinate in question."""
    client = Client(task, 0, folder)
    answer = client.handle(order)
    assert answer.kind == "step"
    method = task.method()
    message = Message(1, {"xbar": task.start}, method.rule.rates({}, 1), 1.0, [1.0], 1e-6)
    sent = task.decode(answer.payload, method, method.algorithm, task.run(3), message)
    point = sent["atom"].dense()
    return bool(point[0] != 0 or point[ROUNDING_ATTACKS_FEATURES] != 0)


PLUS = fedfw.FedFWPlus(fedfw.L1Ball(1.0), penalty=1e-3)


TINY, LOST = "a weight outside of", "noise would be lost in rounding"


@pytest.mark.parametrize(
    ("large", "changes", "message"),
    [
        *((None, {"weight": weight}, TINY) for weight in (2.0**-149, 1e-300, 2.0**-31)),
        *((large, {}, LOST) for large in (2.0**40, -(2.0**60), 1e300)),
    ],
)
def test_tiny_weights_and_duals_beside_which_noise_is_lost_are_refused(
    large: float | None, changes: dict[str, float], message: str, tmp_path: Path
) -> None:
    task = task_with(100, PLUS)
    with pytest.raises(MessageError, match=message):
        Client(task, 0, tmp_path).handle(order_of(task, large, **changes))


def test_duals_that_cancel_do_not_tell_one_sample(tmp_path: Path) -> None:
    """With y = ybar = 1.5 * 2^21 a float32 client told apart 150 of 150, against an epsilon of
    0.156.
    """
    trials, hits = 40, []
    for k in (76, 75):
        task = task_with(k, PLUS)
        order = order_of(task, 1.5 * 2.0**21)
        hits.append(sum(chosen(task, order, tmp_path / f"{k}-{i}") for i in range(trials)))
    seen = scipy.stats.fisher_exact([[hits[0], trials - hits[0]], [hits[1], trials - hits[1]]])
    assert seen.pvalue > 1e-4, hits


# --- A deployment keeps the promise: clients rely on nobody for it, and never draw twice for one
# order ---

PRIVACY_DELTA = 1e-5


def unequal_task(
    algorithm: fedfw.Algorithm, model: str, dtype: torch.dtype, **options: Any
) -> Task:
    """Clients of 12, 9 and 30 samples."""

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(client)
        samples = (12, 9, 30)[client % 3]
        inputs = torch.randn(samples, 4, generator=generator) + client % 3
        return inputs.to(dtype), torch.randint(0, 3, (samples,), generator=generator)

    torch.manual_seed(0)
    made: torch.nn.Module = torch.nn.Linear(4, 3)
    if model == "network":
        made = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return Task(made.to(dtype), nnf.cross_entropy, algorithm, data, 3, options=Options(**options))


@pytest.mark.parametrize(
    ("model", "dtype"),
    [("layer", torch.float32), ("layer", torch.float64), ("network", torch.float32)],
)
@pytest.mark.parametrize(
    "algorithm",
    [
        fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01),
        fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01, momentum=0.9),
        fedfw.FedFWPlus(fedfw.LinfBall(5.0), penalty=0.01),
        fedfw.FedFWSto(fedfw.L2Ball(5.0), penalty=0.01),
        fedfw.FedAvg(fedfw.L2Ball(5.0), lr=0.5),
    ],
    ids=repr,
)
def test_private_minibatches_of_unequal_clients_have_the_simulators_bits(
    algorithm: fedfw.Algorithm, model: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """A client's draws depend on its own samples, not on those of the largest client in a stack."""
    promise = Privacy(1e6, PRIVACY_DELTA, noise=0.1, not_private_seed=1)
    if (
        algorithm.name == "fedfw"
    ):  # planned noise agrees, too, where both plan by the smallest client
        promise = Privacy(8.0, PRIVACY_DELTA, not_private_seed=1, samples=9)
    options: dict[str, Any] = {"rounds": 4, "privacy": promise, "batch_size": 4, "local_steps": 2}
    task = unequal_task(algorithm, model, dtype, **options)
    loop = Loopback(DeployedServer(task), tmp_path)
    loop.run(4)
    run = fedfw.simulate(problem_of(task), algorithm, **options)
    assert torch.equal(loop.server.xbar, run.x.flatten())


def test_noise_for_minibatches_is_planned_by_the_smallest_client_that_is_named(
    tmp_path: Path,
) -> None:
    algorithm = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)
    noise = {}
    for samples in (None, 9, 30, 1000):
        promise = Privacy(8.0, PRIVACY_DELTA, samples=samples)
        task = unequal_task(
            algorithm, "layer", torch.float32, rounds=4, privacy=promise, batch_size=4
        )
        plan = Client(task, 2, tmp_path)._private.plan
        noise[samples] = plan.noise
    assert (
        noise[9] > noise[None] == noise[30] == noise[1000]
    )  # never by more samples than the client has


def test_two_processes_of_one_client_release_one_draw(tmp_path: Path) -> None:
    task = small_task(
        fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01), rounds=3, privacy=Privacy(1.0, PRIVACY_DELTA)
    )
    loop = Loopback(DeployedServer(task), tmp_path)
    order = loop.server.open({0, 1, 2})[0]
    answers: list[bytes] = []
    twins = [
        Thread(target=lambda: answers.append(loop.client(0).handle(order).payload))
        for _ in range(2)
    ]
    store = ClientStore(tmp_path, order.run, 0)
    with store.alone():
        for twin in twins:
            twin.start()
        twins[0].join(0.2)
        assert all(twin.is_alive() for twin in twins)  # both wait: somebody else is at work
    for twin in twins:
        twin.join()
    assert answers[0] == answers[1]
    assert [one.release for one in OPEN.ledger(0, tmp_path).releases()] == [1]
    log = store.path.with_suffix(".log.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["event"] for line in log) == ["repeated", "stepped"]
