"""MNIST by writer: 539 clients, a tenth of them a round, softmax regression inside an l1 ball.

    python -m fedfw_reproduction.bench.writers             print the table
    python -m fedfw_reproduction.bench.writers --write     and put it into docs/writers.md

FedFW and FedFW+ send one atom a client and round, FedAvg a dense model. The bytes are compared at equal rounds, and at
equal loss: what each had sent when it first reached the highest of the losses at which the three ended. Down, each
client gets the coordinates of the model that changed since it was last there; FedFW+ with absentees also sends its mean
dual, dense.
"""

from __future__ import annotations

import argparse
import sys
from itertools import accumulate

import fedfw
from fedfw.config import RunConfig, build_algorithm, build_problem, completed, load
from fedfw.report.tables import human_bytes
from fedfw_reproduction.bench.pages import machine, markdown, publish

CHOSEN = {
    # fedfw tune --dataset mnist --partition writer --clients 539 --participation 0.1 --constraint l1:30 --rounds 300
    # --algorithm NAME, with the grids of version 0.1, which were multiples of the theory's scale
    "fedfw": {"penalty": "theory:0.003", "momentum": 0.9},
    "fedfw+": {"penalty": "theory:0.1", "momentum": 0.9},
    "fedavg": {"lr": "theory:48"},
}


def configuration(name: str, data_dir: str | None, rounds: int) -> RunConfig:
    return RunConfig.of(
        dataset="mnist",
        data_dir=data_dir,
        partition="writer",
        clients=539,
        constraint="l1:30",
        algorithm=name,
        participation=0.1,
        rounds=rounds,
        **CHOSEN[name],
    )


def spent(run: fedfw.Run, loss: float) -> tuple[str, str, str]:
    """Rounds, bytes up and bytes down until the loss was first reached."""
    up, down = (list(accumulate(getattr(r, way) for r in run.history)) for way in ("bytes_up", "bytes_down"))
    for record in run.history:
        if record.loss is not None and record.loss <= loss:
            at = record.round - 1
            return str(record.round), human_bytes(up[at]), human_bytes(down[at])
    return "never", "-", "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder with mnist and qmnist-labels ($FEDFW_DATA)")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="write docs/writers.md")
    options = parser.parse_args()
    runs: dict[str, fedfw.Run] = {}
    problem = None
    for name in CHOSEN:
        config = configuration(name, options.data_dir, options.rounds)
        data = load(config)
        config = completed(config, data)
        problem = problem or build_problem(config, data)
        print(f"... {name}", file=sys.stderr, flush=True)
        runs[name] = fedfw.simulate(
            problem, build_algorithm(config), rounds=options.rounds, participation=config.participation, eval_every=1
        )
    target = max(run.history.last("loss") for run in runs.values())
    rows = []
    for name, run in runs.items():
        history = run.history
        taking_part = history.total("participants")
        rows.append(
            (
                f"`{name}`",
                f"{history.last('loss'):.4f}",
                f"{100 * history.last('accuracy'):.1f}",
                human_bytes(history.total("bytes_up")),
                human_bytes(history.total("bytes_up") / taking_part),
                human_bytes(history.total("bytes_down")),
                *spent(run, target),
                f"{sum(sum((r.seconds or {}).values()) for r in history):.0f}",
            )
        )
    header = ("", "loss", "accuracy %", "sent up", "a client and round", "sent down")
    lines = [
        "# 539 writers, a tenth of them a round",
        "",
        "Made by `python -m fedfw_reproduction.bench.writers --write`; the task stands at the top of that file.",
        machine(),
        "",
        f"{options.rounds} rounds. The columns after `sent down` say when the loss {target:.4f} (the highest end)",
        "was first reached, and the last one the seconds of the whole run with an evaluation after every round.",
        "",
        *markdown((*header, "rounds", "up by then", "down by then", "seconds"), rows),
    ]
    publish(lines, "writers.md" if options.write else None)


if __name__ == "__main__":
    main()
