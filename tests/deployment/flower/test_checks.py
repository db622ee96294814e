"""What ``fedfw deploy check`` says of files and of addresses where nobody is; real federations:
test_outsider.py.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from fedfw.cli import main
from fedfw.cli.main import _parsed
from fedfw.deployment import Consent, DataBudget
from fedfw.deployment.flower.bundles import read_signing_key, trust_line
from fedfw.deployment.flower.checks import (
    LIMITS,
    NODE_CHECKS,
    SERVER_CHECKS,
    Finding,
    Verdict,
    findings,
)
from fedfw.deployment.flower.keys import (
    make_certificates,
    make_node_key,
    make_secret,
    make_signing_key,
)
from fedfw.deployment.flower.local import free_port

DOCS = Path(__file__).parents[3] / "docs" / "deployment.md"


def units(folder: Path) -> None:
    """The walk-through's unit files, with this folder in place of theirs."""
    blocks = re.findall(
        r"```ini\n# (/etc/fedfw/(\S+\.service))\n(.*?)```", DOCS.read_text(), re.DOTALL
    )
    assert {name for _, name, _ in blocks} >= {"superlink.service", "client.service"}
    for _, name, text in blocks:
        (folder / name).write_text(text.replace("/etc/fedfw", str(folder)))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """An owner's folder, as the walk-through leaves it."""
    units(tmp_path)
    for name in ("superlink", "superexec", "hub", "proxy"):
        (tmp_path / f"{name}.service").unlink()
    make_certificates(tmp_path)
    for name in ("server.pem", "server.key"):
        (tmp_path / name).unlink()
    make_node_key(tmp_path / "client-0")
    make_signing_key(tmp_path / "signing")
    line = trust_line(read_signing_key(tmp_path / "signing").public_key())
    (tmp_path / "trusted-entities.yaml").write_text(line)
    Consent("clinic-0", privacy=DataBudget(4.0, 1e-5)).write(tmp_path)
    return tmp_path


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The server's folder, as the walk-through leaves it."""
    units(tmp_path)
    (tmp_path / "client.service").unlink()
    make_certificates(tmp_path)
    make_secret(tmp_path / "superexec.secret")
    return tmp_path


def failures(results: list[Finding]) -> list[str]:
    return [finding.what for finding in results if finding.verdict is Verdict.FAIL]


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_the_walk_throughs_node_passes(node: Path) -> None:
    assert {finding.verdict for finding in findings(NODE_CHECKS, node)} == {Verdict.OK}
    assert main(["deploy", "check", "--node-dir", str(node)]) == 0


def test_a_promise_that_was_closed_is_found(node: Path) -> None:
    promise = Consent.read(node / "consent.toml").promise(0, node / "state")
    promise.close("run trial, round 3", "MemoryError: too much")
    [what] = failures(findings(NODE_CHECKS, node))
    assert "MemoryError: too much closed the promise on " in what
    assert f"at run trial, round 3: fedfw deploy reopen {node}" in what
    promise.reopen()
    assert failures(findings(NODE_CHECKS, node)) == []


def test_the_walk_throughs_server_passes(server: Path) -> None:
    assert {finding.verdict for finding in findings(SERVER_CHECKS, server)} == {Verdict.OK}
    assert main(["deploy", "check", "--server-dir", str(server)]) == 0


def test_the_walk_throughs_commands_exist(tmp_path: Path) -> None:
    units(tmp_path)
    for name, verb in (("hub", "hub"), ("client", "node"), ("executor", "executor")):
        [line] = re.findall(
            "ExecStart=(.*)", (tmp_path / f"{name}.service").read_text().replace("\\\n", " ")
        )
        options = _parsed(
            shlex.split(line)[1:], "deploy"
        )  # leaves the process if it knows no such option
        assert options.verb == verb
    printed = re.findall(r"^fedfw (deploy proxy .*) > \S+$", DOCS.read_text(), re.MULTILINE)
    assert [_parsed(shlex.split(line), "deploy").verb for line in printed] == ["proxy", "proxy"]


def sandbox() -> str:
    """The walk-through's options for all services."""
    [text] = re.findall(
        r"```ini\n# /etc/fedfw/sandbox\.conf\n(.*?)```", DOCS.read_text(), re.DOTALL
    )
    return str(text)


def test_the_walk_throughs_services_have_limits(tmp_path: Path) -> None:
    units(tmp_path)
    shared = sandbox().splitlines()
    for line in (
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateTmp=yes",
        "NoNewPrivileges=yes",
    ):
        assert line in shared
    for path in tmp_path.glob("*.service"):
        lines = path.read_text().splitlines()
        assert "User=fedfw" in lines
        assert any(line.startswith("MemoryMax=") for line in lines)
        local = "IPAddressDeny=any" in lines
        assert local == (path.stem not in ("proxy", "client"))  # they talk to other hosts


def test_systemd_finds_the_walk_throughs_services_sandboxed(tmp_path: Path) -> None:
    units(tmp_path)
    place = tmp_path / "root" / "etc" / "systemd" / "system"
    names = []
    for path in sorted(tmp_path.glob("*.service")):
        more = place / f"{path.name}.d"
        more.mkdir(parents=True)
        (place / path.name).write_text(path.read_text())
        (more / "sandbox.conf").write_text(sandbox())
        names.append(path.name)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    place = tmp_path / "root"
    command = [
        "systemd-analyze",
        "security",
        "--offline=true",
        f"--root={place}",
        "--threshold=20",
        "--no-pager",
    ]
    for name in names:
        done = subprocess.run([*command, name], capture_output=True, text=True, check=False)
        if "unrecognized option" in done.stderr:
            pytest.skip("this systemd-analyze is older than version 250")
        assert done.returncode == 0, done.stdout + done.stderr
    (place / "etc" / "systemd" / "system" / "hub.service.d" / "sandbox.conf").unlink()
    done = subprocess.run([*command, "hub.service"], capture_output=True, text=True, check=False)
    assert done.returncode != 0  # the limit is one that a service without the sandbox exceeds


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is missing: the node runs whatever bundle it is sent"),
        ("", "names no key, and then Flower verifies nothing"),
        ("{}", "names no key, and then Flower verifies nothing"),
        ("- fpk_a", "names no key"),
        ("a: [", "is no YAML"),
        ("fpk_a: ssh-ed25519 nonsense", "the key of fpk_a is none of ssh-keygen -t ed25519"),
        ("fpk_a: 3", "the key of fpk_a is none of ssh-keygen -t ed25519"),
    ],
)
def test_a_node_that_would_run_strange_bundles(
    node: Path, content: str | None, reason: str
) -> None:
    path = node / "trusted-entities.yaml"
    path.unlink() if content is None else path.write_text(content)
    [what] = failures(findings(NODE_CHECKS, node))
    assert reason in what
    assert main(["deploy", "check", "--node-dir", str(node)]) == 1


def test_a_node_whose_owner_is_not_heard(node: Path) -> None:
    change(node / "client.service", f'consent="{node / "consent.toml"}"', "")
    [what] = failures(findings(NODE_CHECKS, node))
    assert (
        what
        == f'fedfw deploy node is started without consent="{node / "consent.toml"}" in --node-config'
    )


DAMAGED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a node's key as a signer": (
        "trusted-entities.yaml",
        lambda file: file.write_text(
            f"fpk_a: '{(file.parent / 'client-0.pub').read_text().strip()}'"
        ),
        "FILE: the key of fpk_a is none of ssh-keygen -t ed25519",
    ),
    "no consent": (
        "consent.toml",
        Path.unlink,
        "FILE is missing: no budget limits what the node gives away",
    ),
    "a consent of others": (
        "consent.toml",
        lambda file: file.chmod(0o666),
        "FILE has mode 0666, expected 0600: no other user may read or change it",
    ),
    "a damaged ledger": (
        "clinic-0.ledger.jsonl",
        lambda file: file.write_text("{}\n"),
        "FILE is damaged: line 1 is no release",
    ),
    "no ledger": ("clinic-0.ledger.jsonl", Path.unlink, "FILE cannot be opened"),
    "a key of others": (
        "client-0",
        lambda file: file.chmod(0o640),
        "others can read client-0 in FOLDER: chmod 600",
    ),
    "a signing key of others": (
        "signing",
        lambda file: file.chmod(0o640),
        "others can read signing in FOLDER: chmod 600",
    ),
    "a trust file of others": (
        "trusted-entities.yaml",
        lambda file: file.chmod(0o666),
        "others can write FILE: chmod 600",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_node_with_an_unsafe_file(node: Path, name: str) -> None:
    file, damage, reason = DAMAGED[name]
    damage(node / file)
    [what] = failures(findings(NODE_CHECKS, node))
    assert what.startswith(reason.replace("FILE", str(node / file)).replace("FOLDER", str(node)))


def test_init_node_writes_what_the_check_looks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "owner"
    assert (
        main(
            [
                "deploy",
                "init-node",
                str(folder),
                "--data-set",
                "clinic-7",
                "--eps",
                "4",
                "--delta",
                "1e-5",
            ]
        )
        == 0
    )
    assert f'consent="{folder / "consent.toml"}"' in capsys.readouterr().out
    stated, whole = (findings((check,), folder)[0] for check in NODE_CHECKS[2:4])
    assert str(stated) == f"ok: {folder / 'consent.toml'} lets the node share atoms"
    assert str(whole).endswith(
        "0 releases in 0 runs spent eps 0; all their rounds take eps 0, delta 0 of eps 4, delta 1e-05"
    )
    assert main(["deploy", "init-node", str(folder), "--data-set", "other"]) == 2
    assert main(["deploy", "init-node", str(tmp_path / "b"), "--data-set", "b", "--eps", "4"]) == 2
    assert main(["deploy", "init-node", str(tmp_path / "b"), "--data-set", "../b"]) == 2
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "--host 127.0.0.1",
            "--host 0.0.0.0",
            "flower-superlink listens on 0.0.0.0: expected --host 127.0.0.1",
        ),
        (
            "--host 127.0.0.1",
            "--host=10.0.0.1",
            "flower-superlink listens on 10.0.0.1: expected --host 127.0.0.1",
        ),
        (
            "--enable-supernode-auth",
            "",
            "flower-superlink is started without --enable-supernode-auth",
        ),
        ("--isolation process", "", "flower-superlink is started without --isolation process"),
        (
            "--isolation process",
            "--isolation subprocess",
            "flower-superlink is started without --isolation process",
        ),
        (
            "--superexec-auth-secret-file",
            "--other",
            "flower-superlink is started without --superexec-auth-secret-file",
        ),
    ],
)
def test_a_superlink_that_is_started_open(server: Path, old: str, new: str, reason: str) -> None:
    change(server / "superlink.service", old, new)
    [what] = failures(findings(SERVER_CHECKS, server))
    assert what.startswith(reason)


@pytest.mark.parametrize("program", ["flower-supernode", "fedfw deploy node"])
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("--trusted-entities", "--other", "is started without --trusted-entities"),
        ("--root-certificates", "--insecure --other", "is started with --insecure"),
        (
            "--auth-supernode-private-key",
            "--other",
            "is started without --auth-supernode-private-key",
        ),
        ("--superlink", "--host 0.0.0.0 --superlink", "listens on 0.0.0.0"),
        ("--isolation process", "", "is started without --isolation process"),
        ("--superexec-auth-secret-file", "--o", "is started without --superexec-auth-secret-file"),
        (
            "partition-id=0",
            "partition=0",
            "is started with a bad --node-config (node-config: unknown key 'partition'",
        ),
        (
            "consent=",
            'consnet="/etc" consent=',
            "(node-config: unknown key 'consnet' (did you mean 'consent'?)",
        ),
    ],
)
def test_a_supernode_that_is_started_open(
    node: Path, program: str, old: str, new: str, reason: str
) -> None:
    if program == "flower-supernode":
        change(node / "client.service", "fedfw deploy node", "flower-supernode --isolation process")
        assert {finding.verdict for finding in findings(NODE_CHECKS, node)} == {Verdict.OK}
    elif old == "--isolation process":
        return  # it is always isolated
    change(node / "client.service", old, new)
    [what] = failures(findings(NODE_CHECKS, node))
    assert what.startswith(program)
    assert reason in what


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        (
            "client",
            "starts flower-supernode, expected the unit file of flower-supernode or of 'fedfw deploy node'",
        ),
        (
            "executor",
            "starts flower-superexec, expected the unit file of flower-superexec or of 'fedfw deploy exec",
        ),
    ],
)
def test_a_unit_file_that_is_missing_is_an_error(
    node: Path, missing: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (node / f"{missing}.service").unlink()
    assert any(reason in what for what in failures(findings(NODE_CHECKS, node)))
    assert main(["deploy", "check", "--node-dir", str(node)]) == 1
    assert f"FAIL: no *.service file in {node} {reason}" in capsys.readouterr().out


def test_a_servers_unit_file_that_is_missing_is_an_error(server: Path) -> None:
    for name in ("executor", "superexec"):  # the walk-through's executor is the owner's
        (server / f"{name}.service").unlink()
    assert len(failures(findings(SERVER_CHECKS, server))) == 1
    (server / "superlink.service").unlink()
    assert len(failures(findings(SERVER_CHECKS, server))) == 2
    assert main(["deploy", "check", "--server-dir", str(server)]) == 1


def test_a_unit_file_that_cannot_be_read_is_no_pass(node: Path) -> None:
    change(node / "executor.service", "--superexec", "'--superexec")  # a quote that is not closed
    results = findings(NODE_CHECKS, node)
    assert Verdict.UNKNOWN in {finding.verdict for finding in results}
    assert main(["deploy", "check", "--node-dir", str(node)]) == 1


def test_what_a_server_answers_is_printed_without_control_characters() -> None:
    shown = str(Finding(Verdict.UNKNOWN, "answered 502 \x1b[2J\nok: all is closed"))
    assert shown == r"cannot be checked: answered 502 \x1b[2J ok: all is closed"


def test_an_expired_certificate(server: Path) -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    old = trustme.CA().issue_cert(
        "127.0.0.1", not_before=yesterday - timedelta(days=9), not_after=yesterday
    )
    (server / "server.pem").write_bytes(old.cert_chain_pems[0].bytes())
    assert failures(findings(SERVER_CHECKS, server)) == [f"server.pem in {server} has expired"]


def test_what_cannot_be_checked_is_no_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = [finding.verdict for finding in findings(SERVER_CHECKS, tmp_path)]
    assert verdicts == [Verdict.FAIL, Verdict.OK, Verdict.UNKNOWN, Verdict.FAIL]
    make_certificates(tmp_path)
    address = f"127.0.0.1:{free_port()}"  # nobody is there
    assert main(["deploy", "check", "--address", address, "--ca", str(tmp_path / "ca.crt")]) == 1
    said = capsys.readouterr().out
    assert said.count("cannot be checked: ") == 4
    assert "Flower has no accounts" in said  # what no set-up can promise is always said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "nothing to look at: expected --address with --ca, --server-dir or --node-dir"),
        (["--address", "a:1"], "--address and --ca belong together"),
        (
            ["--address", "a:1", "--ca", "/no/such"],
            "--ca /no/such is missing, expected the authority's certificate",
        ),
        (["--node-dir", "/no/such"], "/no/such is no folder"),
    ],
)
def test_questions_that_make_no_sense(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "check", *arguments]) == 2
    assert reason in capsys.readouterr().err


# --- clocks ---


def test_the_bounds_of_a_nodes_clock_are_those_that_the_page_says() -> None:
    constant = pytest.importorskip("flwr.common.constant")
    least = constant.SYSTEM_TIME_TOLERANCE
    most = constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE
    page = " ".join(DOCS.read_text().split())
    assert f"less than {least} s ahead of its own and less than {most} s behind it" in page
    assert f"a signed time is accepted until it is {most} s old" in page.lower()
    assert f"(good for {most} s" in " ".join(LIMITS)
