"""Measure secure sums: bytes, exchanges and seconds, beside a plain round of l1 atoms.

    python -m fedfw_reproduction.bench.secure_sums            n = 5, 10, 50; p = 7,850 and 1,000,000
    python -m fedfw_reproduction.bench.secure_sums --many     1,000 clients of degree 50, minutes long

All clients and the server run in this process, one after the other, with real cryptography. A
client's seconds are the mean over clients; the server's are its own. A batch begins once, for all of
its rounds (here one) but for the keys of each; shares are dealt for each round. "Plain" is what all
clients and the server do when atoms are sent in the open.
"""

from __future__ import annotations

import argparse
import secrets
from time import perf_counter
from typing import Any

import numpy as np
import torch

import fedfw
from fedfw.secure_sums import (
    AtomEncoding,
    Client,
    Consent,
    Journal,
    Server,
    Terms,
    fingerprint,
    public_identity,
)
from fedfw_reproduction.bench.pages import machine, markdown

SIZES = (7_850, 1_000_000)
COUNTS = (5, 10, 50)
MANY, DROPOUTS = 1_000, 20
HEADER = (
    "n",
    "p",
    "degree",
    "threshold",
    "bits",
    "client: begin s",
    "client: deal s",
    "client: round s",
    "server: begin s",
    "server: deal s",
    "server: round s",
    "begin kB up",
    "begin kB down",
    "deal kB up",
    "deal kB down",
    "round kB up",
    "round kB down",
    "plain: B up",
    "plain: s",
)


class Meter:
    """Seconds and bytes of one stage of the protocol."""

    def __init__(self) -> None:
        self.client = self.server = 0.0
        self.up = self.down = 0

    def exchange(self, server: Server, clients: list[Client], numbers: list[Any]) -> None:
        """Take all clients through one exchange, and end its phase."""
        for i, client in enumerate(clients):
            start = perf_counter()
            message = server.message_for(i)
            self.server += perf_counter() - start
            if message is None:
                continue
            start = perf_counter()
            answer = client.answer(message, numbers[i])
            self.client += perf_counter() - start
            start = perf_counter()
            server.receive(i, answer)
            self.server += perf_counter() - start
            self.down += len(message)
            self.up += len(answer)
        start = perf_counter()
        server.advance()
        self.server += perf_counter() - start


def plain_seconds(atoms: list[fedfw.Atom], ball: fedfw.L1Ball, p: int) -> float:
    """Return the seconds in which all atoms are written, read and added up in the open."""
    start = perf_counter()
    total = torch.zeros(p, dtype=torch.float64)
    for atom in atoms:
        total += fedfw.Atom.from_bytes(atom.to_bytes(), ball, (p,)).dense(torch.float64)
    return perf_counter() - start


def row(n: int, p: int, dropouts: int) -> list[str]:
    """Return one line of the table: a sum of l1 atoms from which some clients drop out."""
    ball = fedfw.L1Ball(1.0)
    encoding = AtomEncoding(ball, (p,))
    generator = torch.Generator().manual_seed(0)
    atoms = [ball.lmo(torch.randn(p, generator=generator)) for _ in range(n)]
    numbers = [encoding.to_numbers(encoding.encode(atom).integers) for atom in atoms]

    keys = sorted((secrets.token_bytes(32) for _ in range(n)), key=public_identity)
    owners = tuple(public_identity(key) for key in keys)
    terms = Terms.for_owners(b"bench", owners, entries=p, span=encoding.span, dropouts=dropouts)
    consent = Consent(frozenset(map(fingerprint, owners)), terms.least)
    clients = [Client(key, consent, Journal()) for key in keys]
    server = Server(terms)

    begin, deal, rounds = Meter(), Meter(), Meter()
    for _ in range(3):
        begin.exchange(server, clients, numbers)
    deal.exchange(server, clients, numbers)
    server.start_round(0)
    for leaving in (dropouts, 0, 0):
        rounds.exchange(server, clients[: n - leaving], numbers)
    start = perf_counter()
    found = server.finish()
    rounds.server += perf_counter() - start
    assert (found.total == np.sum(numbers[: n - dropouts], 0)).all()
    return [
        f"{n:,}",
        f"{p:,}",
        str(terms.degree or n - 1),
        str(terms.threshold),
        str(terms.ring.bits),
        *(f"{meter.client / n:.3f}" for meter in (begin, deal, rounds)),
        *(f"{meter.server:.2f}" for meter in (begin, deal, rounds)),
        *(
            f"{count / n / 1e3:.1f}"
            for meter in (begin, deal, rounds)
            for count in (meter.up, meter.down)
        ),
        f"{sum(atom.nbytes for atom in atoms) / n:.0f}",
        f"{plain_seconds(atoms, ball, p):.3f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--many", action="store_true", help="1,000 clients of degree 50")
    if parser.parse_args().many:
        rows = [row(MANY, SIZES[0], DROPOUTS)]
    else:
        rows = [row(n, p, n // 5) for p in SIZES for n in COUNTS]
    print(machine("cpu"), "\n", *markdown(HEADER, rows), sep="\n")
    print("\nExchanges of a round: 3 (plain: 1). Exchanges of the set-up of a batch: 4 (plain: 0).")


if __name__ == "__main__":
    main()
