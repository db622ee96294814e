"""``fedfw deploy check``: looks for ways by which an outsider could get in or a strange bundle could run."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw.deployment.flower.proxy import Address

DESCRIPTION = (
    "Look at a running federation as an outsider would (--address with --ca), at the files of the server's host "
    "(--server-dir), or at those of a node's host (--node-dir). The status is 1 if an outsider could get in, a strange "
    "bundle could run, the owner of the data was not asked or their ledger is damaged, or if anything could not be "
    "checked, for example because a unit file is missing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is looked at."""
    parser.add_argument("--address", metavar="HOST:PORT", help="the federation's public address")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="the certificate of its authority, which owners have")
    parser.add_argument("--server-dir", type=Path, metavar="DIR", help="the server's keys and *.service files")
    parser.add_argument("--node-dir", type=Path, metavar="DIR", help="a node's keys, trust and *.service files")


def execute(options: argparse.Namespace) -> int:
    """Check what was named and print a line for each check."""
    from fedfw.deployment.flower.checks import (
        ADDRESS_CHECKS,
        LIMITS,
        NODE_CHECKS,
        SERVER_CHECKS,
        Outside,
        Verdict,
        findings,
    )

    if (options.address is None) != (options.ca is None):
        raise ValueError("--address and --ca belong together: the outsider has both")
    results = []
    if options.address is not None:
        if not options.ca.is_file():
            raise ValueError(f"--ca={str(options.ca)!r}, expected the authority's certificate")
        results += findings(ADDRESS_CHECKS, Outside(Address.parse(options.address), options.ca))
    for folder, checks in ((options.server_dir, SERVER_CHECKS), (options.node_dir, NODE_CHECKS)):
        if folder is not None:
            if not folder.is_dir():
                raise ValueError(f"{str(folder)!r} is no folder")
            results += findings(checks, folder)
    if not results:
        raise ValueError("nothing to look at: expected --address with --ca, --server-dir or --node-dir")
    print("\n".join(map(str, results)))
    print("\nWhatever these say, Flower cannot do better than this:")
    print("\n".join(f"- {limit}" for limit in LIMITS))
    return 0 if all(finding.verdict is Verdict.OK for finding in results) else 1
