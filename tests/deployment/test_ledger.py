"""A ledger holds every release that was made, or says that it does not."""

import errno
import hashlib
import hmac
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

import fedfw
from fedfw import Privacy
from fedfw.data import limits as reading
from fedfw.deployment import Consent, DataBudget, DeployedServer, Deployment, Task
from fedfw.deployment.answers import AnswerCount, CountError
from fedfw.deployment.data_checks import (
    InvalidDataError,
    check_data,
    describe_fit,
    keyed_digest,
    owner_secret,
)
from fedfw.deployment.files import create_private, open_unshared
from fedfw.deployment.ledger import Ledger, LedgerError, Release
from fedfw.deployment.limits import JobLimits, LimitError
from fedfw.deployment.promise import KILLED, Promise, PromiseClosedError
from fedfw.rounds.files import make_private_folder, owner_only, write_atomically
from tests.deployment.loopback import (
    SAMPLES,
    Loopback,
    put_behind_a_link,
    replace_by_a_pipe,
    small_task,
)
from tests.processes import run_python, start_python

ONE = Release("run", 1, "a promise", 5.0, epsilon=0.5, delta=1e-6, share=0.25)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "owner" / "clinic.ledger.jsonl")
    create_private(made.path)
    return made


def fill(ledger: Ledger, count: int) -> None:
    for _ in range(count):
        ledger.record(lambda so_far: replace(ONE, release=len(so_far) + 1))


def test_what_is_recorded_is_read_again_and_nobody_else_can_read_it(ledger: Ledger) -> None:
    fill(ledger, 3)
    assert [replace(one, before="") for one in ledger.releases()] == [
        replace(ONE, release=i) for i in (1, 2, 3)
    ]
    assert len({one.before for one in ledger.releases()}) == 3
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    assert ledger.path.parent.stat().st_mode & 0o777 == 0o700
    create_private(ledger.path)
    assert len(ledger.releases()) == 3


def _without(line: int, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[:line] + lines[line + 1 :])


DAMAGE = {
    "an epsilon is changed": lambda data: data.replace(b'"epsilon": 0.5', b'"epsilon": 0.1', 1),
    "the first line is gone": lambda data: _without(0, data),
    "a line in the middle is gone": lambda data: _without(1, data),
    "two lines are swapped": lambda data: b"".join(
        data.splitlines(keepends=True)[i] for i in (1, 0, 2)
    ),
    "the last line is cut": lambda data: data[:-20],
    "the last line has no end": lambda data: data[:-1],
    "zeros are at its end": lambda data: data + b"\0" * 40,
    "an empty line is at its end": lambda data: data + b"\n",
    "a line is no release": lambda data: data + b"{}\n",
    "a field too much": lambda data: data.replace(b'"noise"', b'"more": 1, "noise"', 1),
    "something else": lambda data: b"not a ledger",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_ledger_is_neither_read_nor_continued(ledger: Ledger, damage: str) -> None:
    fill(ledger, 3)
    ledger.path.write_bytes(DAMAGE[damage](ledger.path.read_bytes()))
    left = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.releases()
    with pytest.raises(LedgerError, match="is damaged"):
        fill(ledger, 1)
    assert ledger.path.read_bytes() == left


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_an_older_copy_is_noticed_by_the_witness(
    ledger: Ledger, lines: int, tmp_path: Path
) -> None:
    seeing, other = (
        replace(ledger, witness=tmp_path / name / "witness") for name in ("one", "two")
    )
    fill(seeing, 1)
    fill(other, 1)  # two clients of the same data have a witness each
    fill(seeing, 1)
    fill(other, 1)
    assert len(seeing.releases()) == 4
    ledger.path.write_bytes(b"".join(ledger.path.read_bytes().splitlines(keepends=True)[:lines]))
    with pytest.raises(LedgerError, match="is damaged: it is older than the last release"):
        fill(seeing, 1)
    assert len(ledger.releases()) == lines


def test_two_processes_never_make_the_same_release(ledger: Ledger) -> None:
    code = f"from pathlib import Path; from {__name__} import *; fill(Ledger(Path({str(ledger.path)!r})), 20)"
    twins = [start_python(["-c", code]) for _ in range(2)]
    assert [twin.wait().returncode for twin in twins] == [0, 0]
    assert [one.release for one in ledger.releases()] == list(range(1, 41))


# --- Files of deployments: their rights, ledgers that others could have written, full disks, and
# what clients say ---

FEDFW = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)
FILES_ONE = Release("run", 1, "a promise", 5.0, epsilon=0.5, delta=1e-6, weight=0.25, data="0123")


@pytest.fixture(params=[0, 0o277, 0o777], ids="umask {:04o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The rights of everything in a folder, by its name."""
    return {
        str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")
    }


# --- rights ---


def test_all_files_of_a_deployment_are_their_owners(umask: int, tmp_path: Path) -> None:
    """Server: history, model, pictures, checkpoints, journals. Clients: memory, logs, ledger,
    witness, consent.
    """
    tmp_path = tmp_path / "all"
    os.mkdir(tmp_path)
    tmp_path.chmod(0o700)
    owner = Consent("clinic", privacy=DataBudget(4.0, 1e-5)).write(tmp_path / "owner")
    task = small_task(FEDFW, clients=1, rounds=3, privacy=Privacy(2.0, 1e-5))
    check_data(task, 0, tmp_path / "owner" / "state", Consent.read(owner))
    server = DeployedServer(task, Deployment(out=tmp_path / "server"))
    federation = Loopback(server, tmp_path / "owner" / "state", consent=Consent.read(owner))
    federation.run(2)
    (tmp_path / "server" / "history.jsonl").unlink()  # it is made again
    federation.run(1)
    server.finish()
    found = modes(tmp_path)
    names = {Path(name).name for name in found}
    assert names >= {
        "history.jsonl",
        "model.pt",
        "plots.png",
        "consent.toml",
        "clinic.ledger.jsonl",
        "clinic.witness",
    }
    assert any(name.startswith("checkpoint-") for name in names)
    assert any(name.startswith("journal-") for name in names)
    assert {mode for name, mode in found.items() if not (tmp_path / name).is_dir()} == {0o600}
    assert {mode for name, mode in found.items() if (tmp_path / name).is_dir()} == {0o700}


# --- a ledger that others could have written ---


CHANGES: dict[str, tuple[Callable[[Ledger], object], str]] = {
    "shared": (lambda one: one.path.chmod(0o620), "others can write it, expected mode 0600"),
    "written by all": (lambda one: one.path.chmod(0o602), "others can write it, expected mode"),
    "in a shared folder": (
        lambda one: one.path.parent.chmod(0o777),
        "others can write its folder, expected chmod go-w",
    ),
    "behind a link": (
        lambda one: put_behind_a_link(one.path),
        "it is a symbolic link, expected the file itself",
    ),
    "in a folder behind a link": (
        lambda one: put_behind_a_link(one.path.parent),
        "its folder is a symbolic link, expected the folder itself",
    ),
    "of another kind": (lambda one: replace_by_a_pipe(one.path), "it is no regular file"),
    "a witness behind a link": (
        lambda one: put_behind_a_link(one.witness),
        "it is a symbolic link, expected the file itself",
    ),
    "a shared witness": (lambda one: one.witness.chmod(0o666), "others can write it, expected"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_ledger_that_others_could_have_written_is_refused(change: str, tmp_path: Path) -> None:
    make_private_folder(tmp_path / "state")
    ledger = Ledger(
        tmp_path / "owner" / "clinic.ledger.jsonl", tmp_path / "state" / "clinic.witness"
    )
    create_private(ledger.path)
    ledger.record(lambda so_far: FILES_ONE)
    make_unsafe, reason = CHANGES[change]
    make_unsafe(ledger)
    for use in (ledger.releases, lambda: ledger.record(lambda so_far: FILES_ONE)):
        with pytest.raises(LedgerError, match=reason):
            use()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_ledger_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "owner" / "clinic.ledger.jsonl")
    create_private(ledger.path)
    os.chown(ledger.path, 12345, 12345)
    assert ledger.releases() == []  # root may look, and has it written by nobody else
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(LedgerError, match="others can write it"):
        ledger.releases()


def test_a_file_in_a_folder_for_all_is_as_safe_as_its_sticky_bit(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    with open(folder / "file", "x", opener=owner_only):
        pass
    folder.chmod(0o1777)
    with open(folder / "file", "rb", opener=open_unshared):
        pass
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write its folder"):
        open_unshared(str(folder / "file"), os.O_RDONLY)


def test_an_owners_folder_that_others_can_write_is_refused_when_it_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    folder.mkdir()
    folder.chmod(0o775)
    with pytest.raises(
        ValueError,
        match=r"others can write .*, expected chmod go-w: a ledger there would be refused",
    ):
        Consent("clinic").write(folder)
    assert not list(folder.iterdir())


# --- full disks ---


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on nothing more fits on the disk."""

    def fill(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr(os, "fsync", fill)


def test_a_full_disk_names_the_file(tmp_path: Path, full: Callable[[], None]) -> None:
    server = DeployedServer(small_task(FEDFW, rounds=9), Deployment(out=tmp_path))
    federation = Loopback(server, tmp_path / "clients")
    federation.run(3)
    full()
    with pytest.raises(OSError, match=r"No space left on device: '.*journal-") as failed:
        server.close()
    assert Path(str(failed.value.filename)).parent == tmp_path
    with pytest.raises(OSError, match=r"No space left on device: '.*/a\.pt'"):
        write_atomically(tmp_path / "a.pt", b"1")
    assert not list(tmp_path.glob(".*.tmp"))


# --- what clients say ---


@pytest.mark.parametrize(
    "text", ["x\n\x1b[2Jround 3: all is well", "\u202egnp.exe", "\x9b2J", "\udc80", "\r"]
)
def test_what_a_client_says_reaches_no_terminal_as_it_is(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = DeployedServer(small_task(FEDFW, rounds=9))
    federation = Loopback(server, tmp_path)
    [order] = server.open({0}).values()
    answer = federation.ask(order).fields()
    with caplog.at_level(logging.WARNING, logger="fedfw"):
        server.refuse(0, f"failed: {text}")
        server.refuse(0, f"{text}: as the kind of a reason")
        for changed in (
            {text: 1},
            {text: [1]},
            {text: "x" * 300},
            {"run": text},
            {"kind": text},
            {"t": text},
            {text * 300: b""},
            {text: 2**80},
        ):
            assert server.take(0, answer | changed) is not None
    assert len(caplog.messages) == 10
    assert all(message.isprintable() for message in caplog.messages)
    assert all(reason.isprintable() for reason in server.close().refused)


def test_what_went_wrong_on_a_node_is_written_without_control_characters(tmp_path: Path) -> None:
    from fedfw.deployment.store import FAILURES, note_failure

    try:
        raise ValueError("one\x1b[2J\rtwo")
    except ValueError:
        note_failure(tmp_path / "state")
    text = (tmp_path / "state" / FAILURES).read_text()
    assert r"one\x1b[2J\rtwo" in text
    assert all(line.isprintable() for line in text.splitlines())


# --- A job on an owner's machine takes no more memory and time than the owner allows, and ends with
# a clear error ---

resource = pytest.importorskip("resource")
LINUX = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is used"
)
SMALL = JobLimits(memory=0.25)


def state() -> tuple[object, ...]:
    """What limits change in this process."""
    return (
        resource.getrlimit(resource.RLIMIT_AS),
        signal.getsignal(signal.SIGALRM),
        signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        reading.memory_limit(0),
    )


@LINUX
@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(1 << 30, dtype=torch.float32),
        lambda: torch.empty(1 << 29, dtype=torch.float64),
        lambda: np.empty(1 << 32, np.uint8),
        lambda: bytes(1 << 32),
        lambda: [bytes(1 << 24) for _ in range(256)],
    ],
)
def test_a_job_that_needs_more_memory_ends_with_the_limit(allocate: Callable[[], object]) -> None:
    before = state()
    message = (
        r"the job needed more memory than memory = 0\.25 GiB under \[limits\] in the owner's file"
    )
    with pytest.raises(LimitError, match=message), SMALL.enforced():
        allocate()
    assert state() == before
    with SMALL.enforced():
        assert torch.ones(1 << 20).sum() == 1 << 20


def forever() -> None:
    while True:
        pass


def forever_without_an_exception() -> None:
    while True:
        try:
            torch.ones(10).sum()
        except (ValueError, RuntimeError, OSError):
            continue


class Slow:
    def __del__(self) -> None:
        """Take so long that the alarm comes here, where Python drops exceptions."""
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            pass


def forever_after_a_dropped_exception() -> None:
    Slow()
    forever()


def forever_after_a_caught_exception() -> None:
    with suppress(LimitError):
        forever()
    forever()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "job",
    [
        forever,
        forever_without_an_exception,
        forever_after_a_dropped_exception,
        forever_after_a_caught_exception,
    ],
)
def test_a_job_without_an_end_ends_with_the_limit(job: Callable[[], None]) -> None:
    before = state()
    message = r"the job took longer than seconds = 0\.01 under \[limits\] in the owner's file"
    with pytest.raises(LimitError, match=message), JobLimits(seconds=0.01).enforced():
        job()
    assert state() == before


STUCK = """
import hashlib
from fedfw.deployment import limits
limits.GRACE = 0.05
try:
    with limits.JobLimits(seconds=0.05).enforced():
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # hours, in which Python runs no instruction
finally:
    print("it went on")
"""


def test_a_process_that_does_not_return_to_python_is_ended_and_its_log_says_where() -> None:
    done = run_python(["-c", STUCK], check=False)
    assert done.returncode == 1
    assert "Timeout (0:00:00.1" in done.stdout + done.stderr
    assert "it went on" not in done.stdout


def test_other_errors_pass_and_everything_is_as_before() -> None:
    before = state()
    for error in (RuntimeError("a value of the data"), OSError("no such file"), ValueError("3")):
        with pytest.raises(type(error), match=str(error)), JobLimits().enforced():
            raise error
    with JobLimits(data_memory=4.0).enforced():
        assert reading.memory_limit(0) == 4 << 30
    assert state() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 0.0}, "memory=0.0, expected a number above 0 and at most 1048576"),
        ({"seconds": -1.0}, "seconds=-1.0, expected a number above 0 and at most 10000000"),
        (
            {"data_memory": 2.0**21},
            "data_memory=2097152.0, expected a number above 0 and at most 1048576",
        ),
    ],
)
def test_limits_are_positive_numbers(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JobLimits(**options)


# --- Answers that are computed from an owner's data are counted on disk, whatever happens to
# processes ---


@pytest.fixture
def count(tmp_path: Path) -> AnswerCount:
    made = AnswerCount(tmp_path / "owner" / "clinic.answers")
    create_private(made.path)
    return made


def test_as_many_are_counted_as_are_allowed(count: AnswerCount) -> None:
    assert [count.add(most=3) for _ in range(5)] == [True, True, True, False, False]
    assert AnswerCount(count.path).read() == 3
    assert count.add(most=4)
    assert count.path.read_bytes() == b"000000000004\n"
    assert count.path.stat().st_mode & 0o777 == 0o600
    create_private(count.path)  # a count that is there is kept
    assert count.read() == 4


def test_threads_and_processes_share_one_count(count: AnswerCount) -> None:
    allowed: list[bool] = []
    threads = [
        Thread(target=lambda: allowed.extend(count.add(most=50) for _ in range(10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(sum(count.add(most=50) for _ in range(10)))
        children.append(child)
    counted = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sum(allowed) == 40
    assert sum(counted) == 10
    assert count.read() == 50


DAMAGED = r"clinic\.answers is damaged: expected a number of 12 digits, or nothing"
MISSING = (
    r"clinic\.answers cannot be used \(No such file or directory\): how many answers were computed from these data "
    r"is unknown\. If there were none yet, make an empty file: install -m 600 /dev/null .*clinic\.answers"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"3\n", DAMAGED),
        (b"000000000003", DAMAGED),
        (b"00000000000x\n", DAMAGED),
        (b"000000000003\n\n", DAMAGED),
        (b"-00000000003\n", DAMAGED),
        (None, MISSING),
    ],
)
def test_a_damaged_or_missing_count_counts_nothing(
    content: bytes | None, message: str, count: AnswerCount
) -> None:
    count.path.unlink() if content is None else count.path.write_bytes(content)
    for use in (count.read, lambda: count.add(most=10)):
        with pytest.raises(CountError, match=message):
            use()
    assert content is None or count.path.read_bytes() == content


# --- An owner's own check of the data: what is invalid never joins, and digests say nothing without
# the secret ---

TASK = small_task(fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01))


@pytest.fixture
def owner(tmp_path: Path) -> Consent:
    return Consent.read(Consent("clinic", privacy=DataBudget(1.0, 1e-5)).write(tmp_path / "owner"))


def spoilt(value: float, dtype: torch.dtype) -> Callable[[int], Any]:
    def data(client: int) -> Any:
        inputs, targets = TASK.data(client)
        inputs[7, 2] = inputs[9, 0] = value
        return inputs.to(dtype), targets

    return data


def test_a_check_is_of_these_data_and_of_this_model(owner: Consent, tmp_path: Path) -> None:
    state = tmp_path / "state"
    found = check_data(TASK, 0, state, owner)
    assert found.samples == SAMPLES
    checks = owner.checks(0, state)
    assert checks.hold(found.data, describe_fit(TASK))
    assert not checks.hold(
        found.data, describe_fit(replace(TASK, model=torch.nn.Linear(4, 3, bias=False)))
    )
    assert not checks.hold(
        found.data, describe_fit(replace(TASK, loss=torch.nn.functional.l1_loss))
    )
    assert check_data(TASK, 1, state, owner).data != found.data
    assert len(checks.made()) == 2
    check_data(TASK, 0, state, owner)
    assert len(checks.made()) == 2
    assert checks.path.stat().st_mode & 0o777 == 0o600


NOT_FINITE = r"a NaN or an infinity in the input of sample 7, 9$"
OVERFLOWS = r"a loss or a gradient that is not finite at the start of sample 7, 9"


def large_model() -> Task:
    model = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(model.weight, 4.0)
    return replace(TASK, model=model, algorithm=fedfw.FedFW("linf:10"))


@pytest.mark.parametrize(
    ("task", "data", "reason"),
    [
        (TASK, spoilt(torch.nan, torch.float32), NOT_FINITE),
        (TASK, spoilt(torch.inf, torch.float32), NOT_FINITE),
        (TASK, spoilt(torch.nan, torch.float64), NOT_FINITE),
        (TASK, spoilt(torch.inf, torch.float64), NOT_FINITE),
        (large_model(), spoilt(3e38, torch.float32), OVERFLOWS),
        (TASK, lambda client: (torch.ones(3, 4), torch.tensor([0, 9, 1])), "class numbers from 0"),
        (TASK, lambda client: (torch.ones(3, 5), torch.tensor([0, 1, 1])), "do not fit"),
        (TASK, lambda client: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_data_that_do_not_fit_are_refused_and_their_samples_named(
    task: Task, data: Any, reason: str, owner: Consent, tmp_path: Path
) -> None:
    with pytest.raises(InvalidDataError, match=reason):
        check_data(replace(task, data=data), 0, tmp_path, owner)
    assert owner.checks(0, tmp_path).made() == []


def test_a_digest_is_an_hmac_under_a_secret_that_is_made_once(
    owner: Consent, tmp_path: Path
) -> None:
    secret = owner.secret(0, tmp_path)
    assert len(secret) == 32
    assert owner.secret(0, tmp_path) == secret
    x = torch.arange(6.0).reshape(2, 3)
    expected = hmac.new(secret, b"fedfw: the data of one client, version 1\n", hashlib.sha256)
    expected.update(b"<f4 (2, 3)\n" + x.numpy().tobytes())
    assert keyed_digest(secret, [x]) == expected.hexdigest()
    others = [[x.double()], [x.reshape(3, 2)], [x + 1e-6], [x[:1], x[1:]], []]
    assert len({keyed_digest(secret, one) for one in ([x], *others)}) == 1 + len(others)
    another = Consent.read(
        Consent("clinic", privacy=DataBudget(1.0, 1e-5)).write(tmp_path / "another")
    )
    assert keyed_digest(another.secret(0, tmp_path), [x]) != keyed_digest(secret, [x])


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clinic.secret"
    owner_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(ValueError, match="has mode 0640, expected 0600"):
        owner_secret(path)
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(ValueError, match="has 0 bytes, expected 32"):
        owner_secret(path)


def test_processes_that_make_a_secret_at_the_same_time_agree(tmp_path: Path) -> None:
    path = tmp_path / "clinic.secret"
    code = f"from pathlib import Path; from {__name__} import *; print(owner_secret(Path({str(path)!r})).hex())"
    twins = [start_python(["-c", code]) for _ in range(4)]
    assert {twin.wait().stdout.strip() for twin in twins} == {owner_secret(path).hex()}
    assert [one.name for one in tmp_path.iterdir()] == ["clinic.secret"]


# --- A promise closes at the first error and stays closed, so that failures tell a server nothing
# twice ---


@pytest.fixture
def promise(tmp_path: Path) -> Promise:
    return Promise(tmp_path / "owner", "clinic")


def work(promise: Promise, order: str, error: BaseException | None = None) -> None:
    with promise.at_work(order):
        if error is not None:
            raise error


@pytest.mark.parametrize(
    "how", ["os._exit(1)", "os.kill(os.getpid(), 9)", "raise KeyboardInterrupt", "sys.exit(0)"]
)
def test_a_process_that_ends_at_work_closes_the_promise(promise: Promise, how: str) -> None:
    code = (
        "import os, sys; from pathlib import Path; from fedfw.deployment.promise import Promise\n"
        f"with Promise(Path({str(promise.folder)!r}), 'clinic').at_work('the order'): {how}"
    )
    run_python(["-c", code], check=False)
    assert promise.closing() is None  # nobody has looked yet
    with pytest.raises(PromiseClosedError):
        work(promise, "the next order")
    closing = promise.closing()
    assert (closing.order, closing.reason) == ("the order", KILLED)
    assert {path.stat().st_mode & 0o777 for path in promise.folder.iterdir()} == {0o600}
    assert promise.folder.stat().st_mode & 0o777 == 0o700
    assert promise.settle() == closing
    promise.reopen()
    work(promise, "the next order")


def test_a_file_that_cannot_be_read_is_a_closed_promise(promise: Promise) -> None:
    work(promise, "an order")
    (promise.folder / "clinic.closed").write_bytes(b"\xff{")
    with pytest.raises(PromiseClosedError):
        work(promise, "another order")
    assert "cannot be read" in promise.closing().reason


def test_one_order_at_a_time(promise: Promise) -> None:
    """Another one waits, and does not take the mark of the first for one that was left behind."""
    done: list[str] = []

    def other() -> None:
        work(promise, "another order")
        done.append("another")

    thread = Thread(target=other)
    with promise.at_work("one order"):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        done.append("one")
    thread.join()
    assert done == ["one", "another"]
    assert promise.settle() is None
