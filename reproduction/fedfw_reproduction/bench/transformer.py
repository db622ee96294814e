"""A simulated round of FedLMO on the transformer, beside the bare passes that it cannot do without.

    python -m fedfw_reproduction.bench.transformer [--device cuda] [--rounds 20]

10 clients of 82 take part with 10 local steps on 16 windows of 96 characters each. *Bare passes* are vmap of grad over
the ten stacked clients' minibatches, 10 times: as they come from Python, and replayed as a CUDA graph. The text is
random: times do not depend on it. Peak memory is shown for 82 and for 820 registered clients.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.profiler import ProfilerActivity, profile

import fedfw
from fedfw.models.transformer import Transformer
from fedfw.problems.modules import unflatten
from fedfw.rounds.options import Options
from fedfw.sets.base import shapes_of
from fedfw.simulation import Simulation
from fedfw_reproduction.bench.gpu import replayed_ms
from fedfw_reproduction.bench.pages import machine, markdown

CLIENTS, PRESENT, STEPS, BATCH, CONTEXT, CHARACTERS = 82, 10, 10, 16, 96, 65


def problem(clients: int) -> fedfw.Problem:
    """Clients with different numbers of windows of random characters."""
    generator = torch.Generator().manual_seed(0)
    data = []
    for i in range(clients):
        windows = torch.randint(0, CHARACTERS, (40 + 10 * (i % 9), CONTEXT + 1), generator=generator)
        data.append((windows[:, :-1], windows[:, 1:]))
    torch.manual_seed(0)
    return fedfw.Problem(Transformer(CHARACTERS, CONTEXT, 128, 4, 4), nnf.cross_entropy, data, data[0])


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(function: Callable[[], object], device: str, times: int) -> float:
    """The median of some calls, after a few that do not count."""
    seconds = []
    for _ in range(times + 3):
        synchronize(device)
        begin = time.perf_counter()
        function()
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return 1e3 * median(seconds[3:])


def print_memory(device: str) -> None:
    """The peak of rounds, for few and for many registered clients."""
    for clients in (CLIENTS, 10 * CLIENTS):
        for options in ({}, {"correction": False}):
            larger, peaks = problem(clients), list[int]()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            algorithm = fedfw.FedLMO(fedfw.parse_set("layers:3"), **options)
            fedfw.simulate(
                larger,
                algorithm,
                rounds=5,
                participation=PRESENT,
                local_steps=2,
                batch_size=BATCH,
                eval_every=10**6,
                device=device,
                callbacks=lambda _, peaks=peaks: peaks.append(torch.cuda.max_memory_allocated()),
            )
            # The last round is evaluated, with as much memory as there is.
            print(f"{clients} clients, {options or 'with correction'}: peak {peaks[-2] / 2**20:,.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--profile", action="store_true", help="where the time of the rounds goes, by kernel")
    wanted = parser.parse_args()
    device = wanted.device
    task = problem(CLIENTS)
    model = Transformer(CHARACTERS, CONTEXT, 128, 4, 4).to(device)
    shapes = shapes_of(model)
    x = task.start.to(device).expand(PRESENT, -1).contiguous()
    inputs = torch.randint(0, CHARACTERS, (PRESENT, BATCH, CONTEXT), device=device)

    def loss(x: Tensor, inputs: Tensor) -> Tensor:
        return nnf.cross_entropy(functional_call(model, unflatten(x, shapes), (inputs,)), inputs)

    passes = vmap(grad(loss))
    bare = STEPS * milliseconds(lambda: passes(x, inputs), device, wanted.rounds)
    rows = [["bare passes, from Python", f"{bare:.1f}", "1.00", ""]]
    if device == "cuda":
        replayed = STEPS * replayed_ms(lambda: passes(x, inputs), times=50)
        rows.append(["bare passes, replayed", f"{replayed:.1f}", f"{replayed / bare:.2f}", "1.00"])
    labelled: dict[str, dict[str, Any] | None] = {
        "FedLMO": {},
        "FedLMO without correction": {"correction": False},
        "FedAvg": None,
    }
    for label, options in labelled.items():
        algorithm: fedfw.Algorithm = fedfw.FedAvg(fedfw.LinfBall(1e6), lr=0.1)
        if options is not None:
            algorithm = fedfw.FedLMO(fedfw.parse_set("layers:3"), **options)
        run = Options(
            rounds=wanted.rounds + 8,
            participation=PRESENT,
            local_steps=STEPS,
            batch_size=BATCH,
            eval_every=10**6,
            device=device,
        )
        marks: list[float] = []

        def watch(simulation: Simulation, marks: list[float] = marks) -> None:
            synchronize(device)
            marks.append(time.perf_counter())

        simulation = Simulation(task, algorithm, run, callbacks=watch)
        if wanted.profile and options == {}:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                simulation.run()
            print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=25))
            print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))
        else:
            simulation.run()
        ms = 1e3 * median(b - a for a, b in list(pairwise(marks))[6:-1])
        of_graph = f"{ms / replayed:.2f}" if device == "cuda" else ""
        rows.append([label, f"{ms:.1f}", f"{ms / bare:.2f}", of_graph])
    print(machine(device), "", *markdown(["a round", "ms", "of bare passes", "of replayed ones"], rows), sep="\n")
    if device == "cuda":
        print_memory(device)


if __name__ == "__main__":
    main()
