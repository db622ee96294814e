"""Puts what was measured into docs/performance.md.

fedfw bench small few many mnist mnist-100 mlp cnn --out bench.json
python -m benchmarks.scale > scale.md
python -m benchmarks.wire > wire.md
python -m benchmarks.performance bench.json scale.md wire.md     writes docs/performance.md and its plots
python -m benchmarks.performance --check                         compares a short run with the committed ratios
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from matplotlib.figure import Figure

from benchmarks.common import DOCS, machine, markdown

PAGE, PLOTS, RATIOS = DOCS / "performance.md", DOCS / "performance", Path(__file__).parent / "ratios.json"
TEXT = Path(__file__).parent / "performance-text.md"
MARGIN = 1.5


def bench_tables(numbers: dict) -> list[str]:
    lines = []
    for task in numbers["tasks"].values():
        for algorithm in (name for name in task if name != "label"):
            found = task[algorithm]
            hand = found["by hand"]["round_ms"]
            rows = []
            for who, timing in found.items():
                if isinstance(timing, str):
                    rows.append((who, timing, "", "", "", ""))
                    continue
                times = (timing[key] for key in ("round_ms", "first_ms", "cpu_ms"))
                round_ms, first, cpu = (f"{value:.2f}" for value in times)
                memory = "-" if timing["peak_mb"] is None else f"{timing['peak_mb']:.1f}"
                rows.append((who, round_ms, f"{timing['round_ms'] / hand:.2f}", first, cpu, memory))
            header = ("", "ms a round", "/ by hand", "first round ms", "CPU ms a round", "memory added MB")
            lines += [f"**{algorithm}, {task['label']}**", "", *markdown(header, rows), ""]
    return lines


def ratios(numbers: dict) -> dict[str, float]:
    return {
        f"{name}, {algorithm}": round(found["fedfw"]["round_ms"] / found["by hand"]["round_ms"], 3)
        for name, task in numbers["tasks"].items()
        for algorithm, found in task.items()
        if algorithm != "label"
    }


def plot_bench(numbers: dict) -> None:
    small = numbers["tasks"]["small"]["FedAvg"]
    names = [name for name, timing in small.items() if not isinstance(timing, str)]
    figure = Figure(figsize=(6.5, 2.8), layout="constrained")
    axis = figure.subplots()
    values = [small[name]["round_ms"] for name in names]
    axis.barh(names, values, color=["C1" if name == "fedfw" else "C0" for name in names])
    axis.bar_label(axis.containers[0], [f" {value:,.2f}" for value in values])
    axis.set(xscale="log", xlabel="milliseconds a round (FedAvg, 100 clients x 50 samples x 60 features, 1 thread)")
    axis.set_xlim(right=10 * max(values))
    axis.invert_yaxis()
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / "frameworks.svg", metadata={"Date": None})


def plot_scale(table: str) -> None:
    rows = [[cell.strip().replace(",", "") for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    figure = Figure(figsize=(6.5, 2.8), layout="constrained")
    seconds, memory = figure.subplots(1, 2)
    registered = [float(row[0]) for row in rows]
    for axis, column, label in ((seconds, 1, "seconds a round"), (memory, 3, "peak memory (GB)")):
        axis.semilogx(registered, [float(row[column]) for row in rows], "o-")
        axis.set(xlabel="registered clients", ylabel=label)
        axis.set_ylim(bottom=0)
    figure.savefig(PLOTS / "scale.svg", metadata={"Date": None})


def check() -> None:
    """Print how the ratios of a short run stand to the committed ones; never an error: timings are noisy."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "fedfw", "bench", "small", "--frameworks", "none", "--repeats", "3"]
        subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
        now = ratios(json.loads(out.read_text()))
    committed = json.loads(RATIOS.read_text())
    for name, ratio in now.items():
        then = committed[name]
        verdict = "SLOWER than it was" if ratio > MARGIN * then else "as before"
        print(f"speed: {name}: {ratio:.2f} times hand-batched, {then:.2f} when committed: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", nargs="*", type=Path, help="bench.json, scale.md, wire.md")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        check()
        return
    bench, scale, wire = options.measured
    numbers = json.loads(bench.read_text())
    torch.set_num_threads(numbers["threads"])  # for what is said of the machine
    plot_bench(numbers)
    plot_scale(scale.read_text())
    parts = {
        "MACHINE": machine(),
        "BENCH": "\n".join(bench_tables(numbers)),
        "SCALE": scale.read_text().strip(),
        "WIRE": wire.read_text().strip(),
    }
    page = TEXT.read_text()
    for name, part in parts.items():
        page = page.replace(f"<!-- {name} -->", part)
    PAGE.write_text(page)
    RATIOS.write_text(json.dumps(ratios(numbers), indent=1) + "\n")


if __name__ == "__main__":
    main()
