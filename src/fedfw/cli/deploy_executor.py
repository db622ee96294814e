"""``fedfw deploy executor``: Flower's executor, whose processes have torch imported when they begin."""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path

from fedfw.deployment.flower.proxy import Address
from fedfw.deployment.flower.start import (
    PATIENCE,
    require_certificates,
    require_file,
    wait_for_server,
)

DESCRIPTION = (
    "Run the apps of a SuperNode on this machine that was started with --isolation process. Every message has a "
    "process of its own, as flower-superexec starts it, but forked from one that has imported torch: that saves "
    "seconds a message. It runs until it is ended."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The address, and those arguments of flower-superexec that keep others out."""
    parser.add_argument(
        "--runtime-api-address", default="127.0.0.1:9094", metavar="HOST:PORT", help="of the SuperNode [%(default)s]"
    )
    parser.add_argument(
        "--superexec-auth-secret-file",
        required=True,
        type=Path,
        metavar="FILE",
        help="the secret that the SuperNode was given, too",
    )
    parser.add_argument(
        "--root-certificates", type=Path, metavar="FILE", help="for a SuperNode that was given --ssl-certfile"
    )
    parser.add_argument(
        "--wait", type=float, default=PATIENCE, metavar="SECONDS", help="for the SuperNode to be there [%(default)g]"
    )
    parser.add_argument("--parent-pid", type=int, metavar="PID", help="end when the process of this number ends")


def execute(options: argparse.Namespace) -> int:
    """Look at the files, then run until the process is ended."""
    address = options.runtime_api_address
    if options.root_certificates is None and not _is_of_this_machine(address):
        raise ValueError(
            f"--runtime-api-address {address} without --root-certificates, expected an address of this machine such as "
            "127.0.0.1:9094, or the certificates of a SuperNode that was given --ssl-certfile: tokens and models would "
            "travel in the clear"
        )
    if not options.wait >= 0:
        raise ValueError(f"--wait {options.wait:g}, expected a number of at least 0")
    node = Address.parse(address)
    require_file("--superexec-auth-secret-file", options.superexec_auth_secret_file)
    if options.root_certificates is not None:
        require_certificates("--root-certificates", options.root_certificates)
    from fedfw.deployment.flower.executor import run_executor

    given = {
        "--runtime-api-address": address,
        "--superexec-auth-secret-file": options.superexec_auth_secret_file,
        "--root-certificates": options.root_certificates,
        "--parent-pid": options.parent_pid,
    }
    arguments = [str(word) for flag, value in given.items() if value is not None for word in (flag, value)]
    if options.root_certificates is None:
        arguments.append("--insecure")

    def wait() -> None:
        wait_for_server("--runtime-api-address", node, options.root_certificates, options.wait)

    run_executor(arguments, wait)
    return 0


def _is_of_this_machine(address: str) -> bool:
    host = (address.rpartition(":")[0] or address).strip("[]").lower()
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
