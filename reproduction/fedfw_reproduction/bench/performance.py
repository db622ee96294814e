"""Measures everything that reproduction/reports/performance.md shows on this machine, and writes the page.

    python -m fedfw_reproduction.bench.performance            about twenty minutes on a quiet machine with two cores
    python -m fedfw_reproduction.bench.performance --short    fewer repeats, and a million clients for fewer rounds
    python -m fedfw_reproduction.bench.performance --check    compares the ratios of a short run with the committed ones

A GPU's figures are those of `python -m fedfw_reproduction.bench.gpu --write`, which is run on a
machine with one and keeps them in reproduction/reports/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from fedfw_reproduction.bench.pages import REPORTS, ROOT, machine, markdown
from fedfw_reproduction.bench.run import HEADER, table_rows
from fedfw_reproduction.bench.timing import Timing

PAGE, PLOTS, RATIOS = (
    REPORTS / "performance.md",
    REPORTS / "performance",
    Path(__file__).parent / "ratios.json",
)
TEXT, FRAMEWORKS = (
    Path(__file__).parent / "performance-text.md",
    ROOT / "reproduction" / "frameworks",
)
MARGIN = 1.5
TASKS = ("small", "few", "many", "mnist", "mnist-100", "mlp", "cnn")


# --- measuring ---


def told(what: str, command: list[str]) -> str:
    """What a command prints; its progress goes to the terminal."""
    print(f"{what} ...", file=sys.stderr, flush=True)
    begin = time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    print(f"{what}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return done.stdout


def bench(tasks: tuple[str, ...], *options: str) -> dict[str, Any]:
    """What `fedfw bench` finds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        told("fedfw bench", ["-m", "fedfw", "bench", *tasks, "--out", str(out), *options])
        numbers: dict[str, Any] = json.loads(out.read_text())
    return numbers


# --- showing ---


def bench_tables(numbers: dict[str, Any]) -> list[str]:
    lines = []
    for task in numbers["tasks"].values():
        for algorithm in (name for name in task if name != "label"):
            found = {
                who: t if isinstance(t, str) else Timing(**t) for who, t in task[algorithm].items()
            }
            rows = table_rows(found)
            lines += [f"**{algorithm}, {task['label']}**", "", *markdown(HEADER, rows), ""]
    return lines


def ratios(numbers: dict[str, Any]) -> dict[str, float]:
    return {
        f"{name}, {algorithm}": round(found["fedfw"]["round_ms"] / found["by hand"]["round_ms"], 3)
        for name, task in numbers["tasks"].items()
        for algorithm, found in task.items()
        if algorithm != "label"
    }


def summary(numbers: dict[str, Any]) -> list[str]:
    """One line a task and algorithm: the simulator's round over that by hand, and over the bare
    products.
    """
    rows = []
    for task in numbers["tasks"].values():
        for algorithm in (name for name in task if name != "label"):
            found = {
                who: timing["round_ms"]
                for who, timing in task[algorithm].items()
                if not isinstance(timing, str)
            }
            bare = next((ms for who, ms in found.items() if who.startswith("bare products")), None)
            over_bare = "" if bare is None else f"{found['fedfw'] / bare:.2f}"
            over_hand = f"{found['fedfw'] / found['by hand']:.2f}"
            rows.append(
                (f"{algorithm}, {task['label']}", f"{found['fedfw']:.2f}", over_hand, over_bare)
            )
    return markdown(("a round of", "ms", "/ by hand", "/ bare products"), rows)


def plot_bench(numbers: dict[str, Any]) -> None:
    small = numbers["tasks"]["small"]["FedAvg"]
    names = [name for name, timing in small.items() if not isinstance(timing, str)]
    figure = Figure(figsize=(6.5, 2.8), layout="constrained")
    axis = figure.subplots()
    values = [small[name]["round_ms"] for name in names]
    axis.barh(names, values, color=["C1" if name == "fedfw" else "C0" for name in names])
    axis.bar_label(axis.containers[0], [f" {value:,.2f}" for value in values])
    axis.set(
        xscale="log",
        xlabel="milliseconds a round (FedAvg, 100 clients x 50 samples x 60 features, 1 thread)",
    )
    axis.set_xlim(right=10 * max(values))
    axis.invert_yaxis()
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / "frameworks.svg", metadata={"Date": None})


def plot_scale(table: str) -> None:
    rows = [
        [cell.strip().replace(",", "") for cell in line.strip("| ").split("|")]
        for line in table.splitlines()[2:]
    ]
    figure = Figure(figsize=(6.5, 2.8), layout="constrained")
    seconds, memory = figure.subplots(1, 2)
    registered = [float(row[0]) for row in rows]
    for axis, column, label in ((seconds, 1, "seconds a round"), (memory, 3, "peak memory (GB)")):
        axis.semilogx(registered, [float(row[column]) for row in rows], "o-")
        axis.set(xlabel="registered clients", ylabel=label)
        axis.set_ylim(bottom=0)
    figure.savefig(PLOTS / "scale.svg", metadata={"Date": None})


def check() -> None:
    """Print how the ratios of a short run stand to the committed ones; never an error: timings are
    noisy.
    """
    now = ratios(bench(("small",), "--frameworks", "none", "--repeats", "3", "--seconds", "3"))
    committed = json.loads(RATIOS.read_text())
    for name, ratio in now.items():
        then = committed[name]
        verdict = "SLOWER than it was" if ratio > MARGIN * then else "as before"
        print(
            f"speed: {name}: {ratio:.2f} times hand-batched, {then:.2f} when committed: {verdict}"
        )


def write(short: bool) -> None:
    os.environ.setdefault("FEDFW_FRAMEWORKS", str(FRAMEWORKS))
    numbers = bench(TASKS, *(("--repeats", "3") if short else ()))
    RATIOS.write_text(json.dumps(ratios(numbers), indent=1) + "\n")
    fewer = ("--rounds", "20") if short else ()
    scale = told("a million clients", ["-m", "fedfw_reproduction.bench.scale", *fewer]).strip()
    wire = told("bytes", ["-m", "fedfw_reproduction.bench.wire"]).strip()
    torch.set_num_threads(numbers["threads"])  # for what is said of the machine
    plot_bench(numbers)
    plot_scale(scale)
    parts = {
        "MACHINE": machine(),
        "OPTIONS": " --short" if short else "",
        "SUMMARY": "\n".join(summary(numbers)),
        "BENCH": "\n".join(bench_tables(numbers)),
        "SCALE": scale,
        "WIRE": wire,
        "GPU": (REPORTS / "gpu.md").read_text().strip(),
    }
    page = TEXT.read_text()
    for name, part in parts.items():
        page = page.replace(f"<!-- {name} -->", part)
    PAGE.write_text(page)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the ratios of a short run; writes nothing"
    )
    parser.add_argument("--short", action="store_true", help="fewer repeats: about ten minutes")
    options = parser.parse_args()
    if options.check:
        check()
    else:
        write(options.short)


if __name__ == "__main__":
    main()
