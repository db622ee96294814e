"""``fedfw deploy proxy``: what the world can reach of a SuperLink."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

from fedfw.deployment.flower.proxy import BODY_LIMIT, Address, Proxy

DESCRIPTION = (
    "Listen at a public address with TLS and forward the calls of registered SuperNodes to a SuperLink on this "
    "machine. Everything else is answered 404. It runs until it is ended; what it refuses is logged."
)
_MEGABYTE = 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two addresses, the certificate and the limit."""
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="the public address")
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="where the SuperLink listens: 127.0.0.1:8000")
    parser.add_argument("--certificate", required=True, type=Path, metavar="FILE", help="its certificate (PEM)")
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help="the certificate's private key (PEM)")
    parser.add_argument(
        "--ca", required=True, type=Path, metavar="FILE", help="the authority of the SuperLink's certificate (PEM)"
    )
    parser.add_argument(
        "--largest", type=int, default=BODY_LIMIT // _MEGABYTE, metavar="MB", help="longest message up [%(default)s]"
    )


def execute(options: argparse.Namespace) -> int:
    """Serve until the process is ended."""
    if options.largest < 1:
        raise ValueError(f"--largest={options.largest}, expected a number of megabytes, at least 1")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    proxy = Proxy(Address.parse(options.to), options.ca, options.largest * _MEGABYTE)
    asyncio.run(_serve(proxy, Address.parse(options.listen), options.certificate, options.key))
    return 0


async def _serve(proxy: Proxy, listen: Address, certificate: Path, key: Path) -> None:
    async with await proxy.start(listen, certificate, key) as server:
        await server.serve_forever()
