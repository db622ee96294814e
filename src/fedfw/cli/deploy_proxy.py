"""``fedfw deploy proxy``: the configuration of nginx or HAProxy in front of a SuperLink."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw.deployment.flower.proxy import PROGRAMS, Address, ProxySettings, write_config

DESCRIPTION = (
    "Print a configuration for nginx (1.21.5 or later, with the stream module) or HAProxy (2.6 or later) as the public "
    "address of a SuperLink. It forwards the calls of registered SuperNodes, answers every other path 404, and limits "
    "connections, bodies and times for each address. docs/deployment.md says how to install and run it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the program, the two addresses, the certificates and the limits."""
    usual = {name: field.default for name, field in ProxySettings.__dataclass_fields__.items()}
    home = Path("/etc/fedfw")
    parser.add_argument("--config", required=True, choices=list(PROGRAMS), help="the program to configure")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="the public address")
    parser.add_argument(
        "--to", default="127.0.0.1:8000", metavar="HOST:PORT", help="where the SuperLink listens [%(default)s]"
    )
    files = {
        "certificate": ("server.pem", "the public certificate (PEM)"),
        "key": ("server.key", "the certificate's private key (PEM)"),
        "ca": ("ca.crt", "the authority of the SuperLink's certificate (PEM)"),
    }
    for name, (file, text) in files.items():
        parser.add_argument(f"--{name}", type=Path, default=home / file, metavar="FILE", help=f"{text} [%(default)s]")
    parser.add_argument(
        "--superlink-name",
        default=usual["superlink_name"],
        metavar="NAME",
        help="a DNS name in the SuperLink's certificate [%(default)s]",
    )
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=usual["work"],
        metavar="DIR",
        help="nginx: a folder for its socket and for bodies, which only its user can read [%(default)s]",
    )
    parser.add_argument(
        "--stream-module",
        default=usual["stream_module"],
        metavar="FILE",
        help='nginx: the file of its stream module; "" where it is built in [%(default)s]',
    )
    parser.add_argument(
        "--largest", type=int, default=usual["largest"], metavar="MB", help="longest message up [%(default)s]"
    )
    parser.add_argument(
        "--connections",
        type=int,
        default=usual["connections"],
        metavar="N",
        help="connections of one address [%(default)s]",
    )
    parser.add_argument(
        "--rate", type=int, default=usual["rate"], metavar="N", help="calls a second of one address [%(default)s]"
    )
    parser.add_argument(
        "--bodies",
        type=int,
        default=usual["bodies"],
        metavar="N",
        help="bodies above 10 kB that one address sends at the same time [%(default)s]",
    )


def execute(options: argparse.Namespace) -> int:
    """Print the configuration."""
    settings = ProxySettings(
        listen=Address.parse(options.listen),
        superlink=Address.parse(options.to),
        certificate=options.certificate.absolute(),
        key=options.key.absolute(),
        ca=options.ca.absolute(),
        superlink_name=options.superlink_name,
        work=options.work_dir.absolute(),
        stream_module=options.stream_module,
        largest=options.largest,
        connections=options.connections,
        rate=options.rate,
        bodies=options.bodies,
    )
    print(write_config(options.config, settings), end="")
    return 0
