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
that is not zero, or the vector. ``--write`` also works out on paper what larger clusters would do,
and writes reproduction/reports/ranks.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
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
    clients, parameters : int
        Of the task.
    shared_ms, independent_ms : float
        Of a round.
    reached, in_step : float
        Throughput over that of independent processes, and what it could be if exchanges took no
        time.
    sent, least, exchanges : float
        Bytes of a rank and round, the fewest possible, and how many exchanges there were.
    """

    clients: int
    parameters: int
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


def least_bytes(
    problem: fedfw.Problem, algorithm: fedfw.Algorithm, rounds: int, device: str
) -> float:
    """Return the bytes that have to leave this rank in a round without evaluation, from what it
    sums.
    """

    def summed(rounds: int) -> int:
        options = Options(rounds=rounds, eval_every=10**9, device=device)
        return bytes_summed(Simulation(problem, algorithm, options))

    return (summed(rounds + 1) - summed(1)) / rounds  # each run evaluates its last round


def bytes_summed(simulation: Simulation) -> int:
    """Run a simulation; return the fewest bytes in which this rank's parts of sums can travel."""
    ranks = simulation.ranks
    whole = ranks.sums
    found: list[int] = []

    def watched(*tensors: Tensor) -> list[Tensor]:
        for tensor in tensors:
            entries = int((tensor != 0).sum())
            found.append(min(entries * (4 + tensor.itemsize), tensor.nbytes))
        return whole(*tensors)

    ranks.sums = watched  # type: ignore[method-assign]
    try:
        simulation.run()
    finally:
        ranks.sums = whole  # type: ignore[method-assign]
    return sum(found)


class Counter(fedfw.Callback):
    """Remembers after every round what the first rank has given to exchanges so far."""

    decides = False  # no rank waits for it

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def after_round(self, simulation: Simulation) -> None:
        self.found.append((simulation.ranks.sent, simulation.ranks.exchanges))


def told(
    problem: fedfw.Problem, algorithm: fedfw.Algorithm, rounds: int, device: str
) -> tuple[float, float]:
    """Bytes that the first rank gives to exchanges in a round without evaluation, and how many
    exchanges there are.
    """
    counter, options = Counter(), Options(rounds=rounds + 2, eval_every=10**9, device=device)
    Simulation(problem, algorithm, options, callbacks=[counter]).run()
    if not counter.found:  # on another rank
        return 0.0, 0.0
    (sent, met), (sent_later, met_later) = counter.found[0], counter.found[rounds]
    return (sent_later - sent) / rounds, (met_later - met) / rounds


def measure(
    task: BenchTask, make: Make, ranks: fedfw.Ranks, rounds: int, repeats: int, device: str
) -> Found:
    clients = list(zip(*task.data(), strict=True))
    shared = fedfw.Problem(task.module(), nnf.cross_entropy, clients, ranks=ranks)
    own = shared.losses.all_clients(torch.device("cpu")).tolist()
    alone = fedfw.Problem(task.module(), nnf.cross_entropy, [clients[i] for i in own])
    algorithm = make(task)
    least = least_bytes(shared, algorithm, rounds, device)
    sent, exchanges = told(shared, algorithm, rounds, device)
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
    ratios = apart / together, apart / slowest
    return Found(task.clients, task.parameters, together, apart, *ratios, sent, least, exchanges)


def row_of(task: BenchTask, method: str, found: Found) -> tuple[str, ...]:
    times = (
        f"{found.shared_ms:.2f}",
        f"{found.independent_ms:.2f}",
        f"{found.reached:.1%}",
        f"{found.in_step:.1%}",
    )
    return (
        task.label,
        method,
        *times,
        f"{found.sent:,.0f}",
        f"{found.least:,.0f}",
        f"{found.exchanges:.1f}",
    )


HEADER = (
    *("task", "method", "shared, ms a round", "independent", "reached", "in step"),
    *("bytes of a rank and round", "least possible", "exchanges"),
)


# --- larger clusters, on paper ---


@dataclass(frozen=True)
class Cluster:
    """Ranks and what lies between them, as assumed: not measured here."""

    name: str
    ranks: int
    latency: float  # seconds of a small exchange, times log2 of the ranks
    bandwidth: float  # bytes a second of each rank
    speed: float  # how much faster a rank works through its clients than the process that was timed


CLUSTERS = (
    Cluster("8 GPUs, NVLink", 8, 15e-6, 200e9, 250.0),
    Cluster("64 nodes of 1 core, 100 Gb/s Ethernet", 64, 30e-6, 10e9, 1.0),
)


def on_paper(cluster: Cluster, found: Found, clients: int) -> tuple[float, float, str]:
    """Milliseconds of work and of exchanges in a round with so many clients like those of the task,
    and the bound.
    """
    k = cluster.ranks
    work = clients / k * (found.independent_ms / (found.clients / 2)) / cluster.speed
    dense = found.least >= 4 * found.parameters
    # An all-reduce sends two vectors; of entries every rank is sent all the others', which grow
    # with its clients.
    grown = found.sent if dense else found.sent * (clients / k) / (found.clients / 2)
    volume = 2 * grown if dense else min(k * grown, 2 * 8 * found.parameters)
    waits, moves = found.exchanges * cluster.latency * math.log2(k), volume / cluster.bandwidth
    talk = 1e3 * (waits + moves)
    parts = {"gradients": work, "latency": 1e3 * waits, "bytes": 1e3 * moves}
    return work, talk, max(parts, key=parts.__getitem__)


def paper_rows(found: dict[tuple[str, str], Found], clients: int = 1000) -> list[tuple[str, ...]]:
    rows = []
    for cluster in CLUSTERS:
        for (name, method), one in found.items():
            work, talk, bound = on_paper(cluster, one, clients)
            share = work / (work + talk)
            task = TASKS[name]
            sizes = (f"{work:.3g}", f"{talk:.3g}", f"{share:.0%}")
            rows.append(
                (
                    cluster.name,
                    f"{method}, {task.model}, {task.samples} samples a client",
                    *sizes,
                    bound,
                )
            )
    return rows


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
    found: dict[tuple[str, str], Found] = {}
    with fedfw.join_ranks(device=options.device) as ranks:
        for name, method in MATCHES:
            arguments = METHODS[method], ranks, options.rounds, options.repeats, options.device
            found[name, method] = measure(TASKS[name], *arguments)
            if ranks.first:
                print(" | ".join(row_of(TASKS[name], method, found[name, method])), flush=True)
        if not ranks.first:
            return
        rows = [row_of(TASKS[name], method, one) for (name, method), one in found.items()]
        paper = (
            "cluster",
            "method and task",
            "work, ms a round",
            "exchanges, ms",
            "efficiency",
            "bound by",
        )
        lines = [
            *("# Ranks, measured", ""),
            f"Made by `torchrun --nproc-per-node {ranks.size} -m fedfw_reproduction.bench.ranks --write`,",
            f"whose help says what the columns are. {ranks.size} ranks of one thread each. {machine(options.device)}",
            "*Reached* is the throughput of ranks that share a run over that of as many independent processes with",
            "a part of the clients each; *in step* is what it could be if exchanges took no time and each round",
            "waited for the slowest.",
            *("", *markdown(HEADER, rows), "", "## Larger clusters, on paper", ""),
            "A round with 1,000 clients like those above, from the measured times, bytes and numbers of exchanges.",
            "Assumed, not measured: " + "; ".join(assumed(cluster) for cluster in CLUSTERS) + ".",
            *("", *markdown(paper, paper_rows(found))),
        ]
        publish(lines, "ranks.md" if options.write else None)


def assumed(cluster: Cluster) -> str:
    speed = "" if cluster.speed == 1 else f", a rank {cluster.speed:g} times as fast as one core"
    wait = f"{cluster.latency * 1e6:g} us x log2(ranks) for each exchange"
    return f"{cluster.name}: {wait}, {cluster.bandwidth / 1e9:g} GB/s for each rank{speed}"


if __name__ == "__main__":
    main()
