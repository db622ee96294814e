"""``fedfw deploy executor``: Flower's executor, whose processes have torch imported when they begin."""

from __future__ import annotations

import argparse
import ipaddress

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
        metavar="FILE",
        help="the secret that the SuperNode was given, too",
    )
    parser.add_argument("--root-certificates", metavar="FILE", help="for a SuperNode that was given --ssl-certfile")
    parser.add_argument("--parent-pid", type=int, metavar="PID", help="end when the process of this number ends")


def execute(options: argparse.Namespace) -> int:
    """Run until the process is ended."""
    address = options.runtime_api_address
    if options.root_certificates is None and not _is_of_this_machine(address):
        raise ValueError(
            f"--runtime-api-address {address} without --root-certificates, expected an address of this machine such as "
            "127.0.0.1:9094, or the certificates of a SuperNode that was given --ssl-certfile: tokens and models would "
            "travel in the clear"
        )
    from fedfw.deployment.flower.executor import run_executor

    given = {
        "--runtime-api-address": options.runtime_api_address,
        "--superexec-auth-secret-file": options.superexec_auth_secret_file,
        "--root-certificates": options.root_certificates,
        "--parent-pid": options.parent_pid,
    }
    arguments = [str(word) for flag, value in given.items() if value is not None for word in (flag, value)]
    run_executor(arguments if options.root_certificates else [*arguments, "--insecure"])
    return 0


def _is_of_this_machine(address: str) -> bool:
    host = (address.rpartition(":")[0] or address).strip("[]").lower()
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
