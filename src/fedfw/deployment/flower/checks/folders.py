"""The files of a host: keys, certificates, what its node trusts and allows, and the commands by
which it is started.

Commands are read from the ``ExecStart`` lines of the folder's ``*.service`` files.
"""

import shlex
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedfw.deployment.consent import CONSENT, STATE, Consent
from fedfw.deployment.flower.checks.findings import FailedCheckError, require
from fedfw.deployment.flower.hub import is_loopback
from fedfw.deployment.ledger import LedgerError, charged, first_name, spent
from fedfw.deployment.node import NodeSettings

TRUSTED = "trusted-entities.yaml"
"""The file of signing keys that a node's owner trusts, if its start command names no other."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SECRET: dict[str, str | None] = {"--isolation": "process", "--superexec-auth-secret-file": None}
"""What a process of Flower is started with whose tasks go to nobody but its executor."""
_NODE, _EXECUTOR = "flower-supernode", "flower-superexec"
_OURS = {_NODE: "node", _EXECUTOR: "executor"}
"""The verb of ``fedfw deploy`` that stands for a program of Flower; a node that it starts is always
isolated.
"""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def secrets_kept(folder: Path) -> str:
    """Private keys and secrets are readable by their owner alone."""
    loose = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.stat().st_mode & _OTHERS:
            with open(path, "rb") as file:
                private = b"PRIVATE KEY-----" in file.read(4096)
            if private or path.suffix == ".secret":
                loose.append(path.name)
    require(not loose, f"others can read {', '.join(loose)} in {folder}: chmod 600")
    return f"no private key or secret in {folder} is open to others"


def certificates_valid(folder: Path) -> str:
    """Certificates have not expired."""
    now, ends = datetime.now(UTC), {}
    for path in sorted((*folder.glob("*.crt"), *folder.glob("*.pem"))):
        data = path.read_bytes()
        if b"BEGIN CERTIFICATE" in data:
            try:
                ends[path.name] = min(
                    one.not_valid_after_utc for one in x509.load_pem_x509_certificates(data)
                )
            except ValueError as error:
                raise FailedCheckError(f"{path} is no certificate ({error})") from None
    expired = [name for name, end in ends.items() if end <= now]
    require(not expired, f"{', '.join(expired)} in {folder} has expired")
    if not ends:
        raise ValueError(f"{folder} has no certificate (*.crt, *.pem)")
    first = min(ends, key=lambda name: ends[name])
    return f"certificates are valid; {first} ends first, on {ends[first]:%Y-%m-%d}"


def trust_stated(folder: Path) -> str:
    """The node's owner has said whose bundles the node may run."""
    named = [_value(words, "--trusted-entities") for words in _commands(folder, _NODE)]
    return "; ".join(_stated(folder / path) for path in list(filter(None, named)) or [TRUSTED])


def _stated(path: Path) -> str:
    """Require that a file of trusted keys is one that makes Flower verify bundles."""
    require(path.is_file(), f"{path} is missing: the node runs whatever bundle it is sent")
    require(not path.stat().st_mode & _OTHERS_WRITE, f"others can write {path}: chmod 600")
    try:
        trusted = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FailedCheckError(f"{path} is no YAML ({error})") from None
    expected = "expected lines such as fpk_ID: 'ssh-ed25519 ...'"
    require(
        isinstance(trusted, dict) and trusted,
        f"{path} names no key, and then Flower verifies nothing: {expected}",
    )
    for name, text in trusted.items():
        try:
            key = load_ssh_public_key(str(text).encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        require(
            isinstance(key, Ed25519PublicKey),
            f"{path}: the key of {name} is none of ssh-keygen -t ed25519",
        )
    return f"{path} lets {', '.join(map(str, trusted))} and nobody else vouch for bundles"


def node_command_closed(folder: Path) -> str:
    """The SuperNode is started with TLS, its key and the file of those whom it trusts, and tasks
    need a secret.
    """
    needed = dict.fromkeys(
        ("--root-certificates", "--auth-supernode-private-key", "--trusted-entities")
    )
    return _command_closed(folder, _NODE, needed | _SECRET, forbidden="--insecure")


def consent_stated(folder: Path) -> str:
    """The node's owner has said what may be done with the data."""
    path = _consent_path(folder)
    require(path.is_file(), f"{path} is missing: no budget limits what the node gives away")
    try:
        consent = Consent.read(path)
    except ValueError as error:
        raise FailedCheckError(str(error)) from None
    for words in _commands(folder, _NODE):
        require(
            _node_value(words, "consent") is not None,
            f'{_name(words, _NODE)} is started without consent="{path}" in --node-config',
        )
    return f"{path} lets the node share {', '.join(consent.share)}"


def ledger_whole(folder: Path) -> str:
    """The ledger of the data is there and was not damaged."""
    path = _consent_path(folder)
    consent = Consent.read(path)
    require(consent.data_set, f"{path} names no data-set: it has no ledger")
    ledger = consent.ledger(0, path.parent / STATE)
    try:
        releases = ledger.releases()
    except LedgerError as error:
        raise FailedCheckError(f"{error}; every private release is refused") from None
    mode = ledger.path.stat().st_mode
    require(not mode & _OTHERS, f"others can read {ledger.path}: chmod 600")
    (eps, delta), budget = charged(releases), consent.privacy
    limit = (
        "without a budget" if budget is None else f"of eps {budget.eps:g}, delta {budget.delta:g}"
    )
    made = sum(not one.ended for one in releases)
    runs = len({first_name(one.run) for one in releases})
    what = f"{made} releases in {runs} runs spent eps {spent(releases)[0]:.3g}"
    return f"{ledger.path}: {what}; all their rounds take eps {eps:.3g}, delta {delta:.3g} {limit}"


def promise_open(folder: Path) -> str:
    """No error has closed the promise on the data."""
    path = _consent_path(folder)
    consent, state = Consent.read(path), path.parent / STATE
    closing = consent.promise(0, state).closing()
    if closing is not None:
        what = f"closed the promise on {closing.since}, at {closing.order}: fedfw deploy reopen {path.parent}"
        raise FailedCheckError(f"{closing.reason} {what}")
    checks = consent.checks(0, state).made()
    if not checks and consent.privacy is not None:
        refused = f"private runs are refused until fedfw deploy check-data {path.parent}"
        return f"no data were checked: {refused}"
    return f"orders are taken; the owner has checked {len(checks)} data sets"


def _consent_path(folder: Path) -> Path:
    """The file of consent that the node's start command names, or the usual one."""
    named = (_node_value(words, "consent") for words in _commands(folder, _NODE))
    return folder / (next(filter(None, named), None) or CONSENT)


def _node_value(words: list[str], key: str) -> str | None:
    """A text of a node's own configuration, as its start command has it."""
    pairs = (pair.partition("=") for pair in shlex.split(_value(words, "--node-config") or ""))
    return next((value for name, _, value in pairs if name == key), None)


def node_settings_known(folder: Path) -> str:
    """What the node's owner says of the node has keys and values that clients read."""
    for words in _commands(folder, _NODE):
        try:
            NodeSettings.parse(_value(words, "--node-config") or "")
        except ValueError as error:
            raise FailedCheckError(
                f"{_name(words, _NODE)} is started with a bad --node-config ({error})"
            ) from None
    return "the node's settings have keys and values that clients read"


def executor_command_closed(folder: Path) -> str:
    """An executor runs the apps, and has the secret without which nobody gets a task."""
    return _command_closed(folder, _EXECUTOR, {"--superexec-auth-secret-file": None})


def superlink_command_closed(folder: Path) -> str:
    """The SuperLink is started so that only this machine reaches it, and that tasks need a secret."""
    return _command_closed(folder, "flower-superlink", {"--enable-supernode-auth": None, **_SECRET})


def _command_closed(
    folder: Path, program: str, needed: dict[str, str | None], forbidden: str | None = None
) -> str:
    """Require that every start of a program has the options that it needs, and listens on this
    machine alone.
    """
    commands = list(_commands(folder, program))
    own = f" or of 'fedfw deploy {_OURS[program]}'" if program in _OURS else ""
    require(
        commands,
        f"no *.service file in {folder} starts {program}, expected the unit file of {program}{own}",
    )
    for words in commands:
        name = _name(words, program)
        host = _value(words, "--host") or "127.0.0.1"  # Flower's default
        require(
            is_loopback(host),
            f"{name} listens on {host}: expected --host 127.0.0.1, behind the proxy",
        )
        require(forbidden not in words, f"{name} is started with {forbidden}")
        for option, expected in needed.items():
            if option == "--isolation" and name != program:
                continue
            value = _value(words, option)
            require(
                value is not None and expected in (None, value),
                f"{name} is started without {option} {expected or ''}".rstrip(),
            )
    names = ", ".join(dict.fromkeys(_name(words, program) for words in commands))
    return f"{names} is started with {', '.join(needed)}, on this machine alone"


def _commands(folder: Path, program: str) -> Iterator[list[str]]:
    """The words of every start of a program in the folder's unit files."""
    for path in sorted(folder.glob("*.service")):
        for line in path.read_text().replace("\\\n", " ").splitlines():
            key, _, command = line.partition("=")
            words = shlex.split(command) if key.strip() == "ExecStart" else []
            if _name(words, program):
                yield words


def _name(words: list[str], program: str) -> str:
    """The name under which a command starts a program, Flower's own or that of our verb; empty if
    it does not.
    """
    names = [Path(word.lstrip("-@:+!")).name for word in words]
    if program in names:
        return program
    ours = ["fedfw", "deploy", _OURS.get(program, "")]
    starts = [names[at : at + len(ours)] for at in range(len(names))]
    return " ".join(ours) if ours in starts else ""


def _value(words: list[str], option: str) -> str | None:
    """An option's value, an empty text if the next word is another option, None if the option is
    not there.
    """
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            return "" if after.startswith("--") else after
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


NODE_CHECKS: tuple[Callable[[Path], str], ...] = (
    trust_stated,
    node_command_closed,
    consent_stated,
    ledger_whole,
    promise_open,
    secrets_kept,
    certificates_valid,
    node_settings_known,
    executor_command_closed,
)
SERVER_CHECKS: tuple[Callable[[Path], str], ...] = (
    superlink_command_closed,
    secrets_kept,
    certificates_valid,
    executor_command_closed,
)
