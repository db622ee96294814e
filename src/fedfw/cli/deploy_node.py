"""``fedfw deploy node``: Flower's SuperNode, closed, and with errors of one line."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw.deployment.flower.hub import is_loopback
from fedfw.deployment.flower.proxy import Address
from fedfw.deployment.flower.start import (
    PATIENCE,
    require_certificates,
    require_file,
    require_free_port,
    wait_for_server,
)
from fedfw.deployment.node import NodeSettings

DESCRIPTION = (
    "Run Flower's SuperNode with TLS, a key of its own, bundles that a trusted key has signed, and tasks for nobody "
    "but the executor with its secret. It looks at its files, its port and the server first and says in one line what "
    "is wrong. It runs until it is ended."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The server, the files, what the owner says of the node, and its own port."""
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT", help="the federation's public address")
    parser.add_argument(
        "--root-certificates", required=True, type=Path, metavar="FILE", help="the server's authority (PEM)"
    )
    parser.add_argument("--auth-supernode-private-key", required=True, type=Path, metavar="FILE", help="the node's key")
    parser.add_argument(
        "--trusted-entities", required=True, type=Path, metavar="FILE", help="whose bundles the node may run (YAML)"
    )
    parser.add_argument(
        "--superexec-auth-secret-file",
        required=True,
        type=Path,
        metavar="FILE",
        help="the secret that the executor is given, too",
    )
    parser.add_argument(
        "--node-config",
        required=True,
        metavar="KEYS",
        help='partition-id=NUMBER consent="FILE" state-dir="FOLDER" leaving=true, of which the first is needed',
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="where its executor finds it: an address of this machine [%(default)s]"
    )
    parser.add_argument("--port", type=int, default=9094, help="the port for its executor [%(default)s]")
    parser.add_argument(
        "--wait", type=float, default=PATIENCE, metavar="SECONDS", help="for the server to be there [%(default)g]"
    )


def execute(options: argparse.Namespace) -> int:
    """Look at everything, then run until the process is ended."""
    if not is_loopback(options.host):
        raise ValueError(f"--host {options.host}, expected an address of this machine alone, such as 127.0.0.1")
    if not 1 <= options.port <= 65535:
        raise ValueError(f"--port {options.port}, expected a whole number from 1 to 65535")
    if not options.wait >= 0:
        raise ValueError(f"--wait {options.wait:g}, expected a number of at least 0")
    superlink, own = Address.parse(options.superlink), Address(options.host, options.port)
    settings = NodeSettings.parse(options.node_config)
    require_certificates("--root-certificates", options.root_certificates)
    for flag in ("--auth-supernode-private-key", "--trusted-entities", "--superexec-auth-secret-file"):
        require_file(flag, getattr(options, flag.removeprefix("--").replace("-", "_")))
    if settings.consent:
        require_file("node-config: consent", Path(settings.consent))
    require_free_port("--port", own)
    wait_for_server("--superlink", superlink, options.root_certificates, options.wait)
    from fedfw.deployment.flower.node import run_node

    given = {
        "--superlink": superlink,
        "--root-certificates": options.root_certificates,
        "--auth-supernode-private-key": options.auth_supernode_private_key,
        "--trusted-entities": options.trusted_entities,
        "--superexec-auth-secret-file": options.superexec_auth_secret_file,
        "--node-config": options.node_config,
        "--isolation": "process",
        "--host": options.host,
        "--port": options.port,
    }
    run_node([str(word) for pair in given.items() for word in pair])
    return 0
