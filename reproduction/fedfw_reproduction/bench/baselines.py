"""Every algorithm at its defaults on MNIST softmax regression: 10 clients, 3 labels each, 100 rounds of one full step.

    python -m fedfw_reproduction.bench.baselines             print the tables
    python -m fedfw_reproduction.bench.baselines --tune      and first run the grid of each (a quarter of an hour)
    python -m fedfw_reproduction.bench.baselines --write     and put them into docs/baselines.md

The residual is (F - F*) / (F(x^1) - F*) with F* from `fedfw.solve`. The grids are those of `fedfw tune`: at most twelve
points, the same number of gradients for each, chosen by the loss on a fifth of the training data that the clients lend.
"""

from __future__ import annotations

import argparse
import sys

import torch

import fedfw
from fedfw.config import RunConfig, build_algorithm, build_problem, completed, load
from fedfw.data import Data
from fedfw.options import options_of
from fedfw.report.tables import human_bytes
from fedfw.tuning import HELD_OUT
from fedfw_reproduction.bench.pages import machine, markdown, publish

SETS = ("l2:10", "l1:10")
NAMES = tuple(name for name in fedfw.ALGORITHMS if name not in ("fedfw-sto", "naive"))


def configuration(name: str, constraint: str, options: argparse.Namespace) -> RunConfig:
    return RunConfig.of(
        dataset="mnist",
        data_dir=options.data_dir,
        partition="labels:3",
        algorithm=name,
        constraint=constraint,
        rounds=100,
        device=options.device,
    )


def tuned(config: RunConfig, problem: fedfw.Problem) -> RunConfig:
    """The best of the algorithm's grid on the lent samples."""
    best = fedfw.tune(problem, build_algorithm(config), rounds=config.rounds, device=config.device).best
    print(f"... {config.algorithm} on {config.constraint}: {best.choice}", file=sys.stderr, flush=True)
    return config.having(**best.choice, rounds=best.rounds)


def row(config: RunConfig, problem: fedfw.Problem, optimum: fedfw.Optimum) -> tuple[str, ...]:
    print(f"... {config.algorithm} on {config.constraint}", file=sys.stderr, flush=True)
    rounds = config.rounds  # a grid's best may have had fewer: an anchor costs a gradient too
    run = fedfw.simulate(problem, build_algorithm(config), rounds=rounds, eval_every=rounds, device=config.device)
    last = run.history[-1]
    assert last.loss is not None
    assert last.accuracy is not None
    options = ("penalty", "momentum", "anchor_every", "lr", "eta", "alpha", "beta", "strong", "schedule", "graph")
    own = options_of(type(run.algorithm))
    chosen = (f"{name.replace('_', '-')} {getattr(run.algorithm, name)}" for name in options if name in own)
    total = sum(sum((r.seconds or {}).values()) for r in run.history)
    return (
        f"`{config.algorithm}`",
        ", ".join(text for text in chosen if not text.endswith((" None", " 0.0"))) or "-",
        f"{100 * last.accuracy:.1f}",
        f"{optimum.residual(last.loss):.4f}",
        human_bytes(run.history.total("bytes_up")),
        human_bytes(run.history.total("bytes_down")),
        f"{total:.1f}",
    )


def section(constraint: str, data: Data, options: argparse.Namespace) -> list[str]:
    configs = [completed(configuration(name, constraint, options), data) for name in NAMES]
    configs.insert(2, configs[1].having(momentum=0.9))
    problem = build_problem(configs[0], data)
    print(f"... the optimum on {constraint}", file=sys.stderr, flush=True)
    problem = problem.to(torch.device(options.device))
    optimum = fedfw.solve(problem, fedfw.parse_set(constraint), tol=2e-3, max_steps=2000)
    header = ("", "chosen", "accuracy %", "residual", "sent up", "sent down", "seconds")
    test = problem.test(optimum.x)
    assert test.accuracy is not None
    lines = [
        f"## {constraint}",
        "",
        f"F* is between {optimum.lower_bound:.5f} and {optimum.value:.5f} (`fedfw solve`); the optimum itself scores "
        f"{100 * test.accuracy:.1f} %. At the defaults:",
        "",
        *markdown(header, [row(config, problem, optimum) for config in configs]),
        "",
    ]
    if options.tune:
        lent = build_problem(configs[0], data, HELD_OUT).to(torch.device(options.device))
        best = [tuned(config, lent) for config in configs if config.get("momentum") is None]
        lines += ["Each one's best on its grid:", ""]
        lines += [*markdown(header, [row(config, problem, optimum) for config in best]), ""]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder with mnist ($FEDFW_DATA)")
    parser.add_argument("--tune", action="store_true", help="also run every grid")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [%(default)s]")
    parser.add_argument("--write", action="store_true", help="write docs/baselines.md")
    options = parser.parse_args()
    data = load(configuration("fedfw", "l2:10", options))
    lines = [
        "# Every algorithm on the same task",
        "",
        "Made by `python -m fedfw_reproduction.bench.baselines --tune --write`;",
        "the task stands at the top of that file.",
        machine(options.device),
        "",
    ]
    for constraint in SETS:
        lines += section(constraint, data, options)
    publish(lines[:-1], "baselines.md" if options.write else None)


if __name__ == "__main__":
    main()
