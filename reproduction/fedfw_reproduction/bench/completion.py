"""Matrix completion on MovieLens-100k inside a nuclear ball: FedFW+ against projected methods.

    python -m fedfw_reproduction.bench.completion --tune      how the choices below were made
    python -m fedfw_reproduction.bench.completion             print the table
    python -m fedfw_reproduction.bench.completion --write     and put it, with its picture, into docs/completion.md

Ten clients are groups of users, so no two of them have ratings in a common row. Targets are what user and item means
leave unexplained: to predict zero is to predict by the means. Every method takes five local steps a round. The choices
were made on a fifth of each client's training ratings (which the means had seen; the test ratings nobody had).
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import accumulate
from pathlib import Path

import fedfw
from fedfw.data import load_data
from fedfw.presets import ProblemOptions, make_problem
from fedfw.report.tables import human_bytes
from fedfw_reproduction.bench.pages import DOCS, machine, markdown, publish

LOCAL_STEPS = 5
GRIDS: dict[str, list[fedfw.Algorithm]] = {
    "fedfw+": [
        fedfw.FedFWPlus(fedfw.NuclearBall(r), penalty=penalty, momentum=0.9)
        for r in (500.0, 1000.0)
        for penalty in ("theory:0.3", "theory:1", "theory:3", "theory:10")
    ],
    "fedavg": [
        fedfw.FedAvg(fedfw.NuclearBall(r), lr=lr)
        for r in (500.0, 1000.0)
        for lr in ("theory:0.1", "theory:0.3", "theory:1", "theory:1.9")
    ],
    "feddr": [
        fedfw.FedDR(fedfw.NuclearBall(r), lr="theory", eta=eta, alpha=1.9)
        for r in (500.0, 1000.0)
        for eta in (1e3, 3e3, 1e4, 3e4)
    ],
}
CHOSEN: list[fedfw.Algorithm] = [
    fedfw.FedFWPlus(fedfw.NuclearBall(500.0), penalty="theory:1", momentum=0.9),
    fedfw.FedAvg(fedfw.NuclearBall(500.0), lr="theory:1.9"),
    fedfw.FedDR(fedfw.NuclearBall(500.0), lr="theory", eta=3e4, alpha=1.9),
]


def rmse(record: fedfw.Record) -> float:
    assert record.test_loss is not None
    return math.sqrt(record.test_loss)


def simulate(
    problem: fedfw.Problem, algorithm: fedfw.Algorithm, rounds: int, looks: int, device: str = "cpu"
) -> fedfw.Run:
    print(f"... {algorithm}", file=sys.stderr, flush=True)
    every = max(1, rounds // looks)
    return fedfw.simulate(problem, algorithm, rounds=rounds, local_steps=LOCAL_STEPS, eval_every=every, device=device)


def tune(problem: fedfw.Problem, rounds: int, device: str) -> None:
    for algorithms in GRIDS.values():
        for algorithm in algorithms:
            run = simulate(problem, algorithm, rounds, 1, device)
            print(f"{algorithm}: held-out RMSE {rmse(run.history[-1]):.4f}", flush=True)


def seconds(record: fedfw.Record) -> float:
    """Of the round itself: evaluations belong to the experiment."""
    assert record.seconds is not None
    return sum(record.seconds.values()) - record.seconds["evaluation"]


def row(run: fedfw.Run) -> tuple[str, ...]:
    history = run.history
    looked = [r for r in history if r.test_loss is not None]
    total = sum(map(seconds, history))
    parts = {part: sum((r.seconds or {})[part] for r in history) / total for part in ("oracle", "projection")}
    reached = next((r.round for r in looked if rmse(r) <= 0.945), None)
    upto = [r for r in history if reached is not None and r.round <= reached]
    return (
        f"`{run.algorithm.name}`",
        f"{rmse(looked[-1]):.4f}",
        f"{min(map(rmse, looked)):.4f}",
        f"{history.last('loss'):.4f}",
        f"{total / len(history):.2f}",
        f"{parts['oracle']:.0%}",
        f"{parts['projection']:.0%}",
        human_bytes(history.total("bytes_up")),
        "-" if reached is None else f"{reached}",
        "-" if reached is None else f"{sum(map(seconds, upto)):.0f}",
        "-" if reached is None else human_bytes(sum(r.bytes_up for r in upto)),
    )


def save_picture(runs: list[fedfw.Run], means: float) -> None:
    from matplotlib.figure import Figure

    from fedfw.report.plots import save_figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    by_time, by_bytes = figure.subplots(1, 2)
    for run in runs:
        clock = list(accumulate(map(seconds, run.history)))
        sent = list(accumulate(r.bytes_up / 1e6 for r in run.history))
        looked = [r for r in run.history if r.test_loss is not None]
        values = [rmse(r) for r in looked]
        by_time.plot([clock[r.round - 1] for r in looked], values, label=run.algorithm.name)
        by_bytes.plot([sent[r.round - 1] for r in looked], values, label=run.algorithm.name)
    by_time.set(xlabel="seconds, all clients on one machine", ylabel="test RMSE")
    by_bytes.set(xlabel="MB sent up, all clients", xscale="log")
    for axis in (by_time, by_bytes):
        axis.axhline(means, color="grey", ls=":", label="means alone")
        axis.grid(alpha=0.3)
        axis.legend()
    save_figure(figure, DOCS / "completion.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with ml-100k ($FEDFW_DATA)")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--tune", action="store_true", help="print the held-out RMSE of the grids after 50 rounds")
    parser.add_argument("--device", default="cpu", help="where to tune: cpu or cuda [%(default)s]")
    parser.add_argument("--write", action="store_true", help="write docs/completion.md and its picture")
    options = parser.parse_args()
    data = load_data("ml-100k", options.data_dir)
    wanted = ProblemOptions(dataset="ml-100k", model="completion", clients=10, partition="user")
    if options.tune:
        tune(make_problem(data, wanted, held_out=0.2), 50, options.device)
        return
    problem = make_problem(data, wanted)
    means = problem.test(problem.start).loss
    assert means is not None
    runs = [simulate(problem, algorithm, options.rounds, 20) for algorithm in CHOSEN]
    header = ("", "test RMSE", "best seen", "training loss", "s a round", "oracle", "projection", "sent up")
    to_target = ("rounds to 0.945", "seconds", "sent up by then")
    lines = [
        "# Matrix completion on MovieLens-100k",
        "",
        "Made by `python -m fedfw_reproduction.bench.completion --write`;",
        "what is compared stands at the top of that file.",
        machine(),
        "",
        f"{options.rounds} rounds of {LOCAL_STEPS} local steps, nuclear ball. The means alone: {math.sqrt(means):.4f}.",
        "Seconds are those of rounds without their evaluation; oracle and projection are their shares of it. FedFW+",
        f"calls the oracle {10 * LOCAL_STEPS} times a round, once for each client and local step; the others project",
        "once, on the server.",
        "",
        *markdown((*header, *to_target), [row(run) for run in runs]),
        "",
        *(f"- `{run.algorithm.name}`: {run.algorithm}" for run in runs),
        "",
        "![test RMSE against seconds and against bytes](completion.png)",
    ]
    publish(lines, "completion.md" if options.write else None)
    if options.write:
        save_picture(runs, math.sqrt(means))


if __name__ == "__main__":
    main()
