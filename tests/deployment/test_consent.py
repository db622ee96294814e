"""A client does what its data's owner allows, whatever the server asks for."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedfw
from fedfw import Privacy
from fedfw.algorithms.step_sizes import reports_curvature
from fedfw.cli import main
from fedfw.cli.deploy_init import copy_app
from fedfw.config.app import app_options
from fedfw.deployment import Client, Consent, DataBudget, DeployedServer, Deployment, Task
from fedfw.deployment.consent import CONSENT
from fedfw.deployment.data_checks import check_data
from fedfw.deployment.ledger import charged
from fedfw.deployment.limits import JobLimits
from fedfw.deployment.messages import Answer, Kind, Order, serial_of
from fedfw.deployment.refusal import Refusal, RefusedError
from fedfw.deployment.reveals import LEAK_TABLE, PROMISE_SENTENCE, SAMPLES_SENTENCE
from fedfw.deployment.server_options import (
    DATA_OPTIONS,
    SEED,
    check_range,
    default_options,
    run_options,
    set_by_server,
    settings_in,
)
from fedfw.deployment.settings import APP_DEFAULTS
from fedfw.deployment.store import ClientStore
from fedfw.deployment.terms import SHARES
from fedfw.errors import MessageError
from fedfw.options import options_of

from .loopback import Loopback, small_task

L1 = fedfw.L1Ball(5.0)
FEDFW = fedfw.FedFW(L1, penalty=0.01, momentum=0.0)
DELTA = 1e-5
PROMISE = Privacy(0.5, DELTA)
BUDGET = DataBudget(1.0, 1e-3)


def orders(task: Task, **changes: Any) -> Callable[..., Order]:
    """Orders for client 0 as a server of the task makes them, with whatever a hostile one changes."""
    settings = Deployment(share_gradients=True, tell_loss=task.options.promise is None)
    first = DeployedServer(task, settings).open({0})[0]
    return lambda **more: replace(first, **(changes | more))


def owner_with(budget: DataBudget, folder: Path, task: Task | None = None) -> Consent:
    """An owner with a budget, as the files in the folder say, who has checked client 0's data."""
    consent = Consent.read(Consent("clinic", privacy=budget).write(folder))
    check_data(small_task(FEDFW) if task is None else task, 0, folder / "state", consent)
    return consent


@pytest.fixture
def owner(tmp_path: Path) -> Consent:
    return owner_with(BUDGET, tmp_path / "owner")


# --- what is allowed ---


def _unread(client: int) -> Any:
    raise AssertionError("the data of a refused task were read")


@pytest.mark.parametrize(
    ("consent", "algorithm", "options", "reason"),
    [
        (Consent(), fedfw.FedAvg(L1, lr=0.5), {}, Refusal.SHARED),
        (Consent(), fedfw.FedFWAnchored(L1), {}, Refusal.SHARED),
        (Consent(share=("atoms", "models")), fedfw.FrankWolfe(L1), {}, Refusal.SHARED),
        (Consent(), fedfw.FedFW(L1, penalty=0.01, schedule="curvature"), {}, Refusal.SHARED),
        (Consent(algorithms=("fedfw+",)), FEDFW, {}, Refusal.ALGORITHM),
        (Consent(algorithms=("fedavg",)), fedfw.FedAvg(L1, lr=0.5), {}, Refusal.SHARED),
        (Consent(sets=("ksparse",)), FEDFW, {}, Refusal.SET),
        (Consent(), fedfw.FedFW(fedfw.L2Ball(10.0), penalty=0.01), {"batch_size": 1}, Refusal.SET),
        (Consent(), fedfw.FedFW(fedfw.LinfBall(1.0)), {}, Refusal.SET),
        (Consent(), fedfw.FedFW(fedfw.Box(-1.0, 2.0)), {}, Refusal.SET),
        (Consent(), fedfw.FedFW(fedfw.KSparse(9, 1.0)), {}, Refusal.SET),
        (
            Consent(),
            fedfw.FedFW(fedfw.Product({"weight": fedfw.NuclearBall(1.0), "*": L1})),
            {},
            Refusal.SET,
        ),
        (
            Consent(),
            fedfw.FedFW(fedfw.Product({"weight": fedfw.GroupBall(1.0), "*": L1})),
            {},
            Refusal.SET,
        ),
        (
            Consent(sets=("ksparse:k=8", "hypersimplex:3")),
            fedfw.FedFW(fedfw.Hypersimplex(4)),
            {},
            Refusal.SET,
        ),
        (Consent(), FEDFW, {"batch_size": 1}, Refusal.SAMPLES),
        (Consent(), FEDFW, {"batch_size": 31}, Refusal.SAMPLES),
        (Consent(least_samples=2), FEDFW, {"batch_size": 1}, Refusal.SAMPLES),
        (Consent(), FEDFW, {"local_steps": 11}, Refusal.STEPS),
        (Consent(most_local_steps=1), FEDFW, {"local_steps": 2}, Refusal.STEPS),
        (Consent(privacy=BUDGET), FEDFW, {"privacy": Privacy(0.5, DELTA, clip=0.5)}, Refusal.CLIP),
        (
            Consent(privacy=DataBudget(1.0, 1e-3, clip=0.5)),
            FEDFW,
            {"privacy": Privacy(0.5, DELTA)},
            Refusal.CLIP,
        ),
        (
            Consent(sets=("l1",)),
            fedfw.FedFW(fedfw.Product({"weight": L1, "*": fedfw.L2Ball(1.0)})),
            {},
            Refusal.SET,
        ),
        (Consent(most_parameters=14), FEDFW, {}, Refusal.SIZE),
        (Consent(privacy=BUDGET), FEDFW, {}, Refusal.PLAIN),
        (Consent(), FEDFW, {"privacy": Privacy(0.5, DELTA, not_private_seed=0)}, Refusal.SEED),
        (
            Consent(privacy=BUDGET),
            FEDFW,
            {"privacy": Privacy(0.5, DELTA, not_private_seed=0)},
            Refusal.SEED,
        ),
        (Consent(privacy=BUDGET), FEDFW, {"privacy": Privacy(1e9, DELTA)}, Refusal.PROMISE),
        (Consent(privacy=BUDGET), FEDFW, {"privacy": Privacy(0.5, 0.999)}, Refusal.PROMISE),
    ],
)
def test_what_the_owner_does_not_allow_is_refused_by_a_constant_text(
    consent: Consent,
    algorithm: fedfw.Algorithm,
    options: dict[str, Any],
    reason: Refusal,
    tmp_path: Path,
) -> None:
    task = replace(small_task(algorithm, rounds=3, **options), data=_unread)
    for index, exchange in enumerate(algorithm.all_exchanges):
        order = Order(
            run="run",
            t=1,
            index=index,
            ask=exchange.label,
            client=0,
            n=3,
            weight=1 / 3,
            counted=0,
            version=1,
            base=0,
            digest=b"",
            vectors={"xbar": b"?"},
            rate=0.5 if reports_curvature(algorithm) else None,
            report=True,
        )
        answer = Client(task, 0, tmp_path, consent=consent).handle(order)
        assert answer == Answer("run", 1, 0, Kind.REFUSED, payload=reason.encode())
        assert Refusal.parse(answer.payload) == reason
    for line in (tmp_path / "run" / "client-0.log.jsonl").read_text().splitlines():
        assert json.loads(line)["event"].startswith(f"refused, because {reason}: ")


@pytest.mark.parametrize(
    ("consent", "task"),
    [
        (Consent(), small_task(FEDFW)),
        (Consent(algorithms=("fedfw",), sets=("l1",), most_parameters=15), small_task(FEDFW)),
        (Consent(share=("models",)), small_task(fedfw.FedAvg(L1, lr=0.5))),
        (Consent(share=("gradients",)), small_task(fedfw.FedFWAnchored(L1))),
        (
            Consent(share=("numbers",)),
            small_task(fedfw.FedFW(L1, penalty=0.01, schedule="curvature")),
        ),
        (
            Consent(sets=("l1", "l2")),
            small_task(fedfw.FedFW(fedfw.Product({"weight": L1, "*": fedfw.L2Ball(1.0)}))),
        ),
        (Consent(privacy=DataBudget(1.0, 1e-3, required=False)), small_task(FEDFW)),
        (Consent(privacy=BUDGET), small_task(FEDFW, privacy=PROMISE)),
        (Consent(), small_task(fedfw.FedFW(fedfw.KSparse(8, 1.0)))),
        (Consent(), small_task(fedfw.FedFW(fedfw.Simplex(1.0)))),
        (Consent(sets=("all",)), small_task(fedfw.FedFW(fedfw.L2Ball(1.0)))),
        (Consent(sets=("ksparse:65",)), small_task(fedfw.FedFW(fedfw.KSparse(65, 1.0)))),
        (Consent(sets=("ksparse",)), small_task(fedfw.FedFW(fedfw.KSparse(1000, 1.0)))),
        (Consent(), small_task(FEDFW, batch_size=32, local_steps=10)),
        (
            Consent(privacy=DataBudget(1.0, 1e-3, clip=0.5)),
            small_task(FEDFW, privacy=Privacy(0.5, DELTA, clip=0.5)),
        ),
    ],
)
def test_what_the_owner_allows_is_done(consent: Consent, task: Task) -> None:
    consent.check(task)


def test_a_refusal_is_counted_and_its_text_is_one_of_ours(tmp_path: Path) -> None:
    loop = Loopback(
        DeployedServer(small_task(FEDFW, rounds=3)), tmp_path, consent=Consent(most_parameters=1)
    )
    record = loop.round()
    assert (record.participants, record.refused) == (0, {"refused": 3})
    assert Refusal.parse(b"\xff<script>") == "for no known reason"


def test_losses_are_told_only_with_consent(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=3)
    order = orders(task)(report=True)
    told = {
        share: Client(task, 0, tmp_path / share, consent=Consent(share=(share,))).handle(order)
        for share in ("atoms", "numbers", "losses")
    }
    assert [(told[share].loss, told[share].number) for share in ("atoms", "numbers")] == [
        (None, None)
    ] * 2
    assert told["losses"].loss is not None
    assert told["losses"].number is not None
    assert told["atoms"].payload == told["losses"].payload


def test_a_gradient_is_not_sent_for_the_asking(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=3)
    for consent in (Consent(), Consent(share=("gradients",))):
        with pytest.raises(MessageError, match="asked for 'sum', expected step"):
            Client(task, 0, tmp_path, consent=consent).handle(orders(task)(ask="sum"))


@pytest.mark.parametrize("t", [0, -1, -100_000, 4, 10**30])
@pytest.mark.parametrize("promise", [None, PROMISE])
def test_rounds_that_do_not_exist_are_refused(
    t: int, promise: Privacy | None, tmp_path: Path
) -> None:
    task = small_task(FEDFW, rounds=3, privacy=promise)
    with pytest.raises(MessageError, match="round"):
        Client(task, 0, tmp_path).handle(orders(task)(t=t))
    assert not list(tmp_path.rglob("*.ledger.jsonl"))


# --- how many samples, and how often ---


def with_samples(task: Task, count: int) -> Task:
    """The same task with so many samples of each client."""

    def data(client: int) -> Any:
        inputs, targets = task.data(client)
        return inputs[:count], targets[:count]

    return replace(task, data=data)


def log_of(folder: Path, run: str = "run") -> str:
    event: str = json.loads((folder / run / "client-0.log.jsonl").read_text().splitlines()[-1])[
        "event"
    ]
    return event


@pytest.mark.parametrize("promise", [None, PROMISE])
@pytest.mark.parametrize(("samples", "kind"), [(31, Kind.REFUSED), (32, "step")])
def test_a_client_with_few_samples_takes_no_part(
    samples: int, kind: Kind, promise: Privacy | None, tmp_path: Path
) -> None:
    task = with_samples(small_task(FEDFW, rounds=3, privacy=promise), samples)
    answer = Client(task, 0, tmp_path).handle(orders(task)(run="run"))
    assert answer.kind == kind
    if kind == Kind.REFUSED:
        assert (
            Refusal.parse(answer.payload) == "the owner does not allow gradients of so few samples"
        )
        assert log_of(tmp_path).endswith("31 samples here, expected at least least-samples = 32")
        assert not list(tmp_path.rglob("*.answers"))
        ledgers = list(tmp_path.rglob("*.ledger.jsonl"))
        assert all(not ledger.read_text() for ledger in ledgers)  # nothing is spent for it
    else:
        assert Consent().count(0, tmp_path).read() == 1


def test_rounds_are_counted_over_runs_names_and_restarts(tmp_path: Path) -> None:
    owner = Consent.read(Consent("clinic", most_rounds=4).write(tmp_path / "owner"))
    task = small_task(FEDFW, rounds=3)
    order, state = orders(task), tmp_path / "state"

    def ask(run: str, **changes: Any) -> Answer:
        return Client(task, 0, state, consent=owner).handle(order(run=run, **changes))

    first = ask("a")
    assert first.kind == "step"
    assert ask("a") == first  # a stored answer is not computed from the data again
    assert ask("other", counted=2).kind == Kind.LOST  # neither is one that says what is missing
    assert owner.count(0, state).read() == 1
    ClientStore(state, "a", 0).forget()
    assert [ask(run).kind for run in ("a", "b", "c")] == ["step"] * 3
    for run in ("a-1", "d"):
        answer = ask(run)
        assert (answer.kind, Refusal.parse(answer.payload)) == (
            Kind.REFUSED,
            "the owner allows no further rounds",
        )
    assert log_of(state, "d").endswith(
        "clinic.answers has as many answers as most-rounds = 4 allows"
    )
    assert owner.count(0, state).read() == 4
    more = replace(owner, most_rounds=5)  # the owner may allow more
    assert Client(task, 0, state, consent=more).handle(order(run="d")).kind == "step"


def test_contributions_to_sums_and_numbers_of_auto_are_counted_too(tmp_path: Path) -> None:
    owner = Consent.read(Consent("clinic", share=SHARES, most_rounds=2).write(tmp_path / "owner"))
    anchored = small_task(fedfw.FedFWAnchored(L1, penalty=0.01), rounds=3)
    order = DeployedServer(anchored, Deployment(share_gradients=True)).open({0, 1, 2})[0]
    first = Client(anchored, 0, tmp_path / "state", consent=owner).handle(order)
    assert first.kind == "sum"
    assert owner.count(0, tmp_path / "state").read() == 1
    assert Client(anchored, 0, tmp_path / "state", consent=owner).handle(order) == first  # stored
    auto = Client(small_task(fedfw.FedFW(L1), rounds=3), 0, tmp_path / "state", consent=owner)
    assert auto.hello().gradient_norm is not None
    assert auto.hello().gradient_norm is None
    again = replace(order, run="another")
    assert (
        Client(anchored, 0, tmp_path / "state", consent=owner).handle(again).payload
        == Refusal.ROUNDS.encode()
    )


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "lost": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "closed": replace_by_a_folder,
    "shared": lambda path: path.chmod(0o620),
    "changed": lambda path: path.write_bytes(
        path.read_bytes().replace(b'"noise": ', b'"noise": 1', 1)
    ),
    "older": lambda path: path.write_bytes(path.read_bytes().splitlines(keepends=True)[0]),
}


@pytest.mark.parametrize("damage", ["lost", "cut", "closed", "shared"])
def test_without_a_whole_count_nothing_is_answered(damage: str, tmp_path: Path) -> None:
    owner = Consent.read(Consent("clinic").write(tmp_path / "owner"))
    task = small_task(FEDFW, rounds=3)
    path = owner.count(0, Path()).path
    assert (
        Client(task, 0, tmp_path / "state", consent=owner).handle(orders(task)(run="a")).kind
        == "step"
    )
    DAMAGE[damage](path)
    answer = Client(task, 0, tmp_path / "state", consent=owner).handle(orders(task)(run="b"))
    assert (answer.kind, Refusal.parse(answer.payload)) == (
        Kind.REFUSED,
        "the count of rounds is missing or damaged",
    )
    assert str(path) in log_of(tmp_path / "state", "b")


# --- before a task is built ---

APP = {
    "rounds": 5,
    "clients": 3,
    "dataset": "digits",
    "constraint": "ksparse:k=65,r=10",
    "seed": 0,
    "out": "",
}


@pytest.mark.parametrize(
    ("consent", "changes", "reason", "details"),
    [
        (
            Consent(),
            {"dataset": "table:/etc/payroll.csv"},
            Refusal.OPTION,
            "dataset = 'table:/etc/payroll.csv' was set by",
        ),
        (
            Consent(),
            {"target": "salary"},
            Refusal.OPTION,
            "target = 'salary' was set by the server, expected one of",
        ),
        (
            Consent(),
            {"data-dir": "/etc"},
            Refusal.OPTION,
            "data-dir = '/etc' was set by the server",
        ),
        (
            Consent(),
            {"partition": "labels:1"},
            Refusal.OPTION,
            "partition = 'labels:1' was set by the server",
        ),
        (
            Consent(),
            {"clients": 10**9},
            Refusal.OPTION,
            "clients = '1000000000' was set by the server",
        ),
        (Consent(), {"seed": 7}, Refusal.OPTION, "seed = '7' was set by the server"),
        (
            Consent(),
            {"my-file": "x" * 1000},
            Refusal.OPTION,
            "my-file = '" + "x" * 100 + "' was set by the server",
        ),
        (
            Consent(options=("rounds",)),
            {"lr": 0.1},
            Refusal.OPTION,
            "lr = '0.1' was set by the server, expected one of rounds",
        ),
        (
            Consent(),
            {"local-steps": 10**9},
            Refusal.RANGE,
            "local-steps = 1000000000, expected a whole number",
        ),
        (
            Consent(),
            {"rounds": 10**15},
            Refusal.RANGE,
            "rounds = 1000000000000000, expected a whole number",
        ),
        (
            Consent(),
            {"privacy": "eps=nan,delta=1e-5"},
            Refusal.RANGE,
            "eps = nan, expected a number from",
        ),
        (
            Consent(),
            {"privacy": "eps=4,delta=1e-5,noise=1e-300"},
            Refusal.RANGE,
            "noise = 1e-300, expected a number from",
        ),
        (
            Consent(),
            {"constraint": "l1:1e308"},
            Refusal.RANGE,
            "l1: r=1e308, expected a number of at most 3.4e",
        ),
        (Consent(), {"constraint": "x" * 10**6}, Refusal.RANGE, "unknown constraint set"),
        (
            Consent(),
            {"constraint": "l2:10"},
            Refusal.SET,
            "constraint=l2, expected l1, simplex, ksparse:k=8",
        ),
        (
            Consent(),
            {"constraint": "ksparse:k=1000000000,r=1"},
            Refusal.SET,
            "constraint=ksparse:k=1000000000, expected",
        ),
        (
            Consent(),
            {"batch-size": 1},
            Refusal.SAMPLES,
            "batch-size=1, expected at least least-samples = 32",
        ),
        (
            Consent(),
            {"local-steps": 11},
            Refusal.STEPS,
            "11 local steps, expected at most most-local-steps = 10",
        ),
        (Consent(), {"algorithm": "FedAvg"}, Refusal.SHARED, "fedavg shares"),
        (
            Consent(algorithms=("fedfw+",)),
            {"algorithm": "fedfw"},
            Refusal.ALGORITHM,
            "algorithm=fedfw, expected fedfw+",
        ),
        (
            Consent(),
            {"privacy": "eps=4,delta=1e-5,not-private-seed=3"},
            Refusal.SEED,
            "not_private_seed=3, expected none",
        ),
        (
            Consent(privacy=BUDGET),
            {"privacy": "eps=4,delta=1e-5"},
            Refusal.PROMISE,
            "expected at most eps 1 and delta",
        ),
        (
            Consent(privacy=BUDGET),
            {"privacy": "eps=1,delta=1e-5,clip=2"},
            Refusal.CLIP,
            "expected clip = 1",
        ),
        (
            Consent(privacy=BUDGET),
            {"model": "mclr"},
            Refusal.OPTION,
            "under a budget it is the signed app's",
        ),
        (
            Consent(privacy=BUDGET, options=("seed",)),
            {"seed": 7},
            Refusal.OPTION,
            "under a budget it is the signed app's",
        ),
    ],
)
def test_options_are_checked_before_a_task_is_built(
    consent: Consent, changes: dict[str, Any], reason: Refusal, details: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        consent.check_settings(APP | changes, APP)
    assert refused.value.reason == reason
    assert details in str(refused.value)
    assert len(str(refused.value)) < 2000


def test_the_apps_own_values_and_what_a_server_may_set_pass() -> None:
    Consent().check_settings(APP, APP)
    Consent().check_settings(
        APP | {"rounds": 50, "constraint": "l1:3", "privacy": "eps=4,delta=1e-5"}, APP
    )
    Consent().check_settings(
        APP | {"out": "/srv", "tell-loss": True, "batch-size": "", "local-steps": "10"}, APP
    )
    Consent(options=("seed", "my-key")).check_settings(APP | {"seed": 3, "my-key": "any"}, APP)
    Consent(privacy=replace(BUDGET, required=False)).check_settings(APP | {"model": "mclr"}, APP)


# --- the budget of the data ---


def releases(owner: Consent) -> int:
    return len(owner.ledger(0, Path()).releases())


def test_fifty_runs_have_one_budget(owner: Consent, tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=5, privacy=PROMISE)
    order = orders(task)
    kinds = Counter(
        Client(task, 0, tmp_path / "state", consent=owner).handle(order(run=f"run-{i}")).kind
        for i in range(50)
    )
    eps, delta = charged(owner.ledger(0, Path()).releases())
    [each] = {one.reserved for one in owner.ledger(0, Path()).releases()}
    assert BUDGET.eps - each < eps <= BUDGET.eps
    assert delta <= BUDGET.delta
    assert kinds == {"step": releases(owner), Kind.LEAVING: 50 - releases(owner)}
    assert 1 < releases(owner) < 50


def test_a_run_that_begins_is_charged_with_all_of_its_rounds(tmp_path: Path) -> None:
    """A server that ended runs early by what it had seen, and was given the rest back, would have
    an odometer.
    """
    owner = owner_with(
        DataBudget(0.75, 1e-3), tmp_path / "owner"
    )  # enough for one run, and half of another
    task = small_task(FEDFW, rounds=5, privacy=PROMISE)
    order = orders(task)
    assert (
        Client(task, 0, tmp_path / "state", consent=owner).handle(order(run="first")).kind == "step"
    )
    [line] = owner.ledger(0, Path()).releases()
    assert line.epsilon < line.reserved <= PROMISE.eps
    assert line.reserved == pytest.approx(PROMISE.eps, rel=0.01)
    assert (
        Client(task, 0, tmp_path / "state", consent=owner).handle(order(run="second")).kind
        == Kind.LEAVING
    )
    for t in (2, 3, 4, 5):  # the first goes on to its end
        again = order(run="first", t=t, counted=serial_of(t - 1, 0), version=t)
        assert Client(task, 0, tmp_path / "state", consent=owner).handle(again).kind == "step"
    assert charged(owner.ledger(0, Path()).releases()) == (line.reserved, DELTA)


@pytest.mark.parametrize("damage", DAMAGE)
def test_without_a_whole_ledger_nothing_is_released(
    damage: str, owner: Consent, tmp_path: Path
) -> None:
    task = small_task(FEDFW, rounds=5, privacy=PROMISE)
    order, path = orders(task), owner.ledger(0, Path()).path
    for i in range(2):
        assert (
            Client(task, 0, tmp_path / "state", consent=owner).handle(order(run=f"{i}")).kind
            == "step"
        )
    DAMAGE[damage](path)
    for run in ("again", "new"):
        answer = Client(task, 0, tmp_path / "state", consent=owner).handle(order(run=run))
        assert (answer.kind, answer.payload) == (Kind.REFUSED, Refusal.LEDGER.encode())
    log = (tmp_path / "state" / "new" / "client-0.log.jsonl").read_text()
    assert str(path) in json.loads(log)["event"]


def test_a_client_that_dies_after_it_wrote_the_release_down_gains_nothing(
    owner: Consent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers as if the budget were spent, and goes on when its owner has looked."""
    task = small_task(FEDFW, rounds=3, privacy=PROMISE)
    order, promise = orders(task)(), owner.promise(0, tmp_path / "state")

    def die(self: ClientStore, stored: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as dying:
        dying.setattr(ClientStore, "save", die)
        for number in (1, 2):
            answer = Client(task, 0, tmp_path / "state", consent=owner).handle(order)
            assert answer == Answer(order.run, order.t, 0, Kind.LEAVING)
            assert releases(owner) == number
            promise.reopen()
    answers = [Client(task, 0, tmp_path / "state", consent=owner).handle(order) for _ in range(2)]
    assert answers[0].kind == "step"
    assert answers[0] == answers[1]  # the same order, whose stored answer costs nothing
    assert releases(owner) == 3
    other = Client(task, 0, tmp_path / "emptied", consent=owner).handle(order)
    assert (other.kind, releases(owner)) == (Kind.LEAVING, 3)


def test_without_a_file_a_run_is_limited_by_its_own_promise(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=2, privacy=PROMISE)
    loop = Loopback(DeployedServer(task), tmp_path, consent=Consent())
    loop.run(2)
    ledger = Consent().ledger(1, tmp_path)
    assert [one.release for one in ledger.releases()] == [1, 2]
    again = replace(loop.sent[1][0], t=2)
    ClientStore(tmp_path, again.run, 1).forget()
    assert loop.client(1).handle(again).kind == Kind.LEAVING
    ledger.path.unlink()
    assert loop.client(1).handle(again).payload == Refusal.LEDGER.encode()
    # with the disk all is lost, and every round so far may have had a release
    ledger.witness.unlink()
    assert loop.client(1).handle(again).kind == "step"
    assert [one.release for one in ledger.releases()] == [2]
    ClientStore(tmp_path, again.run, 1).forget()
    assert loop.client(1).handle(again).kind == Kind.LEAVING


# --- files ---


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    full = Consent(
        "clinic",
        ("atoms", "losses"),
        ("fedfw",),
        ("l1",),
        10,
        DataBudget(2.0, 1e-6, required=False, clip=0.5),
        options=("rounds", "my-key"),
        least_samples=100,
        most_local_steps=1,
        most_rounds=50,
        limits=JobLimits(memory=1.5, seconds=30.0, data_memory=2.0),
    )
    for number, consent in enumerate((Consent("clinic"), full)):
        path = consent.write(tmp_path / str(number))
        assert Consent.read(path) == replace(consent, folder=tmp_path / str(number))
        modes = {
            one.name: one.stat().st_mode & 0o777 for one in (path.parent, *path.parent.iterdir())
        }
        files = (CONSENT, "clinic.ledger.jsonl", "clinic.answers", "clinic.secret")
        assert modes == {f"{number}": 0o700, "state": 0o700, **dict.fromkeys(files, 0o600)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data-set = "a/b"', "data-set = 'a/b', expected letters, digits, '-' and '_'"),
        (
            "datasets = 3",
            r"unknown key 'datasets' \(did you mean 'data-set'\?\), expected one of data-set, share,",
        ),
        ("seeded-noise = true", "unknown key 'seeded-noise'"),
        ('folder = "/"', "unknown key 'folder'"),
        ('share = ["all"]', "expected a list out of atoms, losses"),
        ('algorithms = "fedfw"', "algorithms = 'fedfw', expected a list of names"),
        ("least-samples = 0", "least-samples = 0, expected a whole number of at least 1"),
        ("most-local-steps = 1e3", "most-local-steps = 1000.0, expected a whole number|expected"),
        ("most-rounds = -1", "most-rounds = -1, expected a whole number of at least 1"),
        ('sets = ["l1:10"]\nmost-rounds = 0', "most-rounds = 0, expected a whole number"),
        (
            'sets = ["L1 ball"]',
            "sets: 'L1 ball', expected the name of a set, or one with its largest k as in 'ksparse:k=8'",
        ),
        ('sets = ["ksparse:k=0"]', "sets: 'ksparse:k=0', expected the name of a set"),
        (
            'options = ["rounds", "dataset"]',
            "options: 'dataset' says which data are read, expected options other than",
        ),
        ('options = ["clients"]', "options: 'clients' says which data are read"),
        ("limits = 3", "limits = 3, expected a table with memory, seconds or data-memory"),
        ("[limits]\nmemory = 0", "memory = 0.0, expected a number above 0"),
        (
            "[limits]\nhours = 1",
            "unknown key 'hours', expected one of memory, seconds, data-memory",
        ),
        (
            "[privacy]\neps = 1\ndelta = 1e-5\nclip = 0",
            "clip = 0.0, expected a number of at least 1e-12 and at most",
        ),
        ("most-parameters = 0", "most-parameters = 0, expected a whole number of at least 1"),
        ("privacy = 3", "privacy = 3, expected a table with eps and delta"),
        ("[privacy]\neps = 1", "expected a table with eps and delta"),
        ("[privacy]\neps = inf\ndelta = 1e-5", "eps = inf, expected a number above 0"),
        ("[privacy]\neps = 1\ndelta = 0.0", "delta = 0.0, expected a number above 0"),
        ("[privacy]\neps = 1\ndelta = 1e-5\nrequire = false", "unknown key 'require'"),
        ("data-set = ", "is no TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = Consent("clinic").write(tmp_path)
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Consent.read(path)


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602])
def test_a_file_that_others_can_read_or_change_is_refused(mode: int, tmp_path: Path) -> None:
    path = Consent("clinic").write(tmp_path)
    path.chmod(mode)
    with pytest.raises(ValueError, match=f"has mode 0{mode:o}, expected 0600"):
        Consent.read(path)


def test_a_file_that_is_missing_is_refused_and_one_that_is_there_is_kept(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="No such file or directory, expected a file that 'fedfw deploy init-node' wrote",
    ):
        Consent.read(tmp_path / CONSENT)
    path = Consent("clinic").write(tmp_path)
    with pytest.raises(FileExistsError):
        Consent("other").write(tmp_path)
    assert Consent.read(path).data_set == "clinic"


# --- What an owner is told that choices reveal is what the leakage study found ---

DOCS = Path(__file__).parents[2] / "docs"
STUDY = (DOCS.parent / "reproduction" / "reports" / "leakage.md").read_text()


def rows(title: str) -> dict[str, list[str]]:
    """The rows of the study's table under a heading, by their first cells; the first of each name
    counts.
    """
    table = STUDY.partition(f"### {title}")[2].partition("\n### ")[0]
    found: dict[str, list[str]] = {}
    for line in table.splitlines():
        if line.startswith("| "):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name, cells)
    return found


IN_STUDY = {
    "gradients or models": ("gradient", "gradient"),
    "atoms of l2": ("l2", "l2:10"),
    "atoms of group": ("group, each parameter", "group:10"),
    "atoms of nuclear": ("nuclear, each parameter", "nuclear:10"),
    "atoms of linf (like box)": ("linf", "linf:10"),
    "atoms of ksparse:k=100": ("ksparse:100", "ksparse:k=100,r=10"),
    "atoms of l1 (like simplex)": ("l1", "l1:10"),
}
"""What the study calls the rows, in the table of searches and in that of closed forms."""


@pytest.mark.parametrize("row", LEAK_TABLE.splitlines()[1:])
def test_the_numbers_are_the_studys(row: str) -> None:
    shared, images, sample = re.split("  +", row)
    search, closed = IN_STUDY[shared]
    cells = rows("Every set, one image a client")[search]
    assert images == f"{cells[3]} ({cells[2].partition(' ')[0]} dB)"
    assert f"reaches {cells[7]} dB." in SAMPLES_SENTENCE  # the public image that is nearest
    cosine = rows("Closed forms: softmax regression")[closed][1]
    form = {"none": "one coordinate", "1.000000": "exactly (cosine 1.000000)"}
    assert sample == form.get(cosine, f"in part (cosine {cosine})")


def test_the_numbers_of_samples_are_the_studys() -> None:
    table = STUDY.partition("### Searches: samples a client")[2].partition("\n### ")[0]
    found = re.findall(r"^\| gradient \| [^|]+ \| \d+ x (\d+) \| ([0-9.]+) \(", table, re.M)
    assert ", ".join(f"{psnr} dB with {count}" for count, psnr in found) in SAMPLES_SENTENCE


def test_pages_show_the_table() -> None:
    page = (DOCS / "deployment.md").read_text()
    assert LEAK_TABLE in page
    for name in ("deployment.md", "privacy.md"):
        text = " ".join((DOCS / name).read_text().split())
        assert PROMISE_SENTENCE in text
    assert SAMPLES_SENTENCE in " ".join(page.split())


def test_the_table_is_shown_where_choices_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "owner"
    assert main(["deploy", "init-node", str(folder), "--data-set", "clinic"]) == 0
    printed = capsys.readouterr().out
    assert LEAK_TABLE in printed
    assert f"{SAMPLES_SENTENCE} {PROMISE_SENTENCE}" in printed
    file = (folder / CONSENT).read_text()
    assert all(f"#   {line}" in file for line in LEAK_TABLE.splitlines())
    assert PROMISE_SENTENCE in " ".join(file.replace("#", " ").split())
    assert main(["deploy", "init", str(tmp_path / "app")]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert all(line in shown for line in LEAK_TABLE.splitlines())


# --- Which options a server has set, and which of them it may set where an owner says nothing ---

OWN: dict[str, Any] = {"dataset": "digits", "rounds": 5, "penalty": 1e-4, "target": "", "out": ""}


def test_the_options_are_those_of_an_app() -> None:
    """A new option of fedfw is in one of the three lists, so that somebody has decided about it."""
    keys = {declared.key for declared in app_options().values()}
    assert set(run_options()) == keys
    assert set(default_options()) == keys - {*DATA_OPTIONS, SEED}
    assert set(DATA_OPTIONS) < keys
    assert {"dataset", "data-dir", "target", "partition", "clients"} <= set(DATA_OPTIONS)


def test_what_a_server_has_set() -> None:
    assert set_by_server(OWN, OWN) == {}
    assert set_by_server(OWN | {"rounds": 50, "out": "/srv", "tell-loss": True}, OWN) == {
        "rounds": 50
    }
    assert set_by_server(OWN | {"dataset": "table:/etc/x.csv"}, OWN) == {
        "dataset": "table:/etc/x.csv"
    }
    assert set_by_server(OWN | {"rounds": True}, OWN | {"rounds": 1}) == {
        "rounds": True
    }  # 1 is no truth value
    assert set_by_server({"my-key": ""}, {}) == {"my-key": ""}
    servers = {declared.key: "x" for declared in options_of(Deployment).values()}
    assert set_by_server(servers, {}) == {}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "rounds",
            10**15,
            "rounds = 1000000000000000, expected a whole number of at least 1 and at most 1000000000",
        ),
        (
            "local-steps",
            10**9,
            "local-steps = 1000000000, expected a whole number of at least 1 and at most 100000",
        ),
        (
            "batch-size",
            10**9,
            "batch-size = 1000000000, expected a whole number of at least 1 and at most 100000000",
        ),
        (
            "width",
            10**6,
            "width = 1000000, expected a whole number of at least 1 and at most 16384",
        ),
        ("seed", -1, "seed = -1, expected a whole number of at least 0"),
        ("l2", 1e300, "l2 = 1e\\+300, expected a number of at least 0 and at most 1e\\+38"),
        (
            "momentum",
            "1/0",
            "momentum = '1/0', expected a number of at least 0 and below 1, or auto",
        ),
        ("penalty", "1e400", "penalty = inf, expected a number"),
    ],
)
def test_numbers_out_of_range_are_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"run configuration: {message}"):
        check_range(key, value)


def test_values_that_are_not_given_and_keys_of_an_apps_own_have_any_value() -> None:
    check_range("rounds", "")
    check_range("beds", 10**30)
    check_range("constraint", "?")  # it is read as a set elsewhere


def test_the_settings_of_an_app(tmp_path: Path) -> None:
    copy_app(tmp_path / "app")
    found = settings_in(tmp_path / "app")
    assert APP_DEFAULTS.items() <= found.items()
    assert settings_in(tmp_path) is None
    project = tmp_path / "pyproject.toml"
    for text in (
        "[project]\nname = 'x'",
        "[tool.flwr]\napp = 3",
        "[tool.",
        "[tool.flwr.app]\nconfig = 3",
    ):
        project.write_text(text)
        assert settings_in(tmp_path) is None
    project.write_text(
        "[tool.flwr.app.config]\nrounds = 3\n[tool.flwr.app.config.own.deep]\nkey = 'a'\n"
    )
    assert settings_in(tmp_path) == {"rounds": 3, "own.deep.key": "a"}
    project.write_text("[tool.flwr.app]\n")
    assert settings_in(tmp_path) == {}
