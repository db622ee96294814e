"""The files of a host: keys, certificates, what its node trusts and allows, and the commands by
which it is started.

Commands are read from the ``ExecStart`` lines of the folder's ``*.service`` files.
"""

import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass
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
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SECRET: dict[str, str | None] = {"--isolation": "process", "--superexec-auth-secret-file": None}
"""Options of a process of Flower by which tasks go to its executor alone."""
_NODE = "flower-supernode"
_EXECUTOR = "flower-superexec"
_OURS = {_NODE: "fedfw deploy node", _EXECUTOR: "fedfw deploy executor"}
"""Our command in place of a program of Flower; a node that it starts is always isolated."""


@dataclass(frozen=True)
class Start:
    """A command of a unit file: the name under which it starts a program, and its options; an
    option without a value has an empty one.
    """

    name: str
    options: dict[str, str]

    def node_setting(self, key: str) -> str | None:
        """Return a text of a node's own configuration."""
        pairs = shlex.split(self.options.get("--node-config", ""))
        return dict(pair.partition("=")[::2] for pair in pairs).get(key)


def secrets_kept(folder: Path) -> str:
    """Private keys and secrets are readable by their owner alone."""
    readable = [path for path in folder.iterdir() if path.is_file() and _is_open(path)]
    loose = sorted(path.name for path in readable if _is_secret(path))
    require(not loose, f"others can read {', '.join(loose)} in {folder}: chmod 600")
    return f"no private key or secret in {folder} is open to others"


def _is_open(path: Path) -> bool:
    """Return whether other users have any right to a file."""
    return bool(path.stat().st_mode & _OTHERS)


def _is_secret(path: Path) -> bool:
    """Return whether a file is a secret, or begins with a private key."""
    with open(path, "rb") as file:
        return path.suffix == ".secret" or b"PRIVATE KEY-----" in file.read(4096)


def certificates_valid(folder: Path) -> str:
    """Certificates have not expired."""
    ends: dict[str, datetime] = {}
    for path in sorted((*folder.glob("*.crt"), *folder.glob("*.pem"))):
        data = path.read_bytes()
        if b"BEGIN CERTIFICATE" in data:
            try:
                certificates = x509.load_pem_x509_certificates(data)
            except ValueError as error:
                raise FailedCheckError(f"{path} is no certificate ({error})") from None
            ends[path.name] = min(entry.not_valid_after_utc for entry in certificates)
    if not ends:
        raise ValueError(f"{folder} has no certificate (*.crt, *.pem)")
    expired = [name for name, end in ends.items() if end <= datetime.now(UTC)]
    require(not expired, f"{', '.join(expired)} in {folder} has expired")
    first = min(ends, key=lambda name: ends[name])
    return f"certificates are valid; {first} ends first, on {ends[first]:%Y-%m-%d}"


def trust_stated(folder: Path) -> str:
    """The node's owner has said whose bundles the node may run."""
    named = [start.options.get("--trusted-entities") for start in _starts(folder, _NODE)]
    return "; ".join(_stated(folder / path) for path in list(filter(None, named)) or [TRUSTED])


def _stated(path: Path) -> str:
    """Require that a file of trusted keys makes Flower verify bundles; return a sentence with the
    names of the keys.
    """
    require(path.is_file(), f"{path} is missing: the node runs whatever bundle it is sent")
    require(not path.stat().st_mode & _OTHERS_WRITE, f"others can write {path}: chmod 600")
    try:
        trusted = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FailedCheckError(f"{path} is no YAML ({error})") from None
    require(
        isinstance(trusted, dict) and trusted,
        f"{path} names no key, and then Flower verifies nothing: expected lines such as "
        "fpk_ID: 'ssh-ed25519 ...'",
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
    return f"{path} lets {', '.join(map(str, trusted))} and no other key vouch for bundles"


def node_command_closed(folder: Path) -> str:
    """The SuperNode is started with TLS, its key and the file of those whom it trusts, and tasks
    need a secret.
    """
    files = ("--root-certificates", "--auth-supernode-private-key", "--trusted-entities")
    return _command_closed(folder, _NODE, dict.fromkeys(files) | _SECRET, forbidden="--insecure")


def consent_stated(folder: Path) -> str:
    """The node's owner has said what may be done with the data."""
    path = _consent_path(folder)
    require(path.is_file(), f"{path} is missing: no budget limits what the node gives away")
    try:
        consent = Consent.read(path)
    except ValueError as error:
        raise FailedCheckError(str(error)) from None
    for start in _starts(folder, _NODE):
        require(
            start.node_setting("consent") is not None,
            f'{start.name} is started without consent="{path}" in --node-config',
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
    require(not _is_open(ledger.path), f"others can read {ledger.path}: chmod 600")
    budget = consent.privacy
    limit = f"of eps {budget.eps:g}, delta {budget.delta:g}" if budget else "without a budget"
    eps, delta = charged(releases)
    made = sum(not release.ended for release in releases)
    runs = len({first_name(release.run) for release in releases})
    return (
        f"{ledger.path}: {made} releases in {runs} runs spent eps {spent(releases)[0]:.3g}; all "
        f"their rounds take eps {eps:.3g}, delta {delta:.3g} {limit}"
    )


def promise_open(folder: Path) -> str:
    """No error has closed the promise on the data."""
    path = _consent_path(folder)
    consent = Consent.read(path)
    state = path.parent / STATE
    closing = consent.promise(0, state).closing()
    if closing is not None:
        raise FailedCheckError(
            f"{closing.reason} closed the promise on {closing.since}, at {closing.order}: fedfw "
            f"deploy reopen {path.parent}"
        )
    checks = consent.checks(0, state).made()
    if not checks and consent.privacy is not None:
        return (
            "no data were checked: private runs are refused until fedfw deploy check-data "
            f"{path.parent}"
        )
    return f"orders are taken; the owner has checked {len(checks)} data sets"


def _consent_path(folder: Path) -> Path:
    """Return the file of consent that the node's start command names, or the usual one."""
    named = (start.node_setting("consent") for start in _starts(folder, _NODE))
    return folder / (next(filter(None, named), None) or CONSENT)


def node_settings_known(folder: Path) -> str:
    """The settings of the node have keys and values that clients read."""
    for start in _starts(folder, _NODE):
        try:
            NodeSettings.parse(start.options.get("--node-config", ""))
        except ValueError as error:
            raise FailedCheckError(
                f"{start.name} is started with a bad --node-config ({error})"
            ) from None
    return "the node's settings have keys and values that clients read"


def executor_command_closed(folder: Path) -> str:
    """An executor runs the apps, and has the secret without which no task is handed out."""
    return _command_closed(folder, _EXECUTOR, {"--superexec-auth-secret-file": None})


def superlink_command_closed(folder: Path) -> str:
    """The SuperLink is started so that only this machine reaches it, and that tasks need a
    secret.
    """
    return _command_closed(folder, "flower-superlink", {"--enable-supernode-auth": None, **_SECRET})


def _command_closed(
    folder: Path, program: str, needed: dict[str, str | None], forbidden: str = ""
) -> str:
    """Require that every start of a program has the options that it needs, and listens on this
    machine alone.
    """
    starts = _starts(folder, program)
    own = f" or of '{_OURS[program]}'" if program in _OURS else ""
    require(
        starts,
        f"no *.service file in {folder} starts {program}, expected the unit file of {program}{own}",
    )
    for start in starts:
        host = start.options.get("--host") or "127.0.0.1"  # Flower's default
        require(
            is_loopback(host),
            f"{start.name} listens on {host}: expected --host 127.0.0.1, behind the proxy",
        )
        require(forbidden not in start.options, f"{start.name} is started with {forbidden}")
        for option, expected in needed.items():
            value = start.options.get(option)
            is_own = option == "--isolation" and start.name != program
            require(
                is_own or (value is not None and expected in (None, value)),
                f"{start.name} is started without {option} {expected or ''}".rstrip(),
            )
    names = ", ".join(dict.fromkeys(start.name for start in starts))
    return f"{names} is started with {', '.join(needed)}, on this machine alone"


def _starts(folder: Path, program: str) -> list[Start]:
    """Return every start of a program, or of fedfw's command in its place, in the folder's unit
    files.
    """
    starts = []
    for path in sorted(folder.glob("*.service")):
        for line in path.read_text().replace("\\\n", " ").splitlines():
            key, _, command = line.partition("=")
            words = shlex.split(command) if key.strip() == "ExecStart" else []
            # The words without folders and systemd's prefixes, between spaces:
            # " fedfw deploy node ".
            called = " ".join(["", *(Path(word.lstrip("-@:+!")).name for word in words), ""])
            for name in (program, _OURS.get(program, program)):
                if f" {name} " in called:
                    starts.append(Start(name, _options(words)))
                    break
    return starts


def _options(words: list[str]) -> dict[str, str]:
    """Return the values of a command's options, --option=value or --option value; an empty text for
    an option without a value.
    """
    values = {}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option.startswith("--"):
            values[option] = value if equals or after.startswith("--") else after
    return values


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
