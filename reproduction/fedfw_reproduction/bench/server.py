"""What a round costs the deployed server: seconds and bytes written, with 1,000 clients and 500,000
parameters.

    python -m fedfw_reproduction.bench.server [--clients 1000] [--rounds 20] [--features 50000]
    [--write]

Softmax regression on the l1 ball. The clients' atoms are made up, so that nothing but the server is
timed: everything that `DeployedServer` does in `open`, `take` and `close`, saving included. "all
different" is the worst there is: in every round every client names a coordinate that it draws from
all 500,000. "popular" draws half of them from 1,000 coordinates that clients share, as data with
features in common do. Bytes are those that the process wrote. Each line is a process of its own, so
that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as nnf
from torch import Tensor

import fedfw
from fedfw.deployment import DeployedServer, Deployment, Task
from fedfw.deployment.messages import Answer
from fedfw.rounds.wire import state_digest
from fedfw.simulation import Options
from fedfw_reproduction.bench.pages import machine, markdown, publish

POPULAR = 1000
NOTES = [
    "What the server keeps, and so its time, grows with the coordinates that somebody named: for each of them and each",
    "client 8 bytes for x_i and, for FedFW+, 8 for y_i. The journal does not grow with them. After 100 rounds, once,",
    "all that is kept is written as a checkpoint, by its non-zero entries: a round in 100 writes more than the table",
    "says, for FedFW+ up to 8 bytes for each client and coordinate. To resume is to load a checkpoint and go through",
    "the rounds of the journal again, at most 100.",
]
CASES = {
    "FedFW, all different": ("fedfw", "different", 1.0),
    "FedFW, popular": ("fedfw", "popular", 1.0),
    "FedFW+, all different": ("fedfw+", "different", 1.0),
    "FedFW+, popular": ("fedfw+", "popular", 1.0),
    "FedFW+, popular, half absent": ("fedfw+", "popular", 0.5),
}


def coordinates(kind: str, count: int, p: int, generator: torch.Generator) -> Tensor:
    """Which coordinate each of ``count`` clients names."""
    drawn = torch.randint(p, (count,), generator=generator)
    if kind == "popular":
        shared = torch.rand(count, generator=generator) < 0.5
        drawn[shared] = drawn[shared] % POPULAR
    return drawn


def bytes_written() -> int:
    """By this process, so far."""
    return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])


def measure(case: str, clients: int, features: int, rounds: int) -> dict[str, float]:
    """One run in this process."""
    name, kind, share = CASES[case]
    constraint = fedfw.L1Ball(10.0)
    algorithm = {"fedfw": fedfw.FedFW, "fedfw+": fedfw.FedFWPlus}[name](
        constraint, penalty=1e-3, momentum=0.0
    )
    model = torch.nn.Linear(features, 10, bias=False)
    torch.nn.init.zeros_(model.weight)
    options = Options(rounds=rounds + 1, participation=share)
    task = Task(model, nnf.cross_entropy, algorithm, lambda client: None, clients, options=options)
    generator, p = torch.Generator().manual_seed(0), 10 * features
    seconds, cpu, written = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        settings = Deployment(out=Path(folder) / "server")
        server = DeployedServer(task, settings)
        for _ in range(rounds):
            before, began, begun = bytes_written(), time.perf_counter(), time.process_time()
            orders = server.open(server.roster.members)
            spent, used = time.perf_counter() - began, time.process_time() - begun
            g = torch.zeros(p)
            coordinator = server.coordinator
            answers = {}
            for client, at in zip(
                orders, coordinates(kind, len(orders), p, generator).tolist(), strict=True
            ):
                g[at] = 1.0 - 2.0 * (client % 2)
                rows = coordinator.memory.view(torch.tensor([client]))
                known = {name: values[0] for name, values in rows.items()}
                answers[client] = Answer(
                    server.run,
                    server.t + 1,
                    client,
                    algorithm.label,
                    task.constraint.lmo(g).to_bytes(),
                    state_digest(known, coordinator.memory.columns),
                ).fields()
                g[at] = 0.0
            began, begun = time.perf_counter(), time.process_time()
            refused = [
                reason
                for client, answer in answers.items()
                if (reason := server.take(client, answer))
            ]
            record = server.close()
            seconds.append(spent + time.perf_counter() - began)
            cpu.append(used + time.process_time() - begun)
            written.append(bytes_written() - before)
            assert not refused
            assert record.participants == len(orders)
        columns = coordinator.memory.columns
        digest, began = record.digest, time.perf_counter()
        del server
        again = DeployedServer(task, Deployment(out=settings.out, resume=True))
        resuming = time.perf_counter() - began
        assert again.history[-1] == record
        assert digest == record.digest
    return {
        "seconds": statistics.median(seconds),
        "cpu": statistics.median(cpu),
        "most_cpu": max(cpu),
        "mb": statistics.median(written) / 1e6,
        "most_mb": max(written) / 1e6,
        "columns": p if columns is None else len(columns),
        "resume": resuming,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--features", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="write reproduction/reports/server.md")
    parser.add_argument("--one", choices=list(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [str(options.clients), str(options.features), str(options.rounds)]
    if options.one is not None:
        torch.set_num_threads(1)
        print(json.dumps(measure(options.one, *map(int, sizes))))
        return
    rows = []
    for case in CASES:
        flags = ["--one", case, "--clients", sizes[0], "--features", sizes[1], "--rounds", sizes[2]]
        command = [sys.executable, "-m", "fedfw_reproduction.bench.server", *flags]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(printed.splitlines()[-1])
        rows.append(
            [
                case,
                f"{found['seconds']:.2f}",
                f"{found['cpu']:.2f}",
                f"{found['most_cpu']:.2f}",
                f"{found['mb']:.2f}",
                f"{found['most_mb']:.2f}",
                f"{found['columns']:,}",
                f"{found['resume']:.1f}",
                f"{found['peak_gb']:.2f}",
            ]
        )
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    header = [
        "",
        "s a round",
        "CPU s",
        "most",
        "MB written",
        "most",
        "coordinates kept",
        "s to resume",
        "peak GB",
    ]
    torch.set_num_threads(1)
    lines = [
        "# What a round costs the deployed server",
        "",
        f"`python -m fedfw_reproduction.bench.server --rounds {options.rounds} --write`:",
        f"{options.clients:,} clients, the l1 ball,",
        f"{10 * options.features:,} parameters, {options.rounds} rounds; medians, and the worst round.",
        f"{machine()}",
        f"The machine's load average was {os.getloadavg()[2]:.1f} on {os.cpu_count()} cores: CPU s is what the server",
        "used, and the seconds of a round also have what it waited for others.",
        "",
        *markdown(header, rows),
        "",
        *NOTES,
    ]
    publish(lines, "server.md" if options.write else None)


if __name__ == "__main__":
    main()
