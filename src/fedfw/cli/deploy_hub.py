"""``fedfw deploy hub``: signed bundles for the SuperLink on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw.deployment.flower.proxy import Address

DESCRIPTION = (
    "Hand the bundles of a folder, with their signatures, to a SuperLink that was started with "
    "FLWR_SUPERGRID_API_URL=http://127.0.0.1:8600/v1. It runs until it is ended."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder and the address."""
    parser.add_argument("folder", type=Path, help="what fedfw deploy sign has written")
    parser.add_argument("--listen", default="127.0.0.1:8600", metavar="HOST:PORT", help="a local address [%(default)s]")


def execute(options: argparse.Namespace) -> int:
    """Serve until the process is ended."""
    from fedfw.deployment.flower.hub import make_hub

    with make_hub(options.folder, Address.parse(options.listen)) as hub:
        hub.serve_forever()
    return 0
