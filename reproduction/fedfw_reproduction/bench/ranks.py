"""What processes that share a simulation reach of what the machine can give, and what they tell
each other.

    torchrun --nproc-per-node 2 -m fedfw_reproduction.bench.ranks [--rounds 10] [--repeats 48]
    [--device cuda] [--write]

Every process has one thread. Each task is timed two ways, which take turns in the same processes.
Shared: every rank has its part of the clients, and they exchange. Independent: every process
simulates its part by itself, side by side with the others and without a word to them, which is what
the machine can give; its milliseconds are those in which all of them together get through the
clients of a round. Reached is the throughput of the first, in clients a second, over that of the
second. In step is what it could be at most: rounds of the independent processes as long as the
slowest of them takes for each, because whoever sums in every round waits for the slowest in every
round, and how long a process takes differs from round to round.

Bytes are what a rank hands to exchanges in a round without evaluation. The least possible is what
has to leave a rank so that the others know its sum: an index of 4 bytes and a number for each entry
that is not zero, or the vector. ``--write`` writes reproduction/reports/ranks.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
import torch.nn.functional as nnf
from torch import Tensor

import fedfw
from fedfw.simulation import Options, Simulation
from fedfw_reproduction.bench.contenders import fedavg, frank_wolfe
from fedfw_reproduction.bench.pages import machine, markdown, publish
from fedfw_reproduction.bench.tasks import TASKS, BenchTask

Make = Callable[[BenchTask], fedfw.Algorithm]
METHODS: dict[str, Make] = {
    "FedFW, l1": lambda task: frank_wolfe("l1"),
    "FedFW+, l2": lambda task: frank_wolfe("l2", plus=True),
    "FedAvg": fedavg,
    "anchored FedFW, l1": lambda task: fedfw.FedFWAnchored("l1:10", anchor_every=5, momentum=0.0),
    "FedLMO, l2": lambda task: fedfw.FedLMO("l2:1", schedule="constant:0.05"),
}
MATCHES = [
    *(
        (name, method)
        for name in ("mnist", "cnn")
        for method in ("FedFW, l1", "FedAvg", "FedLMO, l2")
    ),
    *(("mnist", method) for method in ("FedFW+, l2", "anchored FedFW, l1")),
    ("small", "FedFW, l1"),
]


@dataclass(frozen=True)
class Found:
    """What was measured of one task and method, on this rank's machine.

    Parameters
    ----------
    shared_ms, independent_ms : float
        Of a round.
    reached, in_step : float
        Throughput over that of independent processes, and what it could be if exchanges took no
        time.
    sent, least, exchanges : float
        Bytes of a rank and round, the fewest possible, and how many exchanges there were.
    """

    shared_ms: float
    independent_ms: float
    reached: float
    in_step: float
    sent: float
    least: float
    exchanges: float


def round_ms(
    problem: fedfw.Problem, algorithm: fedfw.Algorithm, rounds: int, device: str
) -> list[float]:
    """Of all rounds but the first."""
    options = Options(rounds=rounds + 1, eval_every=10**9, device=device)
    history = Simulation(problem, algorithm, options).run().history
    # The last round is evaluated whatever is asked for; what that takes is left out.
    parts = ((record.seconds or {}).items() for record in history[1:])
    return [1e3 * sum(seconds for part, seconds in each if part != "evaluation") for each in parts]


class Counter(fedfw.Callback):
    """Remembers after every round what this rank has given to exchanges so far: the bytes, the
    fewest bytes in which its parts of sums can travel, and the number of exchanges.
    """

    on_all_ranks = True  # a callback of the first rank alone would take exchanges of its own

    def __init__(self) -> None:
        self.least = 0
        self.totals: list[tuple[int, int, int]] = []

    def after_round(self, simulation: Simulation) -> None:
        ranks = simulation.ranks
        self.totals.append((ranks.sent, self.least, ranks.exchanges))

    def count(self, tensors: Sequence[Tensor]) -> None:
        """Add what tensors take as indices and numbers, or whole where that is shorter."""
        for tensor in tensors:
            entries = int((tensor != 0).sum())
            self.least += min(entries * (4 + tensor.itemsize), tensor.nbytes)


def count_exchanges(
    problem: fedfw.Problem, algorithm: fedfw.Algorithm, rounds: int, device: str
) -> tuple[float, ...]:
    """Return what this rank gives to exchanges in a round without evaluation: bytes, the fewest
    possible, and the number of exchanges.
    """
    counter = Counter()
    options = Options(rounds=rounds + 2, eval_every=10**9, device=device)
    simulation = Simulation(problem, algorithm, options, callbacks=[counter])
    ranks = simulation.ranks
    sums = ranks.sums

    def counted(*tensors: Tensor) -> list[Tensor]:
        counter.count(tensors)
        return sums(*tensors)

    ranks.sums = counted  # type: ignore[method-assign]
    try:
        simulation.run()
    finally:
        ranks.sums = sums  # type: ignore[method-assign]
    # The last round is evaluated whatever is asked for; what that takes is left out.
    first, last = counter.totals[0], counter.totals[rounds]
    return tuple((after - before) / rounds for before, after in zip(first, last, strict=True))


def measure(
    task: BenchTask, make: Make, ranks: fedfw.Ranks, rounds: int, repeats: int, device: str
) -> Found:
    clients = list(zip(*task.data(), strict=True))
    shared = fedfw.Problem(task.module(), nnf.cross_entropy, clients, ranks=ranks)
    own = shared.losses.all_clients(torch.device("cpu")).tolist()
    alone = fedfw.Problem(task.module(), nnf.cross_entropy, [clients[i] for i in own])
    algorithm = make(task)
    counts = count_exchanges(shared, algorithm, rounds, device)
    times: dict[fedfw.Problem, list[float]] = {alone: [], shared: []}
    for i in range(repeats):
        for problem in (alone, shared) if i % 2 else (shared, alone):
            ranks.numbers(0.0)
            times[problem] += round_ms(problem, algorithm, rounds, device)
    by_itself, in_all = (
        ranks.all_gather_object(times[alone]),
        ranks.all_gather_object(times[shared]),
    )
    rates = [
        count / mean(theirs)
        for (count,), theirs in zip(ranks.numbers(len(own)), by_itself, strict=True)
    ]
    apart, together = task.clients / sum(rates), max(map(mean, in_all))
    slowest = mean(max(each) for each in zip(*by_itself, strict=True))
    return Found(together, apart, apart / together, apart / slowest, *counts)


def row_of(task: BenchTask, method: str, found: Found) -> tuple[str, ...]:
    return (
        task.label,
        method,
        f"{found.shared_ms:.2f}",
        f"{found.independent_ms:.2f}",
        f"{found.reached:.1%}",
        f"{found.in_step:.1%}",
        f"{found.sent:,.0f}",
        f"{found.least:,.0f}",
        f"{found.exchanges:.1f}",
    )


HEADER = (
    *("task", "method", "shared, ms a round", "independent", "reached", "in step"),
    *("bytes of a rank and round", "least possible", "exchanges"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="of a turn")
    parser.add_argument(
        "--repeats",
        type=int,
        default=48,
        help="turns of each side [%(default)s: five minutes in all]",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--write", action="store_true", help="write reproduction/reports/ranks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with fedfw.join_ranks() as ranks:
        for name, method in MATCHES:
            arguments = METHODS[method], ranks, options.rounds, options.repeats, options.device
            rows.append(row_of(TASKS[name], method, measure(TASKS[name], *arguments)))
            if ranks.first:
                print(" | ".join(rows[-1]), flush=True)
        if not ranks.first:
            return
        lines = [
            *("# Ranks, measured", ""),
            f"Made by `torchrun --nproc-per-node {ranks.size} -m fedfw_reproduction.bench.ranks --write`,",
            f"whose help says what the columns are. {ranks.size} ranks of one thread each. {machine(options.device)}",
            "*Reached* is the throughput of ranks that share a run over that of as many independent processes with",
            "a part of the clients each; *in step* is what it could be if exchanges took no time and each round",
            "waited for the slowest. Both fall where other programs use the cores: the machine's load average was",
            f"{os.getloadavg()[2]:.1f} on {os.cpu_count()} cores.",
            "",
            *markdown(HEADER, rows),
        ]
        publish(lines, "ranks.md" if options.write else None)


if __name__ == "__main__":
    main()
