"""Commands of a node's host: ``fedfw deploy node`` and ``fedfw deploy executor``, with errors of
one line.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfw.cli.arguments import Argument, adds, argument
from fedfw.deployment.flower.hub import is_loopback
from fedfw.deployment.flower.proxy import Address
from fedfw.deployment.flower.start import (
    PATIENCE,
    require_certificates,
    require_file,
    require_free_port,
    run_node,
    wait_for_server,
)
from fedfw.deployment.node import NodeSettings

_SECRET = "--superexec-auth-secret-file"


def _wait(text: str) -> Argument:
    return argument(
        "--wait", type=float, default=PATIENCE, metavar="SECONDS", help=f"{text} [%(default)g]"
    )


def _file(flag: str, text: str, **details: Any) -> Argument:
    return argument(flag, type=Path, metavar="FILE", help=text, **details)


add_node_arguments = adds(
    argument(
        "--superlink", required=True, metavar="HOST:PORT", help="the federation's public address"
    ),
    _file("--root-certificates", "the server's authority (PEM)", required=True),
    _file("--auth-supernode-private-key", "the node's key", required=True),
    _file("--trusted-entities", "whose bundles the node may run (YAML)", required=True),
    _file(_SECRET, "the secret that the executor is given, too", required=True),
    argument(
        "--node-config",
        required=True,
        metavar="KEYS",
        help='partition-id=NUMBER consent="FILE" state-dir="FOLDER" leaving=true, of which the '
        "first is needed",
    ),
    argument(
        "--host",
        default="127.0.0.1",
        help="where its executor finds it: an address of this machine [%(default)s]",
    ),
    argument("--port", type=int, default=9094, help="the port for its executor [%(default)s]"),
    _wait("for the server to be there"),
)


def node(options: argparse.Namespace) -> int:
    """Run Flower's SuperNode with TLS, a key of its own, bundles that a trusted key has signed, and
    tasks for the executor with its secret alone. It looks at its files, its port and the
    server first and says in one line what is wrong. It runs until it is ended.
    """
    if not is_loopback(options.host):
        raise ValueError(
            f"--host {options.host}, expected an address of this machine alone, such as 127.0.0.1"
        )
    if not 1 <= options.port <= 65535:
        raise ValueError(f"--port {options.port}, expected a whole number from 1 to 65535")
    _validate_wait(options.wait)
    superlink = Address.parse(options.superlink)
    settings = NodeSettings.parse(options.node_config)
    given = {
        "--superlink": superlink,
        "--root-certificates": options.root_certificates,
        "--auth-supernode-private-key": options.auth_supernode_private_key,
        "--trusted-entities": options.trusted_entities,
        _SECRET: options.superexec_auth_secret_file,
        "--node-config": options.node_config,
        "--isolation": "process",
        "--host": options.host,
        "--port": options.port,
    }
    require_certificates("--root-certificates", options.root_certificates)
    for flag, value in given.items():
        if isinstance(value, Path):
            require_file(flag, value)
    if settings.consent:
        require_file("node-config: consent", Path(settings.consent))
    require_free_port("--port", Address(options.host, options.port))
    wait_for_server("--superlink", superlink, options.root_certificates, options.wait)
    run_node(_words(given))
    return 0


add_executor_arguments = adds(
    argument(
        "--runtime-api-address",
        default="127.0.0.1:9094",
        metavar="HOST:PORT",
        help="of the SuperNode [%(default)s]",
    ),
    _file(_SECRET, "the secret that the SuperNode was given, too", required=True),
    _file("--root-certificates", "for a SuperNode that was given --ssl-certfile"),
    _wait("for the SuperNode to be there"),
    argument(
        "--parent-pid", type=int, metavar="PID", help="end when the process of this number ends"
    ),
)


def executor(options: argparse.Namespace) -> int:
    """Run the apps of a SuperNode on this machine that was started with --isolation process. Every
    message has a process of its own, as flower-superexec starts it, but forked from one that has
    imported torch: that saves seconds a message. It runs until it is ended.
    """
    address = Address.parse(options.runtime_api_address)
    certificates = options.root_certificates
    if certificates is None and not is_loopback(address.host):
        raise ValueError(
            f"--runtime-api-address {address} without --root-certificates, expected an address of "
            "this machine such as "
            "127.0.0.1:9094, or the certificates of a SuperNode that was given --ssl-certfile: "
            "tokens and models would travel in the clear"
        )
    _validate_wait(options.wait)
    require_file(_SECRET, options.superexec_auth_secret_file)
    if certificates is not None:
        require_certificates("--root-certificates", certificates)
    from fedfw.deployment.flower.executor import run_executor

    given = {
        "--runtime-api-address": options.runtime_api_address,
        _SECRET: options.superexec_auth_secret_file,
        "--root-certificates": certificates,
        "--parent-pid": options.parent_pid,
    }
    insecure = ["--insecure"] if certificates is None else []

    def wait() -> None:
        wait_for_server("--runtime-api-address", address, certificates, options.wait)

    run_executor([*_words(given), *insecure], wait)
    return 0


def _validate_wait(seconds: float) -> None:
    if not seconds >= 0:
        raise ValueError(f"--wait {seconds:g}, expected a number of at least 0")


def _words(given: Mapping[str, object]) -> list[str]:
    """Return flags and values as the words of a command, without those that are not given."""
    return [str(word) for pair in given.items() if pair[1] is not None for word in pair]
